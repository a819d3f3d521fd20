"""`job.transaction` of handlers on asyncio: the engine carries it out in its own run, and the handler awaits it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run
from tests.asyncio_hosts.scenes import QUICK, only_document, until
from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.store.driver.types import ClientSession, Database

pytestmark = ON_ASYNCIO


def test_effects_and_success_are_committed_and_the_handler_goes_on(db: Database, run: Run) -> None:
    db.effects.insert_one({"_id": "made before"})
    workers, seen = Workers(), list[Any]()

    def write(session: ClientSession) -> str:
        db.effects.insert_one({"_id": "once"}, session=session)
        return "written"

    @workers.register("pay", store_result=True)
    async def pay(job: RunningJob[Any]) -> None:
        seen.append(await job.transaction(write))
        seen.append(only_document(db)["status"])

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            job = await scheduler.enqueue("pay")
            seen.append((await scheduler.wait_job(job, timeout=40)).result)

    run(main)
    assert sorted(seen) == ["completed", "written", "written"]
    assert db.effects.count_documents({}) == 2


@pytest.mark.parametrize(("how", "status"), [("task", "completed"), ("job", "cancelled"), ("body", "pending")])
def test_effects_and_status_agree_when_a_cancellation_comes_while_the_function_works(
    db: Database, run: Run, how: str, status: str
) -> None:
    db.effects.insert_one({"_id": "made before"})
    workers = Workers()
    works, released = threading.Event(), threading.Event()
    releasing = list[asyncio.Task[None]]()

    def write(session: ClientSession) -> None:
        db.effects.insert_one({"_id": "once"}, session=session)
        works.set()
        assert released.wait(40)

    async def release_cancelled(job: RunningJob[Any]) -> None:
        await until(lambda: job.cancel_reason)
        released.set()

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        if how != "task":
            releasing.append(asyncio.create_task(release_cancelled(job)))
        task = asyncio.ensure_future(job.transaction(write))
        await until(works.is_set)
        if how == "task":
            task.cancel()
            asyncio.get_running_loop().call_later(0.05, released.set)
            with suppress(asyncio.CancelledError):  # Its own: the job is completed all the same.
                await task
        else:
            await task

    async def main() -> None:
        with suppress(ZeroDivisionError):
            async with open_scheduler(db, workers, **QUICK) as scheduler:
                job = await scheduler.enqueue("pay")
                await until(works.is_set)
                if how == "job":
                    await scheduler.cancel_job(job.id)
                if how == "body":
                    raise ZeroDivisionError
                await until(lambda: only_document(db)["status"] == status)

    run(main)
    assert only_document(db)["status"] == status
    assert db.effects.count_documents({"_id": "once"}) == (status == "completed")
