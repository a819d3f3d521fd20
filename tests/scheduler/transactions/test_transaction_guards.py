"""What surrounds a transaction: turns, cancellations from outside and from inside, and answers that come too late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pymongo
import pytest
import trio
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.support.fail_points import refusing_server
from tests.support.interception import Recorder
from tests.support.transactions import balance, deposit, noting_errors, stored
from trio_monque import Monque, RunningJob, Scheduler, Workers
from trio_monque.engine import pauses
from trio_monque.errors import (
    ClaimLostError,
    MonqueConnectionError,
    MonqueError,
    ShortageError,
)
from trio_monque.host import transaction_thread
from trio_monque.store.driver import transaction_attempts
from trio_monque.store.driver.database_threads import Channel, DatabaseThreads
from trio_monque.store.driver.transaction_attempts import end_on_server
from trio_monque.store.driver.types import ClientSession, Collection
from trio_monque.testing import Fault, SchedulerOpener, advance, drain, fail_next
from trio_monque.threads_and_frozen_time import call_run

NOT_AUTHORIZED = 13
LONG = 300.0
"""Seconds: longer than a transaction may take, and than three leases."""


async def test_transactions_that_fail_give_their_turns_back(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()

    def fail(session: ClientSession) -> None:
        deposit(accounts, session)
        raise ValueError("not yet")

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        for _ in range(10):  # More than there are turns.
            with pytest.raises(ValueError, match="not yet"):
                await job.transaction(fail)
        await job.transaction(partial(deposit, accounts))

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        with trio.fail_after(LONG):
            await drain(scheduler)
    assert ((await stored(monque, job)).status, balance(accounts)) == ("completed", 1)


async def test_run_that_was_cancelled_before_its_transaction_gets_the_cancellation(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    """An error instead would be a failed attempt of a run that a shutdown has cut."""
    workers = Workers()
    told: list[Any] = []

    @workers.register("pay", max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(20)
        await noting_errors(job, partial(deposit, accounts), told)

    async with open_test_scheduler(workers, shutdown_timeout=5, cleanup_timeout=60) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(1)
    after = await stored(monque, job)
    assert told == [(trio.Cancelled, "shutdown")]
    assert (after.status, after.fail_count, balance(accounts)) == ("pending", 0, 0)


async def test_thread_that_cannot_start_is_an_error_of_its_own_and_the_claim_is_held(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    accounts: Collection,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler can catch it: it is not in a group."""
    workers, call = Workers(), DatabaseThreads.call
    shortages = [ShortageError("could not start a thread: can't start new thread")]

    async def short_of_threads(self: DatabaseThreads, function: Any, **options: Any) -> Any:
        if options.get("channel") is Channel.TRANSACTIONS and shortages:
            raise shortages.pop()
        return await call(self, function, **options)

    monkeypatch.setattr(DatabaseThreads, "call", short_of_threads)

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        with pytest.raises(ShortageError, match="could not start a thread"):
            await job.transaction(partial(deposit, accounts))
        await job.transaction(partial(deposit, accounts))

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await drain(scheduler)
    after = await stored(monque, job)
    assert (after.status, after.attempts, balance(accounts)) == ("completed", 1, 1)


def outage(scheduler: Scheduler) -> Fault:
    return fail_next(scheduler, AutoReconnect("gone"), command="renew claims", times=None)


