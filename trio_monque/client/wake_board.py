"""The wake board: joins those who make jobs with the schedulers of the same run and collection.

A scheduler in virtual time does not poll, so what a client of its run did must reach it here: that there
is something to look for now, that a job is due later, or that a transaction is open which may hold jobs.
What another process or a driver used by hand does arrives by the change stream or by polling in
production, and in tests by the kit, which has every scheduler look before it moves the clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import trio

from ..clock import virtual_time
from ..jobs.job import Job, JobStatus
from ..store.types import ClientSession
from ..threads import do_on_run
from .operation import Caused


class Neighbour(Protocol):
    """A scheduler of the run. Called on the run's own thread."""

    @property
    def instance_id(self) -> str:
        """Its name in the database."""
        ...

    def look(self) -> None:
        """Something may be due now."""

    def expect(self, jobs: Sequence[Job], *, new: bool) -> None:
        """These jobs are pending, at least one. If `new`, they were just inserted, or were found to be there."""

    def look_while(self, is_open: Callable[[], bool]) -> None:
        """Jobs may appear, unannounced, for as long as `is_open` and right after."""

    def look_for_the_dead(self) -> None:
        """Look for claims of dead instances: one of the run has ended."""

    def watch(self, is_idle: Callable[[], bool]) -> None:
        """Another one has claimed something, and holds it until it is idle."""

    def look_for_pauses(self) -> None:
        """Look which names are paused: that may have changed."""

    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits to be settled or given back."""
        ...

    async def wait_changed(self) -> None:
        """Returns when something of that has changed."""


_board_of_run: trio.lowlevel.RunVar[dict[str, list[Neighbour]]] = trio.lowlevel.RunVar("monque_wake_board")


def _board() -> dict[str, list[Neighbour]]:
    try:
        return _board_of_run.get()
    except LookupError:
        board: dict[str, list[Neighbour]] = defaultdict(list)
        _board_of_run.set(board)
        return board


@contextmanager
def on_the_board(namespace: str, neighbour: Neighbour) -> Iterator[None]:
    """While inside, the scheduler is woken for the collection's jobs."""
    board = _board()
    board[namespace].append(neighbour)
    try:
        yield
    finally:
        board[namespace].remove(neighbour)
        for left in board[namespace]:
            left.look_for_the_dead()
            left.watch(lambda: False)  # What it had sent at its end may be applied only after that look.


class Announcer:
    """Tells the schedulers of this run of jobs that a client made or changed.

    From a task or from a thread that works for one; without a trio run it does nothing. Two
    servers may hold a collection of the same name: that costs the wrong scheduler one look.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def announce(self, jobs: Sequence[Job], session: ClientSession | None = None, *, new: bool = False) -> None:
        """These jobs are there now, or they are `new`; those that are not pending mean nothing."""
        pending = [job for job in jobs if job.status is JobStatus.PENDING]
        if not pending:
            return
        if session is not None and session.in_transaction:
            self._tell(lambda neighbour: neighbour.look_while(lambda: session.in_transaction))
        else:
            self._tell(lambda neighbour: neighbour.expect(pending, new=new))

    def announce_unknown(self) -> None:
        """Make the schedulers look: there may be due jobs that cannot be named."""
        self._tell(lambda neighbour: neighbour.look())

    def deliver(self, caused: Caused) -> None:
        """Wake schedulers for what an operation caused, once."""
        if caused.jobs:
            self.announce(caused.jobs, caused.session, new=caused.are_new)
        if caused.may_be_due:
            self.announce_unknown()
        if caused.changed_pauses:
            self._tell(lambda neighbour: neighbour.look_for_pauses())
        caused.jobs, caused.may_be_due, caused.changed_pauses = (), False, False

    def _tell(self, what: Callable[[Neighbour], None]) -> None:
        def tell_all() -> None:
            for neighbour in neighbours(self._namespace):
                what(neighbour)

        do_on_run(tell_all)


def neighbours(namespace: str) -> Sequence[Neighbour]:
    """The schedulers of this run that work on the collection. On the run's own thread."""
    return tuple(_board()[namespace])


def instances_here(namespace: str) -> frozenset[str]:
    """The ids of the schedulers of this run that work on the collection; in virtual time only, where they do not beat.

    From a task or from a thread that works for one.
    """
    found: set[str] = set()
    if virtual_time() is not None:
        do_on_run(lambda: found.update(neighbour.instance_id for neighbour in neighbours(namespace)))
    return frozenset(found)


def have_all_look() -> None:
    """Every scheduler of this run looks for work, whatever its collection."""
    for neighbours in list(_board().values()):
        for neighbour in list(neighbours):
            neighbour.look()
            neighbour.look_for_pauses()
            neighbour.look_for_the_dead()
