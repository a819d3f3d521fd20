"""A program of Procrastinate, on MongoDB: `python examples/migrate/from_procrastinate.py`.

Why it exists: the guide for those who come from Procrastinate shows both side by side.
"""

import asyncio
from typing import Any

from pymongo import MongoClient

from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.embedded import embedded_mongod

workers = Workers(loop="asyncio")


@workers.register("add", concurrency=1, max_attempts=6, backoff=30, store_result=True)
async def add(job: RunningJob[dict[str, int]]) -> int:
    return job.data["a"] + job.data["b"]


@workers.cron("*/10 * * * *", "clean-up")
async def clean_up(job: RunningJob[None]) -> None:
    print(f"clean up, due at {job.next_run_at}")


async def main() -> None:
    with embedded_mongod() as server, MongoClient[Any](server.uri) as client:
        async with open_scheduler(client.get_default_database("shop"), workers) as scheduler:
            job = await scheduler.enqueue(add, {"a": 1, "b": 2}, unique_key="add")
            await scheduler.enqueue(add, {"a": 3, "b": 4}, delay=3600)
            print((await scheduler.wait_job(job)).result)


asyncio.run(main())
