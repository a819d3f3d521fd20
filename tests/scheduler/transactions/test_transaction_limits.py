"""A transaction that takes too long, or that others disturb steadily: it ends, it counts, and runs alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pymongo
import pytest
import trio
from pymongo import errors as driver
from trio.testing import MockClock

from tests.support.interception import Recorder
from tests.support.standalone import standalone_server
from tests.support.transactions import Commits, balance, deposit, stored
from trio_monque import Monque, RunningJob, Workers, open_scheduler
from trio_monque.errors import MonqueConnectionError, MonqueError, TransactionTimeoutError
from trio_monque.store.driver.types import ClientSession, Collection, Database
from trio_monque.testing import SchedulerOpener, advance, drain
from trio_monque.threads_and_frozen_time import call_run

LONG = 300.0
"""Seconds: longer than a transaction may take, and than three leases."""


class Inside:
    """Counts how many functions of one job run at the same time. `call_run` cannot be stopped, as code cannot."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.calls = 0

    def sleep(self, seconds: float) -> None:
        self.calls += 1
        self.now += 1
        self.most = max(self.most, self.now)
        call_run(trio.sleep, seconds)
        self.now -= 1


def long_transaction(
    inside: Inside, accounts: Collection, then: Callable[[RunningJob[Any], ClientSession], object] = lambda *_: None
) -> Callable[[RunningJob[Any]], Any]:
    """A handler whose transaction takes LONG, and ends with a call of `then`."""

    async def pay(job: RunningJob[Any]) -> None:
        def slow(session: ClientSession) -> None:
            deposit(accounts, session)
            inside.sleep(LONG)
            then(job, session)

        await job.transaction(slow)

    return pay


