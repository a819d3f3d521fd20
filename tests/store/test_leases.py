"""Renewals: of what is held, under the whole fence, and growing."""

from __future__ import annotations

from datetime import timedelta

import bson
import pytest

from tests.support.full_documents import LARGEST
from tests.support.jobs_in_memory import flat
from tests.support.node_peer import NodePeer
from tests.support.store import PAST, claim, claim_due, handle, stamp
from tests.support.thoroughly import one_in
from trio_monque.jobs.claim_stamps_and_fences import claim_id, shares_its_id, sign_of_life
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import claiming, leases
from trio_monque.store.jobs.leases import Renewed
from trio_monque.store.reads import queries

BEAT = PAST + timedelta(seconds=30)


@pytest.fixture
def store(db: Database) -> JobCollection:
    return handle(db)


def test_renewal_touches_what_is_given_and_nothing_else_that_bears_our_name(store: JobCollection) -> None:
    """Neither of another claim cycle, nor of the same one: that run has ended, and its lease must expire."""
    *held, ended = claim(store, 4)
    forgotten = [ended, *claim(store, 2, stamp())]
    assert leases.renew(store, held, BEAT) == Renewed()
    for job in held:
        stored = queries.get_job(store, job.id)
        assert stored is not None
        assert (flat(stored).last_heartbeat, stored.updated_at, flat(stored).locked_at) == (BEAT, BEAT, PAST)
    assert [queries.get_job(store, job.id) for job in forgotten] == forgotten


def test_renewal_names_the_lost_claims(store: JobCollection, jobs: Collection) -> None:
    held = [*claim(store, 4), *claim(store, 3, stamp())]
    jobs.update_one({"_id": held[2].id}, {"$set": {"status": "completed"}})
    jobs.delete_one({"_id": held[5].id})
    assert leases.renew(store, held, BEAT) == Renewed(lost={claim_id(held[2]), claim_id(held[5])})


def test_claim_of_node_that_carries_our_token_is_not_renewed(store: JobCollection, jobs: Collection) -> None:
    (job,) = claim(store, 1)
    peer = NodePeer(jobs)
    peer.recover(timedelta(days=-1))
    theirs = peer.claim("greet", BEAT)
    assert leases.renew(store, [job], BEAT) == Renewed(lost={claim_id(job)})
    assert jobs.find_one({"_id": job.id}) == theirs


def test_heartbeat_never_goes_back(store: JobCollection) -> None:
    held = claim(store, 1)
    leases.renew(store, held, BEAT)
    assert leases.renew(store, held, BEAT - timedelta(hours=1)) == Renewed()
    stored = queries.get_job(store, held[0].id)
    assert stored is not None
    assert flat(stored).last_heartbeat == BEAT


def test_more_claims_than_fit_into_one_statement_are_all_renewed(
    store: JobCollection, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "MOST_IN_ONE_STATEMENT", 4)
    held = claim(store, 11)
    assert leases.renew(store, held, BEAT) == Renewed()
    assert jobs.count_documents({"lastHeartbeat": BEAT}) == 11


def test_renewal_distinguishes_two_claims_of_one_instance_on_one_job(store: JobCollection, jobs: Collection) -> None:
    """The first was taken away without its knowledge, and the instance has claimed the job again."""
    (old,) = claim(store, 1)
    NodePeer(jobs).recover(timedelta(days=-1))
    (new,) = claim_due(store, {"greet": 1})
    assert old.id == new.id
    jobs.update_one({"_id": old.id}, {"$set": {"cancelRequestedAt": BEAT}})
    found = leases.renew(store, [old, new], BEAT)
    assert found == Renewed(lost={claim_id(old)}, cancel_requested={claim_id(new)})


def test_renewal_names_claims_that_are_asked_to_end_and_renews_them_too(store: JobCollection, jobs: Collection) -> None:
    held = claim(store, 3)
    jobs.update_one({"_id": held[1].id}, {"$set": {"cancelRequestedAt": PAST}})
    assert leases.renew(store, held, BEAT) == Renewed(cancel_requested={claim_id(held[1])})
    assert jobs.count_documents({"lastHeartbeat": BEAT}) == 3


