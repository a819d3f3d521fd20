"""EndWatcher: finds out when jobs end, for all callers of one client that wait for some. Two threads at most.

The *follower* reads a change stream, and passes ids on. The *looker* looks at the jobs themselves, and ends waits. Both
run only while there are waits. Races that this file closes:

- A job ends between the caller's own look and the opening of the stream. So each opening is followed by a look at all
  jobs that are waited for. A stream that breaks is never resumed, but opened anew: then the same look follows. If the
  stream is open already, the jobs of a new wait are looked at once more.
- The stream reports an end that a majority does not hold yet. An election may undo it, so it does not count: the looker
  looks again soon, until a majority holds it or the job is live again.
- A look does not find a job that exists, because an election is going on. `gone_among` proves which are gone. Until it
  is answered, the waits whose ends were found do not wait for it.
- A wait begins while the threads are about to end, because there was none. Both decide under one lock.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Set
from contextlib import contextmanager
from typing import Final, Protocol

from ..error_types import MonqueConnectionError, MonqueError
from ..log import logger_of
from ..store.driver.types import ObjectId, Timestamp
from ..store.job_collection import JobCollection
from ..store.jobs.change_stream import NoStreamError
from ..store.jobs.ended_jobs import EndedLook, EndStream, gone_among, look_at, open_end_stream
from ..threads_and_frozen_time import starting_thread
from .job_wait import AGAIN_AFTER, OnEnd

logger = logger_of()

POLL_WITHOUT_STREAM: Final = 1.0
POLL_BESIDE_STREAM: Final = 30.0
"""Seconds between looks at all jobs."""

LONGEST_PAUSE: Final = 1.0
"""Seconds before another try, after an error or an end that no majority holds yet."""

STREAM_WAIT: Final = 1.0
"""Seconds after which the follower notices that there are no waits any more."""


class EndWait(Protocol):
    """A wait for ends, as the watcher needs it: a JobWait, or the ChildEnds of a job nursery.

    Attributes:
        ids: All jobs that it has ever waited for.
        live: Those whose ends are not known yet.
        is_over: Nothing needs to be reported to it any more.
    """

    @property
    def ids(self) -> Iterable[ObjectId | str]: ...

    @property
    def live(self) -> set[ObjectId]: ...

    @property
    def is_over(self) -> bool: ...

    def take(self, found: EndedLook, gone: Iterable[ObjectId] = ...) -> None:
        """Note what a look found, and which jobs are gone for certain."""
        ...

    def fail(self, error: MonqueError, job_id: ObjectId | None = ...) -> None:
        """End the wait with this error."""
        ...


class ChildWait(EndWait, Protocol):
    """A wait that further jobs may join."""

    @property
    def ids(self) -> set[ObjectId]: ...


def look(jobs: JobCollection, ids: Collection[ObjectId]) -> tuple[EndedLook, set[ObjectId]]:
    """Look at the jobs. Return what was found, and which of them are gone for certain."""
    found = look_at(jobs, ids)
    return found, gone_among(jobs, found.unseen)


class EndWatcher:
    """The waits of one client. All its attributes are read and written under the lock.

    Attributes:
        fault: Why the last look failed; None if it succeeded.
    """

    def __init__(self, jobs: JobCollection) -> None:
        self.fault: MonqueConnectionError | None = None
        self._jobs = jobs
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waits: dict[EndWait, OnEnd] = {}
        self._of_job: defaultdict[ObjectId, set[EndWait]] = defaultdict(set)
        self._new: set[ObjectId] = set()
        self._reported: set[ObjectId] = set()
        self._later: list[tuple[float, float, ObjectId]] = []  # When to look again, and after which pause.
        self._poll_at = 0.0
        self._is_following = False
        self._since: Timestamp | None = None  # From when on the stream reports ends.
        self._has_looker = self._has_follower = False

    @contextmanager
    def waiting(self, wait: EndWait, on_end: OnEnd, fault: MonqueConnectionError | None = None) -> Iterator[None]:
        """Call `on_end` once when the wait is over, for as long as the block lasts.

        Args:
            wait: The wait. Its caller has looked at the jobs.
            on_end: See OnEnd.
            fault: Why that look failed, if it did.

        Raises:
            ShortageError: The process cannot start a thread.
        """
        with self._changed:
            self._waits[wait] = on_end
            for job_id in wait.live:
                self._of_job[job_id].add(wait)
            if self._is_following or fault is not None:
                # Again, although the caller has looked: a job may have ended since then, and the stream has said so.
                self._new |= wait.live
            elif not self._has_looker:
                # The opening of the stream is followed by a look at all. Another one before it would find nothing new.
                self._poll_at = time.monotonic() + POLL_WITHOUT_STREAM
            self.fault = fault or self.fault
            self._changed.notify_all()
        try:
            self._start_threads()
            yield
        finally:
            with self._changed:
                self._forget(wait)
                self._changed.notify_all()

    def add(self, wait: ChildWait, ids: Set[ObjectId]) -> None:
        """Add jobs to a wait that is watched, and look at them once, soon."""
        with self._changed:
            wait.ids.update(ids)
            wait.live.update(ids)
            if wait not in self._waits:
                return  # It is over.
            for job_id in ids:
                self._of_job[job_id].add(wait)
            if self._is_following:
                self._new |= ids  # One may have ended since it was stored, and the stream may have reported that.
            self._changed.notify_all()

    def _start_threads(self) -> None:
        with self._lock:
            starts_looker, self._has_looker = not self._has_looker, True
            starts_follower, self._has_follower = not self._has_follower, True
        try:
            if starts_looker:
                _start("monque-looker", self._look_while_there_are_waits)
            starts_looker = False
            if starts_follower:
                _start("monque-follower", self._follow_while_there_are_waits)
            starts_follower = False
        finally:
            if starts_looker or starts_follower:
                with self._lock:
                    self._has_looker = self._has_looker and not starts_looker
                    self._has_follower = self._has_follower and not starts_follower

    # --- Under the lock ---

    def _forget(self, wait: EndWait) -> None:
        self._waits.pop(wait, None)
        for job_id in wait.ids:
            if isinstance(job_id, ObjectId) and (waits := self._of_job.get(job_id)) is not None:
                waits.discard(wait)
                if not waits:
                    del self._of_job[job_id]

    def _due(self, now: float) -> dict[ObjectId, float | None]:
        """Take the jobs to look at now. One that seems to have ended has its pause as its value, the others None."""
        due: dict[ObjectId, float | None] = dict.fromkeys(self._new)
        if self._poll_at <= now:
            due |= dict.fromkeys(self._of_job)
            self._poll_at = now + (POLL_BESIDE_STREAM if self._is_following else POLL_WITHOUT_STREAM)
        while self._later and self._later[0][0] <= now:
            _, pause, job_id = heapq.heappop(self._later)
            due[job_id] = pause
        due |= dict.fromkeys(self._reported, 0.0)
        self._new.clear()
        self._reported.clear()
        return {job_id: pause for job_id, pause in due.items() if job_id in self._of_job}

    # --- The looker ---

    def _look_while_there_are_waits(self) -> None:
        pause = AGAIN_AFTER
        while True:
            with self._changed:
                if not self._waits:
                    self._has_looker, self.fault = False, None
                    self._new.clear()
                    self._reported.clear()
                    self._later.clear()
                    return
                now = time.monotonic()
                due, since = self._due(now), self._since
                if not due:
                    next_at = min([self._poll_at, *(entry[0] for entry in self._later[:1])])
                    self._changed.wait(max(next_at - now, 0.0))
                    continue
            try:
                found = look_at(self._jobs, due, since)
                self._settle(found, ())
                self._settle(EndedLook(), gone_among(self._jobs, found.unseen))
            except MonqueConnectionError as error:
                if not error.transient:
                    self._fail_all(error)
                    continue
                # An election, for example. The callers wait as long as they want to; the same jobs are due again.
                level = logging.WARNING if pause == AGAIN_AFTER else logging.DEBUG
                logger.log(level, "%s; retrying (waits for jobs continue)", error)
                with self._lock:
                    self.fault = error
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                with self._lock:
                    for job_id, reported in due.items():
                        (self._new if reported is None else self._reported).add(job_id)
            except BaseException as error:  # noqa: BLE001  # A bug: the callers get it.
                self._fail_all(_bug(error))
            else:
                pause = AGAIN_AFTER
                self._look_again_at(due, found.unseen)

    def _settle(self, found: EndedLook, gone: Collection[ObjectId]) -> None:
        over: list[OnEnd] = []
        with self._changed:
            touched = {
                wait for job_id in (*found.ended, *found.recurring, *gone) for wait in self._of_job.get(job_id, ())
            }
            for wait in touched:
                wait.take(found, gone)
                if wait.is_over:
                    over.append(self._waits[wait])
                    self._forget(wait)
            # A nursery goes on waiting for other children: without this, each child that has ended would be read again
            # until the wait is over.
            for job_id in (*found.ended, *found.recurring, *gone):
                waits = {wait for wait in self._of_job.get(job_id, ()) if job_id in wait.live}
                if waits:
                    self._of_job[job_id] = waits
                else:
                    self._of_job.pop(job_id, None)
        for on_end in over:
            on_end()

    def _look_again_at(self, due: dict[ObjectId, float | None], unseen: set[ObjectId]) -> None:
        """After a look: plan the next one at the jobs that a majority will soon know more about."""
        with self._changed:
            self.fault = None
            now = time.monotonic()
            for job_id, reported in due.items():
                # Those that the stream reported, or that could not be found.
                before = 0.0 if reported is None and job_id in unseen else reported
                if job_id in self._of_job and before is not None and before < LONGEST_PAUSE:
                    pause = min(max(2 * before, AGAIN_AFTER), LONGEST_PAUSE)
                    heapq.heappush(self._later, (now + pause, pause, job_id))

    def _fail_all(self, error: MonqueError) -> None:
        with self._changed:
            over = list(self._waits.items())
            for wait, _ in over:
                wait.fail(error)
                self._forget(wait)
        for _, on_end in over:
            on_end()

    # --- The follower ---

    def _follow_while_there_are_waits(self) -> None:
        pause = AGAIN_AFTER
        while True:
            with self._lock:
                if not self._waits:
                    self._has_follower = False
                    return
            try:
                stream = open_end_stream(self._jobs)
            except NoStreamError:
                # The looker polls. The thread ends, and the next wait asks again: rights may be given meanwhile.
                with self._lock:
                    self._has_follower = False
                return
            except MonqueConnectionError:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            except BaseException as error:  # noqa: BLE001  # A bug.
                with self._lock:
                    self._has_follower = False
                self._fail_all(_bug(error))
                return
            pause = AGAIN_AFTER
            try:
                self._follow(stream)
            except MonqueConnectionError:
                pass  # It is opened anew, and all jobs are looked at then. Until then the looker polls.
            except BaseException as error:  # noqa: BLE001  # A bug.
                self._fail_all(_bug(error))
            finally:
                stream.close()
                with self._changed:
                    self._is_following = False
                    self._poll_at = min(self._poll_at, time.monotonic() + POLL_WITHOUT_STREAM)
                    self._changed.notify_all()

    def _follow(self, stream: EndStream) -> None:
        with self._changed:
            self._is_following, self._since = True, stream.since
            self._poll_at = 0.0  # What ended before the stream was open, it does not report.
            self._changed.notify_all()
        while stream.is_open:
            reported = stream.read(STREAM_WAIT)
            with self._changed:
                if not self._waits:
                    return
                if known := reported & self._of_job.keys():
                    self._reported |= known
                    self._changed.notify_all()


def _start(name: str, work: OnEnd) -> None:
    # Daemons: a wait of the server for changes must not hold up the end of the program.
    with starting_thread(work) as started:
        threading.Thread(target=started, name=name, daemon=True).start()


def _bug(error: BaseException) -> MonqueError:
    bug = MonqueError(f"the wait for jobs failed: {type(error).__name__}: {error}")
    bug.__cause__ = error
    return bug
