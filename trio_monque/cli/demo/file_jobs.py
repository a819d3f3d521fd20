"""The jobs of the demo: one for each file, and its handler. Your own programs look like this module."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any, Final

from ...client.monque import Monque
from ...jobs.new_job import NewJob
from ...scheduler.running_job import RunningJob
from ...scheduler.workers import Workers

FAILS_ONCE_IN: Final = 200
DELAYED_ONE_IN: Final = 100

BATCH: Final = 500
"""Jobs that are enqueued by one command."""

# Installed packages do not belong to the standard library.
_NOT_OURS: Final = frozenset({"site-packages", "dist-packages"})

workers = Workers()


class PlannedFailure(Exception):  # noqa: N818  # The demo shows it on purpose.
    """The failure that one file in two hundred meets once."""


@workers.register("digest-file", concurrency=16, max_attempts=3, store_result=True)
def digest_file(job: RunningJob[Any]) -> dict[str, Any]:
    """Return what is in a file. A plain function, which runs in a thread: reading and hashing block."""
    _take_longer(job, job.data["seconds"])
    if job.data["fails_once"] and job.fail_count == 0:
        raise PlannedFailure("the demo lets one file in two hundred fail once")
    content = Path(job.data["path"]).read_bytes()
    return {
        "digest": hashlib.sha256(content).hexdigest(),
        "lines": content.count(b"\n"),
        "bytes": len(content),
        "scheduler": job.scheduler.id,
    }


def _take_longer(job: RunningJob[Any], seconds: float) -> None:
    """Sleep, and check now and then whether the run is cancelled: a thread cannot be cancelled from outside."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        job.check_cancelled()
        time.sleep(min(left, 0.05))


async def enqueue_all(monque: Monque, files: Sequence[Path], seconds: float) -> None:
    """Enqueue a job for every file, many with one command. The same jobs fail and are delayed in every demo.

    If cancelled, jobs that were sent stay enqueued.
    """
    for begin in range(0, len(files), BATCH):
        part = enumerate(files[begin : begin + BATCH], begin)
        await monque.enqueue_many([_job_for(path, index, seconds) for index, path in part])


def _job_for(path: Path, index: int, seconds: float) -> NewJob:
    fails_once, delay = index % FAILS_ONCE_IN == 0, float(index % DELAYED_ONE_IN == 1)
    data = {"path": str(path), "fails_once": fails_once, "delay": delay, "seconds": seconds}
    return NewJob(name=digest_file.name, data=data, delay=delay)


def find_files(folder: Path, pattern: str, most: int | None) -> Sequence[Path]:
    """Return the readable files below the folder, always in the same order."""
    return list(islice(_walk(folder, pattern), most))


def _walk(folder: Path, pattern: str) -> Iterator[Path]:
    for parent, subfolders, names in os.walk(folder):
        subfolders[:] = sorted(set(subfolders) - _NOT_OURS)
        for name in sorted(names):
            path = Path(parent, name)
            # A name that is not in the encoding of the file system has surrogates, which BSON cannot store.
            can_be_stored = str(path).encode(errors="ignore").decode() == str(path)
            if fnmatch(name, pattern) and path.is_file() and os.access(path, os.R_OK) and can_be_stored:
                yield path
