"""Waits for the ends of jobs, from async code and from threads, in real and in virtual time.

The caller looks once by itself: a job that has ended costs one query and no thread, and an error of the database is
raised as by any other call. Only if a job is live, `EndWatcher` watches it.

In virtual time there are no threads that poll or follow: the clock would jump past them. There, the schedulers and
clients of the run say when jobs have ended (`local_ends.py`), and the caller looks again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import anyio

from ..clock import virtual_time
from ..errors import MonqueError
from ..jobs.job import Job
from ..store.database_threads import DatabaseThreads
from ..store.job_collection import JobCollection
from . import local_ends
from .event_stream import poster
from .job_wait import JobWait
from .job_wait_polling import EndWatcher, look


async def wait_async(
    jobs: JobCollection, db_threads: DatabaseThreads, watcher: EndWatcher, wait: JobWait, timeout: float | None
) -> Sequence[Job]:
    """Return the result of the wait, as soon as it is over."""

    async def look_once() -> None:
        wait.take(*await db_threads.call(partial(look, jobs, frozenset(wait.live)), abandon_on_cancel=True))

    with anyio.fail_after(timeout):
        if virtual_time() is not None:
            with local_ends.noticed(jobs.collection.full_name) as ends:
                await look_once()
                while not wait.is_over:
                    await ends.wait()
                    await look_once()
            return wait.result()
        await look_once()
        if not wait.is_over:
            over, post = anyio.Event(), poster()

            def resume() -> None:
                with suppress(RuntimeError):  # The loop of the caller has ended (trio.RunFinishedError is one, too).
                    post(over.set)

            with watcher.waiting(wait, resume):
                await over.wait()
    return wait.result()


def wait_blocking(jobs: JobCollection, watcher: EndWatcher, wait: JobWait, timeout: float | None) -> Sequence[Job]:
    """Block until the wait is over, and return its result."""
    if virtual_time() is not None:
        raise MonqueError("a thread cannot wait for virtual time to pass: await Monque.wait_job or Monque.wait_jobs")
    wait.take(*look(jobs, frozenset(wait.live)))
    if not wait.is_over:
        over = threading.Event()
        with watcher.waiting(wait, over.set):
            if not over.wait(timeout):
                raise TimeoutError
    return wait.result()
