"""The event loop of the program does not answer: what the scheduler, in a thread of its own, does meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run
from tests.asyncio_hosts.scenes import (
    QUICK,
    SECONDS_TO_BEAT,
    heartbeat_of_instance,
    heartbeat_of_job,
    only_document,
    statuses,
    until,
)
from tests.support.waiting import wait_for_changes, wait_until
from trio_monque import Monque, NewJob, RunningJob, Workers, open_scheduler
from trio_monque.engine.runner import LATE
from trio_monque.store.driver.types import Database

pytestmark = ON_ASYNCIO

SHORT_LEASE: Any = {"heartbeat_interval": SECONDS_TO_BEAT, "cleanup_timeout": 0.1}
OF_CLOCKS = 0.01
"""Seconds by which a moment may differ that was converted from one clock to another."""


@pytest.mark.full
def test_a_handler_that_blocks_the_loop_for_longer_than_a_lease_keeps_its_claim(
    db: Database, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    workers, monque = Workers(), Monque(db).sync_in_loop

    @workers.register("rude")
    async def rude(job: RunningJob[Any]) -> None:
        # Longer than a lease, which is three intervals.
        wait_for_changes(lambda: heartbeat_of_job(db, "rude"), 5, "the heartbeat of the job")

    async def main() -> None:
        async with open_scheduler(db, workers, **SHORT_LEASE) as scheduler:
            await scheduler.enqueue("rude")
            await until(lambda: statuses(db, "rude") == ["completed"])
            await until(lambda: [one.last_block for one in monque.instances()] != [None])
            (entry,) = monque.instances()
            assert entry.last_block is not None
            assert entry.last_block.name == "rude"
        assert scheduler.report is not None
        assert (scheduler.report.completed, scheduler.report.unfinished) == (1, ())
        assert scheduler.report.loop_blocked == 1

    run(main)
    assert "in rude" in caplog.text
    assert "by the handler of rude" in caplog.text


@pytest.mark.full
def test_nothing_is_claimed_while_the_loop_does_not_answer(db: Database, run: Run) -> None:
    workers, ran = Workers(), list[int]()

    @workers.register("a", concurrency=50)
    async def handle(job: RunningJob[Any]) -> None:
        ran.append(1)

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK, **SHORT_LEASE) as scheduler:
            held, is_healthy, reasons = list[int](), list[bool](), list[str]()

            def from_elsewhere() -> None:
                wait_until(lambda: not scheduler.is_healthy(), "the scheduler notices that the loop does not answer")
                reasons.extend(scheduler.health().reasons)
                Monque(db).sync.enqueue_many([NewJob(name="a") for _ in range(20)])
                wait_for_changes(lambda: heartbeat_of_instance(db), 2, "the heartbeat of the scheduler")  # Five polls.
                held.append(db["monque_jobs"].count_documents({"status": {"$ne": "pending"}}))
                is_healthy.append(scheduler.is_healthy())

            thread = threading.Thread(target=from_elsewhere)
            thread.start()
            thread.join()  # Blocks the loop.
            await until(lambda: len(ran) == 20)
            assert (held, is_healthy) == ([0], [False])
            assert "has not answered" in reasons[0]
            await until(scheduler.is_healthy)

    run(main)


def test_a_run_whose_handler_never_began_is_released_and_has_not_failed(db: Database, run: Run) -> None:
    workers, log = Workers(), list[str]()

    @workers.register("quick", timeout=0.3, max_attempts=1)
    async def quick(job: RunningJob[Any]) -> None:
        log.append("ran")

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:

            def claimed_at_once() -> None:
                Monque(db).sync.enqueue("quick")
                for status in ("processing", "pending"):
                    wait_until(lambda status=status: statuses(db, "quick") == [status], status)  # type: ignore[misc]

            thread = threading.Thread(target=claimed_at_once)
            thread.start()
            thread.join()
            await until(lambda: statuses(db, "quick") == ["completed"])
        assert scheduler.report is not None
        assert (scheduler.report.failed, scheduler.report.completed) == (0, 1)
        assert scheduler.report.released >= 1

    run(main)
    assert log == ["ran"]
    assert only_document(db).get("failCount", 0) == 0


@pytest.mark.full
def test_the_time_limit_of_a_handler_that_begins_late_counts_from_its_beginning(db: Database, run: Run) -> None:
    workers, blocked_until, deadlines = Workers(), list[float](), list[tuple[float, float]]()

    @workers.register("late", timeout=60.0)
    async def late(job: RunningJob[Any]) -> None:
        began = time.monotonic()
        # On a busy machine the call may come at the very end of the block: so short a wait counts.
        await until(lambda: blocked_until[0] + 60.0 <= job.deadline + LATE + OF_CLOCKS)
        # The clocks of two loops are read one after the other. A thread that loses the processor in between is late.
        deadlines.append((min(job.deadline for _ in range(10)), began + 60.0))

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK, **SHORT_LEASE) as scheduler:

            def until_claimed() -> None:
                Monque(db).sync.enqueue("late")
                wait_until(lambda: statuses(db, "late") == ["processing"], "the claim")
                wait_for_changes(lambda: heartbeat_of_job(db, "late"), 2, "the heartbeat of the job")

            thread = threading.Thread(target=until_claimed)
            thread.start()
            thread.join()
            blocked_until.append(time.monotonic())
            await until(lambda: deadlines)
            await until(scheduler.is_healthy)

    run(main)
    ((deadline, latest),) = deadlines
    assert deadline <= latest + OF_CLOCKS


@pytest.mark.full
def test_a_blocked_loop_is_logged_with_what_blocks_it(db: Database, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def block() -> None:
        wait_until(lambda: "in block" in caplog.text, "the log names what blocks the loop")

    async def main() -> None:
        async with open_scheduler(db, Workers()):
            block()

    with caplog.at_level(logging.ERROR, "trio_monque"):
        run(main)
