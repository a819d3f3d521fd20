"""A job that is replaced while it runs: each end sees it, whenever it was decided, and a look finds what Node ends."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from tests.support.interception import Recorder
from tests.support.node_peer import NodePeer
from tests.support.store import PAST, claim_due, handle
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs import transitions
from trio_monque.jobs.claim_stamps_and_fences import claim_id
from trio_monque.jobs.conditional_write import Transition, applied
from trio_monque.jobs.error_history import Failure
from trio_monque.jobs.job import Job
from trio_monque.store.codec import filter_of
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import settling, starting_again
from trio_monque.store.jobs.settling import Fate, statements_for
from trio_monque.store.reads import queries

LATER = PAST + timedelta(hours=1)
WHY = Failure("why")
REPLACE: dict[str, Any] = {"unique_key": "k", "on_conflict": "replace"}

ENDS: dict[str, Callable[[Job], Transition]] = {
    "complete": lambda job: transitions.complete(job, LATER, "result"),
    "complete with others": lambda job: transitions.complete_claimed_with(job, LATER),
    "fail": lambda job: transitions.fail(job, LATER, WHY),
    "give up": lambda job: transitions.give_up(job, LATER, WHY),
}
OTHERS: dict[str, Callable[[Job], Transition]] = {
    "retry": lambda job: transitions.retry(job, LATER, WHY, LATER),
    "snooze": lambda job: transitions.snooze(job, LATER, LATER),
    "release": lambda job: transitions.release(job, LATER),
    "rescue": lambda job: transitions.rescue(job, LATER, LATER),
}


@pytest.fixture
def store(db: Database) -> JobCollection:
    return handle(db)


@pytest.fixture
def monque(db: Database) -> Monque:
    return Monque(db)


def running(monque: Monque, store: JobCollection, name: str = "greet", key: str = "k") -> Job:
    monque.sync.enqueue(name, "old", unique_key=key, run_at=PAST)
    (job,) = claim_due(store, {name: 1})
    return job


def settle(store: JobCollection, *ends: tuple[Job, Transition]) -> list[Fate]:
    statements = dict.fromkeys(statements_for([(claim_id(job), end) for job, end in ends], "r"))
    fates = settling.settle(store, list(statements))
    return [fates[claim_id(job)] for job, _ in ends]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_end_that_was_decided_before_the_call_is_not_written_after_it(
    monque: Monque, store: JobCollection, jobs: Collection, end: Callable[[Job], Transition]
) -> None:
    job = running(monque, store)
    monque.sync.enqueue("greet", "new", **REPLACE)
    before = jobs.find_one()
    assert settle(store, (job, end(job))) == [Fate.JOB_CHANGED]
    assert jobs.find_one() == before


@pytest.mark.parametrize("end", OTHERS.values(), ids=OTHERS)
def test_end_after_which_the_job_runs_anyway_keeps_what_was_left_in_it(
    monque: Monque, store: JobCollection, end: Callable[[Job], Transition]
) -> None:
    job = running(monque, store)
    left = monque.sync.enqueue("greet", "new", **REPLACE)
    assert settle(store, (job, end(job))) == [Fate.WRITTEN]
    stored = queries.get_job(store, job.id)
    assert stored is not None
    assert stored.again is not None
    assert (stored.status, stored.data, stored.again.data, stored.again) == ("pending", "old", "new", left.again)


def test_calls_after_the_last_look_at_the_job_count(monque: Monque, store: JobCollection) -> None:
    """The server copies what is there: the data of a call that came after the end was decided are not lost."""
    first, second = running(monque, store, key="a"), running(monque, store, key="b")
    for key in ("a", "b"):
        monque.sync.enqueue("greet", "new", unique_key=key, on_conflict="replace")
    read = [queries.get_job(store, job.id) for job in (first, second)]
    for key in ("a", "b"):
        monque.sync.enqueue("greet", ["$newest", key], unique_key=key, on_conflict="replace", delay=60)
    ends = [(job, transitions.run_again(job, LATER, WHY)) for job in read if job is not None]
    assert settle(store, *ends) == [Fate.WRITTEN, Fate.WRITTEN]
    stored = [queries.get_job(store, job.id) for job in (first, second)]
    assert [job.data for job in stored if job is not None] == [["$newest", "a"], ["$newest", "b"]]
    for job in stored:
        assert job is not None
        assert (job.status, job.claim, job.again) == ("pending", None, None)
        assert (job.fail_reason, job.internals.rev, job.next_run_at > job.created_at) == ("why", 1, True)


def test_job_whose_due_date_was_taken_away_is_due_as_it_was(
    monque: Monque, store: JobCollection, jobs: Collection
) -> None:
    job = running(monque, store)
    jobs.update_one({}, {"$set": {"again": ObjectId()}})
    read = queries.get_job(store, job.id)
    assert read is not None
    end = transitions.run_again(read, LATER)
    assert settle(store, (job, end)) == [Fate.WRITTEN]
    assert (queries.get_job(store, job.id) or job).next_run_at == job.next_run_at == applied(read, end).next_run_at


def test_large_data_move_into_their_place(monque: Monque, store: JobCollection) -> None:
    job = running(monque, store)
    monque.sync.enqueue("greet", "n" * 9 * 1024 * 1024, **REPLACE)
    assert settle(store, (job, transitions.run_again(job, LATER))) == [Fate.WRITTEN]
    stored = queries.get_job(store, job.id)
    assert stored is not None
    assert len(stored.data) == 9 * 1024 * 1024


def test_end_that_is_sent_again_runs_the_job_once_more_only(monque: Monque, store: JobCollection) -> None:
    job = running(monque, store)
    monque.sync.enqueue("greet", "new", **REPLACE, run_at=PAST)
    end = transitions.run_again(job, LATER)
    assert settle(store, (job, end)) == [Fate.WRITTEN]
    assert settle(store, (job, end)) == [Fate.WRITTEN]
    (again,) = claim_due(store, {"greet": 1})
    assert (again.data, again.internals.rev) == ("new", 1)


def test_request_to_cancel_is_obeyed_and_drops_it(monque: Monque, store: JobCollection, jobs: Collection) -> None:
    job = running(monque, store)
    monque.sync.enqueue("greet", "new", **REPLACE)
    monque.sync.cancel_job(job.id)
    assert settle(store, (job, transitions.run_again(job, LATER))) == [Fate.CANCELLED]
    (document,) = jobs.find()
    assert document["status"] == "cancelled"
    assert not [field for field in document if field.startswith("again")]


def test_pending_job_that_is_cancelled_drops_it(monque: Monque, store: JobCollection, jobs: Collection) -> None:
    job = running(monque, store)
    monque.sync.enqueue("greet", "new", **REPLACE)
    settle(store, (job, transitions.release(job, LATER)))
    monque.sync.cancel_job(job.id)
    (document,) = jobs.find()
    assert not [field for field in document if field.startswith("again")]


def test_jobs_without_a_key_and_schedules_end_with_the_statement_of_before(
    monque: Monque, store: JobCollection
) -> None:
    monque.sync.enqueue("plain", run_at=PAST)
    (plain,) = claim_due(store, {"plain": 1})
    assert "again" not in filter_of(transitions.complete(plain, LATER).guard)
    assert "again" not in filter_of(transitions.fail(plain, LATER, WHY).guard)


# --- Ended by Node ---


@pytest.fixture
def node(jobs: Collection) -> NodePeer:
    return NodePeer(jobs)


def ended_by_node(monque: Monque, node: NodePeer, jobs: Collection, status: str) -> ObjectId:
    job = monque.sync.enqueue("greet", "old", unique_key="k", run_at=PAST)
    assert node.claim("greet")
    assert monque.sync.enqueue_with_outcome("greet", {"new": True}, **REPLACE, run_at=PAST).outcome == "again"
    assert node.complete(job.id)
    jobs.update_one({}, {"$set": {"status": status}})
    return job.id


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_job_that_node_ended_is_pending_once_more(
    monque: Monque, store: JobCollection, jobs: Collection, node: NodePeer, status: str
) -> None:
    job_id = ended_by_node(monque, node, jobs, status)
    starting_again.start_again(store, LATER)
    starting_again.start_again(store, LATER)
    (job,) = claim_due(store, {"greet": 1})
    assert (job.id, job.data, job.again, job.internals.rev) == (job_id, {"new": True}, None, 1)


def test_look_passes_over_a_schedule_which_the_write_would_not_match(
    monque: Monque, jobs: Collection, node: NodePeer, mongod: EmbeddedServer
) -> None:
    """Otherwise a hundred of these would hide all others from each look."""
    ended_by_node(monque, node, jobs, "completed")
    jobs.update_one({}, {"$set": {"repeatInterval": "0 9 * * *"}})
    before, recorder = list(jobs.find()), Recorder()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        starting_again.start_again(handle(client[jobs.database.name]), LATER)
    assert [name for name, _ in recorder.commands if name != "endSessions"] == ["find"]
    assert list(jobs.find()) == before


def test_it_is_dropped_if_a_newer_job_has_the_key(
    monque: Monque, store: JobCollection, jobs: Collection, node: NodePeer
) -> None:
    job_id = ended_by_node(monque, node, jobs, "completed")
    newer = monque.sync.enqueue("greet", "newest", **REPLACE)
    assert newer.id != job_id
    starting_again.start_again(store, LATER)
    left = queries.get_job(store, job_id)
    assert left is not None
    assert (left.status, left.again) == ("completed", None)


def test_job_that_node_cancelled_or_a_schedule_is_not_started(
    monque: Monque, store: JobCollection, jobs: Collection, node: NodePeer
) -> None:
    ended_by_node(monque, node, jobs, "cancelled")
    jobs.insert_one({**(jobs.find_one() or {}), "_id": ObjectId(), "status": "failed", "repeatInterval": "0 * * * *"})
    before = list(jobs.find())
    starting_again.start_again(store, LATER)
    assert list(jobs.find()) == before


def test_job_that_the_server_refuses_to_change_keeps_no_other_from_its_run(
    monque: Monque, store: JobCollection, jobs: Collection, node: NodePeer, caplog: pytest.LogCaptureFixture
) -> None:
    refused = ended_by_node(monque, node, jobs, "completed")
    jobs.update_one({}, {"$set": {"uniqueKey": "other"}})
    ended_by_node(monque, node, jobs, "completed")
    refuse_pending = {"$nor": [{"_id": refused, "status": "pending"}]}
    jobs.database.command("collMod", jobs.name, validator=refuse_pending)
    for _ in range(2):
        starting_again.start_again(store, LATER)
    assert [job.unique_key for job in claim_due(store, {"greet": 5})] == ["k"]
    assert caplog.text.count("refused to let job greet") == 1


def test_index_has_only_jobs_that_were_ended_so(
    monque: Monque, store: JobCollection, jobs: Collection, node: NodePeer
) -> None:
    def entries() -> int:
        count: int = jobs.database.command("validate", jobs.name)["keysPerIndex"]["trio_monque_run_again"]
        return count

    job = monque.sync.enqueue("greet", "old", **REPLACE, run_at=PAST)
    assert entries() == 0
    assert node.claim("greet")
    monque.sync.enqueue("greet", "new", **REPLACE)
    assert entries() == 0
    node.complete(job.id)
    assert entries() == 1
    starting_again.start_again(store, LATER)
    assert entries() == 0


def test_without_the_index_nothing_is_read(store: JobCollection, jobs: Collection) -> None:
    jobs.insert_one({"name": "a", "status": "completed", "again": ObjectId()})
    starting_again.start_again(store, LATER)
    assert jobs.count_documents({"again": {"$exists": True}}) == 1