async def test_function_that_takes_too_long_is_a_failed_attempt(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    accounts: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    workers, inside = Workers(), Inside()
    workers.register("pay", long_transaction(inside, accounts), max_attempts=2, backoff=1)
    async with open_test_scheduler(workers), open_test_scheduler(workers) as other:
        job = await other.enqueue("pay")
        await advance(10 * LONG)
    after = await stored(monque, job)
    assert (after.status, after.attempts, after.fail_count, after.rescues) == ("failed", 2, 2, 0)
    assert "TransactionTimeoutError" in str(after.fail_reason)
    assert "longer than 60 s" in str(after.fail_reason)
    # Two schedulers, and no call began beside another one.
    assert (inside.calls, inside.most, balance(accounts)) == (2, 1, 0)
    lines = [record.getMessage() for record in caplog.records]
    assert sum("exceeded its limit of 60 s" in line for line in lines) == 2
    assert not any("lost the claim" in line for line in lines)


async def test_limit_is_what_is_left_of_the_lease(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers, inside = Workers(), Inside()
    workers.register("pay", long_transaction(inside, accounts), max_attempts=1)
    async with open_test_scheduler(workers, heartbeat_interval=6, cleanup_timeout=1) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(2 * LONG)
    # Three intervals, less a sixth, less the clean-up; less a third, in which the claim is renewed.
    assert "longer than 14 s" in str((await stored(monque, job)).fail_reason)


def check(job: RunningJob[Any], _session: ClientSession) -> None:
    job.check_cancelled()


def call_back(job: RunningJob[Any], _session: ClientSession) -> None:
    job.from_thread(trio.lowlevel.checkpoint)


@pytest.mark.parametrize("ask", [check, call_back])
async def test_function_that_asks_gets_the_error(
    open_test_scheduler: SchedulerOpener, accounts: Collection, autojump_clock: MockClock, ask: Any
) -> None:
    workers, told = Workers(), list[BaseException]()

    def then(job: RunningJob[Any], session: ClientSession) -> None:
        try:
            ask(job, session)
        except BaseException as error:
            told.append(error)
            raise

    workers.register("pay", long_transaction(Inside(), accounts, then), max_attempts=1)
    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("pay")
        await advance(2 * LONG)
    assert [type(one) for one in told] == [TransactionTimeoutError]


async def test_session_ends_at_the_limit_and_locks_nothing_any_more(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers, told = Workers(), list[BaseException]()

    def then(_job: RunningJob[Any], session: ClientSession) -> None:
        try:
            deposit(accounts, session)
        except driver.PyMongoError as error:
            told.append(error)  # Swallowed: the commit is refused all the same.

    workers.register("pay", long_transaction(Inside(), accounts, then), max_attempts=1)
    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(LONG / 2)
        with pymongo.timeout(20):  # The function still runs. Its locks would go after a minute of real time.
            accounts.update_one({"_id": "a"}, {"$inc": {"balance": 100}})
        await advance(LONG)
    assert len(told) == 1
    after = await stored(monque, job)
    assert (after.status, balance(accounts)) == ("failed", 100)
    assert "TransactionTimeoutError" in str(after.fail_reason)


@pytest.mark.full
@pytest.mark.parametrize("end", ["timeout", "cancel"])
async def test_function_that_outlives_its_cancellation_holds_its_job(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    accounts: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    end: str,
) -> None:
    workers, inside = Workers(), Inside()
    timeout = 5 if end == "timeout" else None
    workers.register("pay", long_transaction(inside, accounts), max_attempts=2, backoff=1, timeout=timeout)
    async with open_test_scheduler(workers), open_test_scheduler(workers) as other:
        job = await other.enqueue("pay")
        await advance(10)
        if end == "cancel":
            assert await monque.cancel_job(job.id) is not None
        await advance(LONG - 20)
        assert (await stored(monque, job)).status == "processing"
        await advance(3 * LONG)
    after = await stored(monque, job)
    expected = ("failed", 2, 2) if end == "timeout" else ("cancelled", 1, 0)
    assert (after.status, after.attempts, after.fail_count) == expected
    assert (inside.most, after.rescues, balance(accounts)) == (1, 0, 0)
    # Its time limit came first. Of the request to cancel, its scheduler knows nothing before the end of the function.
    assert ("exceeded its limit" in caplog.text) is (end == "cancel")


async def test_job_of_a_function_that_outlives_its_scheduler_is_not_released(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers, inside = Workers(), Inside()
    workers.register("pay", long_transaction(inside, accounts))
    async with open_test_scheduler(workers, shutdown_timeout=5) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(10)
    # Released now, it would begin elsewhere beside the function. It waits for the end of its lease instead.
    assert ((await stored(monque, job)).status, inside.now) == ("processing", 1)
    await advance(LONG)
    assert (inside.now, balance(accounts)) == (0, 0)


async def test_shielded_handler_whose_function_outlives_its_scheduler_learns_that_nothing_was_committed(
    open_test_scheduler: SchedulerOpener, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers, inside, learned = Workers(), Inside(), list[MonqueError]()
    transaction = long_transaction(inside, accounts)

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        with trio.CancelScope(shield=True):
            try:
                await transaction(job)
            except MonqueError as error:
                learned.append(error)

    async with open_test_scheduler(workers, shutdown_timeout=5) as scheduler:
        await scheduler.enqueue("pay")
        await advance(10)
    assert ["was not committed" in str(error) for error in learned] == [True]
    assert not any(isinstance(error, MonqueConnectionError) for error in learned)
    await advance(LONG)


def write_more(accounts: Collection, _job: RunningJob[Any], session: ClientSession) -> None:
    deposit(accounts, session)


@pytest.mark.parametrize("writes", [False, True])
async def test_run_that_a_shutdown_has_cut_has_not_failed_however_long_its_function_takes(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    accounts: Collection,
    autojump_clock: MockClock,
    *,
    writes: bool,
) -> None:
    workers, inside = Workers(), Inside()
    handler = long_transaction(inside, accounts, partial(write_more, accounts) if writes else lambda *_: None)
    workers.register("pay", handler, max_attempts=1)
    async with open_test_scheduler(workers, shutdown_timeout=5, cleanup_timeout=LONG) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(10)
    after = await stored(monque, job)
    assert (after.status, after.fail_count, after.attempts, balance(accounts)) == ("pending", 0, 1, 0)


async def test_error_at_the_limit_may_be_caught_and_the_claim_is_still_held(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers, inside = Workers(), Inside()

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        with pytest.raises(TransactionTimeoutError) as caught:
            await long_transaction(inside, accounts)(job)
        assert caught.value.limit == 60
        await job.save("half")
        await job.transaction(partial(deposit, accounts))

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(3 * LONG)
    after = await stored(monque, job)
    assert (after.status, after.attempts, balance(accounts)) == ("completed", 1, 1)


@pytest.mark.full
async def test_steady_replacements_do_not_keep_a_transaction_from_its_commit(
    open_test_scheduler: SchedulerOpener, db: Database, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    """Each call of the function is replaced in the middle: without a lock on its job, it would never commit."""
    workers = Workers()
    impatient = Monque(db, operation_timeout=0.5)
    outcomes: list[str] = []

    def replace(job: RunningJob[Any], session: ClientSession) -> None:
        deposit(accounts, session)
        if job.attempt > 1 or len(outcomes) == 10:
            return
        try:
            impatient.sync.enqueue("pay", len(outcomes), unique_key="k", on_conflict="replace")
        except MonqueConnectionError:
            outcomes.append("waited in vain")
        else:
            outcomes.append("replaced")

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        await job.transaction(partial(replace, job))

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay", unique_key="k")
        await advance(60)
    # The first call met a conflict. The second one found that its job has newer data. So the third one commits.
    assert outcomes == ["replaced", "waited in vain", "waited in vain"]
    after = await stored(monque, job)
    assert (after.status, after.attempts, after.data, balance(accounts)) == ("completed", 2, 0, 2)


async def test_transactions_inside_of_transactions_do_not_wait_for_each_other(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    """As many as there are turns: each holds one, and asks for another."""
    workers = Workers()
    refused: list[str] = []
    inside = 0
    all_inside = trio.Event()

    async def arrive() -> None:
        nonlocal inside
        inside += 1
        if inside == 4:
            all_inside.set()
        await all_inside.wait()

    @workers.register("pay", concurrency=4, max_attempts=1)
    def pay(job: RunningJob[Any]) -> None:
        def inner(session: ClientSession) -> None:
            job.from_thread(arrive)
            job.from_thread(job.transaction, partial(deposit, accounts))

        try:
            job.from_thread(job.transaction, inner)
        except MonqueError as error:
            refused.append(str(error))

    async with open_test_scheduler(workers) as scheduler:
        for _ in range(4):
            await scheduler.enqueue("pay")
        await advance(20)
        assert len(refused) == 4
    assert all("has one transaction" in one for one in refused)
    assert balance(accounts) == 0


async def test_second_of_two_transactions_that_wait_for_a_turn_is_refused(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    refused: list[str] = []

    async def commit(job: RunningJob[Any]) -> None:
        try:
            await job.transaction(partial(deposit, accounts))
        except MonqueError as error:
            refused.append(str(error))

    @workers.register("pay", concurrency=5)
    async def pay(job: RunningJob[Any]) -> None:
        if job.data == "busy":
            await job.transaction(lambda _session: call_run(trio.sleep, 20))
            return
        await trio.sleep(5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit, job)
            nursery.start_soon(commit, job)

    async with open_test_scheduler(workers) as scheduler:
        for data in ("busy", "busy", "busy", "busy", "twice"):
            await scheduler.enqueue("pay", data)
        await advance(60)
    assert (len(refused), balance(accounts)) == (1, 1)


async def test_failures_count_across_replacements(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    """Calls that replace a job after each failure do not give it attempts without end."""
    workers = Workers()
    ran: list[Any] = []

    @workers.register("pay", max_attempts=3, backoff=10)
    async def pay(job: RunningJob[Any]) -> None:
        ran.append(job.data)
        raise ValueError("never")

    async with open_test_scheduler(workers) as scheduler:
        jobs = []
        for number in range(5):
            jobs.append(await scheduler.enqueue("pay", number, unique_key="k", on_conflict="replace"))
            await advance(1)
    ends = [await stored(monque, job) for job in jobs]
    # The third failure was the last one, so the fourth call has made another job.
    assert len({one.id for one in ends}) == 2
    assert [(one.status, one.fail_count) for one in (ends[0], ends[-1])] == [("failed", 3), ("pending", 2)]
    assert ran == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("timeout", "seconds"), [(7, 7), (None, 14)])
async def test_commands_of_the_function_end_with_its_run_and_at_its_limit(
    db: Database, accounts: Collection, autojump_clock: MockClock, timeout: float | None, seconds: int
) -> None:
    """A transaction must not outlive its claim: what is sent has no more time than the run has."""
    recorder, workers = Recorder(), Workers()
    host, port = db.client.address or ("", 0)
    with pymongo.MongoClient[Any](host, port, event_listeners=[recorder]) as recorded:
        there = recorded[db.name]

        @workers.register("pay", timeout=timeout)
        async def pay(job: RunningJob[Any]) -> None:
            await job.transaction(lambda session: there.accounts.find_one(session=session))

        async with SchedulerOpener(there)(workers, heartbeat_interval=6, cleanup_timeout=1) as scheduler:
            await scheduler.enqueue("pay")
            await advance(1)
    (times,) = [one["maxTimeMS"] for name, one in recorder.commands if name == "find" and one["find"] == "accounts"]
    assert 0 < times <= seconds * 1000


@pytest.mark.parametrize("status", ["completed", "processing"])
async def test_commit_that_nothing_shows_any_more_is_unknown_to_the_handler(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    accounts: Collection,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    status: str,
) -> None:
    workers, told = Workers(), list[MonqueConnectionError]()
    commits = Commits(monkeypatch, 2, applied=True)
    real = commits.commit

    def settled_again(session: ClientSession) -> None:
        try:
            real(session)
        finally:
            jobs.update_one({}, {"$set": {"receipt": "of another", "status": status}})

    monkeypatch.setattr(commits, "commit", settled_again)

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        try:
            await job.transaction(partial(deposit, accounts))
        except MonqueConnectionError as error:
            told.append(error)
            raise

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("pay")
        await advance(1)
    (error,) = told
    assert error.unknown_outcome
    assert "another instance has claimed or ended the job" in str(error)
    assert scheduler.report is not None
    assert scheduler.report.completed == 0
    (document,) = jobs.find()
    assert (document["status"], document["receipt"], document.get("failCount", 0)) == (status, "of another", 0)


@pytest.mark.full
def test_transaction_on_a_standalone_server_says_what_it_needs() -> None:
    refused: list[str] = []
    workers = Workers()

    @workers.register("pay", max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        try:
            await job.transaction(lambda _session: None)
        except MonqueError as error:
            refused.append(str(error))

    async def main(database: Database) -> None:
        async with open_scheduler(database, workers, poll_interval=0.05) as scheduler:
            await scheduler.enqueue("pay")
            with trio.fail_after(20):
                await drain(scheduler)

    with standalone_server() as uri, pymongo.MongoClient[Any](uri, retryWrites=False) as client:
        trio.run(main, client["x"])
    (text,) = refused
    assert "this server is standalone: start mongod with --replSet" in text


@pytest.mark.parametrize(
    ("timeout", "seconds", "error"),
    [(5, 10, "longer than 5 s"), (5, 65, "longer than 5 s"), (None, 65, "longer than 60 s")],
)
async def test_thread_reads_the_clock_itself_before_it_ends_the_claim(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    accounts: Collection,
    autojump_clock: MockClock,
    timeout: float | None,
    seconds: float,
    error: str,
) -> None:
    """The event loop may be blocked at that moment, and then it has not given the transaction up yet."""
    workers = Workers()

    @workers.register("pay", timeout=timeout, max_attempts=1)
    async def pay(job: RunningJob[Any]) -> None:
        def late(session: ClientSession) -> None:
            deposit(accounts, session)
            autojump_clock.jump(seconds)  # The event loop sleeps, and does not see it.

        await job.transaction(late)

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(100)
    after = await stored(monque, job)
    assert (after.status, balance(accounts)) == ("failed", 0)
    assert error in str(after.fail_reason)
