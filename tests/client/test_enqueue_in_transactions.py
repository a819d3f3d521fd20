"""session=: a job that is part of the caller's transaction."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
import trio
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import OperationFailure
from trio.testing import MockClock

from tests.support.interception import Recorder
from trio_monque import Monque, Workers
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import InvalidOptionError, MonqueConnectionError
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, quiesce

KEYS = pytest.mark.parametrize("options", [{}, {"unique_key": "k"}], ids=["plain", "unique"])


@pytest.fixture
def session(client: MongoClient[Any]) -> Iterator[ClientSession]:
    with client.start_session() as session:
        yield session


@KEYS
async def test_job_of_a_transaction_is_seen_when_it_commits(
    open_test_scheduler: SchedulerOpener,
    db: Database,
    jobs: Collection,
    session: ClientSession,
    options: dict[str, Any],
    autojump_clock: MockClock,
) -> None:
    workers = Workers()
    workers.register("greet", lambda job: None)
    async with open_test_scheduler(workers, poll_interval=1) as scheduler:
        with session.start_transaction():
            db["orders"].insert_one({"_id": 1}, session=session)
            job = await scheduler.enqueue("greet", 1, session=session, **options)
            await trio.sleep(10)
            assert jobs.count_documents({}) == 0
            assert (await scheduler.get_job(job.id)) is None
        await trio.sleep(1)  # Jobs of open transactions are polled for.
        await quiesce()
        assert jobs.count_documents({"_id": job.id, "status": "completed"}) == 1


@KEYS
def test_job_of_a_transaction_is_rolled_back_with_it(
    db: Database, jobs: Collection, session: ClientSession, options: dict[str, Any]
) -> None:
    monque = Monque(db)
    monque.sync.enqueue("other")
    with pytest.raises(ZeroDivisionError), session.start_transaction():
        db["orders"].insert_one({"_id": 1}, session=session)
        monque.sync.enqueue("greet", session=session, **options)
        raise ZeroDivisionError
    assert (jobs.count_documents({"name": "greet"}), db["orders"].count_documents({})) == (0, 0)
    assert monque.sync.enqueue("greet", **options).status == "pending"


@KEYS
def test_first_enqueue_of_a_client_may_be_in_a_transaction(
    db: Database, jobs: Collection, session: ClientSession, options: dict[str, Any]
) -> None:
    """Also after a write to the collection in the same transaction, which must not wait for its own indexes."""
    first = Monque(db).sync.document("greet", "first")
    with session.start_transaction():
        jobs.insert_one(first, session=session)
        Monque(db).sync.enqueue("greet", session=session, **options)
    assert jobs.count_documents({}) == 2


@KEYS
def test_first_enqueue_ever_may_be_in_a_transaction_that_is_tried_again(
    db: Database, jobs: Collection, session: ClientSession, options: dict[str, Any]
) -> None:
    """Indexes cannot be made in a transaction. Made beside it, they are newer than what it sees: a transient error."""
    monque = Monque(db)

    def order(session: ClientSession) -> None:
        db["orders"].insert_one({"_id": 1}, session=session)
        monque.sync.enqueue("greet", session=session, **options)

    session.with_transaction(order)
    assert (jobs.count_documents({}), db["orders"].count_documents({})) == (1, 1)
    assert "name_1_uniqueKey_1" in jobs.index_information()


def test_key_in_use_gives_the_job_that_has_it_in_a_transaction_too(
    db: Database, jobs: Collection, session: ClientSession
) -> None:
    sync = Monque(db).sync
    first = sync.enqueue("greet", unique_key="k")
    with session.start_transaction():
        assert sync.enqueue("greet", unique_key="k", session=session) == first
        inside = sync.enqueue("greet", unique_key="l", session=session)
        assert sync.enqueue("greet", unique_key="l", session=session) == inside
    assert jobs.count_documents({}) == 2


def test_lost_race_for_a_key_is_the_transactions_own_transient_error(db: Database, session: ClientSession) -> None:
    sync = Monque(db).sync
    sync.enqueue("other")
    session.start_transaction()
    db["monque_jobs"].find_one({}, session=session)  # From here on it sees nothing that is newer.
    sync.enqueue("greet", unique_key="k")
    with pytest.raises(OperationFailure) as caught:
        sync.enqueue("greet", unique_key="k", session=session)
    assert caught.value.has_error_label("TransientTransactionError")


def test_with_transaction_tries_a_lost_race_again_and_finds_the_winner(
    db: Database, jobs: Collection, session: ClientSession
) -> None:
    sync = Monque(db).sync
    sync.enqueue("other")
    tries: list[int] = []

    def order(session: ClientSession) -> Any:
        tries.append(len(tries))
        db["orders"].insert_one({"_id": len(tries)}, session=session)
        db["monque_jobs"].find_one({}, session=session)
        if len(tries) == 1:
            sync.enqueue("greet", "winner", unique_key="k")
        return sync.enqueue("greet", "order", unique_key="k", session=session).data

    assert session.with_transaction(order) == "winner"
    assert tries == [0, 1]
    assert [document["_id"] for document in db["orders"].find()] == [2]
    assert jobs.count_documents({"name": "greet"}) == 1


def test_other_errors_in_a_transaction_are_ours_and_nothing_is_unknown(
    db: Database, jobs: Collection, session: ClientSession
) -> None:
    db.create_collection("monque_jobs", validator={"data": {"$ne": "bad"}})
    session.start_transaction()
    with pytest.raises(MonqueConnectionError, match="in this transaction") as caught:
        Monque(db).sync.enqueue("greet", "bad", session=session)
    assert not caught.value.unknown_outcome
    session.abort_transaction()
    assert jobs.count_documents({}) == 0


@pytest.mark.parametrize(("backend", "options"), [("trio", {}), ("asyncio", {}), ("asyncio", {"use_uvloop": True})])
def test_transaction_of_async_code_joins_from_every_backend(
    db: Database, jobs: Collection, session: ClientSession, backend: str, options: dict[str, Any]
) -> None:
    monque = Monque(db)

    async def main() -> None:
        with session.start_transaction():
            for number in range(3):
                await monque.enqueue("greet", number, session=session)
            session.abort_transaction()
        with session.start_transaction():
            await monque.enqueue("greet", "kept", session=session)

    anyio.run(main, backend=backend, backend_options=options)
    assert [document["data"] for document in jobs.find()] == ["kept"]


def test_with_transaction_in_a_thread_uses_the_blocking_client(db: Database, jobs: Collection) -> None:
    monque = Monque(db)

    def work() -> None:
        with db.client.start_session() as session:
            session.with_transaction(lambda session: monque.sync.enqueue("greet", session=session))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(50)
    assert jobs.count_documents({}) == 1


def test_session_without_a_transaction_is_an_ordinary_enqueue(mongod: EmbeddedServer, db: Database) -> None:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder]) as client, client.start_session() as session:
        sync = Monque(client[db.name]).sync
        sync.enqueue("greet", session=session)
        sync.enqueue("greet", unique_key="k", session=session)
        used = [command["lsid"] for name, command in recorder.commands if name in ("insert", "findAndModify")]
        assert used == [session.session_id, session.session_id]


async def test_enqueue_refuses_an_invalid_session_and_one_of_another_client(
    mongod: EmbeddedServer, db: Database
) -> None:
    monque = Monque(db)
    wrong: Any = object()
    with pytest.raises(InvalidOptionError, match="session"):
        await monque.enqueue("greet", session=wrong)
    with MongoClient[Any](mongod.uri) as other, other.start_session() as session:
        with pytest.raises(InvalidOptionError, match="another MongoClient"):
            await monque.enqueue("greet", session=session)
        with pytest.raises(InvalidOptionError, match="another MongoClient"):
            monque.sync_in_loop.enqueue("greet", session=session)
