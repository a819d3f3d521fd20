"""A program of Pulse or Sidequest, in Python: `python examples/migrate/from_sidequest.py`.

Why it exists: the guide for those who come from either shows both side by side.
"""

import asyncio
from typing import Any

from pymongo import MongoClient

from trio_monque import Discard, RunningJob, Snooze, Workers, open_scheduler
from trio_monque.embedded import embedded_mongod

workers = Workers(loop="asyncio")


@workers.register("SendEmail", concurrency=10, max_attempts=5, timeout=30, store_result=True)
async def send_email(job: RunningJob[list[str]]) -> str:
    to, subject = job.data
    if to == "later@example.org":
        raise Snooze(after=60)
    if "@" not in to:
        raise Discard(f"not an address: {to}")
    return f"sent {subject} to {to}"


@workers.cron("0 9 * * *", "DailyReport", timezone="Australia/Brisbane")
async def daily_report(job: RunningJob[None]) -> None:
    print("the report of the day")


async def main() -> None:
    with embedded_mongod() as server, MongoClient[Any](server.uri) as client:
        async with open_scheduler(client.get_default_database("shop"), workers) as scheduler:
            job = await scheduler.enqueue(send_email, ["ada@example.org", "news"])
            print((await scheduler.wait_job(job)).result)


asyncio.run(main())
