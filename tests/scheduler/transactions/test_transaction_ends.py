"""What the end of a job is in its transaction, and what becomes of it if the database does not accept that end."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import trio
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.interception import Interceptor
from tests.support.transactions import balance, deposit, stored
from trio_monque import Monque, RunningJob, Workers
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import InvalidPayloadError, MonqueError
from trio_monque.scheduler.settling import MOST_ROUNDS
from trio_monque.store.driver.types import ClientSession, Collection, Database
from trio_monque.testing import SchedulerOpener, advance, drain


async def test_result_that_the_server_refuses_commits_nothing_and_the_claim_is_held(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    accounts: Collection,
    autojump_clock: MockClock,
) -> None:
    workers, refused = Workers(), list[str]()

    def forbidden(session: ClientSession) -> str:
        deposit(accounts, session)
        return "forbidden"

    @workers.register("pay", store_result=True)
    async def pay(job: RunningJob[Any]) -> None:
        with pytest.raises(InvalidPayloadError) as caught:
            await job.transaction(forbidden)
        refused.append(str(caught.value))
        await job.transaction(partial(deposit, accounts))

    async with open_test_scheduler(workers) as scheduler:
        jobs.database.command("collMod", jobs.name, validator={"result": {"$ne": "forbidden"}})
        job = await scheduler.enqueue("pay")
        await drain(scheduler)
    (text,) = refused
    assert "the server refuses the document. Nothing was committed" in text
    after = await stored(monque, job)
    assert (after.status, after.attempts, after.result, balance(accounts)) == ("completed", 1, 42, 1)


async def test_result_is_not_stored_unless_its_worker_stores_results(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    workers, returned = Workers(), list[object]()

    def unstorable(session: ClientSession) -> object:
        deposit(accounts, session)
        return workers

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        returned.append(await job.transaction(unstorable))

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await drain(scheduler)
    after = await stored(monque, job)
    assert (after.status, after.result, balance(accounts)) == ("completed", None, 1)
    assert returned == [workers]


async def test_shielded_handler_whose_job_was_cancelled_meanwhile_gets_an_error(
    open_test_scheduler: SchedulerOpener, monque: Monque, accounts: Collection, autojump_clock: MockClock
) -> None:
    """No cancellation reaches it, and its claim was not lost."""
    workers, refused = Workers(), list[MonqueError]()

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        def cancel(session: ClientSession) -> None:
            deposit(accounts, session)
            job.from_thread(monque.cancel_job, job.id)  # A conflict: the second attempt finds the request.

        with trio.CancelScope(shield=True):
            try:
                await job.transaction(cancel)
            except MonqueError as error:
                refused.append(error)
                raise

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue("pay")
        await advance(5)
    (error,) = refused
    assert type(error) is MonqueError
    assert "was cancelled: its transaction was not committed" in str(error)
    assert ((await stored(monque, job)).status, balance(accounts)) == ("cancelled", 0)


@pytest.fixture
def interceptor() -> Interceptor:
    return Interceptor()


@pytest.fixture
def intercepted(mongod: EmbeddedServer, db: Database, interceptor: Interceptor) -> Iterator[Database]:
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[interceptor]) as client:
        yield client[db.name]


@pytest.mark.full
@pytest.mark.parametrize("changes", [MOST_ROUNDS - 1, MOST_ROUNDS])
async def test_transaction_of_a_job_whose_schedule_keeps_changing_ends(
    intercepted: Database,
    interceptor: Interceptor,
    monque: Monque,
    jobs: Collection,
    accounts: Collection,
    autojump_clock: MockClock,
    changes: int,
) -> None:
    """It changes after it was read, and before the transaction sees its first document: there is never a conflict."""
    workers, refused = Workers(), list[str]()
    calls = 0
    schedules = iter([f"{number} 0 1 1 *" for number in range(changes)])

    def count(session: ClientSession) -> None:
        nonlocal calls
        calls += 1
        deposit(intercepted.accounts, session)

    @workers.register("pay")
    async def pay(job: RunningJob[Any]) -> None:
        if refused or calls:
            return
        try:
            await job.transaction(count)
        except MonqueError as error:
            refused.append(str(error))

    def change() -> None:
        jobs.update_one({}, {"$set": {"repeatInterval": next(schedules)}})

    async with SchedulerOpener(intercepted)(workers) as scheduler:
        await scheduler.schedule("* * * * *", "pay", timezone="UTC")
        interceptor.before(lambda _, command: command.get("startTransaction", False), *[change] * changes)
        await advance(60)
    assert interceptor.times == changes
    if changes < MOST_ROUNDS:
        assert (calls, refused, balance(accounts)) == (changes + 1, [], 1)
    else:
        assert (calls, balance(accounts)) == (changes, 0)
        (text,) = refused
        assert "was not committed: the job kept changing" in text
