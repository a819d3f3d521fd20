"""F: many schedules that come due at once, beside as many jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
import trio
from pymongo import MongoClient

from trio_monque import Monque, NewJob

from .measuring import NAME, Bench, Db, Processor, Sent
from .report import Comparison, Figure
from .schedulers import noop, streaming_scheduler

SLOTS = 100
TIMEOUT = 120.0
MOST_MORE = 2.0
FAR = "0 0 1 1 *"  # The next occurrence is not due while this is measured.


def measure(bench: Bench) -> list[Figure]:
    processor, number = Processor(bench), bench.size.schedules
    commands = bench.in_turns({kind: partial(_measured, bench, processor, kind) for kind in ("jobs", "schedules")})
    what = f"{number:,} schedules that are due at once: "
    return [
        Figure(
            part="F",
            key="F.schedules processor",
            what=what + "processor of client and server",
            unit="µs an occurrence",
            values=processor.of_both("schedules"),
            floors=[Comparison(floor="as many jobs", values=processor.of_both("jobs"), at_most=MOST_MORE)],
        ),
        Figure(
            part="F",
            key="F.schedules commands",
            what=what + "commands of the client",
            unit="commands",
            values=commands["schedules"],
            floors=[Comparison(floor="as many jobs", values=commands["jobs"])],
        ),
    ]


def _measured(bench: Bench, processor: Processor, kind: str) -> float:
    with bench.database() as database:
        _fill(database, kind, bench.size.schedules)
        return trio.run(_run_all, bench, processor, kind, database.name)


def _fill(database: Db, kind: str, number: int) -> None:
    monque = Monque(database)
    if kind == "jobs":
        monque.sync.enqueue_many([NewJob(name=NAME)] * number)
        return
    for one in range(number):
        monque.sync.schedule(FAR, NAME, unique_key=str(one))
    due = datetime.now(UTC) - timedelta(seconds=1)
    database["monque_jobs"].update_many({}, {"$set": {"nextRunAt": due}})


async def _run_all(bench: Bench, processor: Processor, kind: str, name: str) -> float:
    """The commands that the client sent."""
    sent, number = Sent(), bench.size.schedules
    with MongoClient[dict[str, Any]](bench.uri, tz_aware=True, event_listeners=[sent]) as client:
        async with streaming_scheduler(client[name]) as scheduler:
            before = sent.by_name.total()
            with anyio.fail_after(TIMEOUT), processor.counted(kind, number):
                scheduler.register(NAME, noop, concurrency=SLOTS)
                while scheduler.statistics().completed < number:  # noqa: ASYNC110 - what a user can see, and rarely
                    await anyio.sleep(0.01)
            return float(sent.by_name.total() - before)
