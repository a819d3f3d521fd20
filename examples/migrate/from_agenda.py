"""A program of Agenda, in Python: `python examples/migrate/from_agenda.py`.

Why it exists: the guide for those who come from Agenda shows both side by side.
"""

import asyncio
from typing import Any

from pymongo import MongoClient

from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.embedded import embedded_mongod

workers = Workers(loop="asyncio")


@workers.register("send-email", concurrency=10, max_attempts=4, backoff=60)
async def send_email(job: RunningJob[dict[str, str]]) -> None:
    print(f"sent to {job.data['to']}")


@workers.cron("0 9 * * 1-5", "report", timezone="Europe/Berlin")
async def report(job: RunningJob[None]) -> None:
    print(f"the report of {job.next_run_at:%A}")


async def main() -> None:
    with embedded_mongod() as server, MongoClient[Any](server.uri) as client:
        async with open_scheduler(client.get_default_database("shop"), workers) as scheduler:
            job = await scheduler.enqueue(send_email, {"to": "ada@example.org"})
            await scheduler.enqueue(send_email, {"to": "bob@example.org"}, delay=3600)
            await scheduler.wait_job(job)


asyncio.run(main())
