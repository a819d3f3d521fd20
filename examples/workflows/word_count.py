"""Map and reduce: a job for each file, on any machine. A file that cannot be read is reported, and fails no other.

Why it exists: it shows `fail="keep"`, keys of children, and `job.step`, which keeps what a run has found out for the
runs that follow. Run it: `python examples/workflows/word_count.py`.
"""

import tempfile
from pathlib import Path
from typing import Any

import trio
from pymongo import MongoClient

from trio_monque import RunningJob, Workers, open_job_nursery, open_scheduler
from trio_monque.embedded import embedded_mongod

workers = Workers()


@workers.register("count-words", max_attempts=2, backoff=0.05)
async def count_words(job: RunningJob[str]) -> int:
    return len((await trio.Path(job.data).read_text(encoding="utf-8")).split())


@workers.register("word-count", store_result=True)
async def word_count(job: RunningJob[str]) -> dict[str, object]:
    # Another run may find other files: the list is a decision, and this job keeps it.
    paths = await job.step("files", lambda: sorted(map(str, Path(job.data).iterdir())))
    async with open_job_nursery(job, fail="keep") as nursery:
        children = await nursery.map(count_words, paths, key=lambda path: Path(path).name)
    return {
        "words": sum(child.result for child in children if child.error is None),
        "unreadable": [child.key for child in children if child.error is not None],
    }


async def main(folder: Path) -> None:
    (folder / "first.txt").write_text("two words", encoding="utf-8")
    (folder / "second.txt").write_text("and three more", encoding="utf-8")
    (folder / "third.txt").write_bytes(b"\xff\xfe")
    async with embedded_mongod() as server:
        with MongoClient[Any](server.uri, tz_aware=True) as client:
            async with open_scheduler(client.get_default_database("words"), workers) as scheduler:
                job = await scheduler.enqueue(word_count, str(folder))
                print((await scheduler.wait_job(job)).result)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, Path(folder))
