"""Settlements in groups: what is written, what is lost, and what a second sending finds out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from tests.support.interception import Interceptor, Recorder
from tests.support.jobs_in_memory import with_flat
from tests.support.node_peer import NodePeer
from tests.support.store import PAST, claim, claim_due, handle, insert, stamp
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import MonqueConnectionError
from trio_monque.jobs import transitions
from trio_monque.jobs.claim_stamps_and_fences import claim_id
from trio_monque.jobs.conditional_write import Transition, applied
from trio_monque.jobs.error_history import Failure
from trio_monque.jobs.job import Job, JobStatus
from trio_monque.jobs.job_parts import Schedule
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import job_changes, settling
from trio_monque.store.jobs.settling import Fate, grouped
from trio_monque.store.reads import queries

LATER = PAST + timedelta(minutes=1)


@pytest.fixture
def store(db: Database) -> JobCollection:
    return handle(db)


def settle(store: JobCollection, settled: Sequence[Transition], receipt: str = "r") -> list[Fate]:
    fates = settling.settle(store, grouped(settled, receipt))
    return [fates[transition.guard["id"], transition.guard["claim.token"]] for transition in settled]


def status_of(jobs: Collection, job: Job) -> str:
    document = jobs.find_one({"_id": job.id})
    assert document is not None
    return str(document["status"])


def test_equal_outcomes_of_one_claim_cycle_are_one_statement(mongod: EmbeddedServer, db: Database) -> None:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder]) as client:
        store = handle(client[db.name])
        held = [*claim(store, 30), *claim(store, 20, stamp("others"))]
        recorder.commands.clear()
        fates = settle(store, [transitions.complete(job, LATER) for job in held])
        names = [name for name, _ in recorder.commands]
        updates = [command["updates"] for name, command in recorder.commands if name == "update"]
    assert fates == [Fate.WRITTEN] * 50
    assert [len(statements) for statements in updates] == [2]
    assert names == ["update"]  # And nothing to ask afterwards.


def test_after_image_is_what_the_database_holds(store: JobCollection) -> None:
    held = claim(store, 4)
    settled = [
        transitions.complete(held[0], LATER),
        transitions.retry(held[1], LATER, Failure("why"), LATER),
        transitions.fail(held[2], LATER, Failure("why")),
        transitions.release(held[3], LATER),
    ]
    assert settle(store, settled) == [Fate.WRITTEN] * 4
    for job, transition in zip(held, settled, strict=True):
        stored = queries.get_job(store, job.id)
        assert stored is not None
        assert stored.internals.receipt
        assert with_flat(stored, receipt=None) == applied(job, transition)


def test_settling_distinguishes_lost_claims_in_a_batch_and_leaves_their_jobs_unchanged(
    store: JobCollection, jobs: Collection
) -> None:
    held = claim(store, 10)
    peer = NodePeer(jobs)
    peer.recover(timedelta(days=-1))
    taken_by_node = [peer.claim("greet", LATER) for _ in range(10)]
    assert settle(store, [transitions.complete(job, LATER) for job in held]) == [Fate.LOST] * 10
    assert [jobs.find_one({"_id": document["_id"]}) for document in taken_by_node if document] == taken_by_node

    others = claim(store, 10, name="other")
    for job in others[::3]:
        jobs.update_one({"_id": job.id}, {"$set": {"claimedBy": "node-2", "lockedAt": LATER}})
    jobs.delete_one({"_id": others[1].id})
    fates = settle(store, [transitions.retry(job, LATER, Failure("why"), LATER) for job in others])
    lost = {0, 1, 3, 6, 9}
    assert fates == [Fate.LOST if place in lost else Fate.WRITTEN for place in range(10)]


@pytest.mark.parametrize("field", ["status", "claimedBy", "lockedAt", "claimToken"])
def test_each_part_of_the_fence_holds_by_itself(store: JobCollection, jobs: Collection, field: str) -> None:
    (job,) = claim(store, 1)
    changed = {"status": "pending", "claimedBy": "x", "lockedAt": LATER, "claimToken": "x"}[field]
    jobs.update_one({"_id": job.id}, {"$set": {field: changed}})
    before = jobs.find_one({"_id": job.id})
    assert settle(store, [transitions.complete(job, LATER)]) == [Fate.LOST]
    assert jobs.find_one({"_id": job.id}) == before


def test_batch_sent_again_writes_nothing_twice_and_tells_what_was_written(
    store: JobCollection, jobs: Collection
) -> None:
    """As after a lost answer: the first sending was applied, or half of it, or the next claim has come already."""
    held = claim(store, 6)
    statements = grouped([transitions.retry(job, LATER, Failure(f"why {job.id}"), LATER) for job in held], "r")
    first = settling.settle(store, statements[:4])
    assert set(first.values()) == {Fate.WRITTEN}
    after_first = list(jobs.find({"failCount": 1}))
    # One of the four was claimed again meanwhile: its receipt is still there.
    jobs.update_one({"_id": held[0].id}, {"$set": {"status": "processing", "claimedBy": "another"}})
    # And one was claimed and settled again: its outcome cannot be known any more.
    jobs.update_one({"_id": held[1].id}, {"$set": {"receipt": "of somebody else"}})
    fates = settling.settle(store, statements)
    assert [fates[claim_id(job)] for job in held] == [Fate.WRITTEN, Fate.LOST] + [Fate.WRITTEN] * 4
    assert len(after_first) == 4
    assert jobs.count_documents({"failCount": 1}) == 6


def test_requested_cancellation_is_written_instead_of_every_end_but_completion(
    store: JobCollection, jobs: Collection
) -> None:
    held = claim(store, 5)
    jobs.update_many({}, {"$set": {"cancelRequestedAt": LATER}})
    jobs.update_many({"_id": held[4].id}, {"$set": {"repeatInterval": "* * * * *"}})
    recurring = replace(held[4], schedule=Schedule(cron="* * * * *"))
    settled = [
        transitions.complete(held[0], LATER),
        transitions.retry(held[1], LATER, Failure("why"), LATER),
        transitions.fail(held[2], LATER, Failure("why")),
        transitions.release(held[3], LATER),
        transitions.go_on(recurring, LATER, LATER),
    ]
    statements = grouped(settled, "r")
    for _ in range(2):  # The second sending tells the same.
        fates = settling.settle(store, statements)
        assert [fates[claim_id(job)] for job in held] == [Fate.WRITTEN] + [Fate.CANCELLED] * 4
    assert [status_of(jobs, job) for job in held] == ["completed"] + ["cancelled"] * 4
    assert jobs.count_documents({"cancelRequestedAt": {"$exists": True}}) == 0
    assert jobs.count_documents({"claimToken": {"$exists": True}}) == 0


def test_changed_schedule_is_reported_and_nothing_is_written(store: JobCollection, jobs: Collection) -> None:
    (job,) = claim(store, 1)
    jobs.update_one({"_id": job.id}, {"$set": {"repeatInterval": "0 9 * * *"}})
    before = jobs.find_one({"_id": job.id})
    recurring = replace(job, schedule=Schedule(cron="0 8 * * *"))
    assert settle(store, [transitions.go_on(recurring, LATER, LATER)]) == [Fate.JOB_CHANGED]
    assert jobs.find_one({"_id": job.id}) == before


def test_document_that_the_server_refuses_keeps_no_neighbour_of_its_statement_from_its_end(
    store: JobCollection, jobs: Collection, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    held = claim(store, 5)
    asked = held[3]
    jobs.update_one({"_id": held[1].id}, {"$set": {"closed": True}})
    assert job_changes.apply_if_allowed(store, transitions.request_cancel(asked, LATER)) is not None
    db.command("collMod", jobs.name, validator={"closed": {"$exists": False}})
    settled = [transitions.release(job, LATER) for job in held]
    fates = [Fate.WRITTEN, Fate.REFUSED, Fate.WRITTEN, Fate.CANCELLED, Fate.WRITTEN]
    assert settle(store, settled) == fates
    # And again, as after a lost answer; it is reported once.
    assert settle(store, settled) == fates
    assert [status_of(jobs, job) for job in held] == ["pending", "processing", "pending", "cancelled", "pending"]
    (reported,) = (one.message for one in caplog.records if one.levelname == "ERROR")
    assert str(held[1].id) in reported
    assert "validation" in reported


def test_settlement_that_the_server_refuses_spoils_no_other(
    store: JobCollection, db: Database, jobs: Collection
) -> None:
    held = claim(store, 3)
    db.command({"collMod": "monque_jobs", "validator": {"failReason": {"$ne": "forbidden"}}})
    settled = [
        transitions.retry(held[0], LATER, Failure("allowed"), LATER),
        transitions.retry(held[1], LATER, Failure("forbidden"), LATER),
        transitions.complete(held[2], LATER),
    ]
    assert settle(store, settled) == [Fate.WRITTEN, Fate.REFUSED, Fate.WRITTEN]
    assert status_of(jobs, held[1]) == "processing"


@pytest.mark.parametrize("result", [None, "stored"])
@pytest.mark.parametrize("cycles", [1, 2])
@pytest.mark.parametrize("each", [1, 3])
def test_settlement_without_a_majority_is_sent_again_and_then_reported_as_written(
    db: Database, jobs: Collection, each: int, cycles: int, result: Any
) -> None:
    held = [job for number in range(cycles) for job in claim(handle(db), each, stamp(f"us-{number}"))]
    statements = grouped([transitions.complete(job, LATER, result) for job in held], "r")
    assert len(statements) == cycles
    with pytest.raises(MonqueConnectionError) as caught:
        settling.settle(handle(db, write_concern=5), statements)  # There is one member.
    assert caught.value.transient
    assert caught.value.unknown_outcome
    before = list(jobs.find())
    assert set(settling.settle(handle(db), statements).values()) == {Fate.WRITTEN}
    assert list(jobs.find()) == before


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_two_claims_of_one_instance_on_one_job_have_each_its_own_fate(
    store: JobCollection, jobs: Collection, order: list[int]
) -> None:
    """The first was taken away without its knowledge, and the instance has claimed the job again."""
    (old,) = claim(store, 1)
    NodePeer(jobs).recover(timedelta(days=-1))
    (new,) = claim_due(store, {"greet": 1})
    settled = [transitions.complete(old, LATER), transitions.complete(new, LATER)]
    fates = settle(store, [settled[place] for place in order])
    assert [fates[place] for place in order] == [Fate.LOST, Fate.WRITTEN]


@pytest.mark.parametrize(
    ("meanwhile", "fate"),
    [
        ({"$set": {"status": "pending"}, "$unset": {"claimedBy": "", "claimToken": ""}}, Fate.LOST),
        ({"$set": {"cancelRequestedAt": PAST}}, Fate.CANCELLED),
        ({"$set": {"priority": 1}}, Fate.REFUSED),
    ],
    ids=["lost", "cancelled", "unchanged"],
)
def test_refused_end_of_a_claim_that_is_lost_or_cancelled_before_its_fate_is_read(
    mongod: EmbeddedServer, db: Database, jobs: Collection, meanwhile: dict[str, Any], fate: Fate
) -> None:
    """As refused it would be decided again, and a cancellation that is written would be reported as a lost claim."""
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        store = handle(client[db.name])
        (job,) = claim(store, 1)
        db.command("collMod", jobs.name, validator={"status": {"$ne": "failed"}})
        interceptor.before(lambda name, _: name == "find", lambda: jobs.update_one({"_id": job.id}, meanwhile))
        assert settle(store, [failing(job)]) == [fate]


def test_cancellation_of_a_claim_that_is_lost_before_it_is_written_is_not_reported(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    """The request was read, and then a rescue took the claim: the next holder ends it."""
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        store = handle(client[db.name])
        (job,) = claim(store, 1)
        asked, gone = {"cancelRequestedAt": PAST}, {"claimedBy": "another", "claimToken": "theirs"}
        jobs.update_one({"_id": job.id}, {"$set": asked})
        interceptor.before(
            lambda name, _: name == "update", lambda: None, lambda: jobs.update_one({"_id": job.id}, {"$set": gone})
        )
        assert settle(store, [transitions.retry(job, LATER, Failure("why"), LATER)]) == [Fate.LOST]
    assert interceptor.times == 2
    assert jobs.count_documents({"_id": job.id, "status": "processing", **gone}) == 1


def failing(job: Job) -> Transition:
    """An end that a request to cancel replaces."""
    retry = transitions.retry(job, LATER, Failure("why"), LATER)
    return replace(retry, set={**retry.set, "status": JobStatus.FAILED})


def test_one_off_job_with_the_rest_of_a_schedule_ends_like_any_other(store: JobCollection, jobs: Collection) -> None:
    """Another program has removed its line alone. What is left has no say, and keeps no end from being written."""
    for end in (transitions.fail, transitions.give_up):
        rest = {"timezone": "Europe/Berlin", "onExhausted": "fail", "scheduleVersion": 3}
        jobs.update_one({"_id": insert(store).id}, {"$set": rest})
        (job,) = claim_due(store, {"greet": 1})
        assert job.schedule is None
        assert settle(store, [end(job, LATER, Failure("why"))]) == [Fate.WRITTEN]
