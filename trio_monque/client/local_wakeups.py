"""Local wakeups: a client wakes the schedulers of the same trio run and collection, and tasks that wait for jobs.

A scheduler in virtual time does not poll, so a client of its run must announce here that a job may be due now, that a
job is due later, or that a transaction is open which may contain jobs. Changes by other processes, or by a program that
uses the driver directly, arrive by the change stream and by polls; in tests, the clock of the testing kit makes every
scheduler look before it moves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Final, Protocol

import trio

from ..clock import virtual_time
from ..jobs.job import Job, JobStatus
from ..loops import post_to_runs
from ..store.driver.types import ClientSession
from .operation import Caused


class LocalScheduler(Protocol):
    """A scheduler of this trio run. All calls are made on the thread of the run."""

    @property
    def instance_id(self) -> str:
        """The id of this instance in the database."""
        ...

    def look(self) -> None:
        """Ask the database for due jobs now."""

    def expect(self, jobs: Sequence[Job], *, new: bool) -> None:
        """Set timers for these pending jobs (at least one).

        Args:
            jobs: Pending jobs.
            new: The jobs were just inserted, or an insert found that they exist.
        """

    def look_while(self, is_open: Callable[[], bool]) -> None:
        """Look repeatedly while `is_open()` is true and once after: a transaction may commit jobs at any time."""

    def look_for_the_dead(self) -> None:
        """Look for claims of dead instances: a scheduler of this run has ended."""

    def watch(self, is_idle: Callable[[], bool]) -> None:
        """Watch the claims of another scheduler of this run, which holds claims until `is_idle()`."""

    def look_for_requests(self) -> None:
        """Look whether runs are asked to end: in virtual time, no change stream reports it."""

    def look_for_orphans(self) -> None:
        """Look for children of job nurseries whose parents have ended: a client has changed or deleted jobs."""

    def look_for_pauses(self) -> None:
        """Look up the paused names before the next claim: they may have changed."""

    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits to be settled or released."""
        ...

    def waits_for(self) -> Set[Hashable]:
        """Return the ids of the children that its parents wait for, if it does nothing else; otherwise nothing."""
        ...

    async def wait_changed(self) -> None:
        """Return when the answer of `is_idle` may have changed."""


_schedulers_of_run: trio.lowlevel.RunVar[dict[str, list[LocalScheduler]]] = trio.lowlevel.RunVar(
    "monque_local_schedulers"
)


def _schedulers_by_namespace() -> dict[str, list[LocalScheduler]]:
    try:
        return _schedulers_of_run.get()
    except LookupError:
        by_namespace: dict[str, list[LocalScheduler]] = defaultdict(list)
        _schedulers_of_run.set(by_namespace)
        return by_namespace


LISTENING: Final[set[object]] = set()
"""All schedulers of this process, and its open waits for jobs in virtual time. Without any, nothing is announced."""


@contextmanager
def receiving_wakeups(namespace: str, scheduler: LocalScheduler) -> Iterator[None]:
    """Wake this scheduler for jobs of the collection, for as long as the block."""
    by_namespace = _schedulers_by_namespace()
    by_namespace[namespace].append(scheduler)
    LISTENING.add(scheduler)
    try:
        yield
    finally:
        LISTENING.discard(scheduler)
        by_namespace[namespace].remove(scheduler)
        # This scheduler may have ended without a release of its claims, by a crash for example.
        for left in by_namespace[namespace]:
            left.look_for_the_dead()
            # The server may apply the last command of that scheduler only after this look. So look again later, as if
            # it were never idle.
            left.watch(lambda: False)


