"""Rescues whose answers are lost, that are left half-way, or that meet what cannot be. In virtual time."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import trio
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.support.interference import Slow
from tests.support.internals import die, interference_of, look_for_dead_claims, sources_of
from tests.support.jobs_in_memory import with_flat
from tests.support.node_peer import NodePeer
from tests.support.rescues import LEASE, PASS, Jobs, dead_instance, heard
from tests.support.store import claim, handle
from trio_monque import Monque, NewJob, Workers
from trio_monque.errors import MonqueConnectionError
from trio_monque.events import StaleJobsRecovered
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, crash, fail_next, now, quiesce

# --- Answers that are lost ---


async def test_rescue_with_lost_answers_is_reported_in_the_end_and_its_job_runs(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    work, reported = Jobs(), list[Any]()
    async with open_test_scheduler(listeners=heard(reported)) as living:
        async with dead_instance(open_test_scheduler, work.workers, "job"):
            living.register("job", work.handler)
            with fail_next(living, AutoReconnect, when="after", command="settle jobs", times=3):
                await trio.sleep(LEASE + PASS)
                await quiesce()
    assert [attempt for _, attempt in work.starts] == [1, 2]
    assert reported == [StaleJobsRecovered(1, {"job": 1})]
    assert jobs.count_documents({"status": "completed"}) == 1


class LostAnswers:
    """Loses the answers to rescues, except to the first `but` of them."""

    def __init__(self, but: int) -> None:
        self.left = but

    def takes(self, purpose: str) -> bool:
        self.left -= purpose == "settle jobs"
        return purpose == "settle jobs" and self.left < 0

    def inject(self, call: Any) -> Any:
        call()
        raise AutoReconnect("the answer was lost")


@pytest.mark.full
async def test_rescue_whose_second_round_is_not_answered_reports_the_first(
    open_test_scheduler: SchedulerOpener, jobs: Collection, db: Database, autojump_clock: MockClock
) -> None:
    """The server refuses one job in the first round, and the answer to the lighter write of the second is lost."""
    work, reported, lost = Jobs(), list[Any](), LostAnswers(but=1)
    async with open_test_scheduler(listeners=heard(reported)) as living:
        async with dead_instance(open_test_scheduler, work.workers, "job", "job"):
            jobs.update_one({}, {"$set": {"closed": True}})
            db.command("collMod", jobs.name, validator={"closed": {"$exists": False}})
            interference_of(living).append(lost)
            with trio.fail_after(LEASE + 2 * PASS):
                while lost.left >= 0:
                    await trio.sleep(1)
            await quiesce()
            assert reported == [StaleJobsRecovered(1, {"job": 1})]


@pytest.mark.full
@pytest.mark.parametrize("how", ["async", "sync"])
@pytest.mark.parametrize("answered", [0, 1])
async def test_failing_rescue_by_hand_announces_the_rescued_jobs_and_wakes_other_schedulers(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    autojump_clock: MockClock,
    how: str,
    answered: int,
) -> None:
    reported, ran = list[Any](), list[Any]()
    monque.on(StaleJobsRecovered, reported.append)
    workers = Workers()
    workers.register("job", lambda job: ran.append(job.id), concurrency=200)
    async with open_test_scheduler(workers, recover_stale_jobs=False):
        old = now() - timedelta(hours=2)
        NodePeer(jobs).hold("job", 100 * answered + 50, old)
        await quiesce()
        interference_of(monque).append(LostAnswers(but=answered))
        with pytest.raises(MonqueConnectionError):
            if how == "async":
                await monque.recover_stale_jobs()
            else:
                await trio.to_thread.run_sync(monque.sync.recover_stale_jobs)
        # Those without an answer were rescued as well: no event can name them, but there was a look.
        await quiesce()
        assert len(ran) == 100 * answered + 50
    assert reported == [StaleJobsRecovered(100, {"job": 100})] * answered


async def test_cancelled_rescue_by_hand_announces_the_rescued_jobs(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    work, reported = Jobs(), list[Any]()

    async def hear(event: StaleJobsRecovered) -> None:
        await trio.sleep(1)
        reported.append(event)

    monque.on(StaleJobsRecovered, hear)
    NodePeer(jobs).hold("job", 2, now() - timedelta(hours=2))
    async with dead_instance(open_test_scheduler, work.workers, "job", recover_stale_jobs=False):
        with trio.move_on_after(60) as waiting:
            await monque.recover_stale_jobs()
    assert waiting.cancelled_caught
    assert reported == [StaleJobsRecovered(2, {"job": 2})]


async def test_by_hand_it_ends_although_the_server_refuses_what_it_asks_for(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, db: Database, autojump_clock: MockClock
) -> None:
    work = Jobs()
    async with dead_instance(open_test_scheduler, work.workers, "job", "job", recover_stale_jobs=False):
        pass
    first = jobs.find_one()
    assert first is not None
    jobs.update_one({"_id": first["_id"]}, {"$set": {"heartbeatInterval": 10_000}})
    db.command("collMod", jobs.name, validator={"status": "processing"})
    with trio.fail_after(LEASE + PASS):
        assert await monque.recover_stale_jobs() == 0


# --- Claims of its own ---


async def test_earlier_claim_of_its_own_hides_no_later_one_on_the_same_job(
    open_test_scheduler: SchedulerOpener, db: Database, autojump_clock: MockClock
) -> None:
    """A run that has lost its claim may go on, in a thread, while another claim on its job dies."""
    (job,) = claim(handle(db), 1)
    async with open_test_scheduler(recover_stale_jobs=False) as scheduler:
        assert await sources_of(scheduler).rescues.observe([job]) == []
        (seen,) = await sources_of(scheduler).rescues.observe([with_flat(job, claim_token="us:1:earlier")])
    assert seen.key == job.id


# --- Left half-way ---


@pytest.mark.parametrize("how", ["drained", "cut", "given up"])
async def test_shutdown_during_a_rescue_reports_it_and_wakes_the_other_schedulers(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, how: str
) -> None:
    work, reported, slow = Jobs(), list[Any](), Slow("settle jobs")
    async with open_test_scheduler(recover_stale_jobs=False) as other:
        async with dead_instance(open_test_scheduler, work.workers, "job"):
            other.register("job", work.handler)
            await quiesce()
            with trio.CancelScope() as leaving:
                async with open_test_scheduler(listeners=heard(reported)) as rescuer:
                    interference_of(rescuer).append(slow)
                    await trio.sleep(LEASE)
                    while not slow.has_begun.is_set():
                        await trio.lowlevel.checkpoint()
                    if how != "drained":
                        leaving.cancel()
                    if how == "given up":
                        die(rescuer)
                    else:
                        threading.Timer(0.05, slow.may_go_on.set).start()
            slow.may_go_on.set()
            await trio.sleep(1000)
    assert [attempt for _, attempt in work.starts] == [1, 2]
    assert reported == ([] if how == "given up" else [StaleJobsRecovered(1, {"job": 1})])


class SlowAndLost(Slow):
    """The answers come late, and are lost then."""

    def inject(self, call: Any) -> Any:
        super().inject(call)
        raise AutoReconnect("the answer was lost")


async def test_answer_that_is_lost_after_the_rescuer_has_left_wakes_the_others(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    work, slow = Jobs(), SlowAndLost("settle jobs")
    async with open_test_scheduler(recover_stale_jobs=False) as other:
        async with dead_instance(open_test_scheduler, work.workers, "job"):
            other.register("job", work.handler)
            await quiesce()
            with trio.CancelScope() as leaving:
                async with open_test_scheduler() as rescuer:
                    interference_of(rescuer).append(slow)
                    await trio.sleep(LEASE)
                    while not slow.has_begun.is_set():
                        await trio.lowlevel.checkpoint()
                    leaving.cancel()
                    die(rescuer)
            slow.may_go_on.set()
            await trio.sleep(1000)
    assert [attempt for _, attempt in work.starts] == [1, 2]


async def test_left_before_a_lost_answer_is_known_it_wakes_the_others(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    work = Jobs()
    async with open_test_scheduler(recover_stale_jobs=False) as other:
        async with dead_instance(open_test_scheduler, work.workers, "job"):
            other.register("job", work.handler)
            await quiesce()
            async with open_test_scheduler() as rescuer:
                fault = fail_next(rescuer, AutoReconnect, when="after", command="settle jobs", times=None)
                await trio.sleep(LEASE)
                while not fault.happened:
                    await trio.lowlevel.checkpoint()
            await quiesce()
            assert [attempt for _, attempt in work.starts] == [1, 2]


# --- What cannot be ---


@pytest.mark.full
async def test_refused_and_malformed_documents_are_logged_once_and_delay_no_rescue(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    db: Database,
    monque: Monque,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = Jobs()
    made = await monque.enqueue_many([NewJob(name="job") for _ in range(10)])
    async with open_test_scheduler() as living:
        async with open_test_scheduler(work.workers) as dying:
            await quiesce()
            await crash(dying)
        jobs.update_one({"_id": made[0].id}, {"$set": {"rescues": None}})
        jobs.update_one({"_id": made[1].id}, {"$set": {"closed": True}})
        db.command("collMod", jobs.name, validator={"closed": {"$exists": False}})
        caplog.clear()
        living.register("job", work.handler)
        for _ in range(20):
            look_for_dead_claims(living)
            await trio.sleep(LEASE + PASS)
        await quiesce()
    assert jobs.count_documents({"status": "completed"}) == 8
    reported = [
        record.message
        for record in caplog.records
        if record.levelname in ("WARNING", "ERROR") and not record.message.startswith("rescued ")
    ]
    assert [sum(str(job.id) in message for message in reported) for job in made] == [1, 1] + [0] * 8
