"""The conditions of writes to children: a child that has changed since it was read stays as it is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from tests.nursery.flows import AT, stored
from tests.support.interception import Interceptor
from trio_monque import Monque
from trio_monque.client.monque import context_of
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs import transitions
from trio_monque.jobs.bulk_changes import retry_selected
from trio_monque.jobs.job import Job
from trio_monque.jobs.job_selector import JobSelector
from trio_monque.jobs.nursery_scopes import Asking
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import bulk_writes, indexes, job_changes, nursery_children, parents_of_children
from trio_monque.store.jobs.nursery_children import Pass

SCOPE = ObjectId()
NOW = AT + timedelta(hours=1)


def child(jobs: Collection, status: str, **fields: Any) -> ObjectId:
    return stored(jobs, status, **{"scope": SCOPE, "parent": ObjectId(), "block": "0", "scopeRun": 1, **fields})


def found(monque: Monque, job_id: ObjectId) -> Job:
    one = nursery_children.look(context_of(monque).jobs, [job_id])[job_id]
    assert isinstance(one, Job)
    return one


@pytest.mark.parametrize(
    "meanwhile",
    [
        {"status": "completed"},
        {"status": "pending"},
        {"scopeRun": 2},  # A newer run started it, and it has failed again.
        {"status": "cancelled", "scopeCancel": 2},  # A newer run has cancelled it.
        {"scope": ObjectId()},
    ],
)
@pytest.mark.parametrize("was", [{"status": "failed"}, {"status": "cancelled", "scopeCancel": 1}])
def test_child_that_changed_since_it_was_read_is_not_run_again(
    monque: Monque, jobs: Collection, was: dict[str, Any], meanwhile: dict[str, Any]
) -> None:
    """N15."""
    job_id = child(jobs, **was)
    seen = found(monque, job_id)
    jobs.update_one({"_id": job_id}, {"$set": meanwhile})
    before = jobs.find_one({"_id": job_id})
    nursery_children.run_again(context_of(monque).jobs, [seen], NOW, 3)
    assert jobs.find_one({"_id": job_id}) == before


def test_child_that_an_operator_has_cancelled_meanwhile_is_not_run_again(monque: Monque, jobs: Collection) -> None:
    """N18."""
    job_id = child(jobs, "cancelled", scopeCancel=1)
    seen = found(monque, job_id)
    jobs.update_one({"_id": job_id}, {"$unset": {"scopeCancel": ""}})
    nursery_children.run_again(context_of(monque).jobs, [seen], NOW, 3)
    assert found(monque, job_id).status == "cancelled"
    nursery_children.run_again(context_of(monque).jobs, [found(monque, job_id)], NOW, 3)
    again = found(monque, job_id)
    assert again.child is not None
    assert (again.status, again.child.run, again.child.cancelled_by) == ("pending", 3, None)


@pytest.mark.parametrize(
    "changed", [{"status": "failed"}, {"status": "completed"}, {"scopeRun": 2}, {"scope": ObjectId()}]
)
def test_only_live_children_of_an_earlier_try_are_adopted(
    monque: Monque, jobs: Collection, changed: dict[str, Any]
) -> None:
    """N15: an earlier end is not an end in this try."""
    live, other = child(jobs, "processing"), child(jobs, **{"status": "processing", **changed})
    nursery_children.adopt(context_of(monque).jobs, Asking(SCOPE, 3, 2), [live, other])
    runs = {one["_id"]: one["scopeRun"] for one in jobs.find()}
    assert runs == {live: 3, other: changed.get("scopeRun", 1)}


def test_child_is_not_retried_by_hand(monque: Monque, jobs: Collection) -> None:
    """N17: also if the caller did not see that the job is a child."""
    context = context_of(monque)
    job_id = child(jobs, "failed")
    assert job_changes.apply_if_allowed(context.jobs, transitions.retry_again(job_id, NOW)) is None
    selected = retry_selected(JobSelector(status="failed"), found(monque, job_id), NOW, NOW)
    assert bulk_writes.retry(context.jobs, [selected], "receipt").count == 0
    assert found(monque, job_id).status == "failed"


def test_only_an_ended_child_of_that_scope_is_detached(monque: Monque, jobs: Collection) -> None:
    """N17."""
    ended, lives, other = child(jobs, "failed"), child(jobs, "failed"), child(jobs, "cancelled")
    seen = [found(monque, one) for one in (ended, lives, other)]
    jobs.update_one({"_id": lives}, {"$set": {"status": "pending"}})
    jobs.update_one({"_id": other}, {"$set": {"scope": ObjectId()}})
    parents_of_children.detach(context_of(monque).jobs, seen)
    assert [found(monque, one).child is None for one in (ended, lives, other)] == [True, False, False]


def test_no_child_slips_through_a_pass_by_being_claimed_in_the_middle_of_it(
    mongod: EmbeddedServer, monque_db: Database, jobs: Collection
) -> None:
    """N9: pending children come first, so a child that is pending between the statements was released in between."""
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[interceptor]) as client:
        context = context_of(Monque(client[monque_db.name]))
        context.ensure_indexes(indexes.SCOPES)
        runs, waits = child(jobs, "processing"), child(jobs, "pending")

        def claimed() -> None:
            jobs.update_one({"_id": waits, "status": "pending"}, {"$set": {"status": "processing"}})

        interceptor.before(lambda name, _: name == "update", lambda: None, claimed)
        nursery_children.cancel(context.jobs, Pass(SCOPE, 4), NOW)
    assert interceptor.times == 2
    assert {one["_id"]: one.get("scopeCancel") for one in jobs.find()} == {runs: 4, waits: 4}


def test_pass_is_of_its_scope_its_block_and_its_children_only(monque: Monque, jobs: Collection) -> None:
    context = context_of(monque)
    context.ensure_indexes(indexes.SCOPES)
    mine, other_block = child(jobs, "pending"), child(jobs, "processing", block="1")
    other_scope, ended = child(jobs, "pending", scope=ObjectId()), child(jobs, "completed")
    asked_before = child(jobs, "processing", cancelRequestedAt=AT)

    def marked() -> set[ObjectId]:
        return {one["_id"] for one in jobs.find({"scopeCancel": {"$exists": True}})}

    nursery_children.cancel(context.jobs, Pass(SCOPE, 4, "0", (ended,)), NOW)
    assert marked() == set()
    nursery_children.cancel(context.jobs, Pass(SCOPE, 4, "0"), NOW)
    assert marked() == {mine}
    nursery_children.cancel(context.jobs, Pass(SCOPE, 4), NOW)
    assert marked() == {mine, other_block}
    assert {other_scope, ended, asked_before} == {one["_id"] for one in jobs.find({"scopeCancel": None})}


def test_child_that_the_server_refuses_to_change_does_not_stop_the_others(
    monque: Monque, jobs: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    """Its document has the largest possible size, or a validator of the collection refuses it."""
    context = context_of(monque)
    context.ensure_indexes(indexes.SCOPES)
    ids = [child(jobs, "pending", data=number) for number in range(5)]
    validator = {"$or": [{"data": {"$ne": 2}}, {"status": {"$ne": "cancelled"}}]}
    jobs.database.command("collMod", jobs.name, validator=validator)
    nursery_children.cancel(context.jobs, Pass(SCOPE, 4), NOW)
    assert {one["_id"] for one in jobs.find({"status": "pending"})} == {ids[2]}
    assert "refused to cancel child" in caplog.text
