"""A release is checked on several platforms at once. The first failure cancels the other checks, wherever they run.

Why it exists: it shows `map`, what a failure does to the other children, and a time limit around a block. Run it:
`python examples/workflows/release.py`.
"""

from typing import Any

import trio
from pymongo import MongoClient

from trio_monque import JobFailedError, RunningJob, Workers, open_job_nursery, open_scheduler
from trio_monque.embedded import embedded_mongod

workers = Workers()


@workers.register("check", concurrency=20, max_attempts=1)
async def check(job: RunningJob[str]) -> str:
    try:
        if job.data == "windows":
            await trio.sleep(0.5)
            raise RuntimeError("a path has a backslash")
        await trio.sleep(600)
    except trio.Cancelled:
        print(f"{job.data}: cancelled")
        raise
    return "passed"


@workers.register("release", max_attempts=3)
async def release(job: RunningJob[list[str]]) -> None:
    with trio.fail_after(1800):  # Of this run; the next one has as much.
        async with open_job_nursery(job) as nursery:
            await nursery.map(check, job.data)
    print("all have passed")


async def main() -> None:
    async with embedded_mongod() as server:
        with MongoClient[Any](server.uri, tz_aware=True) as client:
            async with open_scheduler(client.get_default_database("releases"), workers) as scheduler:
                job = await scheduler.enqueue(release, ["linux", "windows", "macos"])
                try:
                    await scheduler.wait_job(job)
                except JobFailedError as error:
                    print(f"not released, attempt {error.job.attempts}: {error.job.fail_reason}")


if __name__ == "__main__":
    trio.run(main)
