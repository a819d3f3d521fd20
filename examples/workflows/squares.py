"""A program that is not a job starts children, and shows results as they come. Ctrl-C, an error or a kill ends them.

Why it exists: it shows a job nursery of a program, `as_completed`, and asyncio. Run it:
`python examples/workflows/squares.py`.
"""

import asyncio
import math
from typing import Any

from pymongo import MongoClient

from trio_monque import Monque, RunningJob, Workers, open_job_nursery, open_scheduler
from trio_monque.embedded import embedded_mongod

workers = Workers()


@workers.register("square", concurrency=10)
async def square(job: RunningJob[int]) -> int:
    return int(math.pow(job.data, 2))


async def total_of_squares(monque: Monque, numbers: range) -> int:
    total = 0
    async with open_job_nursery(monque) as nursery:
        await nursery.map(square, numbers)
        async for child in nursery.as_completed():
            total += child.result
            print(f"{total} so far")
    return total


async def main() -> None:
    with embedded_mongod() as server, MongoClient[Any](server.uri, tz_aware=True) as client:
        database = client.get_default_database("squares")
        async with open_scheduler(database, workers):  # As a rule it is another process that runs the children.
            print(await total_of_squares(Monque(database), range(5)))


if __name__ == "__main__":
    asyncio.run(main())
