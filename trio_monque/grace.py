"""Grace: how long a cancelled caller still waits for an answer that is on its way.

The database may have applied what was sent, so the answer is worth a wait that cancellation does not end, but not
an endless one. In a run, that wait ends with the run's clean-up, and so before its lease ends. Elsewhere it lasts until
the owner of the database threads calls `end`. Only on trio.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

import trio


class GraceOwner(Protocol):
    """A run, or anything else that calls the database."""

    @property
    def grace(self) -> Grace: ...

    @property
    def seconds_left(self) -> float:
        """How much longer answers are awaited, as things stand; in any thread."""
        ...


class Grace:
    """Waits that end together. Touch it only on the trio thread of its owner.

    Attributes:
        scopes: The waits. They end at `until`.
        until: See `end_at`.
        is_over: Cancellation ends these waits at once.
        is_dismissed: It is no longer used.
    """

    __slots__ = ("is_dismissed", "is_over", "scopes", "until")

    def __init__(self, until: float = math.inf) -> None:
        self.until = until
        self.is_over = False
        self.is_dismissed = False
        self.scopes: dict[trio.CancelScope, None] = {}

    @property
    def grace(self) -> Grace:
        """Itself, so that it can stand for its owner (see `GraceOwner`)."""
        return self

    @property
    def seconds_left(self) -> float:
        """See `GraceOwner`. The moment of `end_at` does not count here: it is that of a run, which is its own owner."""
        return 0.0 if self.is_over else math.inf

    def end_at(self, moment: float) -> None:
        """Limit the waits to this moment of trio's clock. A later call moves it."""
        self.until = math.inf if self.is_dismissed else moment
        for scope in tuple(self.scopes):
            scope.deadline = self.until

    def dismiss(self) -> None:
        """The owner has ended: its grace is no longer used."""
        # Tasks that were started in a run may go on elsewhere, in a nursery of the program. The end of the run must not
        # limit their calls.
        self.is_dismissed = True
        self.end_at(math.inf)

    def end(self) -> None:
        """From now on, cancellation ends these waits at once."""
        # Only the shields go: a caller that is not cancelled may still wait for its answer.
        self.is_over = True
        for scope in tuple(self.scopes):
            scope.shield = False

    @contextmanager
    def waiting(self, scope: trio.CancelScope) -> Iterator[None]:
        """While inside, `scope` has the deadline of this grace. The caller enters the scope itself."""
        scope.deadline = self.until
        self.scopes[scope] = None
        try:
            yield
        finally:
            del self.scopes[scope]

    def shield(self, scope: trio.CancelScope) -> None:
        """From now on, cancellation waits for the answer to the call in `scope`. Call it when the call is sent."""
        # Not earlier: a call that still waits for its turn has changed nothing, and may be cancelled at once.
        scope.shield = not self.is_over


def _dismissed() -> Grace:
    grace = Grace()
    grace.dismiss()
    return grace


DISMISSED: Final = _dismissed()
"""Shared by all owners that ended without a call to the database."""

# It holds owners, because most runs call nothing and make their grace only when asked for it. It is keyed by task,
# because there may be ten thousand: changing the context of each would take a tenth of the time of a run, and more
# where the program has many context variables.
OWNERS: Final[dict[trio.lowlevel.Task, GraceOwner]] = {}
"""The owners of tasks: for these and their nurseries, and not for threads. The engine enters each run, so it is
empty while nothing runs in this process."""

# For calls back from threads, which may run in a task of their own: a thread takes the context along.
_of_context: ContextVar[GraceOwner | None] = ContextVar("grace", default=None)


def grace_of_task() -> Grace | None:
    """Return the grace of the owner that the current task runs in, or None if it has no owner, or that has ended."""
    owner = grace_owner_of_task()
    grace = None if owner is None else owner.grace
    return None if grace is None or grace.is_dismissed else grace


def grace_owner_of_task() -> GraceOwner | None:
    """Return the owner of that grace. Unlike `grace_of_task`, this does not make the grace."""
    return _around(trio.lowlevel.current_task()) or _of_context.get()


def grace_owner_of_context() -> GraceOwner | None:
    """Return the owner that this task carries. For tasks of other loops than trio's, such as a handler on asyncio."""
    return _of_context.get()


def carry_grace(owner: GraceOwner | None) -> None:
    """From now on in this context, that of a task in another event loop, calls have the grace of `owner`.

    None where a run begins in the context of a handler: that handler does not limit what it calls.
    """
    _of_context.set(owner)


def _around(task: trio.lowlevel.Task) -> GraceOwner | None:
    """Return the owner of the task, or of the nearest task around it that has one."""
    while (owner := OWNERS.get(task)) is None:
        if task.parent_nursery is None:
            return None
        task = task.parent_nursery.parent_task
    return owner


@contextmanager
def using_grace(owner: GraceOwner) -> Iterator[None]:
    """Inside, the grace of `owner` is for the calls of this task, of its nurseries, and of threads it waits for."""
    task = trio.lowlevel.current_task()
    before = OWNERS.get(task)
    OWNERS[task] = owner
    token = _of_context.set(owner)
    try:
        yield
    finally:
        _of_context.reset(token)
        if before is None:
            del OWNERS[task]
        else:
            OWNERS[task] = before
