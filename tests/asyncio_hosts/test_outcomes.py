"""How the end of a handler decides what becomes of its job: the same on trio, asyncio and uvloop."""

from __future__ import annotations

import contextvars
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from tests.asyncio_hosts.conftest import Run, VirtualRun
from tests.asyncio_hosts.scenes import LONG, QUICK, only_document, statuses, until
from trio_monque import Discard, Monque, RunningJob, Snooze, Workers, open_scheduler
from trio_monque.errors import ClaimLostError
from trio_monque.events import JobFailed
from trio_monque.foreign_errors import leaves_of
from trio_monque.store.driver.types import Database

_of_the_program: contextvars.ContextVar[str] = contextvars.ContextVar("of_the_program", default="none")


def test_handlers_succeed_and_fail_and_retry(db: Database, run: Run) -> None:
    workers, attempts = Workers(), []

    @workers.register("succeeds", store_result=True)
    async def succeeds(job: RunningJob[Any]) -> dict[str, Any]:
        await anyio.sleep(0.01)
        return {"n": job.data}

    @workers.register("third-time")
    async def third_time(job: RunningJob[Any]) -> None:
        attempts.append(job.attempt)
        await anyio.lowlevel.checkpoint()
        if job.attempt < 3:
            raise ValueError(f"attempt {job.attempt}")

    @workers.register("discarded")
    async def discarded(job: RunningJob[Any]) -> None:
        raise Discard("never")

    @workers.register("later")
    async def later(job: RunningJob[Any]) -> None:
        if job.attempt == 1:
            raise Snooze(after=0.05)

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            made = await scheduler.enqueue("succeeds", 3)
            for name in ("third-time", "discarded", "later"):
                await scheduler.enqueue(name)
            for name in ("succeeds", "third-time", "later"):
                await until(lambda name=name: statuses(db, name) == ["completed"])  # type: ignore[misc]
            await until(lambda: statuses(db, "discarded") == ["failed"])
            found = await scheduler.get_job(made.id)
            assert found is not None
            assert found.result == {"n": 3}
        assert scheduler.report is not None
        assert scheduler.report.completed == 3

    run(main)
    assert attempts == [1, 2, 3]


def test_an_error_keeps_its_traceback_and_its_cause(db: Database, run: Run) -> None:
    workers, heard = Workers(), list[BaseException]()

    def deep() -> None:
        raise LookupError("inner")

    @workers.register("fails", max_attempts=1)
    async def fails(job: RunningJob[Any]) -> None:
        try:
            deep()
        except LookupError as error:
            raise ValueError("outer") from error

    async def hear(event: JobFailed) -> None:
        heard.append(event.error)

    async def main() -> None:
        async with open_scheduler(db, workers, listeners={JobFailed: hear}, **QUICK) as scheduler:
            await scheduler.enqueue("fails")
            await until(lambda: heard)

    run(main)
    assert isinstance(heard[0], ValueError)
    assert isinstance(heard[0].__cause__, LookupError)
    traceback = only_document(db)["errors"][-1]["traceback"]
    assert "in deep" in traceback
    assert "in fails" in traceback


def test_a_time_limit_cancels_at_each_checkpoint(db: Database, run_virtually: VirtualRun) -> None:
    workers, seen = Workers(), list[str]()

    @workers.register("slow", timeout=1.0, max_attempts=1)
    async def slow(job: RunningJob[Any]) -> None:
        assert 0 < job.deadline - anyio.current_time() <= 1.0
        for _ in range(3):
            try:
                await anyio.sleep(LONG)
            except anyio.get_cancelled_exc_class():
                seen.append(str(job.cancel_reason))
        await anyio.sleep(LONG)

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            await scheduler.enqueue("slow")
            await until(lambda: statuses(db, "slow") == ["failed"])

    run_virtually(main)
    assert seen == ["timeout"] * 3
    assert "longer than 1 s" in only_document(db)["failReason"]


