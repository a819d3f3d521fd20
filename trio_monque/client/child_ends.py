"""ChildEnds: the wait of one job nursery. Its jobs grow while it waits, and each end is reported by itself.

Threads of `EndWatcher` call it, under its lock. What it finds is posted to the loop of the nursery. In virtual time
there are no such threads, and `follow` looks whenever a job of this run has ended (see `job_wait_calls.py`).
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
    """To be made on the loop of the nursery.

    Args:
        ended: Called there with ends, each once: the job as it ended, or why it has none.
        failed: Called there when nothing can be found out any more.

    Attributes:
        ids: All jobs that it has ever waited for.
        live: Those whose ends are not known yet.
        is_over: Nothing is reported any more.
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
        """Wait for these jobs, too; also again for one that has ended and runs once more."""
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
        """Find out ends, from the first child on, for as long as `work` goes on."""
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
                # The end of an outage is not announced.
                await (ends.wait() if fault is None else anyio.sleep(LONGEST_PAUSE))

    # --- From any thread, one at a time ---

    def take(self, found: EndedLook, gone: Iterable[ObjectId] = ()) -> None:
        """Note what a look found, and which jobs are gone for certain."""
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
        """Nothing can be found out any more."""
        if job_id is None and not self.is_over:
            self.is_over = True
            self._loop.post(partial(self._failed, error))


class LooksTogether:
    """The nurseries of one client in virtual time: the first one that notices an end looks for all of them.

    Otherwise each of a thousand waiting parents would look at each end of a job.
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
        """Look for all, unless another one does; return the fault of the database, if there was one."""
        self._again = True
        if self._is_looking:
            return None  # That one looks once more.
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
            if not is_done:  # Cancelled, or a fault: another one goes on.
                for ends in self._waits.values():
                    ends.happened()
        return None


_of_watchers: WeakKeyDictionary[EndWatcher, LooksTogether] = WeakKeyDictionary()


def looks_together_of(watcher: EndWatcher) -> LooksTogether:
    """Return what the nurseries of the client with this watcher share."""
    return _of_watchers.setdefault(watcher, LooksTogether())