class Announcer:
    """Announces jobs that a client stored or changed to the schedulers of this run.

    May be called from a task, or from a thread that works for a task; without a trio run it does nothing. A collection
    of the same name may exist on two servers: then the wrong scheduler makes one needless look.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def announce(self, jobs: Sequence[Job], session: ClientSession | None = None, *, new: bool = False) -> None:
        """Announce the pending jobs among these.

        Args:
            jobs: Jobs that were stored or changed; jobs in another status are ignored.
            session: The caller's session. Within its transaction the schedulers look until it has ended.
            new: The jobs were inserted, or an insert found that they exist.
        """
        pending = [job for job in jobs if job.status is JobStatus.PENDING]
        if not pending:
            return
        if session is not None and session.in_transaction:
            # The jobs are visible only after the commit, which the program sends without this library.
            self._announce(lambda scheduler: scheduler.look_while(lambda: session.in_transaction))
        else:
            self._announce(lambda scheduler: scheduler.expect(pending, new=new))

    def announce_unknown(self) -> None:
        """Make the schedulers look: unknown jobs may be due."""
        self._announce(lambda scheduler: scheduler.look())

    def deliver(self, caused: Caused) -> None:
        """Wake schedulers for what an operation caused, once, and tasks that wait for the ends of jobs."""
        if not (caused.jobs and caused.are_new):  # Storing new jobs does not end any.
            announce_ends(self._namespace)
        if caused.jobs:
            self.announce(caused.jobs, caused.session, new=caused.are_new)
        if caused.may_be_due:
            self.announce_unknown()
        if self._namespace in WITH_NURSERIES and not caused.are_new and virtual_time() is not None:
            self._announce(lambda scheduler: scheduler.look_for_orphans())
        if caused.asked_to_end and virtual_time() is not None:
            self._announce(lambda scheduler: scheduler.look_for_requests())
        if caused.changed_pauses:
            self._announce(lambda scheduler: scheduler.look_for_pauses())
        # Cleared, so that after the next step only that step's effects are announced.
        caused.jobs, caused.may_be_due, caused.changed_pauses, caused.asked_to_end = (), False, False, False

    def _announce(self, what: Callable[[LocalScheduler], None]) -> None:
        def to_all() -> None:
            for scheduler in local_schedulers(self._namespace):
                what(scheduler)

        if LISTENING:
            post_to_runs(to_all)


def local_schedulers(namespace: str) -> Sequence[LocalScheduler]:
    """The schedulers of this run that work on the collection. Call it on the thread of the run."""
    # A copy: a scheduler that is called may end, and so leave the list.
    return tuple(_schedulers_by_namespace()[namespace])


def watch_claims(namespace: str, is_idle: Callable[[], bool]) -> None:
    """Let the other schedulers of this run watch the claims of one that holds some until `is_idle()`."""
    for scheduler in local_schedulers(namespace):
        if scheduler.is_idle != is_idle:  # It renews its own claims.
            scheduler.watch(is_idle)


def local_instance_ids(namespace: str) -> frozenset[str]:
    """The ids of this run's schedulers on the collection. Empty outside virtual time.

    In virtual time schedulers send no heartbeats, so their presence here is what proves that they are alive.
    May be called from a task, or from a thread that works for a task.
    """
    found: set[str] = set()
    if virtual_time() is not None:
        post_to_runs(lambda: found.update(scheduler.instance_id for scheduler in local_schedulers(namespace)))
    return frozenset(found)


def wake_all_schedulers() -> None:
    """Make every scheduler of this run look for work, on all collections."""
    for schedulers in list(_schedulers_by_namespace().values()):
        for scheduler in list(schedulers):
            scheduler.look()
            scheduler.look_for_pauses()
            scheduler.look_for_the_dead()


# --- Job nurseries ---

WITH_NURSERIES: Final[set[str]] = set()
"""The collections in which this process has opened job nurseries. Only there, schedulers look for orphans."""


# --- The ends of jobs ---


class LocalEnds:
    """In virtual time, what tells `wait_job` to look again: a job may have ended. On the thread of the run."""

    def __init__(self) -> None:
        self._happened = trio.Event()

    def happened(self) -> None:
        self._happened.set()

    async def wait(self) -> None:
        """Return when a job has ended since the last time."""
        await self._happened.wait()
        self._happened = trio.Event()


_ends_of_run: trio.lowlevel.RunVar[defaultdict[str, list[LocalEnds]]] = trio.lowlevel.RunVar("monque_local_ends")

WAITING: Final[set[LocalEnds]] = set()
"""Those waits alone."""


@contextmanager
def noticing_ends(namespace: str) -> Iterator[LocalEnds]:
    """Notice the ends of jobs of this collection, for as long as the block."""
    try:
        by_namespace = _ends_of_run.get()
    except LookupError:
        by_namespace = defaultdict(list)
        _ends_of_run.set(by_namespace)
    ends = LocalEnds()
    by_namespace[namespace].append(ends)
    WAITING.add(ends)
    LISTENING.add(ends)
    try:
        yield ends
    finally:
        by_namespace[namespace].remove(ends)
        WAITING.discard(ends)
        LISTENING.discard(ends)


def announce_ends(namespace: str) -> None:
    """Say that a job of this collection may have ended. From a task, or from a thread that works for one."""
    if WAITING:
        post_to_runs(lambda: _ends_happened(namespace))


def _ends_happened(namespace: str) -> None:
    for ends in _ends_of_run.get(defaultdict(list))[namespace]:
        ends.happened()
