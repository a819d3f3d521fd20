"""F: a backlog of many names beside one of one name, and many names of which few have due jobs."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import trio
from pymongo import MongoClient

from tests.support.examined import profiling
from trio_monque import Monque, NewJob

from .measuring import Bench, Processor, Sent, tell
from .report import Comparison, Figure
from .schedulers import noop, streaming_scheduler
from .throughput import counted_as, one_process
from .variants import PLAIN, Variant

SLOTS = 100
MANY = Variant(what="64 names share the backlog and the 100 slots", names=64)
MOST_MORE = 1.3

IDLE_NAMES, DUE = 1_000, 10
MOST_KEYS = 10 * IDLE_NAMES
"""Keys for the ten jobs: a look reads one for each name, and some looks are needed."""

MOST_COMMANDS = 5 * DUE

SETTLED = 2.0  # Seconds in which a scheduler has done what it does at its start.
TIMEOUT = 60.0


def measure(bench: Bench) -> list[Figure]:
    processor = Processor(bench)
    bench.in_turns({one.what: partial(one_process, bench, processor, SLOTS, one) for one in (PLAIN, MANY)})
    return [*_processor_figures(processor), *_few_due(bench)]


def _processor_figures(processor: Processor) -> list[Figure]:
    sides = {"the client": processor.of_client.__getitem__, "client and server": processor.of_both}
    return [
        Figure(
            part="F",
            key=f"F.names processor of {side}",
            what=f"{MANY.what}: processor of {side}",
            unit="µs a job",
            values=used(counted_as(SLOTS, MANY)),
            floors=[Comparison(floor="one name", values=used(counted_as(SLOTS, PLAIN)), at_most=MOST_MORE)],
        )
        for side, used in sides.items()
    ]


def _few_due(bench: Bench) -> list[Figure]:
    found = [trio.run(_run_few, bench) for _ in range(bench.size.rounds)]
    for keys, commands in found:
        tell(f"  {DUE} due jobs of {IDLE_NAMES} names: {keys} keys, {commands} commands")
    counts = {
        "keys": ("keys examined", [keys for keys, _ in found], MOST_KEYS),
        "commands": ("commands of the client", [commands for _, commands in found], MOST_COMMANDS),
    }
    return [
        Figure(
            part="F",
            key=f"F.few {unit}",
            what=f"{DUE} due jobs of {IDLE_NAMES:,} names: {what}",
            unit=unit,
            values=values,
            at_most=most,
        )
        for unit, (what, values, most) in counts.items()
    ]


async def _run_few(bench: Bench) -> tuple[int, int]:
    """Keys that the server examined, and commands that the client sent, from their enqueue to their ends."""
    sent = Sent()
    with bench.database() as database, MongoClient[dict[str, Any]](bench.uri, event_listeners=[sent]) as client:
        async with streaming_scheduler(client[database.name]) as scheduler:
            for number in range(IDLE_NAMES):
                scheduler.register(f"name-{number:04}", noop)
            await anyio.sleep(SETTLED)
            other = Monque(bench.client[database.name])
            before = sent.by_name.total()
            with profiling(database) as reported:
                await other.enqueue_many([NewJob(name=f"name-{number:03}7") for number in range(DUE)])
                with anyio.fail_after(TIMEOUT):
                    while scheduler.statistics().completed < DUE:  # noqa: ASYNC110 - what a user can see, and rarely
                        await anyio.sleep(0.01)
                commands = sent.by_name.total() - before
            keys = sum(entry.get("keysExamined", 0) for entry in reported())
    return keys, commands
