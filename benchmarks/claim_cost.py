"""S: keys and documents that the server examines for a claimed job, beside a long history and without one.

The server's profiler counts them, so it does not matter how busy the machine is. What is counted is every read of the
jobs collection, and every write that claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import trio

from tests.support import many_jobs
from tests.support.examined import profiling
from trio_monque import Monque

from . import floors
from .measuring import NAME, Bench, Db, tell
from .report import Comparison, Figure
from .schedulers import noop, streaming_scheduler

SLOTS = 100
TIMEOUT = 600.0
PROFILE = 256 * 1024 * 1024  # Bytes: what the profiler tells of all of a run.


@dataclass(frozen=True)
class Examined:
    """Of one claimed job."""

    keys: float
    documents: float


def measure(bench: Bench) -> list[Figure]:
    due, all_documents = bench.size.due, bench.size.documents
    alone = _counted(bench, history=0, act=run_all)
    floor = _counted(bench, history=0, act=_raw)
    beside = _counted(bench, history=all_documents - due, act=run_all)
    told = f"{due:,} due among {all_documents:,} documents"

    def figures(what: str, unit: str, large: float, small: float, raw: float) -> Figure:
        small_name, raw_name = f"{due:,} due alone", "P100, alone"
        return Figure(
            part="S",
            key=f"S.{what}",
            what=f"{told}: {what} examined",
            unit=unit,
            values=[large],
            floors=[
                Comparison(floor=small_name, values=[small], at_most=1.2),
                Comparison(floor=raw_name, values=[raw]),
            ],
        )

    return [
        figures("keys", "a job", beside.keys, alone.keys, floor.keys),
        figures("documents", "a job", beside.documents, alone.documents, floor.documents),
    ]


def _counted(bench: Bench, *, history: int, act: Callable[[Db, int], None]) -> Examined:
    due = bench.size.due
    with bench.database() as database:
        jobs = database["monque_jobs"]
        many_jobs.insert_all(jobs, map(_past_or_future, range(history)))
        jobs.insert_many(floors.backlog(due))
        if act is _raw:
            jobs.create_indexes(list(floors.LEAN))
        else:
            _make_indexes(database)
        found = examined_a_job(database, due, act)
    tell(f"  {history + due:,} documents, {act.__name__}: {found}")
    return found


def examined_a_job(database: Db, due: int, act: Callable[[Db, int], None]) -> Examined:
    """In all reads of the jobs and all writes that claim, while `act` runs so many due jobs."""
    with profiling(database, PROFILE) as told:
        act(database, due)
    entries = [entry for entry in told() if entry["op"] != "update" or _claims(entry["command"])]
    return Examined(*(sum(entry.get(name, 0) for entry in entries) / due for name in ("keysExamined", "docsExamined")))


def _past_or_future(number: int) -> floors.Document:
    """Of a hundred, 88 completed, two failed, and ten due in some days."""
    created = floors.now() - timedelta(days=30) + timedelta(seconds=number)
    document = floors.new_document(number, created, created)
    which = number % 100
    if which < 10:
        document["nextRunAt"] = floors.now() + timedelta(days=1, seconds=number)
    else:
        document["status"] = "failed" if which < 12 else "completed"
    return document


def _make_indexes(database: Db) -> None:
    """By the first enqueue of a client, which may take its time here."""
    monque = Monque(database, operation_timeout=TIMEOUT)
    job = monque.sync.enqueue("only-for-the-indexes", delay=3600.0)
    monque.sync.delete_job(job.id)


def run_all(database: Db, number: int, **options: Any) -> None:
    """Jobs with the benchmarks' name."""
    trio.run(partial(_run_until_completed, database, number, **options))


async def _run_until_completed(database: Db, number: int, **options: Any) -> None:
    async with streaming_scheduler(database, **options) as scheduler:
        scheduler.register(NAME, noop, concurrency=SLOTS)
        with trio.fail_after(TIMEOUT):
            while scheduler.statistics().completed < number:  # noqa: ASYNC110 - what a user can see, and rarely
                await trio.sleep(0.02)


def _raw(database: Db, _: int) -> None:
    floors.FLOORS["P100"](floors.jobs_of(database))


def _claims(update: Mapping[str, Any]) -> bool:
    """Whether it makes jobs run, however it is written."""
    return "'processing'" in str(update.get("u"))