@pytest.mark.full
@pytest.mark.parametrize("reason", ["lost", "timeout"])
async def test_shielded_handler_whose_run_was_cancelled_before_learns_why_it_has_no_transaction(
    open_test_scheduler: SchedulerOpener,
    accounts: Collection,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
) -> None:
    monkeypatch.setattr(pauses, "REAL_TIME_BUDGET", 0.0)  # An outage takes virtual time.
    workers = Workers()
    told: list[MonqueError] = []

    @workers.register("pay", timeout=5 if reason == "timeout" else None, max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        if job.attempt > 1:
            return
        with trio.CancelScope(shield=True):
            await trio.sleep(200)
            try:
                await job.transaction(partial(deposit, accounts))
            except MonqueError as error:
                told.append(error)

    async with open_test_scheduler(workers) as scheduler:
        with outage(scheduler) if reason == "lost" else nullcontext():
            await scheduler.enqueue("pay")
            await advance(190)
        await advance(30)
    (error,) = told
    assert isinstance(error, ClaimLostError) is (reason == "lost")
    assert ("was lost" if reason == "lost" else "is cancelled (timeout)") in str(error)
    assert balance(accounts) == 0


async def test_shielded_handler_whose_run_is_cancelled_meanwhile_learns_that_nothing_was_committed(
    open_test_scheduler: SchedulerOpener, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers, errors = Workers(), list[MonqueError]()

    @workers.register("pay", timeout=5, max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        def slow(session: ClientSession) -> None:
            deposit(accounts, session)
            call_run(trio.sleep, 20)

        with trio.CancelScope(shield=True):
            try:
                await job.transaction(slow)
            except MonqueError as error:
                errors.append(error)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("pay")
        await advance(60)
    (error,) = errors
    assert type(error) is MonqueError
    assert "was cancelled: its transaction was not committed" in str(error)
    assert balance(accounts) == 0


@pytest.mark.parametrize("ends_after", [1, 60])
async def test_transaction_in_an_outage_of_the_renewals_waits_and_no_attempt_fails(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    accounts: Collection,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    ends_after: int,
) -> None:
    """The claim is still held, and should have been renewed five seconds ago: its function would have no time."""
    monkeypatch.setattr(pauses, "REAL_TIME_BUDGET", 0.0)  # An outage takes virtual time.
    workers, calls = Workers(), list[int]()

    @workers.register("pay", max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        def paid(session: ClientSession) -> None:
            calls.append(job.attempt)
            deposit(accounts, session)

        await trio.sleep(75)
        await job.transaction(paid)

    async with open_test_scheduler(workers) as scheduler:
        with outage(scheduler):
            job = await scheduler.enqueue("pay")
            await advance(75 + ends_after)
            assert calls == []
        await drain(scheduler)
    after = await stored(monque, job)
    assert (after.status, after.fail_count, balance(accounts)) == ("completed", 0, 1)
    # After a minute, its claim was lost: that counts no attempt.
    assert len(calls) == 1
    assert (scheduler.statistics().claims_lost > 0) is (ends_after == 60)


async def test_scope_of_the_handler_does_not_lift_the_limit(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    """Without its limit, the lease would end behind the function, and another instance would run the job beside it."""
    workers = Workers()
    inside, most, calls = 0, 0, 0

    @workers.register("pay", max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        def slow(session: ClientSession) -> None:
            nonlocal inside, most, calls
            deposit(accounts, session)
            calls, inside = calls + 1, inside + 1
            most = max(most, inside)
            call_run(trio.sleep, LONG)
            inside -= 1

        with trio.move_on_after(5):
            await job.transaction(slow)

    async with open_test_scheduler(workers), open_test_scheduler(workers) as other:
        job = await other.enqueue("pay")
        await advance(5 * LONG)
    after = await stored(monque, job)
    assert (most, calls, balance(accounts)) == (1, 1, 0)
    assert (after.status, after.rescues) == ("failed", 0)
    assert "longer than 60 s" in str(after.fail_reason)


async def test_function_that_asks_ends_its_handler_by_the_cancellation(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    """What `check_cancelled` raises is for threads: an async handler has its own cancellation."""
    workers = Workers()
    told: list[Any] = []

    @workers.register("pay", timeout=5, max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        def ask(session: ClientSession) -> None:
            deposit(accounts, session)
            call_run(trio.sleep, 20)
            job.check_cancelled()

        await noting_errors(job, ask, told)

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(60)
    after = await stored(monque, job)
    assert told == [(trio.Cancelled, "timeout")]
    assert (after.status, after.fail_reason) == (
        "failed",
        "TimeoutError: the run took longer than 5 s (the timeout of its worker)",
    )


async def test_limit_holds_in_the_second_call_after_a_conflict(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    accounts: Collection,
    autojump_clock: MockClock,
) -> None:
    """The first call came to the end of its claim, from where on nothing gives it up."""
    workers = Workers()
    calls = inside = most = 0

    @workers.register("pay", max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        def meet(session: ClientSession) -> None:
            nonlocal calls, inside, most
            calls += 1
            deposit(accounts, session)
            if calls == 1:
                jobs.update_one({"_id": job.id}, {"$inc": {"rev": 1}})
                return
            inside += 1
            most = max(most, inside)
            call_run(trio.sleep, LONG)
            inside -= 1

        await job.transaction(meet)

    async with open_test_scheduler(workers), open_test_scheduler(workers) as other:
        job = await other.enqueue("pay")
        await advance(4 * LONG)
    after = await stored(monque, job)
    assert (calls, most, balance(accounts)) == (2, 1, 0)
    assert (after.status, after.fail_count, after.rescues) == ("failed", 1, 0)


async def test_transaction_that_is_given_up_between_two_attempts_calls_its_function_no_more(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    accounts: Collection,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers, calls = Workers(), list[int]()

    def long_pause(*_: Any) -> None:
        call_run(trio.sleep, 20)

    monkeypatch.setattr("trio_monque.host.transaction_thread.TransactionThread.pause", long_pause)

    @workers.register("pay", timeout=5, max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        def meet(session: ClientSession) -> None:
            calls.append(1)
            deposit(accounts, session)
            jobs.update_one({"_id": job.id}, {"$inc": {"rev": 1}})

        await job.transaction(meet)

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(60)
    after = await stored(monque, job)
    assert (after.status, after.fail_reason) == (
        "failed",
        "TimeoutError: the run took longer than 5 s (the timeout of its worker)",
    )
    assert (calls, balance(accounts)) == ([1], 0)


async def test_function_that_was_too_late_before_a_shutdown_has_failed(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    """What came first counts: a shutdown would make it an attempt that does not count."""
    workers = Workers()

    @workers.register("pay", max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        def slow(session: ClientSession) -> None:
            deposit(accounts, session)
            call_run(trio.sleep, LONG)

        await job.transaction(slow)

    async with open_test_scheduler(workers, shutdown_timeout=5, cleanup_timeout=LONG) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(100)
    after = await stored(monque, job)
    assert (after.status, after.fail_count, balance(accounts)) == ("failed", 1, 0)
    assert "longer than 60 s" in str(after.fail_reason)


@pytest.mark.full
async def test_transaction_that_the_server_does_not_abort_at_its_limit_is_not_committed_either(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its job is not begun beside it: the renewals go on."""
    workers = Workers()
    inside, most = 0, 0

    @workers.register("pay", max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        def slow(session: ClientSession) -> None:
            nonlocal inside, most
            deposit(accounts, session)
            inside += 1
            most = max(most, inside)
            call_run(trio.sleep, LONG)
            inside -= 1

        await job.transaction(slow)

    with refusing_server() as server, server.client() as client:
        accounts = client["x"]["accounts"]
        accounts.insert_one({"_id": "a", "balance": 0})
        opener = SchedulerOpener(client["x"])
        with server.refusing(NOT_AUTHORIZED, ["killSessions"]):
            async with opener(workers), opener(workers) as other:
                job = await other.enqueue("pay")
                await advance(3 * LONG)
        after = await stored(Monque(client["x"]), job)
        assert (after.status, after.rescues, most, balance(accounts)) == ("failed", 0, 1, 0)
    assert "TransactionTimeoutError" in str(after.fail_reason)
    assert caplog.text.count("could not abort the transaction of job pay") == 1


@pytest.mark.full
@pytest.mark.parametrize("first_call", ["met a conflict", "found newer data"])
async def test_claim_that_may_be_locked_is_not_renewed_while_the_server_does_not_abort(
    autojump_clock: MockClock, first_call: str
) -> None:
    """From its second call on, the transaction locks its job first: a renewal would wait for that lock."""
    workers, recorder, calls = Workers(), Recorder(), list[int]()

    @workers.register("pay", max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        def meet(session: ClientSession) -> None:
            calls.append(job.attempt)
            if len(calls) > 1:
                call_run(trio.sleep, 65)
            elif first_call == "met a conflict":
                deposit(accounts, session)
                monque.sync.enqueue("pay", 2, unique_key="k", on_conflict="replace")
            else:
                monque.sync.enqueue("pay", 2, unique_key="k", on_conflict="replace")
                deposit(accounts, session)

        if job.attempt == 1:
            await job.transaction(meet)

    with refusing_server() as server, server.client(event_listeners=[recorder]) as client:
        accounts, monque = client["x"]["accounts"], Monque(client["x"])
        accounts.insert_one({"_id": "a", "balance": 0})
        async with SchedulerOpener(client["x"])(workers, operation_timeout=2) as scheduler:
            await scheduler.enqueue("pay", 1, unique_key="k")
            with server.refusing(NOT_AUTHORIZED, ["killSessions"]):
                await advance(64)
                named = [name for name, _ in recorder.commands]
                since = recorder.commands[named.index("killSessions") :]
                assert [one["update"] for name, one in since if name == "update"] == []
                await advance(10)
        assert (calls, balance(accounts)) == ([1, 1], 0)


async def test_claim_of_a_transaction_that_is_given_up_before_its_thread_begins_is_renewed(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    accounts: Collection,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    workers = Workers()

    def without_an_answer(_collection: Collection) -> bool:
        call_run(trio.sleep, LONG)
        return False

    monkeypatch.setattr(transaction_attempts, "is_standalone", without_an_answer)

    @workers.register("pay", timeout=5, max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        await job.transaction(partial(deposit, accounts))

    async with open_test_scheduler(workers), open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(2 * LONG)
    after = await stored(monque, job)
    # Its own timeout ended it, and no other instance took it for dead.
    assert (after.status, after.attempts, after.rescues, balance(accounts)) == ("failed", 1, 0, 0)
    assert not any("lost the claim" in record.getMessage() for record in caplog.records)


async def test_abort_at_the_cancellation_does_not_depend_on_the_time_for_clean_ups(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("pay", timeout=5, max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        def slow(session: ClientSession) -> None:
            deposit(accounts, session)
            call_run(trio.sleep, LONG)

        await job.transaction(slow)

    async with open_test_scheduler(workers, cleanup_timeout=0) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(10)
        with pymongo.timeout(20):  # The function still runs. Its locks would go after a minute of real time.
            accounts.update_one({"_id": "a"}, {"$inc": {"balance": 100}})
        await advance(LONG)
    assert ((await stored(monque, job)).status, balance(accounts)) == ("failed", 100)


@pytest.mark.full
async def test_session_is_given_back_only_after_an_abort_that_is_under_way(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    accounts: Collection,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next command of any thread may get the session: the abort would end that command."""
    workers = Workers()
    order, mine = list[str](), list[ClientSession]()
    abort_began, given_back = threading.Event(), threading.Event()
    abort, give_back = end_on_server, ClientSession.__exit__

    def slow_abort(*arguments: Any) -> None:
        abort_began.set()
        given_back.wait(0.5)  # It must not be.
        abort(*arguments)
        order.append("aborted")

    def noted(session: ClientSession, *arguments: Any) -> None:
        give_back(session, *arguments)
        if session in mine:
            order.append("given back")
            given_back.set()

    monkeypatch.setattr(transaction_thread, "end_on_server", slow_abort)
    monkeypatch.setattr(ClientSession, "__exit__", noted)

    @workers.register("pay", timeout=5, max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        def ends_with_its_run(session: ClientSession) -> None:
            mine.append(session)
            deposit(accounts, session)
            call_run(trio.sleep, 5)
            assert abort_began.wait(30)

        await job.transaction(ends_with_its_run)

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(20)
    assert order == ["aborted", "given back"]
    assert ((await stored(monque, job)).status, balance(accounts)) == ("failed", 0)


# --- An answer that does not come ---


@pytest.fixture
def late_commits(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Commits whose answer takes longer than the lease: they are applied before that, or never."""
    real, abort = ClientSession.commit_transaction, ClientSession.abort_transaction

    def begin(applied: bool) -> None:
        def commit(session: ClientSession) -> None:
            (real if applied else abort)(session)
            call_run(trio.sleep, LONG)

        monkeypatch.setattr(ClientSession, "commit_transaction", commit)

    return begin


@pytest.mark.parametrize("shielded", [False, True])
async def test_answer_to_a_commit_is_awaited_until_the_lease_ends_and_no_longer(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    accounts: Collection,
    autojump_clock: MockClock,
    late_commits: Callable[[bool], None],
    *,
    shielded: bool,
) -> None:
    workers = Workers()
    told: list[tuple[BaseException, Any]] = []
    late_commits(True)

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        began_at = trio.current_time()
        try:
            with trio.CancelScope(shield=shielded):
                await job.transaction(partial(deposit, accounts))
        except BaseException as error:
            told.append((error, job.cancel_reason))
            assert 60 <= trio.current_time() - began_at <= 90
            raise

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(2 * LONG)
    ((error, reason),) = told
    if shielded:
        assert isinstance(error, MonqueConnectionError)
        assert (error.transient, error.unknown_outcome) == (True, True)
        assert "may be committed" in str(error)
    else:
        assert (type(error), reason) == (trio.Cancelled, "lost")
    after = await stored(monque, job)
    assert (after.status, after.attempts, after.fail_count, balance(accounts)) == ("completed", 1, 0, 1)


async def test_job_whose_commit_has_no_answer_is_released_when_its_run_ends(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    accounts: Collection,
    autojump_clock: MockClock,
    late_commits: Callable[[bool], None],
) -> None:
    """Its function has ended: nothing of it runs beside the next attempt, which need not wait for a rescue."""
    workers = Workers()
    late_commits(False)
    attempts: list[int] = []

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        attempts.append(job.attempt)
        if job.attempt == 1:
            await job.transaction(partial(deposit, accounts))

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(2 * LONG)
    after = await stored(monque, job)
    assert (after.status, attempts, after.rescues, after.fail_count) == ("completed", [1, 2], 0, 0)
    assert balance(accounts) == 0