@pytest.mark.parametrize("asked", [False, True])
def test_claim_that_the_server_refuses_to_renew_keeps_no_other_from_its_renewal(
    store: JobCollection, jobs: Collection, db: Database, asked: bool
) -> None:
    """A validator came while they ran."""
    held = [*claim(store, 3), *claim(store, 2, stamp())]
    guarded = held[1]
    jobs.update_one({"_id": guarded.id}, {"$set": {"data": "guarded"}})
    if asked:
        jobs.update_one({"_id": held[2].id}, {"$set": {"cancelRequestedAt": PAST}})
    db.command("collMod", jobs.name, validator={"$nor": [{"data": "guarded", "lastHeartbeat": {"$gt": PAST}}]})
    found = leases.renew(store, held, BEAT)
    assert found == Renewed(refused={claim_id(guarded)}, cancel_requested={claim_id(held[2])} if asked else set())
    renewed = {one["_id"] for one in jobs.find({"lastHeartbeat": BEAT})}
    assert renewed == {job.id for job in held} - {guarded.id}


@pytest.mark.full
@pytest.mark.parametrize("room", one_in(3, [0, 10, 100]))
def test_claim_on_a_full_document_is_renewed_so_that_observers_see_it(
    store: JobCollection, jobs: Collection, room: int
) -> None:
    """Without a visible sign of life, another instance would run the job beside its live run after a lease."""
    held = claim(store, 2)
    stored = jobs.find_one({"_id": held[0].id})
    assert stored is not None
    grown = {**stored, "data": ""}
    jobs.replace_one({"_id": held[0].id}, {**grown, "data": "x" * (LARGEST - room - len(bson.encode(grown)))})
    assert leases.renew(store, held, BEAT) == Renewed()
    for job in held:
        renewed = queries.get_job(store, job.id)
        assert renewed is not None
        assert sign_of_life(renewed) != sign_of_life(job)
        assert not shares_its_id(renewed)


def test_job_that_a_validator_does_not_release_keeps_no_other_from_its_release(
    store: JobCollection, jobs: Collection, db: Database
) -> None:
    mark = stamp()
    held = claim(store, 4, mark)
    jobs.update_one({"_id": held[1].id}, {"$set": {"data": "guarded"}})
    db.command("collMod", jobs.name, validator={"$nor": [{"data": "guarded", "claimedBy": {"$exists": False}}]})
    assert claiming.release_all(store, mark, BEAT) + claiming.release_all(store, mark, BEAT) <= 3
    assert {one["_id"] for one in jobs.find({"status": "pending"})} == {job.id for job in held} - {held[1].id}


def test_claim_that_is_lost_beside_one_that_the_server_refuses_is_named_and_not_renewed(
    store: JobCollection, jobs: Collection, db: Database
) -> None:
    """Another instance holds it by now: its run here must end, and its sign of life there is not ours to write."""
    held = claim(store, 3)
    guarded, taken, _ = held
    jobs.update_one({"_id": guarded.id}, {"$set": {"data": "guarded"}})
    theirs = {"claimedBy": "other", "claimToken": "theirs", "lockedAt": BEAT - timedelta(seconds=1)}
    jobs.update_one({"_id": taken.id}, {"$set": theirs})
    before = jobs.find_one({"_id": taken.id})
    db.command("collMod", jobs.name, validator={"$nor": [{"data": "guarded", "lastHeartbeat": {"$gt": PAST}}]})
    assert leases.renew(store, held, BEAT) == Renewed(lost={claim_id(taken)}, refused={claim_id(guarded)})
    assert jobs.find_one({"_id": taken.id}) == before
    assert jobs.count_documents({"lastHeartbeat": BEAT}) == 1


def test_request_to_cancel_a_job_that_another_claim_holds_is_not_reported(
    store: JobCollection, jobs: Collection
) -> None:
    ours, taken = claim(store, 2)
    jobs.update_many({}, {"$set": {"cancelRequestedAt": PAST}})
    jobs.update_one({"_id": taken.id}, {"$set": {"claimToken": "theirs"}})
    assert leases.cancel_requested(store, [ours, taken]) == {claim_id(ours)}
    assert leases.cancel_requested(store, [taken]) == set()
