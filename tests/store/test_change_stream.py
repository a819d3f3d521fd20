"""What the change stream tells, and what it does not."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient

from tests.support.fail_points import refusing_server
from tests.support.interception import Interceptor, Recorder
from tests.support.internals import cursor_id_of
from tests.support.node_peer import NodePeer
from tests.support.standalone import restricted_server, standalone_server
from tests.support.store import PAST, claim, claim_due, handle, insert, stamp
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import MonqueConnectionError
from trio_monque.jobs import transitions
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import change_stream, leases, settling
from trio_monque.store.jobs.change_stream import ChangeKind, JobChange, NoStreamError, Watch, end_wait, open_watch

LATER = datetime(2031, 5, 1, tzinfo=UTC)


@pytest.fixture
def store(db: Database) -> JobCollection:
    return handle(db)


@contextmanager
def watching(store: JobCollection, instance: str = "us") -> Iterator[Watch]:
    opened = open_watch(store, instance)
    try:
        yield opened
    finally:
        opened.close()


def heard(opened: Watch, store: JobCollection, write: Callable[[], object]) -> Sequence[JobChange]:
    """What the stream reports for this call, and nothing after it."""
    write()
    marker = insert(store, "marker").id
    changes: list[JobChange] = []
    while not any(change.job_id == marker for change in changes):
        changes += opened.read()
    assert changes.pop().job_id == marker
    return changes


def of_update(job_id: Any, *, is_pending: bool = True, **fields: Any) -> JobChange:
    return JobChange(ChangeKind.JOB, job_id, is_pending=is_pending, **fields)


def test_stream_reports_a_new_job_with_its_name_and_due_time(store: JobCollection, jobs: Collection) -> None:
    with watching(store) as opened:
        (due,) = heard(opened, store, lambda: insert(store, "greet"))
        assert due == JobChange(ChangeKind.JOB, due.job_id, "greet", is_new=True, is_pending=True, due=PAST)
        (later,) = heard(opened, store, lambda: NodePeer(jobs).enqueue("other", nextRunAt=LATER))
        assert (later.name, later.is_pending, later.due) == ("other", True, LATER)


def test_stream_reports_changes_that_make_a_job_pending_or_reschedule_it(
    store: JobCollection, jobs: Collection
) -> None:
    job = insert(store, "greet").id
    with watching(store) as opened:

        def changed(update: Any) -> Sequence[JobChange]:
            return heard(opened, store, lambda: jobs.update_one({"_id": job}, update))

        assert changed({"$set": {"nextRunAt": LATER}}) == [of_update(job, due=LATER)]
        assert changed({"$set": {"status": "failed"}}) == []
        assert changed({"$set": {"status": "pending"}}) == [of_update(job)]
        assert changed({"$set": {"status": "failed"}}) == []
        assert changed({"$set": {"status": "pending", "nextRunAt": PAST}}) == [of_update(job, due=PAST)]
        assert changed([{"$set": {"nextRunAt": {"$add": ["$nextRunAt", 1000]}}}]) == [
            of_update(job, due=PAST + timedelta(seconds=1))
        ]
        assert changed({"$set": {"status": "failed", "nextRunAt": LATER}}) == [
            of_update(job, is_pending=False, due=LATER)
        ]
        # Not new, although it is whole: a reader that got the new one must get this, too.
        whole = {"name": "x", "status": "pending", "nextRunAt": PAST}
        replaced = heard(opened, store, lambda: jobs.replace_one({"_id": job}, whole))
        assert replaced == [JobChange(ChangeKind.JOB, job, "x", is_pending=True, due=PAST)]


def test_stream_reports_a_request_to_cancel(store: JobCollection, jobs: Collection) -> None:
    (job,) = claim(store, 1)
    with watching(store) as opened:
        requested = heard(
            opened, store, lambda: jobs.update_one({"_id": job.id}, {"$set": {"cancelRequestedAt": PAST}})
        )
    assert requested == [of_update(job.id, is_pending=False, cancel_requested=True)]


def test_stream_does_not_report_the_changes_within_a_claim(
    store: JobCollection, jobs: Collection, db: Database
) -> None:
    insert(store)
    ours = stamp()

    def live() -> None:
        (job,) = claim_due(store, {"greet": 1}, ours)
        leases.renew(store, [job], PAST + timedelta(seconds=1))
        completed = transitions.complete(job, PAST + timedelta(seconds=2))
        assert settling.settle(store, settling.grouped([completed], "receipt"))
        jobs.update_one({"_id": job.id}, {"$set": {"progress": 1, "x.status": "pending"}})
        jobs.delete_one({"_id": job.id})
        db["other"].insert_one({"status": "pending", "nextRunAt": PAST})
        db["other"].update_one({}, {"$set": {"nextRunAt": LATER}})
        db["other"].drop()

    with watching(store) as opened:
        assert heard(opened, store, live) == []


def test_stream_does_not_report_completions_that_the_server_sends_as_replacements(
    store: JobCollection, jobs: Collection
) -> None:
    held = claim(store, 3)
    settled = [transitions.complete(job, LATER, number) for number, job in enumerate(held)]
    with jobs.watch() as stream, watching(store) as opened:
        assert heard(opened, store, lambda: settling.settle(store, settling.grouped(settled, "receipt"))) == []
        assert [stream.next()["operationType"] for _ in held] == ["replace"] * 3  # Or there would be nothing to see.


def test_stream_reports_a_replacement_that_requests_a_cancellation(store: JobCollection, jobs: Collection) -> None:
    (job,) = claim(store, 1)
    asked = {"name": "greet", "status": "processing", "cancelRequestedAt": PAST}
    with watching(store) as opened:
        (reported,) = heard(opened, store, lambda: jobs.replace_one({"_id": job.id}, asked))
    assert reported == JobChange(ChangeKind.JOB, job.id, "greet", cancel_requested=True)


def test_stream_reports_pauses_and_its_own_leaving_mark_and_no_heartbeats(store: JobCollection, db: Database) -> None:
    instances = db["monque_jobs.instances"]

    def write() -> None:
        instances.insert_one({"_id": "us", "incarnation": "1", "heartbeatAt": PAST})
        instances.update_one({"_id": "us"}, {"$set": {"heartbeatAt": LATER, "draining": True}})
        instances.insert_one({"_id": "leaving:them"})
        instances.insert_one({"_id": "pause:greet"})
        instances.update_one({"_id": "pause:greet"}, {"$set": {"by": "me"}})
        instances.delete_one({"_id": "pause:greet"})
        end_wait(store, "us")

    with watching(store) as opened:
        reported = heard(opened, store, write)
    assert reported == [*[JobChange(ChangeKind.PAUSE, name="greet")] * 3, JobChange(ChangeKind.LEAVING)]
    assert instances.count_documents({"_id": "leaving:us"}) == 0


def remove(store: JobCollection, instance: str) -> None:
    store.collection.database["monque_jobs.instances"].delete_one({"_id": instance})


@pytest.mark.parametrize(("leave", "has_entry"), [(end_wait, True), (end_wait, False), (remove, True)])
def test_wait_is_ended_at_once_by_the_own_leaving_and_by_no_other(
    store: JobCollection, db: Database, leave: Callable[[JobCollection, str], object], has_entry: bool
) -> None:
    entries = db["monque_jobs.instances"]
    if has_entry:
        entries.insert_many([{"_id": "them"}, {"_id": "us"}])
    with watching(store) as opened:
        leave(store, "them")
        entries.update_many({}, {"$set": {"heartbeatAt": LATER}})  # The server itself keeps the beats back.
        answers: list[Sequence[JobChange]] = []
        reader = threading.Thread(target=lambda: answers.append(opened.read()))
        reader.start()
        leave(store, "us")
        reader.join()
    # One wait, and its one answer: a wait that ends by itself, after `LONGEST_AWAIT`, has none.
    assert answers == [[JobChange(ChangeKind.LEAVING)]]
    assert entries.count_documents({"_id": {"$regex": "^leaving:"}}) == 0


@pytest.mark.parametrize("has_entry", [False, True])
def test_wait_is_ended_although_a_mark_remained_of_a_life_that_was_killed(
    store: JobCollection, db: Database, mongod: EmbeddedServer, has_entry: bool
) -> None:
    """The same value once more would not be a change."""
    instances, interceptor = db["monque_jobs.instances"], Interceptor()
    marks: list[dict[str, Any]] = []
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as killed:
        interceptor.before(lambda name, _: name == "delete", lambda: marks.extend(instances.find()))
        end_wait(handle(killed[db.name]), "us")
    instances.insert_many(marks)
    if has_entry:
        instances.insert_one({"_id": "us", "leaving": True})
    with watching(store) as opened:
        assert heard(opened, store, lambda: end_wait(store, "us")) == [JobChange(ChangeKind.LEAVING)]
        assert heard(opened, store, lambda: end_wait(store, "us")) == [JobChange(ChangeKind.LEAVING)]


@pytest.mark.parametrize(
    "vanish",
    [
        lambda jobs: jobs.drop(),
        lambda jobs: jobs.rename("elsewhere"),
        lambda jobs: jobs.database["another"].rename("monque_jobs", dropTarget=True),
    ],
    ids=["dropped", "renamed", "replaced"],
)
def test_stream_reports_that_the_collection_is_gone(
    store: JobCollection, jobs: Collection, db: Database, vanish: Callable[[Collection], object]
) -> None:
    insert(store)
    db["another"].insert_one({})
    with watching(store) as opened:
        reported = heard(opened, store, lambda: vanish(jobs))
        assert {change.kind for change in reported} == {ChangeKind.GONE}
        assert opened.is_open


def test_stream_does_not_report_that_another_collection_is_gone(store: JobCollection, db: Database) -> None:
    def vanish() -> None:
        for name in ("monque_jobs.instances", "another", "monque_jobs2"):
            db[name].insert_one({})
        db["another"].rename("monque_jobs2", dropTarget=True)
        db["monque_jobs2"].rename("elsewhere")
        db["elsewhere"].drop()
        db["monque_jobs.instances"].drop()

    insert(store)
    with watching(store) as opened:
        assert heard(opened, store, vanish) == []


def test_collection_of_the_same_name_elsewhere_is_another(
    store: JobCollection, jobs: Collection, client: MongoClient[Any]
) -> None:
    elsewhere = client[jobs.database.name + "x"]
    with watching(store) as opened:
        try:
            reported = heard(opened, store, lambda: elsewhere[jobs.name].insert_one({"status": "pending"}))
        finally:
            client.drop_database(elsewhere.name)
    assert reported == []


def test_read_that_is_not_to_wait_loses_nothing(store: JobCollection) -> None:
    """That the server does not let it wait is shown by the next test."""
    with watching(store) as opened:
        assert opened.read(wait=0) == []
        job = insert(store).id
        reported: list[JobChange] = []
        while not reported:
            reported += opened.read(wait=0)
        assert [change.job_id for change in reported] == [job]


@pytest.mark.parametrize(("wait", "milliseconds"), [(0.0, 1), (0.25, 250), (math.inf, 10_000)])
def test_server_waits_as_long_as_it_is_asked_to_and_never_without_a_bound(
    mongod: EmbeddedServer, db: Database, wait: float, milliseconds: int
) -> None:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder]) as client:
        store = handle(client[db.name])
        with watching(store) as opened:
            insert(store)
            opened.read(wait)
    (asked, *_) = [command for name, command in recorder.commands if name == "getMore"]
    assert asked["maxTimeMS"] == milliseconds


@pytest.mark.parametrize("options", [{"readPreference": "secondary"}, {"readConcernLevel": "local"}], ids=repr)
def test_stream_does_not_read_as_the_callers_other_reads_do(
    mongod: EmbeddedServer, db: Database, options: dict[str, Any]
) -> None:
    """The server refuses a stream that is not read from a majority; a secondary tells late, or is not there."""
    with MongoClient[Any](mongod.uri, serverSelectionTimeoutMS=2000, **options) as client:
        with watching(handle(client[db.name])) as opened:
            assert opened.is_open


@pytest.mark.full
def test_error_that_may_pass_is_not_taken_for_a_server_without_streams() -> None:
    """After `NoStreamError` the stream is never opened again."""
    interrupted = 11601
    with refusing_server() as server, server.client() as client, server.refusing(interrupted, ["aggregate"]):
        with pytest.raises(MonqueConnectionError) as caught:
            open_watch(handle(client["x"]), "us")
    assert not isinstance(caught.value, NoStreamError)


def test_server_compares_whole_namespaces_and_tries_each_of_ours_once(store: JobCollection, jobs: Collection) -> None:
    """What each write of the server costs, of each stream: on MongoDB 6, most of it were conditions on `ns.coll`."""
    pipeline = change_stream.pipeline_of(jobs, "us")
    explained = jobs.database.command("explain", {"aggregate": 1, "pipeline": pipeline, "cursor": {}})
    plan = repr(explained["stages"][0]["$cursor"]["queryPlanner"]["parsedQuery"])
    assert plan.count(repr({"ns": {"$eq": jobs.full_name}})) == 1
    assert plan.count(repr({"ns": {"$eq": f"{jobs.full_name}.instances"}})) == 1
    assert "[^.]+" not in plan  # What `ns.coll` becomes.


def test_stream_of_a_database_that_is_dropped_ends(store: JobCollection, client: MongoClient[Any]) -> None:
    insert(store)
    with watching(store) as opened:
        client.drop_database(store.collection.database.name)
        reported: list[JobChange] = []
        while opened.is_open:
            reported += opened.read()
    assert {change.kind for change in reported} == {ChangeKind.GONE}


def test_foreign_documents_do_not_end_the_stream(store: JobCollection, jobs: Collection) -> None:
    def write() -> None:
        jobs.insert_one({"_id": "pauses", "status": "pending"})
        jobs.insert_one({"_id": 1, "name": 5, "status": "pending", "nextRunAt": DatetimeMS(8640000000000000)})
        jobs.insert_one({"_id": 2})
        jobs.insert_one({"_id": {"without": "a hash"}, "name": "x", "status": "completed", "nextRunAt": PAST})

    with watching(store) as opened:
        reported = heard(opened, store, write)
    assert reported == [
        JobChange(ChangeKind.JOB, is_pending=True),
        JobChange(ChangeKind.JOB),
        JobChange(ChangeKind.JOB),
    ]


@pytest.mark.full
def test_data_does_not_travel_and_a_burst_is_one_answer(db: Database, mongod: Any) -> None:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as watched:
        with watching(handle(watched[db.name])) as opened:
            large = Monque(db).sync.document("greet", "x" * 15_000_000)
            db["monque_jobs"].insert_one(large)
            db["monque_jobs"].insert_many([Monque(db).sync.document("greet") for _ in range(500)])
            recorder.commands.clear()
            reported: list[JobChange] = []
            while len(reported) < 501:
                reported += opened.read()
    assert {change.name for change in reported} == {"greet"}
    assert len([name for name, _ in recorder.commands if name == "getMore"]) < 10


@pytest.mark.full
def test_standalone_server_has_no_stream() -> None:
    with standalone_server() as uri, MongoClient[Any](uri, tz_aware=True) as alone:
        with pytest.raises(NoStreamError, match="replica set"):
            open_watch(handle(alone["x"]), "us")


@pytest.mark.full
def test_user_without_the_right_to_the_database_has_no_stream() -> None:
    with restricted_server() as uri, MongoClient[Any](uri, tz_aware=True) as restricted:
        with pytest.raises(NoStreamError, match="rights"):
            open_watch(handle(restricted["x"]), "us")


def test_cursor_that_was_killed_is_an_error(store: JobCollection) -> None:
    with watching(store) as opened:
        database = store.collection.database
        database.command("killCursors", "$cmd.aggregate", cursors=[cursor_id_of(opened)])
        with pytest.raises(MonqueConnectionError, match="could not read changes"):
            opened.read()
