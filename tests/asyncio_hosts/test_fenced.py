"""A scheduler on asyncio whose event loop or process stands still, and another one that waits for its jobs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.asyncio_hosts.competition import competing
from tests.asyncio_hosts.conftest import ON_ASYNCIO, UVLOOP, Run
from tests.asyncio_hosts.programs import Program, running
from tests.asyncio_hosts.scenes import SECONDS_TO_BEAT, heartbeat_of_job, only_document, statuses, until
from tests.faults.processes import frozen
from tests.support.waiting import wait_until
from trio_monque import Monque, NewJob, RunningJob, Scheduler, Workers, open_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import ClaimLostError
from trio_monque.store.driver.types import Database

pytestmark = pytest.mark.timeout(300)

SHORT_LEASE: Any = {"heartbeat_interval": SECONDS_TO_BEAT, "cleanup_timeout": 0.1, "poll_interval": 0.1}
LEASE = 3 * SECONDS_TO_BEAT
RENEWALS_IN_TWO_LEASES = 7


class BlockedLoop:
    """Three handlers: one blocks the loop, one waits on that loop, and one in a thread.

    Attributes:
        log: Whose handler began, ours or that of the other scheduler, and the name of its job.
        scheduler: Ours, in a list.
    """

    def __init__(self, db: Database) -> None:
        self.log: list[tuple[str, str]] = []
        self.ours, self.theirs = Workers(), Workers()
        self.scheduler: list[Scheduler] = []
        self.may_block, self.has_blocked = threading.Event(), threading.Event()
        self._db = db
        handlers: dict[str, Any] = {"blocks": self._blocks, "waits": self._waits, "thread": self._thread}
        for name, handler in handlers.items():
            self.ours.register(name, handler, max_attempts=1)
        self.ours.register("new", self._new)
        for name in self.ours.names:
            self.theirs.register(name, self._take)

    async def _blocks(self, job: RunningJob[Any]) -> None:
        self.log.append(("ours", "blocks"))
        await until(self.may_block.is_set)
        wait_until(lambda: not self.scheduler[0].is_healthy(), "the scheduler notices that this blocks the loop")
        Monque(self._db).sync_in_loop.enqueue_many([NewJob(name="new") for _ in range(5)])
        beats = {name: {heartbeat_of_job(self._db, name)} for name in ("blocks", "waits", "thread")}

        def all_were_renewed_for_two_leases() -> bool:
            for name, seen in beats.items():
                seen.add(heartbeat_of_job(self._db, name))
            return all(len(seen) >= RENEWALS_IN_TWO_LEASES for seen in beats.values())

        wait_until(all_were_renewed_for_two_leases, "all claims are renewed for two leases", 60, pause=0.02)
        wait_until(lambda: statuses(self._db, "new") == ["completed"] * 5, "another scheduler runs the new jobs")
        self.has_blocked.set()

    async def _waits(self, job: RunningJob[Any]) -> None:
        self.log.append(("ours", "waits"))
        await until(self.has_blocked.is_set, 90)
        await job.save("still held")

    def _thread(self, job: RunningJob[Any]) -> None:
        self.log.append(("ours", "thread"))
        assert self.has_blocked.wait(90)
        job.check_cancelled()

    async def _new(self, job: RunningJob[Any]) -> None:
        self.log.append(("ours", "new"))

    async def _take(self, job: RunningJob[Any]) -> None:
        self.log.append(("theirs", job.name))


@pytest.mark.full
@ON_ASYNCIO
def test_blocked_loop_keeps_its_claims_and_leaves_new_jobs_to_others(db: Database, run: Run) -> None:
    blocked, names = BlockedLoop(db), ("blocks", "waits", "thread")

    async def main() -> None:
        async with open_scheduler(db, blocked.ours, **SHORT_LEASE) as scheduler:
            blocked.scheduler.append(scheduler)
            for name in names:
                await scheduler.enqueue(name)
            await until(lambda: len(blocked.log) == 3)
            with competing(db, blocked.theirs, **SHORT_LEASE):
                blocked.may_block.set()
                for name in names:
                    await until(lambda name=name: statuses(db, name) == ["completed"], 90)  # type: ignore[misc]
        assert scheduler.report is not None
        assert (scheduler.report.completed, scheduler.report.unfinished) == (3, ())

    run(main)
    assert sorted(blocked.log[:3]) == [("ours", "blocks"), ("ours", "thread"), ("ours", "waits")]
    assert blocked.log[3:] == [("theirs", "new")] * 5


@pytest.mark.full
@ON_ASYNCIO
def test_handler_that_blocks_beyond_the_lock_timeout_is_fenced(db: Database, run: Run) -> None:
    ours, theirs, log, may_block = Workers(), Workers(), list[str](), threading.Event()

    @ours.register("blocks", store_result=True)
    async def blocks(job: RunningJob[Any]) -> str:
        log.append("blocks")
        await until(may_block.is_set)
        wait_until(lambda: statuses(db, "blocks") == ["completed"], "another scheduler completes the job", 60)
        log.append(str(job.cancel_reason))
        try:
            await job.save("late")
        except ClaimLostError:
            log.append("refused")
        except asyncio.CancelledError:
            log.append("cancelled")
        return "late"

    @theirs.register("blocks", store_result=True)
    async def second(job: RunningJob[Any]) -> str:
        log.append(f"attempt {job.attempt}")
        return "second"

    async def main() -> None:
        async with open_scheduler(db, ours, lock_timeout=LEASE, **SHORT_LEASE) as scheduler:
            await scheduler.enqueue("blocks")
            await until(lambda: log)
            with competing(db, theirs, lock_timeout=LEASE, **SHORT_LEASE):
                may_block.set()
                await until(lambda: len(log) == 4, 60)
        assert scheduler.report is not None
        assert (scheduler.report.completed, scheduler.report.failed) == (0, 0)

    run(main)
    assert log[:3] == ["blocks", "attempt 2", "lost"]
    assert log[3] in ("refused", "cancelled")
    document = only_document(db)
    assert (document["result"], document["attempts"], document.get("saved")) == ("second", 2, None)


FROZEN: Program = """
@workers.register("ticks")
async def ticks(job):
    try:
        while True:
            await asyncio.sleep(0.02)
            say("tick", job.cancel_reason)
    finally:
        say("cancelled", job.cancel_reason)
        with job.cleanup(5):
            try:
                await job.save("late")
                say("saved")
            except BaseException as error:
                say("refused", type(error).__name__)