def test_a_client_elsewhere_cancels_a_run(db: Database, run: Run) -> None:
    workers, log = Workers(), list[str]()

    @workers.register("long")
    async def long(job: RunningJob[Any]) -> None:
        log.append("began")
        try:
            await anyio.sleep(LONG)
        finally:
            log.append(str(job.cancel_reason))

    async def main() -> None:
        async with open_scheduler(db, workers, heartbeat_interval=1.5) as scheduler:
            job = await scheduler.enqueue("long")
            await until(lambda: log)
            await Monque(db).cancel_job(job.id)
            await until(lambda: statuses(db, "long") == ["cancelled"])

    run(main)
    assert log == ["began", "user"]


def test_a_run_that_lost_its_claim_saves_nothing_and_is_cancelled(db: Database, run: Run) -> None:
    workers, log = Workers(), list[str]()

    @workers.register("long")
    async def long(job: RunningJob[Any]) -> None:
        log.append("began")
        try:
            while True:
                await anyio.sleep(0.05)
                await job.save(1)
        except ClaimLostError:
            log.append("not saved")
        try:
            await anyio.sleep(LONG)
        finally:
            log.append(str(job.cancel_reason))

    async def main() -> None:
        async with open_scheduler(db, workers, change_stream=False) as scheduler:
            job = await scheduler.enqueue("long")
            await until(lambda: log)
            theirs = {"$set": {"claimToken": "theirs", "claimedBy": "another"}}
            db["monque_jobs"].update_one({"_id": job.id}, theirs)
            await until(lambda: len(log) == 3)

    run(main)
    assert log == ["began", "not saved", "lost"]


def test_a_handler_has_the_context_of_the_opener_and_leaks_none(db: Database, run: Run) -> None:
    workers, seen = Workers(), list[str]()

    @workers.register("a", concurrency=1)
    async def handle(job: RunningJob[Any]) -> None:
        seen.append(_of_the_program.get())
        _of_the_program.set("of a job")
        await anyio.lowlevel.checkpoint()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child)

    async def child() -> None:
        seen.append(_of_the_program.get())

    async def main() -> None:
        _of_the_program.set("of the program")
        async with open_scheduler(db, workers) as scheduler:
            await scheduler.enqueue("a")
            await scheduler.enqueue("a")
            await until(lambda: len(seen) == 4)
        assert _of_the_program.get() == "of the program"

    run(main)
    assert seen == ["of the program", "of a job"] * 2


def test_scopes_tasks_and_threads_of_anyio_work_in_handlers(db: Database, run_virtually: VirtualRun) -> None:
    workers, seen = Workers(), list[str]()

    @workers.register("a", timeout=2.0, max_attempts=1)
    async def handle(job: RunningJob[Any]) -> None:
        with anyio.move_on_after(0.05) as scope:
            await anyio.sleep(LONG)
        assert scope.cancelled_caught
        await anyio.to_thread.run_sync(lambda: anyio.from_thread.run(anyio.sleep, 0))
        with pytest.raises(TimeoutError), anyio.fail_after(0.05):
            await anyio.sleep(LONG)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child)
            tasks.start_soon(child)
            await anyio.sleep(LONG)

    async def child() -> None:
        try:
            await anyio.sleep(LONG)
        except anyio.get_cancelled_exc_class():
            seen.append("a child was cancelled")
            raise

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            await scheduler.enqueue("a")
            await until(lambda: statuses(db, "a") == ["failed"])

    run_virtually(main)
    assert seen == ["a child was cancelled"] * 2
    assert "longer than 2 s" in only_document(db)["failReason"]


def test_an_error_beside_a_cancellation_fails_the_job_without_the_cancellation(
    db: Database, run_virtually: VirtualRun
) -> None:
    workers, heard = Workers(), list[BaseException]()

    @workers.register("a", timeout=1.0, max_attempts=1)
    async def handle(job: RunningJob[Any]) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child)
            await anyio.sleep(LONG)

    async def child() -> None:
        try:
            await anyio.sleep(LONG)
        finally:
            raise KeyError("while cleaning up")

    async def hear(event: JobFailed) -> None:
        heard.append(event.error)

    async def main() -> None:
        async with open_scheduler(db, workers, listeners={JobFailed: hear}, **QUICK) as scheduler:
            await scheduler.enqueue("a")
            await until(lambda: heard)

    run_virtually(main)
    assert [type(leaf) for leaf in leaves_of(heard[0])] == [KeyError]
