"""How long after `cancel_job`, said by another client, a run feels it. Beats are so rare that only the stream can tell.

    python benchmarks/cancel_latency.py [how many]

Prints the median, the 95th percentile and the longest, in milliseconds, from the call of `cancel_job` on.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import trio
from bson import ObjectId
from pymongo import MongoClient

from trio_monque import ChangeStreamConnected, Event, Monque, RunningJob, Workers, open_scheduler
from trio_monque.embedded import embedded_mongod

BEAT = 300.0  # Seconds.


async def measure(count: int) -> list[float]:
    """Seconds from the request to the cancellation in the handler, each of a run of its own."""
    workers, started, felt = Workers(), dict[ObjectId, trio.Event](), dict[ObjectId, float]()
    ended = dict[ObjectId, trio.Event]()

    @workers.register("wait", concurrency=20)
    async def wait(job: RunningJob[Any]) -> None:
        started[job.id].set()
        try:
            await trio.sleep_forever()
        finally:
            felt[job.id] = trio.current_time()
            ended[job.id].set()

    connected = trio.Event()

    async def hear(_: ChangeStreamConnected) -> None:
        connected.set()

    took: list[float] = []
    async with embedded_mongod() as server:
        with MongoClient[Any](server.uri, tz_aware=True) as ours, MongoClient[Any](server.uri, tz_aware=True) as theirs:
            other = Monque(theirs["bench"])
            listeners: dict[type[Event], Any] = {ChangeStreamConnected: hear}
            async with open_scheduler(ours["bench"], workers, listeners=listeners, heartbeat_interval=BEAT):
                await connected.wait()
                for _ in range(count):
                    document = await other.document("wait")
                    job_id = document["_id"]
                    started[job_id], ended[job_id] = trio.Event(), trio.Event()
                    await trio.to_thread.run_sync(theirs["bench"]["monque_jobs"].insert_one, document)
                    await started[job_id].wait()
                    asked = trio.current_time()
                    await other.cancel_job(job_id)
                    await ended[job_id].wait()
                    took.append(felt[job_id] - asked)
    return took


def main() -> None:
    took = sorted(1000 * seconds for seconds in trio.run(measure, int(sys.argv[1]) if sys.argv[1:] else 200))
    at_95 = took[min(len(took) - 1, round(0.95 * len(took)))]
    print(f"{len(took)} runs: median {statistics.median(took):.1f} ms, p95 {at_95:.1f} ms, longest {took[-1]:.1f} ms")


if __name__ == "__main__":
    main()