async def main():
    async with open_scheduler(db, workers, heartbeat_interval=1.5, cleanup_timeout=0.1, poll_interval=0.1):
        await asyncio.sleep(60)

run(main)
"""


@pytest.mark.full
@pytest.mark.parametrize("loop", ["asyncio", UVLOOP])
def test_process_that_was_frozen_for_longer_than_its_lease_is_fenced(
    mongod: EmbeddedServer, db: Database, loop: str
) -> None:
    theirs, attempts = Workers(), list[int]()

    @theirs.register("ticks", store_result=True)
    async def second(job: RunningJob[Any]) -> str:
        attempts.append(job.attempt)
        return "second"

    Monque(db).sync.enqueue("ticks")
    with running(FROZEN, mongod.uri, db.name, loop) as process:
        process.wait_for("tick None")
        with competing(db, theirs, **SHORT_LEASE), frozen(process.pid):
            said_before = len(process.lines)
            wait_until(lambda: statuses(db, "ticks") == ["completed"], "another scheduler completes the job", 60)
            before = only_document(db)
        process.wait_for("refused")
        after_thaw = process.lines[said_before:]
        process.kill()
    assert attempts == [2]
    assert only_document(db) == before
    assert "cancelled lost" in after_thaw
    assert "saved" not in after_thaw
