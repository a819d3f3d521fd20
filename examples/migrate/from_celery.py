"""A chord of Celery as a job nursery, with plain handlers: `python examples/migrate/from_celery.py`.

Why it exists: the guide for those who come from Celery shows both side by side.
"""

from typing import Any

import trio
from pymongo import MongoClient

from trio_monque import RunningJob, Workers, open_job_nursery, open_scheduler
from trio_monque.embedded import embedded_mongod

workers = Workers()


@workers.register("resize", max_attempts=6, retry_on=ConnectionError, timeout=60)
def resize(job: RunningJob[str]) -> str:
    return f"small {job.data}"


@workers.register("album", store_result=True)
async def album(job: RunningJob[list[str]]) -> str:
    small: list[str] = []
    async with open_job_nursery(job) as nursery:
        small = [await child.wait() for child in await nursery.map(resize, job.data)]
    return " and ".join(small)


@workers.cron("30 7 * * 1", "report")
def report(job: RunningJob[None]) -> None:
    print("the report of the week")


async def main() -> None:
    async with embedded_mongod() as server:
        with MongoClient[Any](server.uri) as client:
            async with open_scheduler(client.get_default_database("shop"), workers) as scheduler:
                job = await scheduler.enqueue(album, ["cat.png", "dog.png"])
                ended = await scheduler.wait_job(job, timeout=30)
                print(ended.result)


trio.run(main)
