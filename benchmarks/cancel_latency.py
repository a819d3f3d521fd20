"""How long after `cancel_job`, said by another client, a run feels it. Beats are so rare that only the stream can tell.

    python -m benchmarks.cancel_latency [how many] [trio, asyncio or uvloop]

Prints the median, the 95th percentile and the longest, in milliseconds, from the call of `cancel_job` on.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import anyio
from bson import ObjectId
from pymongo import MongoClient

from trio_monque import Monque, RunningJob
from trio_monque.embedded import embedded_mongod

from . import loops
from .measuring import Db, median, new_database, percentile
from .schedulers import streaming_scheduler

BEAT = 300.0  # Seconds.


def measure(uri: str, count: int, loop: str = loops.TRIO) -> list[float]:
    """Milliseconds from the request to the cancellation in the handler, each of a run of its own."""
    with (
        MongoClient[dict[str, Any]](uri, tz_aware=True) as ours,
        MongoClient[dict[str, Any]](uri, tz_aware=True) as theirs,
        new_database(ours) as database,
    ):
        return loops.run(loop, _cancelled, database, theirs[database.name], count)


async def _cancelled(database: Db, of_others: Db, count: int) -> list[float]:
    started, felt = dict[ObjectId, anyio.Event](), dict[ObjectId, float]()
    ended = dict[ObjectId, anyio.Event]()

    async def wait(job: RunningJob[Any]) -> None:
        started[job.id].set()
        try:
            await anyio.sleep_forever()
        finally:
            felt[job.id] = time.monotonic()
            ended[job.id].set()

    took: list[float] = []
    other = Monque(of_others)
    async with streaming_scheduler(database, heartbeat_interval=BEAT) as scheduler:
        scheduler.register("wait", wait, concurrency=20)
        for _ in range(count):
            document = await other.document("wait")
            job_id = document["_id"]
            started[job_id], ended[job_id] = anyio.Event(), anyio.Event()
            await anyio.to_thread.run_sync(of_others["monque_jobs"].insert_one, document)
            await started[job_id].wait()
            asked = time.monotonic()
            await other.cancel_job(job_id)
            await ended[job_id].wait()
            took.append(1000 * (felt[job_id] - asked))
    return took


def main() -> None:
    count = int(sys.argv[1]) if sys.argv[1:] else 200
    with embedded_mongod() as server:
        took = measure(server.uri, count, *sys.argv[2:3])
    at_95, longest = percentile(took, 0.95), max(took)
    print(f"{len(took)} runs: median {median(took):.1f} ms, p95 {at_95:.1f} ms, longest {longest:.1f} ms")


if __name__ == "__main__":
    main()
