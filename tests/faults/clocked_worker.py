"""A `mixed_worker` whose clocks are falsified. Started by `processes.py`.

Takes these options beside the scheduler's:

- `machine_off`: Seconds by which the machine's clock is wrong.
- `steps`: The machine's clock steps back and forth, by minutes to days, several times a second.
- `mutation`: What is made to go by the clock, although nothing may: one of MUTATIONS.

By how much the server's time is moved stands in a file beside the records, and is read whenever that time is
measured: as if the clock of the primary had been stepped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.support.internals import was_never_measured
from trio_monque import Job, clock
from trio_monque.client import server_time
from trio_monque.client.rescuer import Rescuer
from trio_monque.clock import ServerClock
from trio_monque.engine.demand import ClaimState
from trio_monque.engine.lease import Beats
from trio_monque.observations import Sighting
from trio_monque.scheduler.renewals import JobRenewals
from trio_monque.store.driver import connection
from trio_monque.store.job_collection import JobCollection

from . import mixed_worker
from .records import Recorder

SECONDS_BETWEEN_STEPS: Final = 0.3
STEPS: Final = tuple(sign * seconds for seconds in (60.0, 300.0, 3600.0, 86400.0, 2 * 86400.0) for sign in (-1, 1))


def clock_file(records: Path) -> Path:
    """Where a process with these records reads by how many seconds the server's time is moved."""
    return records.with_suffix(".moved")


def clock_records(records: Path) -> Path:
    """Where it writes down that it has measured that time: not among the others, as these are read again and again."""
    return records.with_suffix(".clock.records")


def move_server_time(records: Path, seconds: float) -> None:
    file = clock_file(records)
    new = file.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(file)


def falsify_clocks(patch: pytest.MonkeyPatch, name: str, records: Path, machine_off: float) -> None:
    recorder = Recorder(clock_records(records), name)
    measure = connection.measure_clock_offset

    def wrong_wall_clock() -> datetime:
        return datetime.now(UTC) + timedelta(seconds=machine_off)

    def measure_moved(jobs: JobCollection) -> float | None:
        offset = measure(jobs)
        if offset is None:
            return None
        file = clock_file(records)
        moved = float(file.read_text()) if file.exists() else 0.0
        recorder.write("measured", detail=str(moved))
        return offset + moved

    patch.setattr(clock, "wall_clock", wrong_wall_clock)
    patch.setattr(server_time, "measure_clock_offset", measure_moved)


def step_wall_clock(patch: pytest.MonkeyPatch, name: str) -> None:
    def stepping_wall_clock() -> datetime:
        step = Random(f"{name} {time.monotonic() // SECONDS_BETWEEN_STEPS}").choice(STEPS)
        return datetime.now(UTC) + timedelta(seconds=step)

    patch.setattr(clock, "wall_clock", stepping_wall_clock)


def write_down_renewals(patch: pytest.MonkeyPatch, name: str, records: Path) -> None:
    recorder = Recorder(records, name)
    renew = JobRenewals.renew

    async def renew_and_write(renewals: JobRenewals, held: Sequence[Job]) -> Sequence[ClaimState]:
        sent = time.monotonic()
        states = await renew(renewals, held)
        for job, state in zip(held, states, strict=True):
            if state is not ClaimState.LOST:
                recorder.write("renewed", str(job.id), job.attempts, str(sent))
        return states

    patch.setattr(JobRenewals, "renew", renew_and_write)


def rescue_by_the_clock(patch: pytest.MonkeyPatch) -> None:
    """A claim is dead when its last heartbeat is older than its lease, by the time that the rescuer believes in."""
    sighting = Rescuer.sighting

    def by_the_clock(rescuer: Rescuer, job: Job, now: datetime, older_than: float | None = None) -> Sighting[Job]:
        seen = sighting(rescuer, job, now, older_than)
        assert job.claim is not None
        assert job.claim.last_heartbeat is not None
        if (now - job.claim.last_heartbeat).total_seconds() > seen.lease:
            return replace(seen, lease=0.0)
        return replace(seen, lease=3600.0)

    patch.setattr(Rescuer, "sighting", by_the_clock)


def beat_by_the_clock(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat is the time that the holder believes in, and nothing greater."""
    patch.setattr(Beats, "next", lambda _, now: now)


def go_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """The server's time is the machine's wall clock plus an offset, and no step of that clock is noticed."""

    def by_the_wall() -> float:
        return clock.wall_clock().timestamp()

    patch.setattr(clock, "steady_clock", by_the_wall)
    patch.setattr(connection, "steady_clock", by_the_wall)
    patch.setattr(ServerClock, "is_stale", was_never_measured)


MUTATIONS: Final[Mapping[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "rescues": rescue_by_the_clock,
    "beats": beat_by_the_clock,
    "due times": go_by_the_wall_clock,
}


def work(order: dict[str, Any]) -> None:
    name, records, options = order["name"], Path(order["records"]), order["options"]
    with pytest.MonkeyPatch.context() as patch:
        falsify_clocks(patch, name, records, options.pop("machine_off", 0.0))
        if options.pop("steps", False):
            step_wall_clock(patch, name)
        write_down_renewals(patch, name, records)
        if (mutation := options.pop("mutation", None)) is not None:
            MUTATIONS[mutation](patch)
        mixed_worker.work(order)
