"""Waits for the ends of jobs, from async code and from threads, in real and in virtual time.

The caller looks once by itself: a job that has ended costs one query and no thread. Only if a job is live, or the
database does not answer, `EndWatcher` watches it.

In virtual time there are no threads that poll or follow: the clock would jump past them. There, the schedulers and
clients of the run say when jobs have ended (`local_wakeups.py`), and the caller looks again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import anyio

from ..clock import virtual_time
from ..error_types import MonqueConnectionError, MonqueError
from ..jobs.job import Job
from ..loops import current_loop
from ..store.driver.database_threads import DatabaseThreads
from ..store.job_collection import JobCollection
from .job_wait import JobWait
from .job_wait_polling import LONGEST_PAUSE, EndWatcher, look
from .local_wakeups import noticing_ends

SHORTEST_LOOK: Final = 1.0
"""Seconds that the caller's own look may take at least. A wait with a shorter timeout is not cut shorter: a busy server
would never answer it."""


async def wait_async(
    jobs: JobCollection, db_threads: DatabaseThreads, watcher: EndWatcher, wait: JobWait, timeout: float | None
) -> Sequence[Job]:
    """Return the result of the wait, as soon as it is over."""
    limited, fault = _limited(jobs, timeout), None

    async def look_once() -> MonqueConnectionError | None:
        try:
            wait.take(*await db_threads.call(partial(look, limited, frozenset(wait.live)), abandon_on_cancel=True))
        except MonqueConnectionError as error:
            return _outlasted(error)
        return None

    with anyio.move_on_after(timeout):
        if virtual_time() is not None:
            with noticing_ends(jobs.collection.full_name) as ends:
                fault = await look_once()
                while not wait.is_over:
                    # The end of an outage is not announced.
                    await (ends.wait() if fault is None else anyio.sleep(LONGEST_PAUSE))
                    fault = await look_once()
        else:
            fault = await look_once()
            if not wait.is_over:
                over, loop = anyio.Event(), current_loop()
                with watcher.waiting(wait, lambda: loop.post(over.set), fault):
                    try:
                        await over.wait()
                    finally:
                        fault = watcher.fault
    return _result(wait, timeout, fault)


def wait_blocking(jobs: JobCollection, watcher: EndWatcher, wait: JobWait, timeout: float | None) -> Sequence[Job]:
    """Block until the wait is over, and return its result."""
    if virtual_time() is not None:
        raise MonqueError("a thread cannot wait for virtual time to pass: await Monque.wait_job or Monque.wait_jobs")
    began, fault = time.monotonic(), None
    try:
        wait.take(*look(_limited(jobs, timeout), frozenset(wait.live)))
    except MonqueConnectionError as error:
        fault = _outlasted(error)
    if not wait.is_over:
        over = threading.Event()
        with watcher.waiting(wait, over.set, fault):
            over.wait(None if timeout is None else max(0.0, began + timeout - time.monotonic()))
            fault = watcher.fault
    return _result(wait, timeout, fault)


def _limited(jobs: JobCollection, timeout: float | None) -> JobCollection:
    """Return the handle for the caller's own look: an outage must not prolong the wait."""
    if timeout is None:
        return jobs
    return replace(jobs, operation_timeout=min(jobs.operation_timeout, max(timeout, SHORTEST_LOOK)))


def _outlasted(error: MonqueConnectionError) -> MonqueConnectionError:
    """Return the error of a look if the wait goes on nevertheless; otherwise raise it."""
    # An election or a lost connection, for example. The watcher looks again until it is over.
    if not error.transient:
        raise error
    return error


def _result(wait: JobWait, timeout: float | None, fault: MonqueConnectionError | None) -> Sequence[Job]:
    if not wait.is_over:
        assert timeout is not None, "only a timeout ends a wait before it is over"
        raise wait.timed_out(timeout, fault)
    return wait.result()
