"""A process whose handlers are workflows and trees of job nurseries, to be killed, frozen and drained.

Started by `processes.py`. It runs on trio or on asyncio, as its order says. Its handlers write down what they do, by
themselves: each start of a step, and what a workflow went on with. `nursery_judge.py` reads it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import trio
from pymongo import MongoClient

from tests.support.fast_driver import fast_driver
from trio_monque import Discard, JobNurseryError, RunningJob, Workers, open_job_nursery, run_until_signalled
from trio_monque.events import JobCompleted

from .records import Recorder
from .trees import Trees

PICKED: Final = 3


def is_declined(number: int) -> bool:
    return number % 4 == 0


def has_transaction(number: int) -> bool:
    return number % 3 == 0


def expected_of(number: int) -> str:
    """The result of a workflow, by its number alone."""
    return f"refused {number} by charge" if is_declined(number) else f"shipped {number}: {PICKED * (2 * number + 1)}"


class Workflows:
    """An order: reserve; then charge and pick side by side; undo if one of these fails; otherwise ship."""

    def __init__(self, db: Any, recorder: Recorder) -> None:
        self._db = db
        self._recorder = recorder
        self.workers = Workers()
        self.workers.register("order", self.order, store_result=True, max_attempts=20, concurrency=20)
        for name in ("reserve", "charge", "take", "undo", "ship"):
            self.workers.register(name, self.step, max_attempts=20, concurrency=30)
        self.workers.register("pick", self.pick, max_attempts=20, concurrency=20)

    def _write(self, job: RunningJob[Any], what: str, detail: str = "") -> None:
        self._recorder.write(what, str(job.id), job.attempt, detail)

    async def step(self, job: RunningJob[Any]) -> Any:
        self._write(job, "start", job.name)
        await anyio.sleep(0.01 * (int(str(job.id)[-2:], 16) % 8))
        if job.name == "charge" and is_declined(job.data):
            raise Discard("declined")
        if job.attempt == 1 and int(str(job.id)[-4:-2], 16) % 10 == 0:
            raise OSError("once")
        return job.data

    async def pick(self, job: RunningJob[Any]) -> int:
        self._write(job, "start", job.name)
        async with open_job_nursery(job) as nursery:
            children = await nursery.map("take", [job.data, job.data, 1])
        return sum(child.result for child in children)

    async def order(self, job: RunningJob[int]) -> str:
        number = job.data
        self._write(job, "start", job.name)
        try:
            async with open_job_nursery(job, key="place", on_drain="release") as nursery:
                await nursery.run("reserve", number)
                await nursery.start("charge", number)
                picked = await nursery.map("pick", [number] * PICKED)
        except JobNurseryError as failed:
            self._write(job, "went on", "failed")
            by = ", ".join(one.name for one in failed.jobs)
            async with open_job_nursery(job, key="undo") as nursery:
                await nursery.start("undo", number)
            return f"refused {number} by {by}"
        self._write(job, "went on", "normally")
        result = f"shipped {number}: {sum(child.result for child in picked)}"
        async with open_job_nursery(job, key="ship", on_drain="release") as nursery:
            await nursery.start("ship", number)
        if has_transaction(number):

            def commit(session: Any) -> str:
                self._db.effects.insert_one({"order": job.id, "number": number}, session=session)
                return result

            await job.transaction(commit)
        return result


async def run(order: dict[str, Any]) -> None:
    recorder = Recorder(Path(order["records"]), order["name"])
    options = dict(order["options"])
    options.pop("loop")
    client: MongoClient[Any] = MongoClient(order["uri"], tz_aware=True)
    db = client[order["database"]]
    workers = Workflows(db, recorder).workers
    Trees(db, recorder, workers)

    def completed(event: JobCompleted) -> None:
        recorder.write("reported completed", str(event.job.id), event.job.attempts)

    async def work(*, task_status: Any) -> None:
        await run_until_signalled(
            db,
            workers,
            listeners={JobCompleted: completed},
            instance_id=order["name"],
            task_status=task_status,
            **options,
        )

    async with anyio.create_task_group() as tasks:
        await tasks.start(work)
        recorder.write("ready")
    recorder.write("left")


def work(order: dict[str, Any]) -> None:
    with fast_driver():
        if order["options"]["loop"] == "asyncio":
            asyncio.run(run(order))
        else:
            trio.run(partial(run, order))
