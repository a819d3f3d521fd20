"""The wake board: joins those who make jobs with the schedulers of the same run and collection.

A scheduler in virtual time does not poll, so what a client of its run did must reach it here: that there
is something to look for now, that a job is due later, or that a transaction is open which may hold jobs.
Whoever is not of this run (another process, a driver used by hand) is heard through polls in production,
and in tests by the kit, which has every scheduler look before it moves the clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Protocol

import trio

from ..jobs.job import Job, JobStatus
from ..store.types import ClientSession
from ..threads import do_on_run


class Neighbour(Protocol):
    """A scheduler of the run. Called on the run's own thread."""

    def look(self) -> None:
        """Something may be due now."""

    def expect(self, due: datetime) -> None:
        """A job is due then."""

    def look_while(self, is_open: Callable[[], bool]) -> None:
        """Jobs may appear, unannounced, for as long as `is_open` and right after."""


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
    """While inside: the scheduler hears of the collection's jobs."""
    board = _board()
    board[namespace].append(neighbour)
    try:
        yield
    finally:
        board[namespace].remove(neighbour)


def announce(namespace: str, jobs: Sequence[Job], session: ClientSession | None = None) -> None:
    """Tells the schedulers of this run of jobs that were made or changed; those that are not pending mean nothing.

    From a task or from a thread that works for one; where no trio run is, there is nobody to tell. Two
    servers may hold a collection of the same name: that costs the wrong scheduler one look.
    """
    pending = [job.next_run_at for job in jobs if job.status is JobStatus.PENDING]
    if not pending:
        return
    if session is not None and session.in_transaction:
        _tell(namespace, lambda neighbour: neighbour.look_while(lambda: session.in_transaction))
    else:
        due = min(pending)
        _tell(namespace, lambda neighbour: neighbour.expect(due))


def announce_unknown(namespace: str) -> None:
    """Tells them that there may be jobs that nobody knows."""
    _tell(namespace, lambda neighbour: neighbour.look())


def _tell(namespace: str, what: Callable[[Neighbour], None]) -> None:
    def tell_all() -> None:
        for neighbour in list(_board()[namespace]):
            what(neighbour)

    do_on_run(tell_all)


def have_all_look() -> None:
    """Every scheduler of this run looks for work, whatever its collection."""
    for neighbours in list(_board().values()):
        for neighbour in list(neighbours):
            neighbour.look()
