"""`run_job` runs a handler on the event loop of the test: trio, asyncio or uvloop."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import sniffio

from trio_monque import Discard, MonqueError, NewJob, RunningJob, Workers
from trio_monque.testing import Discarded, Succeeded, run_job

from .conftest import ON_ASYNCIO, Run, VirtualRun

tenant: ContextVar[str] = ContextVar("tenant")


def test_async_handler_runs_in_the_thread_and_context_of_the_test(run: Run) -> None:
    async def handler(job: RunningJob[int]) -> tuple[str, str, int]:
        await job.set_progress({"done": 1})
        await job.save("half")
        await job.scheduler.enqueue("mail", job.data)
        return tenant.get(), sniffio.current_async_library(), threading.get_ident()

    async def main() -> None:
        tenant.set("Ada's")
        ran = await run_job(handler, 7)
        library = sniffio.current_async_library()
        assert ran.value == ("Ada's", library, threading.get_ident())
        assert ran.outcome == Succeeded()
        assert (ran.saved, ran.progress) == ("half", ({"done": 1},))
        assert ran.enqueued == (NewJob("mail", 7),)

    run(main)


def test_handler_that_takes_too_long_cleans_up_and_has_failed(run_virtually: VirtualRun) -> None:
    async def handler(job: RunningJob[None]) -> None:
        try:
            await anyio.sleep(60)
        finally:
            with job.cleanup(5):
                await anyio.lowlevel.checkpoint()
                await job.save("cleaned up")

    async def main() -> None:
        ran = await run_job(handler, timeout=1)
        assert (ran.cancel_reason, ran.saved) == ("timeout", "cleaned up")

    run_virtually(main)


def test_plain_handler_runs_in_a_thread_and_calls_back(run: Run) -> None:
    def handler(job: RunningJob[int]) -> int:
        job.from_thread(job.set_progress, job.data)
        return threading.get_ident()

    async def main() -> None:
        ran = await run_job(handler, 3)
        assert ran.progress == (3,)
        assert ran.value != threading.get_ident()

    run(main)


def test_errors_of_the_handler_are_raised_and_its_outcomes_returned(run: Run) -> None:
    async def handler(job: RunningJob[str]) -> None:
        if job.data == "discard":
            raise Discard("enough")
        raise KeyError(job.data)

    async def main() -> None:
        assert isinstance((await run_job(handler, "discard")).outcome, Discarded)
        with pytest.raises(KeyError, match="unknown"):
            await run_job(handler, "unknown")

    run(main)


def test_cancelled_test_cancels_the_run_and_waits_for_its_handler(run: Run) -> None:
    reasons: list[Any] = []

    async def main() -> None:
        async def handler(job: RunningJob[None]) -> None:
            try:
                scope.cancel()
                await anyio.sleep(60)
            finally:
                reasons.append(job.cancel_reason)

        with anyio.CancelScope() as scope:
            await run_job(handler)
        assert scope.cancelled_caught
        assert reasons == ["shutdown"]

    run(main)


@ON_ASYNCIO
def test_worker_of_the_runtime_runs_on_trio(run: Run) -> None:
    workers = Workers()

    @workers.register("native", runs_on="runtime")
    async def native(job: RunningJob[None]) -> str:
        return sniffio.current_async_library()

    async def main() -> None:
        assert (await run_job(native)).value == "trio"
        assert asyncio.current_task() is not None

    run(main)


@ON_ASYNCIO
def test_run_whose_other_tasks_are_cancelled_fails_with_the_reason(run: Run) -> None:
    """The cancelled tasks are the handler and one of the library's, not the task that called `run_job`."""

    async def main() -> None:
        began = asyncio.Event()

        async def handler(job: RunningJob[None]) -> None:
            began.set()
            await asyncio.sleep(60)

        caller = asyncio.create_task(run_job(handler))
        await began.wait()
        for task in asyncio.all_tasks() - {caller, asyncio.current_task()}:
            task.cancel()
        with pytest.raises(MonqueError, match="cancelled other tasks of its event loop"):
            await caller

    run(main)
