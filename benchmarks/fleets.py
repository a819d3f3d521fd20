"""F: what a fleet meets: many names, large payloads, several processes under one backlog, and many schedules."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from trio_monque import Monque, NewJob

from . import contention, large_payloads, many_names, raw_workers, schedules
from .measuring import NAME, Bench, Db
from .processes import LONGEST_BACKLOG, REPOSITORY, child
from .report import Comparison, Figure
from .worker_target import BUSY, SLOTS

STARTED_WITHIN = 60.0
SETTLED = 1.0  # Seconds in which the processes have done what they do at their start.
WARM_UP = 1_000  # Jobs for each process.
BUSY_SHARE = 5  # A backlog of handlers that compute is smaller by this.
MOST_LOST = 5.0  # Percent.


def measure(bench: Bench) -> list[Figure]:
    return [
        *many_names.measure(bench),
        *large_payloads.measure(bench),
        *_processes(bench),
        _lost(bench),
        *schedules.measure(bench),
    ]


# --- Throughput of the command ---


def _processes(bench: Bench) -> list[Figure]:
    """Of one, two and four processes; the last two share the change stream of their parent."""
    found = bench.in_turns({str(number): partial(_rate, bench, number) for number in (1, 2, 4)})

    def figure(number: int, beside: Sequence[Comparison]) -> Figure:
        what = f"run --processes {number}, {SLOTS} slots each"
        return Figure(
            part="F", key=f"F.run {number}", what=what, unit="jobs/s", values=found[str(number)], floors=beside
        )

    return [
        figure(1, ()),
        figure(2, [Comparison(floor="one process", values=found["1"])]),
        figure(4, [Comparison(floor="two processes", values=found["2"], at_least=0.95)]),
        *_raw_processes(bench),
        *_busy_processes(bench),
    ]


def _raw_processes(bench: Bench) -> list[Figure]:
    """What the machine leaves of four processes beside two, if they share a server and nothing else."""
    with raw_workers.started(bench, 2) as two, raw_workers.started(bench, 4) as four:
        for warmed in (two, four):
            raw_workers.rate(bench, warmed, WARM_UP * len(warmed))
        found = bench.in_turns(
            {
                str(len(workers)): partial(raw_workers.rate, bench, workers, bench.size.backlog)
                for workers in (two, four)
            }
        )
    what = "four raw processes, each claims and completes jobs of its own in batches of 100"
    beside = [Comparison(floor="two of them", values=found["2"])]
    return [Figure(part="F", key="F.raw 4", what=what, unit="jobs/s", values=found["4"], floors=beside)]


def _busy_processes(bench: Bench) -> list[Figure]:
    """Of handlers that compute: then a process is limited by its interpreter, and not by the server."""
    jobs = bench.size.backlog // BUSY_SHARE
    found = bench.in_turns({str(number): partial(_rate, bench, number, BUSY, jobs) for number in (1, 2)})
    one = Figure(
        part="F", key="F.busy 1", what="one process, handlers that compute 1 ms", unit="jobs/s", values=found["1"]
    )
    beside = [Comparison(floor="one process", values=found["1"], at_least=1.5)]
    two = Figure(
        part="F",
        key="F.busy 2",
        what="two processes, handlers that compute 1 ms",
        unit="jobs/s",
        values=found["2"],
        floors=beside,
    )
    return [one, two]


def _rate(bench: Bench, number: int, name: str = NAME, jobs: int | None = None) -> float:
    """Jobs a second of processes that have run jobs before: the first thousand of a process cost more."""
    with bench.database() as database:
        monque = Monque(database)
        with _running(bench, database, number):
            _wait_for_instances(monque, number)
            _worked_off_in(monque, database, name, WARM_UP * number)
            measured = jobs or bench.size.backlog
            return measured / _worked_off_in(monque, database, name, measured)


def _worked_off_in(monque: Monque, database: Db, name: str, jobs: int) -> float:
    """The seconds from the moment when all of so many jobs may begin."""
    monque.sync.pause(name)
    monque.sync.enqueue_many([NewJob(name=name)] * jobs)
    begun = time.perf_counter()
    monque.sync.resume(name)
    while any(database["monque_jobs"].find_one({"status": one}, {"_id": 1}) for one in ("pending", "processing")):
        assert time.perf_counter() < begun + LONGEST_BACKLOG, "the backlog is not worked off"
        time.sleep(0.01)
    return time.perf_counter() - begun


@contextmanager
def _running(bench: Bench, database: Db, number: int) -> Iterator[None]:
    command = [sys.executable, "-m", "trio_monque", "run", "benchmarks.worker_target:workers"]
    with subprocess.Popen(
        [*command, "--processes", str(number), "--uri", bench.uri, "--database", database.name],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STARTED_WITHIN)


def _wait_for_instances(monque: Monque, number: int) -> None:
    end = time.monotonic() + STARTED_WITHIN
    while len(monque.sync.instances()) < number:
        assert time.monotonic() < end, "the processes have not started"
        time.sleep(0.05)
    time.sleep(SETTLED)


# --- Lost candidates ---


def _lost(bench: Bench) -> Figure:
    with ExitStack() as stack:
        workers = [stack.enter_context(child("workers", bench.uri)) for _ in range(4)]
        found: list[dict[str, Any]] = [
            contention.shared(bench.client, workers, bench.size.shared, concurrency=SLOTS)
            for _ in range(bench.size.rounds)
        ]
    return Figure(
        part="F",
        key="F.lost",
        what=f"4 processes with {SLOTS} slots each under {bench.size.shared:,} jobs: candidates lost to each other",
        unit="%",
        values=[100 * one["lost"] for one in found],
        at_most=MOST_LOST,
    )
