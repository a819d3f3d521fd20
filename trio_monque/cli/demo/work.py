"""The work: one job for each file, and its handler. Your own programs look like this module."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import trio

from ...client.monque import Monque
from ...scheduler.running_job import RunningJob
from ...scheduler.workers import Workers
from .files import Records, RunRecord, measure
from .progress import Progress

FAILS_ONCE_IN: Final = 50
DELAYED_ONE_IN: Final = 100
DELAYS: Final = (1.0, 0.75, 0.5)

ENQUEUERS: Final = 3
"""Tasks that enqueue at a time. Three: on two cores the two schedulers just keep up (a median wait of 5 ms). With
eight, enqueuing ends a quarter sooner, and jobs wait 830 ms because the queue is long."""

workers = Workers()


@dataclass(frozen=True)
class Resources:
    """What the program gives to every handler as `job.resources`."""

    records: Records
    job_seconds: float = 0.0


class PlannedFailure(Exception):  # noqa: N818  # The demo shows it on purpose.
    """The failure that one file in fifty meets once."""


FILE_JOBS: Final = "digest-file"
TALLY: Final = "tally"


@workers.cron("* * * * *", TALLY, store_result=True)
def tally(job: RunningJob[Any]) -> dict[str, int]:
    """A schedule beside the jobs: every minute, how many files are read. Both schedulers declare it; one job exists."""
    stats = job.scheduler.sync.get_queue_stats(name=FILE_JOBS)
    return {"done": stats.completed, "left": stats.pending + stats.processing}


@workers.register(FILE_JOBS, concurrency=8, max_attempts=4)
def digest_file(job: RunningJob[Any]) -> None:
    """Read a file and store what is in it. A plain function, which runs in a thread: reading and hashing block."""
    resources: Resources = job.resources
    claimed_at = None if job.job.claim is None else job.job.claim.since
    assert claimed_at is not None, "a claimed job has the moment of its claim"
    record = RunRecord(
        job_id=job.id,
        attempt=job.attempt,
        instance=job.scheduler.id,
        due_at=job.next_run_at,
        claimed_at=claimed_at,
        path=job.data["path"],
    )
    _take_longer(job, resources.job_seconds)
    try:
        if job.data["fails_once"] and job.fail_count == 0:
            raise PlannedFailure("the demo lets one file in fifty fail once")
        resources.records.store(replace(record, content=measure(Path(record.path))))
    except (PlannedFailure, OSError) as error:
        resources.records.store(replace(record, failure=f"{type(error).__name__}: {error}"))
        raise


def _take_longer(job: RunningJob[Any], seconds: float) -> None:
    """Sleep, and check now and then whether the run is cancelled: a thread cannot be cancelled from outside."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        job.check_cancelled()
        time.sleep(min(left, 0.05))


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One job of the demo: its data, and its delay in seconds."""

    data: dict[str, Any]
    delay: float


def planned(files: Sequence[Path]) -> Iterator[PlannedJob]:
    """Plan one job for each file. The same jobs fail and are delayed in every run of the demo."""
    for index, path in enumerate(files):
        delay = DELAYS[index // DELAYED_ONE_IN % len(DELAYS)] if index % DELAYED_ONE_IN == 1 else 0.0
        yield PlannedJob({"path": str(path), "fails_once": index % FAILS_ONCE_IN == 0, "delay": delay}, delay)


async def enqueue_all(monque: Monque, files: Sequence[Path], progress: Progress) -> None:
    """Enqueue a job for every file, from several tasks at once. If cancelled, jobs that were sent stay enqueued."""
    left = planned(files)

    async def enqueue_some() -> None:
        for job in left:
            await monque.enqueue(digest_file, job.data, delay=job.delay or None)
            progress.enqueued += 1

    async with trio.open_nursery() as nursery:
        for _ in range(ENQUEUERS):
            nursery.start_soon(enqueue_some)
    progress.all_enqueued = True
