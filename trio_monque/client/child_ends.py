"""ChildEnds: waits for the children of one job nursery. Children join while it waits, and it reports each end at once.

In real time, the threads of `EndWatcher` call it under their lock, and it posts the ends to the event loop of the
nursery. Virtual time has no such threads: there, `follow` itself looks at the children, each time a job ends in this
trio run (see `job_wait_calls.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from weakref import WeakKeyDictionary

import anyio

from ..clock import virtual_time
from ..error_types import InvalidOptionError, MonqueConnectionError, MonqueError
from ..jobs.ended_job_errors import JobDeletedError
from ..jobs.job import Job
from ..loops import current_loop
from ..store.driver.database_threads import DatabaseThreads
from ..store.driver.types import ObjectId
from ..store.job_collection import JobCollection
from ..store.jobs.ended_jobs import EndedLook
from .job_wait_polling import LONGEST_PAUSE, EndWatcher, look
from .local_wakeups import LocalEnds, noticing_ends

Ends = Sequence[tuple[ObjectId, Job | MonqueError]]


class ChildEnds:
    """See the top of this file. Make it on the event loop of the nursery.

    Args:
        ended: Called on that loop with ends, each one once: the job as it ended, or the error of a child without a job.
        failed: Called on that loop with the error after which no end can be found any more.

    Attributes:
        ids: All jobs that it has ever waited for.
        live: Those whose ends are not known yet.
        is_over: Whether it has stopped reporting ends.
    """

    def __init__(self, ended: Callable[[Ends], object], failed: Callable[[MonqueError], object]) -> None:
        self.ids: set[ObjectId] = set()
        self.live: set[ObjectId] = set()
        self.is_over = False
        self._ended = ended
        self._failed = failed
        self._loop = current_loop()
        self._watcher: EndWatcher | None = None
        self._added = anyio.Event()

    # --- On the loop of the nursery ---

    def add(self, ids: Iterable[ObjectId]) -> None:
        """Wait for these jobs, too. A job that has ended and runs again may be added once more."""
        new = set(ids)
        if self._watcher is None:
            self.ids |= new
            self.live |= new
        else:
            self._watcher.add(self, new)
        self._added.set()

    async def follow(
        self,
        jobs: JobCollection,
        db_threads: DatabaseThreads,
        watcher: EndWatcher,
        work: Callable[[], Awaitable[None]],
    ) -> None:
        """Run `work`, and report ends meanwhile. It begins with the first child."""
        await self._added.wait()
        if virtual_time() is not None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._look_at_each_end, jobs, db_threads, looks_together_of(watcher))
                await work()
            return
        # No task of its own: ten thousand parents may wait in one process.
        with watcher.waiting(self, lambda: None):
            self._watcher = watcher
            await work()

    async def _look_at_each_end(
        self, jobs: JobCollection, db_threads: DatabaseThreads, together: LooksTogether
    ) -> None:
        with noticing_ends(jobs.collection.full_name) as ends, together.taking_part(self, ends):
            while True:
                fault = await together.look(jobs, db_threads)
                # Nothing announces the end of an outage, so look again after a pause.
                await (ends.wait() if fault is None else anyio.sleep(LONGEST_PAUSE))

    # --- From any thread, one at a time ---

    def take(self, found: EndedLook, gone: Iterable[ObjectId] = ()) -> None:
        """Take what a look has found, and which jobs certainly do not exist any more."""
        ends: list[tuple[ObjectId, Job | MonqueError]] = []
        for job_id, ended in found.ended.items():
            if job_id in self.live:
                ends.append((job_id, ended))
        for job_id in found.recurring:
            if job_id in self.live:
                problem = "is recurring: another program gave it a schedule, so it never ends"
                ends.append((job_id, InvalidOptionError("child", str(job_id), problem)))
        ends += [(job_id, JobDeletedError(job_id)) for job_id in gone if job_id in self.live]
        self.live.difference_update(job_id for job_id, _ in ends)
        if ends:
            self._loop.post(partial(self._ended, ends))

    def fail(self, error: MonqueError, job_id: ObjectId | None = None) -> None:
        """End the wait with this error: no end can be found any more."""
        if job_id is None and not self.is_over:
            self.is_over = True
            self._loop.post(partial(self._failed, error))


class LooksTogether:
    """Common looks of the nurseries of a client, in virtual time: the first one that notices an end looks for all.

    Otherwise each of a thousand waiting parents would read its children each time a job ends.
    """

    def __init__(self) -> None:
        self._waits: dict[ChildEnds, LocalEnds] = {}
        self._is_looking = False
        self._again = False

    @contextmanager
    def taking_part(self, wait: ChildEnds, ends: LocalEnds) -> Iterator[None]:
        self._waits[wait] = ends
        try:
            yield
        finally:
            del self._waits[wait]

    async def look(self, jobs: JobCollection, db_threads: DatabaseThreads) -> MonqueConnectionError | None:
        """Look for all nurseries, unless one is looking already; return the transient error of the database, if any."""
        self._again = True
        if self._is_looking:
            return None  # The one that is looking looks once more.
        self._is_looking = True
        is_done = False
        try:
            while self._again:
                self._again = False
                live = frozenset().union(*(wait.live for wait in self._waits))
                if not live:
                    continue
                found, gone = await db_threads.call(partial(look, jobs, live), abandon_on_cancel=True)
                for wait in tuple(self._waits):
                    wait.take(found, gone)
            is_done = True
        except MonqueConnectionError as error:
            if not error.transient:
                raise
            return error
        finally:
            self._is_looking = False
            if not is_done:  # After a cancellation or an error, another nursery looks.
                for ends in self._waits.values():
                    ends.happened()
        return None


_of_watchers: WeakKeyDictionary[EndWatcher, LooksTogether] = WeakKeyDictionary()


def looks_together_of(watcher: EndWatcher) -> LooksTogether:
    """Return the common looks of the client with this watcher."""
    return _of_watchers.setdefault(watcher, LooksTogether())
