"""An asyncio program enqueues, and a worker process on trio runs the jobs.

Why it exists: a web application on asyncio does not have to change for its jobs to run on trio. The two
processes share the database and this module. Run it: `python examples/enqueue_from_asyncio.py`.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE
from functools import partial
from typing import Any

import trio
from pymongo import MongoClient

from trio_monque import Monque, RunningJob, Workers, run_until_signalled
from trio_monque.embedded import embedded_mongod

workers = Workers()


@workers.register("square")
async def square(job: RunningJob[int]) -> None:
    print(f"{job.data} squared is {job.data**2}", flush=True)


def work(uri: str) -> None:
    """The worker process: runs jobs until it gets SIGTERM or Ctrl-C, and then ends in order."""
    with MongoClient[Any](uri) as client:
        report = trio.run(partial(run_until_signalled, client.get_default_database("example"), workers))
    print(f"the worker completed {report.completed} jobs")


async def enqueue(uri: str) -> None:
    """The asyncio program."""
    with MongoClient[Any](uri) as client:
        monque = Monque(client.get_default_database("example"))
        for number in range(3):
            await monque.enqueue(square, number)

    worker = await asyncio.create_subprocess_exec(sys.executable, __file__, uri, stdout=PIPE)
    assert worker.stdout is not None
    for _ in range(3):
        print((await worker.stdout.readline()).decode(), end="")
    worker.terminate()
    print((await worker.stdout.read()).decode(), end="")
    await worker.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1])
    else:
        with embedded_mongod() as server:
            asyncio.run(enqueue(server.uri))
