"""The smallest complete program: a server of its own, one worker, one job. Run it: `python examples/hello.py`."""

from typing import Any

import trio
from pymongo import MongoClient

from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.embedded import embedded_mongod

workers = Workers()


@workers.register("greet")
async def greet(job: RunningJob[str]) -> None:
    print(f"Hello, {job.data}!")
    job.scheduler.drain()  # Stop claiming, and finish what is running. This program has only one job.


async def main() -> None:
    async with embedded_mongod() as server:
        with MongoClient[Any](server.uri) as client:
            async with open_scheduler(client.get_default_database("hello"), workers) as scheduler:
                await scheduler.enqueue(greet, "world")
                await scheduler.wait_drained()


trio.run(main)
