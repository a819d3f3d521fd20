"""What the change stream costs a scheduler that runs what it enqueues itself: commands a job, and throughput.

    python -m benchmarks.own_writes

Both with the stream and without, in turns in one run, so that the ratio means something on any machine.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import trio
from pymongo import MongoClient

from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.embedded import embedded_mongod

from .measuring import Sent, median, new_database


async def measure(uri: str, jobs: int, tasks: int, *, change_stream: bool) -> tuple[float, dict[str, float]]:
    """Jobs a second, and commands a job by kind; each task enqueues its next job when the last one has run."""
    workers, done, count = Workers(), dict[Any, trio.Event](), Sent()

    @workers.register("work", concurrency=2 * tasks)
    async def work(job: RunningJob[Any]) -> None:
        done[job.data].set()

    with (
        MongoClient[dict[str, Any]](uri, tz_aware=True, event_listeners=[count]) as client,
        new_database(client) as database,
    ):
        async with open_scheduler(database, workers, change_stream=change_stream) as scheduler:
            await trio.sleep(0.5)  # Beyond what the start costs.
            count.by_name.clear()
            begun = trio.current_time()

            async def enqueue(task: int) -> None:
                for number in range(jobs // tasks):
                    key = f"{task}/{number}"
                    done[key] = trio.Event()
                    await scheduler.enqueue("work", key)
                    await done[key].wait()

            async with trio.open_nursery() as nursery:
                for task in range(tasks):
                    nursery.start_soon(enqueue, task)
            took = trio.current_time() - begun
            sent = dict(count.by_name)
    return jobs / took, {name: round(times / jobs, 2) for name, times in sorted(sent.items()) if times > jobs / 100}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with embedded_mongod() as server:
        for tasks in (1, 20):
            speeds: dict[bool, list[float]] = {True: [], False: []}
            sent: dict[bool, dict[str, float]] = {}
            for _ in range(options.rounds):
                for streamed in (True, False):
                    one = partial(measure, server.uri, options.jobs, tasks, change_stream=streamed)
                    speed, sent[streamed] = trio.run(one)
                    speeds[streamed].append(speed)
            ratio = median(speeds[True]) / median(speeds[False])
            print(f"{tasks} enqueuing: with the stream {ratio:.2f} of the throughput without")
            print(f"  commands a job with:    {sent[True]}")
            print(f"  commands a job without: {sent[False]}")


if __name__ == "__main__":
    main()
