"""A program of APScheduler, as durable jobs: `python examples/migrate/from_apscheduler.py`.

Why it exists: the guide for those who come from APScheduler shows both side by side.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from pymongo import MongoClient

from trio_monque import RunningJob, Snooze, Workers, open_scheduler
from trio_monque.embedded import embedded_mongod

workers = Workers(loop="asyncio")


@workers.cron("0 9 * * mon-fri", "report", timezone="Europe/Berlin")
def report(job: RunningJob[None]) -> None:
    print("the report of the day")


@workers.register("remind")
def remind(job: RunningJob[str]) -> None:
    print(f"reminded {job.data}")


@workers.register("poll", concurrency=1)
async def poll(job: RunningJob[None]) -> None:
    print("looked for new mail")
    raise Snooze(after=90)  # An interval that no cron line can express.


async def main() -> None:
    with embedded_mongod() as server, MongoClient[Any](server.uri) as client:
        async with open_scheduler(client.get_default_database("shop"), workers) as scheduler:
            soon = datetime.now(UTC) + timedelta(seconds=0.2)
            job = await scheduler.enqueue(remind, "ada", run_at=soon, unique_key="remind:ada")
            await scheduler.enqueue(poll, unique_key="poll")
            await scheduler.wait_job(job)


asyncio.run(main())
