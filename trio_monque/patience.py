"""How long an answer that is on its way is awaited although its caller was cancelled.

What was sent to the database may be applied, so its answer is worth a wait that cancellation does not
end: but not one without end. In a run, the wait ends with the run's clean-up, and so before its lease;
elsewhere it lasts as long as the owner of the database threads wants to wait. Only on trio.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

import trio


class Patient(Protocol):
    """A run, or another owner of calls, whose answers are awaited."""

    @property
    def answers(self) -> Patience: ...


class Patience:
    """Whose waits end together. Only touched on the run's own thread."""

    __slots__ = ("_is_dismissed", "_is_over", "_scopes", "_until")

    def __init__(self, until: float = math.inf) -> None:
        """`until` as for `end_at`."""
        self._until = until
        self._is_over = False
        self._is_dismissed = False
        self._scopes: dict[trio.CancelScope, None] = {}

    @property
    def answers(self) -> Patience:
        """Its own: see `Patient`."""
        return self

    @property
    def is_dismissed(self) -> bool:
        return self._is_dismissed

    def end_at(self, moment: float) -> None:
        """Waits last no longer than this, on trio's clock; the moment may be moved."""
        self._until = math.inf if self._is_dismissed else moment
        for scope in tuple(self._scopes):
            scope.deadline = self._until

    def dismiss(self) -> None:
        """Who it was for has ended: tasks that were started there, and go on elsewhere, are bound by it no more."""
        self._is_dismissed = True
        self.end_at(math.inf)

    def end(self) -> None:
        """From now on, cancellation ends waits as it ends any other. Who is not cancelled waits on."""
        self._is_over = True
        for scope in tuple(self._scopes):
            scope.shield = False

    @contextmanager
    def waiting(self, scope: trio.CancelScope) -> Iterator[None]:
        """While inside, the scope, which is entered by the caller, ends with this patience."""
        scope.deadline = self._until
        self._scopes[scope] = None
        try:
            yield
        finally:
            del self._scopes[scope]

    def shield(self, scope: trio.CancelScope) -> None:
        """From now on it is worth waiting."""
        scope.shield = not self._is_over


def _dismissed() -> Patience:
    patience = Patience()
    patience.dismiss()
    return patience


DISMISSED: Final = _dismissed()
"""That of everybody who has ended and was never waited for."""

# Not the patience itself: most runs ask for nothing, and theirs is made when they do. By task, as there may be ten
# thousand: to change the context of each would be a tenth of what a run takes, and more where the program's has much.
_of_tasks: Final[dict[trio.lowlevel.Task, Patient]] = {}
# For what comes back from threads, which may be in a task of its own.
_of_context: ContextVar[Patient | None] = ContextVar("patience", default=None)


def patience_of_task() -> Patience | None:
    """That of the run, or of whatever else, that this task belongs to, while that goes on."""
    patient = _around(trio.lowlevel.current_task()) or _of_context.get()
    patience = None if patient is None else patient.answers
    return None if patience is None or patience.is_dismissed else patience


def _around(task: trio.lowlevel.Task) -> Patient | None:
    """Of the task, or the next one around it, that has one."""
    while (patient := _of_tasks.get(task)) is None:
        if task.parent_nursery is None:
            return None
        task = task.parent_nursery.parent_task
    return patient


@contextmanager
def with_patience(patient: Patient) -> Iterator[None]:
    """Whatever this task asks inside is awaited as long as its patience lasts; so it is for the tasks in its
    nurseries, and for the threads that it waits for.
    """
    task = trio.lowlevel.current_task()
    before = _of_tasks.get(task)
    _of_tasks[task] = patient
    token = _of_context.set(patient)
    try:
        yield
    finally:
        _of_context.reset(token)
        if before is None:
            del _of_tasks[task]
        else:
            _of_tasks[task] = before


def keep_patience(task: trio.lowlevel.Task, patient: Patient) -> None:
    """The same for a task and those in its nurseries, but not for threads; until it is dropped."""
    _of_tasks[task] = patient


def drop_patience(task: trio.lowlevel.Task) -> None:
    del _of_tasks[task]
