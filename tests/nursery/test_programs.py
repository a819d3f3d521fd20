"""Nurseries of programs: a job stands for the program, and the fleet ends the children if the program dies."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import trio
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.nursery.flows import Flow, live, nothing, only, statuses
from tests.support.rescues import LEASE
from trio_monque import JobCancelledError, JobNurseryError, Monque, Retention, open_job_nursery
from trio_monque.client.monque import context_of
from trio_monque.errors import JobStateError, NurseryLostError
from trio_monque.jobs.nursery_scopes import PROGRAM
from trio_monque.store.driver.types import Collection
from trio_monque.store.jobs import inserting, leases, settling
from trio_monque.testing import SchedulerOpener, advance, fail_next, now, quiesce


async def test_program_gets_results_and_leaves_no_job(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler(Flow(nothing).workers):
        async with open_job_nursery(monque) as nursery:
            children = await nursery.map("child", [30, 10, 500])
            assert only(jobs, PROGRAM)["status"] == "processing"
            order = [child.result async for child in nursery.as_completed()]
    assert order == [10, 30, 500]
    assert [child.result for child in children] == [30, 10, 500]
    assert jobs.count_documents({"name": PROGRAM}) == 0


async def test_failure_in_a_program(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler(Flow(nothing).workers):
        with pytest.raises(JobNurseryError):
            async with open_job_nursery(monque) as nursery:
                await nursery.map("child", ["fail", 1000])
        assert live(jobs) == 0
        with pytest.raises(ExceptionGroup) as caught:
            async with open_job_nursery(monque) as nursery:
                await nursery.start("child", 1000)
                raise KeyError
        assert [type(one) for one in caught.value.exceptions] == [KeyError]
        assert live(jobs) == 0
    assert jobs.count_documents({"name": PROGRAM}) == 0


async def test_cancelled_program_ends_its_children(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler(Flow(nothing).workers):
        with trio.move_on_after(50):
            async with open_job_nursery(monque) as nursery:
                await nursery.map("child", [5000, 6000])
        assert jobs.count_documents({"name": PROGRAM}) == 0
        await advance(LEASE)
        assert live(jobs) == 0


async def test_children_of_a_program_that_died_are_ended_and_it_leaves_a_trace(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler(Flow(nothing).workers) as scheduler:
        # As if the program had died or were cut off: it neither renews nor releases its claim.
        cut_off = "^(renew claims|end the nursery of the program)$"
        with fail_next(monque, AutoReconnect("cut off"), command=cut_off, times=None), pytest.raises(NurseryLostError):
            async with open_job_nursery(monque) as nursery:
                await nursery.map("child", [50_000, 60_000])
                began = trio.current_time()
                await trio.sleep_forever()
        assert trio.current_time() - began < 30, "it ends before the fleet takes its claim for dead"
        await advance(2 * LEASE)
        await quiesce()
        assert live(jobs) == 0
        trace = only(jobs, PROGRAM)
        assert trace["status"] == "failed"
        with pytest.raises(JobStateError, match="program"):
            await scheduler.retry_job(trace["_id"])


@pytest.mark.full
async def test_children_of_a_program_that_died_are_retried_and_deleted_as_other_jobs_are(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    """Its job is kept, as a trace, and nothing runs that again: it spares no child and forbids no retry."""
    kept = Retention(completed=1000, interval=60)
    async with open_test_scheduler(Flow(nothing).workers, retention=kept) as scheduler:
        cut_off = "^(renew claims|end the nursery of the program)$"
        with fail_next(monque, AutoReconnect("cut off"), command=cut_off, times=None), pytest.raises(NurseryLostError):
            async with open_job_nursery(monque) as nursery:
                await nursery.map("child", [0, 900])
                await trio.sleep_forever()
        await advance(2 * LEASE)
        await quiesce()
        assert only(jobs, PROGRAM)["status"] == "failed"
        assert statuses(jobs) == {"completed": 1, "cancelled": 1}
        await advance(2000)
        assert statuses(jobs) == {"cancelled": 1}
        (cancelled,) = jobs.find({"status": "cancelled"})
        retried = await scheduler.retry_job(cancelled["_id"])
        assert retried is not None
        assert retried.status == "pending"
        await scheduler.wait_job(retried)


@pytest.mark.parametrize("how", ["cancel", "delete"])
async def test_operator_ends_a_program(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock, how: str
) -> None:
    async with open_test_scheduler(Flow(nothing).workers) as scheduler:
        with pytest.raises(JobCancelledError if how == "cancel" else NurseryLostError):
            async with open_job_nursery(monque) as nursery:
                await nursery.map("child", [50_000, 60_000])
                job_id = only(jobs, PROGRAM)["_id"]
                if how == "cancel":
                    await scheduler.cancel_job(job_id)
                else:
                    await scheduler.delete_job(job_id)
                await trio.sleep_forever()
        await advance(2 * LEASE)
        assert live(jobs) == 0
    assert statuses(jobs) == {"cancelled": 2}
    assert jobs.count_documents({"name": PROGRAM}) == 0


@pytest.mark.parametrize("how", ["given up", "given back by Node"])
async def test_program_whose_job_was_taken_from_it_does_not_return_normally(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock, how: str
) -> None:
    """The fleet may have ended its children, so its results may be incomplete."""
    status = "failed" if how == "given up" else "pending"
    unset = {"claimedBy": "", "lockedAt": "", "claimToken": ""}
    async with open_test_scheduler(Flow(nothing).workers):
        with pytest.raises(NurseryLostError):
            async with open_job_nursery(monque) as nursery:
                await nursery.run("child", 1)
                jobs.update_one({"name": PROGRAM}, {"$set": {"status": status}, "$unset": unset})
    assert jobs.count_documents({"name": PROGRAM}) == (1 if how == "given up" else 0)


async def test_bulk_retry_leaves_a_job_that_stood_for_a_program(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N24: no worker could run it."""
    async with open_test_scheduler(Flow(nothing).workers) as scheduler:
        with pytest.raises(NurseryLostError):
            async with open_job_nursery(monque):
                unset = {"claimedBy": "", "lockedAt": "", "claimToken": ""}
                jobs.update_one({"name": PROGRAM}, {"$set": {"status": "failed"}, "$unset": unset})
        result = await scheduler.retry_jobs(status="failed", spread=0)
        assert (result.count, result.refused) == (0, 1)
    assert only(jobs, PROGRAM)["status"] == "failed"


