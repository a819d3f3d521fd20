"""Many names share few slots: a look reads what can start, and not that much of each name."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.looks import Reads
from trio_monque import Monque, NewJob, RunningJob, Workers
from trio_monque.engine import prefetch
from trio_monque.engine.look_ledger import WORTH_HALVING
from trio_monque.store.driver.types import Database
from trio_monque.testing import SchedulerOpener, drain

NAMES = [f"name-{number:02}" for number in range(64)]
SLOTS, EACH = 25, 12


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def workers_for(names: Sequence[str], started: list[str], **options: Any) -> Workers:
    workers = Workers()

    async def handle(job: RunningJob[Any]) -> None:
        started.append(job.name)

    for name in names:
        workers.register(name, handle, concurrency=SLOTS, **options)
    return workers


async def work_off(open_scheduler: SchedulerOpener, workers: Workers) -> None:
    async with open_scheduler(workers, concurrency=SLOTS) as scheduler:
        await drain(scheduler)


@pytest.mark.full
async def test_look_reads_a_few_of_each_name_and_names_share_the_slots(
    db: Database, open_test_scheduler: SchedulerOpener, reads: Reads, autojump_clock: MockClock
) -> None:
    await Monque(db).enqueue_many([NewJob(name) for name in NAMES for _ in range(EACH)])
    started = list[str]()
    await work_off(open_test_scheduler, workers_for(NAMES, started))
    assert Counter(started) == dict.fromkeys(NAMES, EACH)
    assert max(reads.numbers) <= 7 * len(NAMES)  # Not 12 of each, although all of them are due and may start.
    # In turn: no name is far ahead of another one.
    assert max(Counter(started[: 3 * len(NAMES)]).values()) <= 4


async def test_name_that_alone_has_jobs_gets_all_slots_with_the_second_look(
    db: Database, open_test_scheduler: SchedulerOpener, reads: Reads, autojump_clock: MockClock
) -> None:
    await Monque(db).enqueue_many([NewJob(NAMES[0]) for _ in range(3 * SLOTS)])
    started = list[str]()
    await work_off(open_test_scheduler, workers_for(NAMES, started))
    assert len(started) == 3 * SLOTS
    assert reads.numbers[0] == 4  # The least share.
    assert reads.numbers[1] >= SLOTS - 4


@pytest.mark.full
@pytest.mark.parametrize("number", [2, 3])
async def test_names_without_jobs_do_not_cost_the_claims_of_another_one_further_looks(
    db: Database, open_test_scheduler: SchedulerOpener, reads: Reads, autojump_clock: MockClock, number: int
) -> None:
    # Two claims share the slots of these names. The name with jobs has as many as a claim takes, or fewer.
    names, slots = NAMES[:number], WORTH_HALVING // 2
    await Monque(db).enqueue_many([NewJob(names[0]) for _ in range(4 * slots)])
    workers = Workers()

    async def handle(job: RunningJob[Any]) -> None:
        await trio.sleep(1)

    for name in names:
        workers.register(name, handle, concurrency=slots)
    async with open_test_scheduler(workers) as scheduler:
        await drain(scheduler)
    # The first look and the last ones do not know what there is.
    claimed = [place for place, number in enumerate(reads.numbers) if number]
    assert reads.numbers[claimed[1] : claimed[-1] + 1] == [slots] * 3, reads.numbers


@pytest.mark.full
@pytest.mark.parametrize("priority", [3, 10])
async def test_priorities_decide_as_if_all_of_each_name_were_read(
    db: Database,
    open_test_scheduler: SchedulerOpener,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
    priority: int,
) -> None:
    of_reads = list[list[str]]()
    for read_per_slot in (prefetch.READ_PER_SLOT, math.inf):
        monkeypatch.setattr(prefetch, "READ_PER_SLOT", read_per_slot)
        await Monque(db).enqueue_many([NewJob(name) for name in (*NAMES, "urgent") for _ in range(2 * EACH)])
        started = list[str]()
        workers = workers_for(NAMES, started).union(workers_for(["urgent"], started, priority=priority))
        await work_off(open_test_scheduler, workers)
        of_reads.append(started)
    few, all_of_each = (Counter(started[: 4 * SLOTS])["urgent"] for started in of_reads)
    assert few == all_of_each
