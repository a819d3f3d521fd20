"""What `trio-monque run benchmarks.worker_target:workers` runs for `fleets`."""

from __future__ import annotations

from typing import Any

from trio_monque import RunningJob, Workers

from .measuring import NAME

SLOTS = 100
BUSY = "busy"
COMPUTED = 60_000

workers = Workers()


@workers.register(NAME, concurrency=SLOTS)
async def noop(job: RunningJob[Any]) -> None: ...


@workers.register(BUSY, concurrency=SLOTS)
async def busy(job: RunningJob[Any]) -> None:
    """Compute for about a millisecond: what several processes are for."""
    sum(range(COMPUTED))
