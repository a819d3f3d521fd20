"""Answers that are lost for real: a proxy breaks the connection after the server has done its work, or before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import trio
from bson import ObjectId
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, ServerSelectionTimeoutError

from tests.support.interception import Interceptor
from tests.support.jobs_in_memory import flat
from tests.support.lossy_proxy import Loss, LossyProxy, lossy_proxy
from tests.support.store import PAST, handle
from trio_monque import Job, JobStatus, Monque, NewJob
from trio_monque.client import enqueue_many
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import MonqueConnectionError, PartialEnqueueError
from trio_monque.store.codec import document_of
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import inserting
from trio_monque.testing import fail_next


@pytest.fixture
def proxy(client: MongoClient[Any]) -> Iterator[LossyProxy]:
    address = client.address or pytest.fail("no primary")
    with lossy_proxy(address) as proxy:
        yield proxy


@pytest.fixture
def monque(proxy: LossyProxy, db: Database) -> Iterator[Monque]:
    with MongoClient[Any](proxy.uri) as client:
        monque = Monque(client[db.name])
        monque.sync.enqueue("first")
        db["monque_jobs"].delete_many({})
        yield monque


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize(("options", "command"), [({}, "insert"), ({"unique_key": "k"}, "findAndModify")])
async def test_lost_enqueue_is_looked_up_and_is_there_once(
    monque: Monque, proxy: LossyProxy, jobs: Collection, loss: Loss, command: str, options: dict[str, Any]
) -> None:
    proxy.lose(command, loss)
    job = await monque.enqueue("greet", {"n": 1}, **options)
    assert len(proxy.lost) == 1
    assert [document["_id"] for document in jobs.find()] == [job.id]


async def test_lost_answer_that_was_applied_is_not_sent_again(
    monque: Monque, proxy: LossyProxy, jobs: Collection
) -> None:
    """A second sending would be lost too, and would surface."""
    for command, options in (("insert", {}), ("findAndModify", {"unique_key": "k"})):
        proxy.lose(command, times=2)
        await monque.enqueue("greet", **options)  # type: ignore[call-overload]  # Two kinds of options in one list.
        assert len(proxy.lost) == 1
        proxy.forget()
        assert jobs.delete_many({}).deleted_count == 1


async def test_lost_enqueue_whose_job_has_run_meanwhile_finds_the_completed_job(
    monque: Monque, proxy: LossyProxy, jobs: Collection
) -> None:
    """The key is free again by then: a repetition that did not look would run it twice."""
    proxy.lose("findAndModify", after=lambda: jobs.update_one({}, {"$set": {"status": "completed"}}))
    job = await monque.enqueue("greet", unique_key="k")
    assert job.status == "completed"
    assert jobs.count_documents({}) == 1


@pytest.mark.parametrize(("options", "command"), [({}, "insert"), ({"unique_key": "k"}, "findAndModify")])
async def test_unresolvable_enqueue_raises_an_error_with_unknown_outcome(
    monque: Monque, proxy: LossyProxy, jobs: Collection, command: str, options: dict[str, Any]
) -> None:
    proxy.lose(command)
    proxy.lose("find")
    with pytest.raises(MonqueConnectionError) as caught:
        await monque.enqueue("greet", **options)
    assert caught.value.unknown_outcome
    assert caught.value.__cause__ is not None
    assert jobs.count_documents({}) == 1
    proxy.lose(command, Loss.REQUEST, times=2)
    with pytest.raises(MonqueConnectionError) as caught:
        await monque.enqueue("other", **options)
    assert caught.value.unknown_outcome


@pytest.mark.parametrize(
    ("options", "sending"), [({}, "insert_all"), ({"unique_key": "k"}, "insert_unless_key_is_in_use")]
)
async def test_second_sending_that_never_left_does_not_make_the_first_one_known(
    db: Database, monkeypatch: pytest.MonkeyPatch, sending: str, options: dict[str, Any]
) -> None:
    errors = [MonqueConnectionError("lost", unknown_outcome=True), MonqueConnectionError("no server was found")]

    def fail(*_: object) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(inserting, sending, fail)
    with pytest.raises(MonqueConnectionError, match="no server was found") as caught:
        await Monque(db).enqueue("greet", **options)
    assert caught.value.unknown_outcome


async def test_lost_batch_of_a_group_is_resolved_for_each_of_its_callers(
    monque: Monque, proxy: LossyProxy, jobs: Collection
) -> None:
    proxy.lose("insert")
    got: list[Any] = []

    async def enqueue(number: int) -> None:
        got.append((await monque.enqueue("greet", number)).id)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(enqueue, number)
    assert len(proxy.lost[0]["documents"]) > 1
    assert sorted(got) == [document["_id"] for document in jobs.find().sort("_id")]


async def test_each_caller_of_a_batch_that_failed_gets_an_error_of_its_own(monque: Monque, proxy: LossyProxy) -> None:
    errors: list[MonqueConnectionError] = []
    proxy.lose("insert", times=40)
    proxy.lose("find", times=40)

    async def enqueue() -> None:
        with pytest.raises(MonqueConnectionError) as caught:
            await monque.enqueue("greet")
        errors.append(caught.value)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(enqueue)
    assert len(proxy.lost[0]["documents"]) > 1
    assert len({id(error) for error in errors}) == 20
    assert all(error.unknown_outcome and error.__cause__ for error in errors)


@pytest.mark.parametrize("loss", Loss)
async def test_lost_slice_of_many_is_looked_up_and_all_are_there_once(
    monque: Monque, proxy: LossyProxy, jobs: Collection, loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue_many, "MOST_JOBS", 4)
    proxy.lose("insert", loss, matches=lambda command: command["documents"][0]["data"] == 4)
    proxy.lose("update", loss)
    plain = [NewJob(name="greet", data=number) for number in range(10)]
    unique = [NewJob(name="greet", data=number, unique_key=str(number)) for number in range(10, 16)]
    got = await monque.enqueue_many([*plain, *unique])
    assert len(proxy.lost) == 2
    assert [job.data for job in got] == list(range(16))
    assert {job.id: job.data for job in got} == {document["_id"]: document["data"] for document in jobs.find()}


async def test_error_in_the_middle_of_many_tells_what_was_enqueued(
    monque: Monque, proxy: LossyProxy, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enqueue_many, "MOST_JOBS", 2)
    proxy.lose("insert", matches=lambda command: command["documents"][0]["data"] == 2)
    proxy.lose("find")
    with pytest.raises(PartialEnqueueError) as caught:
        await monque.enqueue_many([NewJob(name="greet", data=number) for number in range(8)])
    error = caught.value
    assert (set(error.enqueued), set(error.unknown)) == ({0, 1}, {2, 3})
    assert error.unknown_outcome
    assert isinstance(error.__cause__, MonqueConnectionError)
    assert "2 of 8 jobs were enqueued, and 2 may have been" in str(error)
    there = {str(document["_id"]): document["data"] for document in jobs.find()}
    assert there == {job_id: place for place, job_id in (*error.enqueued.items(), *error.unknown.items())}


async def test_lost_slice_with_unique_keys_may_be_there_as_a_whole(
    monque: Monque, proxy: LossyProxy, jobs: Collection
) -> None:
    """The first sending of all may be applied yet, also of those whose own second sending was not tried."""
    proxy.lose("update", Loss.REQUEST)
    proxy.lose("findAndModify", Loss.REQUEST, times=2)
    with pytest.raises(PartialEnqueueError) as caught:
        await monque.enqueue_many([NewJob(name="greet", unique_key=str(number)) for number in range(6)])
    assert len(proxy.lost) == 3
    assert (set(caught.value.enqueued), set(caught.value.unknown)) == (set(), set(range(6)))


async def test_lost_slice_with_unique_keys_stays_unknown_where_a_second_sending_never_left(db: Database) -> None:
    """The server did not apply the second sending; it may have applied the first."""
    monque = Monque(db)
    with (
        fail_next(monque, AutoReconnect("gone"), command="enqueue the job"),
        fail_next(monque, ServerSelectionTimeoutError("no server was found"), command="enqueue the job"),
        pytest.raises(PartialEnqueueError) as caught,
    ):
        await monque.enqueue_many([NewJob(name="greet", unique_key=key) for key in "ab"])
    assert caught.value.unknown_outcome
    assert (set(caught.value.enqueued), set(caught.value.unknown)) == (set(), {0, 1})


async def test_slice_that_was_never_sent_is_not_sent_again_job_by_job(db: Database) -> None:
    """In an outage each of a thousand jobs would wait for its own timeout."""
    monque = Monque(db)
    outage = fail_next(monque, ServerSelectionTimeoutError("no server was found"), times=None)
    with outage, pytest.raises(PartialEnqueueError) as caught:
        await monque.enqueue_many([NewJob(name="greet"), NewJob(name="greet")])
    assert not caught.value.unknown_outcome
    assert outage.hits == ("enqueue the job",)


async def test_enqueue_whose_first_sending_was_applied_late_and_has_run_is_that_job(
    db: Database, jobs: Collection
) -> None:
    """Its key is free again by then, and its id is not."""
    store = handle(db)
    new = parcel_with_key("k")
    first = inserting.insert_unless_key_is_in_use(store, new)
    jobs.update_one({"_id": first.id}, {"$set": {"status": "completed"}})
    again = inserting.insert_unless_key_is_in_use(store, new)
    assert (again.id, again.status) == (first.id, "completed")
    assert jobs.count_documents({}) == 1


ENQUEUE: dict[str, Callable[[Monque], Any]] = {
    "one": lambda monque: monque.enqueue("greet"),
    "many": lambda monque: monque.enqueue_many([NewJob(name="greet"), NewJob(name="greet")]),
    "unique": lambda monque: monque.enqueue_many([NewJob(name="greet", unique_key=key) for key in "ab"]),
}


@pytest.mark.parametrize("how", ENQUEUE)
async def test_jobs_that_no_majority_has_are_not_announced_as_enqueued(
    mongod: EmbeddedServer, db: Database, jobs: Collection, how: str
) -> None:
    """One member has written them, and a failover undoes that before the library looks again."""
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        monque = Monque(client[db.name], write_concern=5, skip_index_creation=True)  # There is one member.
        interceptor.before(lambda name, _: name == "find", lambda: jobs.delete_many({}))
        if how == "unique":
            # Each is sent again alone, and looked up again.
            assert {job.id for job in await ENQUEUE[how](monque)} == {one["_id"] for one in jobs.find()}
        else:
            with pytest.raises((MonqueConnectionError, PartialEnqueueError)) as caught:
                await ENQUEUE[how](monque)
            assert caught.value.unknown_outcome
            assert not getattr(caught.value, "enqueued", None)
    assert interceptor.times == 1


@pytest.mark.parametrize("how", ENQUEUE)
async def test_insert_that_was_interrupted_is_looked_up_and_sent_again(
    monque: Monque, proxy: LossyProxy, jobs: Collection, how: str
) -> None:
    """A router reports it for each job, as it reports a refusal; but it may have been applied."""
    count = 1 if how == "one" else 2
    interrupted = [{"index": place, "code": 11602, "errmsg": "interrupted by an election"} for place in range(count)]
    proxy.answer(
        "update" if how == "unique" else "insert", {"ok": 1, "n": 0, "nModified": 0, "writeErrors": interrupted}
    )
    await ENQUEUE[how](monque)
    assert len(proxy.lost) == 1
    assert jobs.count_documents({}) == count


def parcel_with_key(key: str) -> inserting.Parcel:
    job = Job(
        id=ObjectId(),
        name="greet",
        data=None,
        status=JobStatus.PENDING,
        next_run_at=PAST,
        created_at=PAST,
        updated_at=PAST,
        unique_key=key,
    )
    return inserting.Parcel(job, document_of(job))


@pytest.mark.parametrize("loss", Loss)
async def test_lost_update_of_a_schedule_is_made_once(
    monque: Monque, proxy: LossyProxy, jobs: Collection, loss: Loss
) -> None:
    declare = partial(monque.schedule, unique_key="k", on_conflict="update")
    first = await declare("0 9 * * *", "report", "old")
    proxy.lose("findAndModify", loss, matches=lambda command: not command.get("upsert"))
    job = await declare("0 10 * * *", "report", "new")
    assert len(proxy.lost) == 1
    assert (job.id, flat(job).repeat_interval, job.data, job.internals.rev) == (first.id, "0 10 * * *", "new", 1)
    assert await monque.get_job(first.id) == job
