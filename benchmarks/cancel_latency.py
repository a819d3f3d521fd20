"""How long after `cancel_job`, said by another client, a run feels it. Beats are so rare that only the stream can tell.

    python -m benchmarks.cancel_latency [how many]

Prints the median, the 95th percentile and the longest, in milliseconds, from the call of `cancel_job` on.
"""

from __future__ import annotations

import sys
from typing import Any

import trio
from bson import ObjectId
from pymongo import MongoClient

from trio_monque import Monque, RunningJob
from trio_monque.embedded import embedded_mongod

from .measuring import median, new_database, percentile
from .schedulers import streaming_scheduler

BEAT = 300.0  # Seconds.


async def measure(count: int) -> list[float]:
    """Seconds from the request to the cancellation in the handler, each of a run of its own."""
    started, felt = dict[ObjectId, trio.Event](), dict[ObjectId, float]()
    ended = dict[ObjectId, trio.Event]()

    async def wait(job: RunningJob[Any]) -> None:
        started[job.id].set()
        try:
            await trio.sleep_forever()
        finally:
            felt[job.id] = trio.current_time()
            ended[job.id].set()

    took: list[float] = []
    async with embedded_mongod() as server:
        with (
            MongoClient[dict[str, Any]](server.uri, tz_aware=True) as ours,
            MongoClient[dict[str, Any]](server.uri, tz_aware=True) as theirs,
            new_database(ours) as database,
        ):
            of_others = theirs[database.name]
            other = Monque(of_others)
            async with streaming_scheduler(database, heartbeat_interval=BEAT) as scheduler:
                scheduler.register("wait", wait, concurrency=20)
                for _ in range(count):
                    document = await other.document("wait")
                    job_id = document["_id"]
                    started[job_id], ended[job_id] = trio.Event(), trio.Event()
                    await trio.to_thread.run_sync(of_others["monque_jobs"].insert_one, document)
                    await started[job_id].wait()
                    asked = trio.current_time()
                    await other.cancel_job(job_id)
                    await ended[job_id].wait()
                    took.append(felt[job_id] - asked)
    return took


def main() -> None:
    took = [1000 * seconds for seconds in trio.run(measure, int(sys.argv[1]) if sys.argv[1:] else 200)]
    at_95, longest = percentile(took, 0.95), max(took)
    print(f"{len(took)} runs: median {median(took):.1f} ms, p95 {at_95:.1f} ms, longest {longest:.1f} ms")


if __name__ == "__main__":
    main()
