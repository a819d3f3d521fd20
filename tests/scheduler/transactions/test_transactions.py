"""`job.transaction`: what a function writes and the end of its job are committed together, or not at all."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.jobs_in_memory import flat
from tests.support.transactions import balance, deposit, noting_errors, stored
from trio_monque import Monque, RunningJob, Workers
from trio_monque.errors import ClaimLostError, InvalidPayloadError, MonqueError
from trio_monque.events import JobCompleted, JobFailed
from trio_monque.store.driver.types import ClientSession, Collection
from trio_monque.testing import SchedulerOpener, advance, assert_enqueued, drain
from trio_monque.threads_and_frozen_time import call_run


async def test_effects_and_success_are_committed_and_the_handler_goes_on(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    seen: list[Any] = []
    heard: list[Any] = []

    @workers.register("pay", store_result=True)
    async def pay(job: RunningJob[Any]) -> str:
        seen.append(await job.transaction(partial(deposit, accounts)))
        seen.append((await stored(monque, job.job)).status)
        await trio.sleep(1000)  # Longer than any lease.
        seen.append(job.cancel_reason)
        return "not stored"

    async with open_test_scheduler(workers, listeners={JobCompleted: heard.append}) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(2000)
    after = await stored(monque, job)
    assert seen == [42, "completed", None]
    assert (after.status, after.result, balance(accounts)) == ("completed", 42, 1)
    assert [(event.job.result, event.job.internals.receipt) for event in heard] == [(42, after.internals.receipt)]
    assert scheduler.report is not None
    assert scheduler.report.completed == 1


async def test_error_of_the_function_commits_nothing_and_fails_the_attempt(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    failures = iter([True, False])

    def fail(session: ClientSession) -> None:
        deposit(accounts, session)
        if next(failures):
            raise ValueError("not today")

    @workers.register("pay", backoff=1)
    async def pay(job: RunningJob[Any]) -> None:
        await job.transaction(fail)

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(60)
    after = await stored(monque, job)
    assert (after.status, after.attempts, [one["error"] for one in after.errors]) == (
        "completed",
        2,
        ["ValueError: not today"],
    )
    assert balance(accounts) == 1


async def test_handler_may_go_on_after_an_error_and_try_again(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()

    def fail(session: ClientSession) -> None:
        deposit(accounts, session)
        raise ValueError("not yet")

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        with pytest.raises(ValueError, match="not yet"):
            await job.transaction(fail)
        await job.save("half")
        await job.transaction(partial(deposit, accounts))

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await drain(scheduler)
    after = await stored(monque, job)
    assert (after.status, after.attempts, balance(accounts)) == ("completed", 1, 1)


async def test_error_after_the_transaction_changes_nothing_and_is_logged(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    accounts: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    workers = Workers()
    heard: list[Any] = []

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        await job.transaction(partial(deposit, accounts))
        raise ZeroDivisionError

    async with open_test_scheduler(workers, listeners={JobFailed: heard.append}) as scheduler:
        job = await scheduler.enqueue("pay")
        await drain(scheduler)
    assert ((await stored(monque, job)).status, balance(accounts), heard) == ("completed", 1, [])
    (line,) = [record for record in caplog.records if "after its transaction had ended the job" in record.getMessage()]
    assert line.exc_info is not None
    assert line.exc_info[0] is ZeroDivisionError


@pytest.mark.parametrize("call", ["transaction", "save", "set_progress"])
async def test_nothing_more_is_written_to_a_job_after_its_transaction(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock, call: str
) -> None:
    workers = Workers()
    argument: Any = partial(deposit, accounts) if call == "transaction" else 1
    refused: list[str] = []

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        await job.transaction(partial(deposit, accounts))
        with pytest.raises(MonqueError) as caught:
            await getattr(job, call)(argument)
        refused.append(str(caught.value))

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await drain(scheduler)
        assert (await stored(monque, job)).status == "completed"
    assert len(refused) == 1
    assert balance(accounts) == 1


@pytest.mark.parametrize("call", ["transaction", "save", "set_progress"])
async def test_nothing_else_is_written_to_a_job_during_its_transaction(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock, call: str
) -> None:
    workers = Workers()
    argument: Any = partial(deposit, accounts) if call == "transaction" else 1

    @workers.register("pay")
    def pay(job: RunningJob[Any]) -> None:
        def inside(session: ClientSession) -> None:
            deposit(accounts, session)
            job.from_thread(getattr(job, call), argument)

        job.from_thread(job.transaction, inside)

    async with open_test_scheduler(workers, max_attempts=1) as scheduler:
        job = await scheduler.enqueue("pay")
        await drain(scheduler)
    after = await stored(monque, job)
    assert (after.status, balance(accounts)) == ("failed", 0)
    assert "transaction" in str(after.fail_reason)


async def test_run_that_is_cancelled_while_the_function_works_is_not_completed(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    told: list[Any] = []

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        def cancel(session: ClientSession) -> None:
            deposit(accounts, session)
            job.from_thread(monque.cancel_job, job.id)  # A conflict: the second attempt finds the request.

        await noting_errors(job, cancel, told)

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(5)
        after = await stored(monque, job)
        assert (after.status, balance(accounts)) == ("cancelled", 0)
    assert told == [(trio.Cancelled, "user")]
    assert scheduler.report is not None
    assert (scheduler.report.completed, scheduler.report.released) == (0, 0)


async def test_run_that_is_cancelled_by_its_own_scheduler_is_not_completed(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    """Nothing in the database shows that: only the thread asks for it, just before it ends the claim."""
    workers = Workers()
    told: list[Any] = []

    @workers.register("pay", timeout=5, max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        def slow(session: ClientSession) -> None:
            deposit(accounts, session)
            call_run(trio.sleep, 20)

        await noting_errors(job, slow, told)

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(60)
    after = await stored(monque, job)
    assert (after.status, after.fail_reason, balance(accounts)) == (
        "failed",
        "TimeoutError: the run took longer than 5 s (the timeout of its worker)",
        0,
    )
    assert told == [(trio.Cancelled, "timeout")]


async def test_plain_handler_commits_through_its_thread(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("pay", store_result=True)
    def pay(job: RunningJob[Any]) -> None:
        assert job.from_thread(job.transaction, partial(deposit, accounts)) == 42

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await drain(scheduler)
    after = await stored(monque, job)
    assert (after.status, after.result, balance(accounts)) == ("completed", 42, 1)


async def test_recurring_job_goes_on_with_its_next_occurrence(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        await job.transaction(partial(deposit, accounts))

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.schedule("0 * * * *", "pay", timezone="UTC")
        await advance(3 * 3600)
    after = await stored(monque, job)
    assert (after.status, balance(accounts)) == ("pending", 3)


async def test_schedule_that_changes_meanwhile_is_the_one_that_counts(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    calls: list[int] = []

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        def change(session: ClientSession) -> None:
            calls.append(job.attempt)
            if len(calls) == 1:
                monque.sync.schedule("0 0 1 1 *", "pay", unique_key="k", timezone="UTC", on_conflict="update")
            deposit(accounts, session)

        await job.transaction(change)

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.schedule("* * * * *", "pay", unique_key="k", timezone="UTC")
        await advance(60)
    after = await stored(monque, job)
    assert (calls, balance(accounts)) == ([1, 1], 1)  # The conflict undid the first.
    assert (after.next_run_at.month, flat(after).repeat_interval) == (1, "0 0 1 1 *")


async def test_result_that_cannot_be_stored_commits_nothing(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()

    def unstorable(session: ClientSession) -> object:
        deposit(accounts, session)
        return object()

    @workers.register("pay", store_result=True)
    async def pay(job: RunningJob[Any]) -> None:
        with pytest.raises(InvalidPayloadError, match="result"):
            await job.transaction(unstorable)
        assert balance(accounts) == 0
        await job.transaction(partial(deposit, accounts))

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("pay")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
    assert balance(accounts) == 1


async def test_claim_that_was_lost_commits_nothing(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    errors: list[Any] = []

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        def lose(session: ClientSession) -> None:
            monque.sync.delete_job(job.id)
            deposit(accounts, session)

        await noting_errors(job, lose, errors)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("pay")
        await advance(1)
    assert (errors, balance(accounts)) == ([(ClaimLostError, "lost")], 0)
    assert scheduler.report is not None
    assert scheduler.report.completed == 0


@pytest.mark.full
async def test_hundred_runs_take_turns(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    at_once: list[int] = []
    now = 0

    @workers.register("pay", concurrency=100)
    async def pay(job: RunningJob[Any]) -> None:
        def count(session: ClientSession) -> None:
            nonlocal now
            now += 1
            at_once.append(now)
            try:
                accounts.insert_one({"_id": job.id}, session=session)
            finally:
                now -= 1

        await job.transaction(count)

    async with open_test_scheduler(workers) as scheduler:
        for _ in range(100):
            await scheduler.enqueue("pay")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=100)
    assert accounts.count_documents({}) == 101
    assert max(at_once) <= 4


async def test_lease_is_kept_during_a_transaction_of_twenty_seconds(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        def slow(session: ClientSession) -> None:
            deposit(accounts, session)
            job.from_thread(trio.sleep, 20)

        await trio.sleep(29)  # Just before a beat, which passes this claim over then.
        await job.transaction(slow)

    async with open_test_scheduler(workers), open_test_scheduler() as other:
        job = await other.enqueue("pay")
        await advance(200)
    after = await stored(monque, job)
    assert (after.status, after.attempts, after.rescues, balance(accounts)) == ("completed", 1, 0, 1)


async def test_neighbours_of_a_transaction_keep_their_leases(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    reasons: list[Any] = []

    @workers.register("pay", concurrency=20)
    async def pay(job: RunningJob[Any]) -> None:
        def slow(session: ClientSession) -> None:
            deposit(accounts, session)
            job.from_thread(trio.sleep, 40)

        if job.data:
            await job.transaction(slow)
        else:
            await trio.sleep(500)
        reasons.append(job.cancel_reason)

    async with open_test_scheduler(workers) as scheduler:
        for number in range(20):
            await scheduler.enqueue("pay", number == 7)
        await advance(600)
        await assert_enqueued(scheduler, status="completed", count=20)
    assert reasons == [None] * 20
    assert balance(accounts) == 1


async def test_jobs_that_are_enqueued_with_the_session_share_the_fate_of_the_transaction(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    receipts: list[Any] = []
    calls: list[int] = []

    @workers.register("pay", backoff=1)
    async def pay(job: RunningJob[Any]) -> None:
        def move(session: ClientSession) -> None:
            deposit(accounts, session)
            monque.sync.enqueue("receipt", job.attempt, session=session)
            calls.append(job.attempt)
            if job.attempt == 1:
                raise ValueError("not yet")

        await job.transaction(move)

    @workers.register("receipt")
    async def receipt(job: RunningJob[int]) -> None:
        receipts.append(job.data)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("pay")
        await advance(60)
    assert (set(calls), receipts, balance(accounts)) == ({1, 2}, [2], 1)
