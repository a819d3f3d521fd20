"""A handler uses a client that works on asyncio only: pymongo's AsyncMongoClient.

Why it exists: on asyncio, handlers are tasks of your event loop, so they share its clients and pools with the rest of
your program. Run it: `python examples/asyncio_client.py`.
"""

import asyncio
from typing import Any

from pymongo import AsyncMongoClient, MongoClient
from pymongo.database import Database

from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.embedded import embedded_mongod
from trio_monque.events import JobCompleted

workers = Workers[AsyncMongoClient[Any]]()


@workers.register("count")
async def count(job: RunningJob[str, AsyncMongoClient[Any]]) -> None:
    visits = job.resources.get_default_database("example")["visits"]
    await visits.update_one({"_id": job.data}, {"$inc": {"count": 1}}, upsert=True)


async def main() -> None:
    async with embedded_mongod() as server, AsyncMongoClient[Any](server.uri) as shared:
        with MongoClient[Any](server.uri) as client:  # The scheduler's own, which it uses in threads.
            await count_visits(client.get_default_database("example"), shared)


async def count_visits(db: Database[Any], shared: AsyncMongoClient[Any]) -> None:
    async with open_scheduler(db, workers, resources=shared) as scheduler, scheduler.events(JobCompleted) as completed:
        for page in ("home", "about", "home"):
            await scheduler.enqueue(count, page)
        for _ in range(3):
            await anext(completed)
    async for visits in shared.get_default_database("example")["visits"].find(sort={"_id": 1}):
        print(f"{visits['_id']}: {visits['count']}")


asyncio.run(main())
