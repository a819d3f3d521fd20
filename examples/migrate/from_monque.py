"""A program of Monque for Node, in Python: `python examples/migrate/from_monque.py`.

Why it exists: the guide for those who come from `@monque/core` shows both side by side.
"""

from typing import Any

import trio
from pymongo import MongoClient

from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.embedded import embedded_mongod
from trio_monque.events import JobFailed

workers = Workers()


@workers.register("send-email", concurrency=3)
async def send_email(job: RunningJob[dict[str, str]]) -> None:
    print(f"sent to {job.data['to']}")


def report(event: JobFailed) -> None:
    print(f"{event.job.name} failed: {event.job.fail_reason}, will be retried: {event.will_retry}")


async def main() -> None:
    async with embedded_mongod() as server:
        with MongoClient[Any](server.uri) as client:
            db = client.get_default_database("shop")
            async with open_scheduler(db, workers, max_attempts=10, listeners={JobFailed: report}) as scheduler:
                await scheduler.schedule("0 9 * * 1-5", "report", timezone="Europe/Berlin", unique_key="report")
                job = await scheduler.enqueue("send-email", {"to": "ada@example.org"}, unique_key="welcome:ada")
                await scheduler.wait_job(job)


trio.run(main)
