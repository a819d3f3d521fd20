"""Move waiting jobs from a queue that is not in MongoDB: copy `examples/migrate/waiting_jobs.py` into your project.

Why it exists: there is no transaction over two stores. Instead, the names are paused while jobs are moved: a moved job
waits, so its unique key holds, and a second run after a crash adds nothing. Names run again when all jobs are moved.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from trio_monque import Monque

PAUSED_BY = "move of waiting jobs"


@dataclass(frozen=True, kw_only=True)
class WaitingJob:
    """One job of the old queue."""

    id: str
    name: str
    args: Sequence[Any] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    run_at: datetime | None = None
    remove: Callable[[], bool | None]
    """Removes it from the old queue. It returns False if an old worker has taken the job meanwhile."""


def move(monque: Monque, waiting: Iterable[WaitingJob]) -> int:
    """Return how many jobs were moved."""
    jobs = list(waiting)
    newly_paused = [monque.sync.pause(name, by=PAUSED_BY) for name in {job.name for job in jobs}]
    if any(newly_paused):
        time.sleep(2)  # A pause holds in all processes after a second.
    count = 0
    for job in jobs:
        data = {"args": list(job.args), "kwargs": job.kwargs}
        run_at = job.run_at or datetime.now(UTC)
        new = monque.sync.enqueue(job.name, data, run_at=run_at, unique_key=f"moved:{job.id}")
        if job.remove() is False:
            monque.sync.cancel_job(new.id)
        else:
            count += 1
    for pause in monque.sync.pauses():
        if pause.by == PAUSED_BY:  # Of this run, or of one that was killed.
            monque.sync.resume(pause.name)
    return count
