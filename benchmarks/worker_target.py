"""What `trio-monque run benchmarks.worker_target:workers` runs for `fleets`."""

from __future__ import annotations

from typing import Any

from trio_monque import RunningJob, Workers

from .measuring import NAME

SLOTS = 100

workers = Workers()


@workers.register(NAME, concurrency=SLOTS)
async def noop(job: RunningJob[Any]) -> None: ...
