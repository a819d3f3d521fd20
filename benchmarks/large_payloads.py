"""F: the memory of a process whose jobs have payloads of a megabyte, beyond the payloads that run.

`python -m benchmarks.large_payloads URI DATABASE SLOTS JOBS` is the process that is weighed. As in `trio-monque run`,
its threads share one pool of memory.
"""

from __future__ import annotations

import logging
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

import trio
from pymongo import MongoClient

from trio_monque import Monque, NewJob, RunningJob
from trio_monque.cli.run import memory_tuning

from .measuring import NAME, Bench, tell
from .processes import answer, child
from .report import Figure
from .schedulers import streaming_scheduler

MB = 1_000_000
SLOTS = (10, 100)
MOST_BEYOND = 64  # MB.
ROUNDS_OF_SLOTS = 4  # So often each slot has a job.
LONGEST = 1.0  # Seconds for which a handler keeps its payload at most; half of that on average.
AT_ONCE = 10  # Jobs of one statement.


def measure(bench: Bench) -> list[Figure]:
    return [
        Figure(
            part="F",
            key=f"F.payloads {slots}",
            what=f"payloads of 1 MB, {slots} slots: growth of the process beyond those that run",
            unit="MB",
            values=[_weighed(bench, slots) for _ in range(bench.size.rounds)],
            at_most=MOST_BEYOND,
        )
        for slots in SLOTS
    ]


def _weighed(bench: Bench, slots: int) -> float:
    number = ROUNDS_OF_SLOTS * slots
    with bench.database() as database:
        monque = Monque(database)
        for _ in range(0, number, AT_ONCE):
            monque.sync.enqueue_many([NewJob(name=NAME, data=os.urandom(MB // 2).hex()) for _ in range(AT_ONCE)])
        with child("large_payloads", bench.uri, database.name, str(slots), str(number)) as process:
            grown = float(process.hear())
    tell(f"  {slots} slots: {grown:.0f} MB beyond the {slots} that run")
    return grown


# --- The process that is weighed ---


def _kilobytes(what: str) -> int:
    """Of this process, as Linux counts them: VmRSS is what it has, VmHWM the most that it ever had."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (found,) = re.findall(rf"^{what}:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found)


async def main(uri: str, name: str, slots: int, number: int) -> None:
    chance = random.Random(1)

    async def keep(_: RunningJob[Any]) -> None:
        await trio.sleep(LONGEST * chance.random())

    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        async with streaming_scheduler(client[name]) as scheduler:
            before = _kilobytes("VmRSS")
            scheduler.register(NAME, keep, concurrency=slots)
            while scheduler.statistics().completed < number:  # noqa: ASYNC110 - what a user can see, and rarely
                await trio.sleep(0.02)
            answer((_kilobytes("VmHWM") - before) * 1024 / MB - slots)


if __name__ == "__main__":
    logging.getLogger("trio_monque").addHandler(logging.NullHandler())
    memory_tuning.tune_allocator()
    trio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
