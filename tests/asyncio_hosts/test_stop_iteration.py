"""A StopIteration of a handler is reported as itself, though Python turns it into a RuntimeError on its way."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from tests.asyncio_hosts.conftest import Run
from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.store.driver.types import Database


async def from_async(job: RunningJob[Any]) -> None:
    next(iter(()))


async def after_a_step(job: RunningJob[Any]) -> None:
    await anyio.lowlevel.checkpoint()
    raise StopIteration("mine")


async def from_inside(job: RunningJob[Any]) -> None:
    await after_a_step(job)


def from_plain(job: RunningJob[Any]) -> None:
    raise StopIteration("mine")


async def of_a_generator(job: RunningJob[Any]) -> None:
    """That is the error of its own generator, which Python names."""

    def numbers() -> Any:
        yield next(iter(()))

    list(numbers())


@pytest.mark.full
@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (from_async, "StopIteration"),
        (after_a_step, "StopIteration: mine"),
        (from_inside, "StopIteration: mine"),
        (from_plain, "StopIteration: mine"),
        (of_a_generator, "RuntimeError: generator raised StopIteration"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_stop_iteration_is_reported_as_itself(run: Run, db: Database, handler: Any, reason: str) -> None:
    workers = Workers()
    workers.register("job", handler, max_attempts=1)

    async def main() -> None:
        async with open_scheduler(db, workers) as scheduler:
            job = await scheduler.enqueue("job")
            assert job.id is not None
            with pytest.raises(Exception, match=f"{reason}$"):
                await scheduler.wait_job(job.id)

    run(main)
    document = db["monque_jobs"].find_one({})
    assert document is not None
    assert document["failReason"] == reason
    assert document["errors"][0]["traceback"].rstrip().endswith(reason)


def test_retry_on_sees_it(run: Run, db: Database) -> None:
    workers = Workers()
    workers.register("job", from_async, discard_on=StopIteration)

    async def main() -> None:
        async with open_scheduler(db, workers) as scheduler:
            job = await scheduler.enqueue("job")
            assert job.id is not None
            with pytest.raises(Exception, match="StopIteration"):
                await scheduler.wait_job(job.id)

    run(main)
    document = db["monque_jobs"].find_one({})
    assert document is not None
    assert (document["status"], document["failCount"]) == ("failed", 1)
