"""A program of arq, on MongoDB: `python examples/migrate/from_arq.py`.

Why it exists: the guide for those who come from arq shows both side by side.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from pymongo import MongoClient

from trio_monque import Retry, RunningJob, Workers, open_scheduler
from trio_monque.embedded import embedded_mongod


@dataclass
class Shop:
    pages: dict[str, str]


workers = Workers[Shop](loop="asyncio")


@workers.register("download", timeout=300, max_attempts=5, store_result=True)
async def download(job: RunningJob[str, Shop]) -> int:
    if job.data not in job.resources.pages:
        raise Retry(after=job.attempt * 5)
    return len(job.resources.pages[job.data])


@workers.cron("0,12 9 * * *", "report")
async def report(job: RunningJob[None]) -> None:
    print("the report")


async def main() -> None:
    with embedded_mongod() as server, MongoClient[Any](server.uri) as client:
        shop = Shop({"/about": "We sell ships."})
        async with open_scheduler(client.get_default_database("shop"), workers, resources=shop) as scheduler:
            job = await scheduler.enqueue(download, "/about", unique_key="download:/about")
            print((await scheduler.wait_job(job, timeout=30)).result)


asyncio.run(main())
