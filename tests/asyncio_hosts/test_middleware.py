"""Middleware runs on the loop of the handlers, also around plain ones, whose threads belong to the scheduler's loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import sniffio

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run
from tests.asyncio_hosts.scenes import LONG, QUICK, only_document, statuses, until
from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.store.driver.types import Database
from trio_monque.testing import run_job

tenant: ContextVar[str] = ContextVar("tenant", default="the default")


async def with_tenant(job: RunningJob[Any], run: Callable[[], Any]) -> None:
    token = tenant.set(job.data)
    try:
        await anyio.lowlevel.checkpoint()
        await run()
    finally:
        tenant.reset(token)


def test_context_of_the_middleware_reaches_async_and_plain_handlers(db: Database, run: Run) -> None:
    log: list[tuple[str, str, str]] = []

    async def outer(job: RunningJob[Any], run: Callable[[], Any]) -> None:
        await run()
        log.append((job.name, tenant.get(), sniffio.current_async_library()))

    workers = Workers(middleware=[outer, with_tenant])

    @workers.register("async", store_result=True)
    async def on_loop(job: RunningJob[str]) -> str:
        return tenant.get()

    @workers.register("plain", store_result=True)
    def in_thread(job: RunningJob[str]) -> str:
        return tenant.get()

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            for name in ("async", "plain"):
                await scheduler.enqueue(name, f"{name} tenant")
                await until(lambda name=name: statuses(db, name) == ["completed"])  # type: ignore[misc]
        library = sniffio.current_async_library()
        assert log == [("async", "the default", library), ("plain", "the default", library)]

    run(main)
    results = {document["name"]: document["result"] for document in db["monque_jobs"].find()}
    assert results == {"async": "async tenant", "plain": "plain tenant"}


@ON_ASYNCIO
def test_middleware_of_a_handler_of_the_runtime_runs_in_the_runtime(db: Database, run: Run) -> None:
    libraries: list[str] = []

    async def noting(job: RunningJob[Any], run: Callable[[], Any]) -> None:
        libraries.append(sniffio.current_async_library())
        await run()

    workers = Workers(middleware=[noting])

    @workers.register("async", runs_on="runtime")
    async def on_trio(job: RunningJob[Any]) -> None: ...

    @workers.register("plain", runs_on="runtime")
    def in_thread(job: RunningJob[Any]) -> None: ...

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            for name in ("async", "plain"):
                await scheduler.enqueue(name)
                await until(lambda name=name: statuses(db, name) == ["completed"])  # type: ignore[misc]

    run(main)
    assert libraries == ["trio", "trio"]


class Thread:
    """A plain handler that runs until the test ends it, or until it notices that its run is cancelled."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.log: list[str] = []

    async def noting(self, job: RunningJob[Any], run: Callable[[], Any]) -> None:
        try:
            await run()
        except Exception:
            self.log.append("the cancellation is not an Exception")
            raise
        finally:
            self.log.append(str(job.cancel_reason))

    def obey(self, job: RunningJob[Any]) -> None:
        self.began.set()
        while True:
            job.check_cancelled()
            time.sleep(0.001)

    def ignore(self, job: RunningJob[Any]) -> str:
        self.began.set()
        assert self.may_end.wait(LONG)
        return "late"


@pytest.mark.full
def test_plain_handler_that_notices_its_time_limit_has_failed(run: Run) -> None:
    thread = Thread()
    worker = Workers(middleware=[thread.noting]).register("obeys", thread.obey)

    async def main() -> None:
        while thread.log.count("timeout") < 10:  # The thread and the cancellation of the middleware race.
            runs = len(thread.log)
            outcome = await run_job(worker, timeout=0.1)
            # On a busy machine the limit may be over before the run begins, or just when it does: then it is released.
            if len(thread.log) > runs:
                assert outcome.cancel_reason == thread.log[-1]
                assert isinstance(outcome.error, TimeoutError) or thread.log[-1] == "shutdown"

    run(main)
    assert set(thread.log) <= {"timeout", "shutdown"}


@pytest.mark.full
@pytest.mark.parametrize("obeys", [True, False])
def test_end_of_the_scheduler_cuts_a_plain_handler_in_middleware(db: Database, run: Run, obeys: bool) -> None:
    thread = Thread()
    workers = Workers(middleware=[thread.noting])
    workers.register("job", thread.obey if obeys else thread.ignore)

    async def main() -> None:
        with anyio.CancelScope() as scope:
            # A thread that obeys is awaited until it has been able to.
            cleanup_timeout = 20 if obeys else 0.2
            async with open_scheduler(db, workers, **QUICK, cleanup_timeout=cleanup_timeout) as scheduler:
                await scheduler.enqueue("job")
                await until(thread.began.is_set)
                scope.cancel()
        thread.may_end.set()

    try:
        run(main)
    finally:
        thread.may_end.set()
    assert thread.log == ["shutdown"]
    # The claim of a thread that goes on is kept until its lease ends.
    assert only_document(db)["status"] == ("pending" if obeys else "processing")


def test_result_of_a_thread_that_ignores_its_cancellation_counts(db: Database, run: Run) -> None:
    thread = Thread()
    workers = Workers(middleware=[thread.noting])
    workers.register("job", thread.ignore, store_result=True)

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            await scheduler.enqueue("job")
            await until(thread.began.is_set)
            scheduler.drain()
            thread.may_end.set()

    run(main)
    assert (only_document(db)["status"], only_document(db)["result"]) == ("completed", "late")