@pytest.mark.full
async def test_program_that_renews_its_job_again_is_not_given_up(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N24: an instance gives it up only if it is still as it was observed; here it lives for many leases."""
    async with open_test_scheduler(Flow(nothing).workers):
        async with open_job_nursery(monque) as nursery:
            child = await nursery.start("child", 1000)
    assert child.result == 1000


@pytest.mark.full
async def test_program_whose_renewal_arrives_just_before_it_is_given_up_goes_on(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """N24: its job is given up only as it was observed. Here it is found dead, and renewed before that is written."""
    on_its_way: list[Any] = []
    arrived_at: list[datetime] = []
    renew, settle = leases.renew, settling.settle

    def renew_late(*sent: Any) -> leases.Renewed:
        if arrived_at or sent[1][0].name != PROGRAM:
            return renew(*sent)
        on_its_way.append(sent)
        return leases.Renewed()

    def settle_after_it(*sent: Any) -> Any:
        if on_its_way and not arrived_at:
            arrived_at.append(now())
            renew(*on_its_way[-1])
        return settle(*sent)

    monkeypatch.setattr(leases, "renew", renew_late)
    monkeypatch.setattr(settling, "settle", settle_after_it)
    async with open_test_scheduler(Flow(nothing).workers):
        began = now()
        async with open_job_nursery(monque) as nursery:
            child = await nursery.start("child", 1000)
    assert child.result == 1000
    assert arrived_at[0] - began < timedelta(seconds=200), "it was found dead long before its child had ended"
    assert jobs.count_documents({"name": PROGRAM}) == 0


async def test_program_that_is_cancelled_while_it_opens_its_nursery_leaves_nothing(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scope, insert_new = trio.CancelScope(), inserting.insert_new

    def cancelled_after(*args: Any) -> Any:
        there = insert_new(*args)
        assert jobs.count_documents({"name": PROGRAM}) == 1
        trio.from_thread.run_sync(scope.cancel)
        return there

    monkeypatch.setattr(inserting, "insert_new", cancelled_after)
    async with open_test_scheduler(Flow(nothing).workers):
        with scope:
            async with open_job_nursery(monque):
                await trio.sleep_forever()
        assert scope.cancelled_caught
    assert jobs.count_documents({"name": PROGRAM}) == 0


async def test_beats_of_a_program_grow_although_the_servers_clock_steps_back(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[datetime] = []
    async with open_test_scheduler(Flow(nothing).workers, heartbeat_interval=10) as scheduler:
        async with open_job_nursery(scheduler) as nursery:
            await nursery.start("child", 45)
            await advance(11)
            stands = now() - timedelta(hours=1)
            monkeypatch.setattr(context_of(scheduler).clock, "now", lambda: stands)
            for _ in range(3):
                beats.append(only(jobs, PROGRAM)["lastHeartbeat"])
                await advance(10)
            monkeypatch.undo()
    assert [later - earlier for earlier, later in pairwise(beats)] == [timedelta(milliseconds=1)] * 2
