"""One claim cycle: the look, the guarded write, and exact copies, with others acting in between."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from bson import Int64
from pymongo import MongoClient

from tests.support.fail_points import refusing_server
from tests.support.interception import Interceptor, Recorder
from tests.support.interference import Failing
from tests.support.jobs_in_memory import flat
from tests.support.malformed import Element, with_field
from tests.support.node_peer import NodePeer
from tests.support.store import PAST, claim_due, handle, insert, stamp
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import MonqueConnectionError
from trio_monque.jobs.claimable import past
from trio_monque.jobs.job import Job
from trio_monque.jobs.rescue_policy import SUSPECT_FROM
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import claiming, due, next_due
from trio_monque.store.reads import queries


@pytest.fixture
def store(db: Database) -> JobCollection:
    return handle(db)


def as_stored(store: JobCollection, job: Job) -> Job | None:
    return queries.get_job(store, job.id)


def test_look_finds_due_jobs_of_each_name_earliest_first_and_no_others(store: JobCollection, jobs: Collection) -> None:
    later, first = insert(store, run_at=PAST), insert(store, run_at=PAST - timedelta(days=1))
    other = insert(store, "other", run_at=PAST)
    insert(store, "unwanted", run_at=PAST)
    insert(store, run_at=PAST + timedelta(milliseconds=1))
    for status in ("processing", "completed", "failed", "cancelled"):
        jobs.update_one({"_id": insert(store).id}, {"$set": {"status": status}})
    jobs.update_one({"_id": insert(store).id}, {"$set": {"claimedBy": "left over"}})
    found = due.look(store, {"greet": 5, "other": 5}, PAST).jobs
    assert [job.id for job in found] == [first.id, later.id, other.id]
    assert [job.id for job in due.look(store, {"greet": 1, "other": 0}, PAST).jobs] == [first.id]
    assert due.look(store, {"greet": 0}, PAST).jobs == []


def test_pinned_copies_are_what_the_database_holds(store: JobCollection) -> None:
    for number in range(5):
        insert(store, data={"n": number})
    taken = claiming.take(store, due.look(store, {"greet": 5}, PAST).jobs, PAST, stamp())
    assert [as_stored(store, job) for job in taken.jobs] == list(taken.jobs)
    assert sorted(job.data["n"] for job in taken.jobs) == [0, 1, 2, 3, 4]
    assert not taken.more


def test_copies_of_jobs_with_different_pasts_are_what_the_database_holds(
    store: JobCollection, jobs: Collection
) -> None:
    for attempts in (0, 1, 7):
        jobs.update_one({"_id": insert(store).id}, {"$set": {"attempts": attempts, "rev": attempts}})
    taken = claiming.take(store, due.look(store, {"greet": 5}, PAST).jobs, PAST, stamp())
    assert [as_stored(store, job) for job in taken.jobs] == list(taken.jobs)
    assert sorted(job.attempts for job in taken.jobs) == [1, 2, 8]


@pytest.mark.parametrize(
    "edit",
    [
        {"$inc": {"attempts": 1}},
        {"$inc": {"failCount": 1}},
        {"$inc": {"rev": 1}, "$set": {"data": "edited"}},
    ],
)
def test_copy_is_exact_although_the_job_changed_after_the_look(
    store: JobCollection, jobs: Collection, edit: dict[str, Any]
) -> None:
    first, second = insert(store, data="as it was"), insert(store)
    candidates = due.look(store, {"greet": 5}, PAST).jobs
    jobs.update_one({"_id": first.id}, edit)
    mark = stamp()
    taken = claiming.take(store, candidates, PAST, mark)
    # What the pin excludes is not taken this time; what is taken is exact, and it is asked again at once.
    assert [job.id for job in taken.jobs] == [second.id]
    assert [as_stored(store, job) for job in taken.jobs] == list(taken.jobs)
    assert taken.more
    again = claiming.take(store, due.look(store, {"greet": 5}, PAST).jobs, PAST, stamp())
    assert [job.id for job in again.jobs] == [first.id]
    assert as_stored(store, first) == again.jobs[0]


@pytest.mark.parametrize(
    "change",
    [
        {"$set": {"nextRunAt": PAST + timedelta(days=1)}},
        {"$set": {"status": "cancelled"}},
        {"$set": {"status": "processing", "claimedBy": "another"}},
        {"$set": {"claimedBy": "left over"}},
        {"$set": {"name": "other"}},
    ],
)
@pytest.mark.parametrize("same_past", [True, False])
def test_guarded_write_repeats_the_whole_condition(
    store: JobCollection, jobs: Collection, change: dict[str, Any], same_past: bool
) -> None:
    changed, kept = insert(store), insert(store)
    if not same_past:
        jobs.update_one({"_id": kept.id}, {"$set": {"attempts": 3}})
    candidates = due.look(store, {"greet": 5}, PAST).jobs
    jobs.update_one({"_id": changed.id}, change)
    before = jobs.find_one({"_id": changed.id})
    taken = claiming.take(store, candidates, PAST, stamp())
    assert [job.id for job in taken.jobs] == [kept.id]
    assert jobs.find_one({"_id": changed.id}) == before


def test_copies_are_read_back_if_they_have_too_many_pasts_to_be_pinned(store: JobCollection, jobs: Collection) -> None:
    """All candidates match, also one that has changed since the look."""
    for attempts in range(claiming.MOST_PASTS + 1):
        jobs.update_one({"_id": insert(store, data="as it was").id}, {"$set": {"attempts": attempts}})
    candidates = due.look(store, {"greet": claiming.MOST_PASTS + 1}, PAST).jobs
    jobs.update_one({"_id": candidates[0].id}, {"$inc": {"rev": 1}, "$set": {"data": "edited"}})
    taken = claiming.take(store, candidates, PAST, stamp())
    assert {job.id for job in taken.jobs} == {job.id for job in candidates}
    assert [as_stored(store, job) for job in taken.jobs] == list(taken.jobs)
    assert not taken.more


def test_claim_reads_back_only_what_it_took(mongod: EmbeddedServer, db: Database, store: JobCollection) -> None:
    """Another instance was faster with one of the candidates: its claim is neither read nor written."""
    lost, won = insert(store), insert(store)
    candidates, recorder = due.look(store, {"greet": 2}, PAST).jobs, Recorder()
    assert claiming.take_one(store, lost.id, "greet", 0, PAST, stamp("other")).jobs
    as_claimed = as_stored(store, lost)
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        taken = claiming.take(handle(client[db.name]), candidates, PAST, stamp())
    assert [name for name, _ in recorder.commands if name != "endSessions"] == ["update", "find"]
    assert [job.id for job in taken.jobs] == [won.id]
    assert as_stored(store, lost) == as_claimed


def test_deleted_candidate_is_not_claimed(store: JobCollection, jobs: Collection) -> None:
    job = insert(store)
    candidates = due.look(store, {"greet": 5}, PAST).jobs
    jobs.delete_one({"_id": job.id})
    assert claiming.take(store, candidates, PAST, stamp()).jobs == []


def test_many_claimers_take_each_job_once(mongod: EmbeddedServer, db: Database, store: JobCollection) -> None:
    for _ in range(200):
        insert(store)
    taken: Counter[Any] = Counter()
    lock = threading.Lock()

    def claim_until_empty(number: int) -> None:
        peer = NodePeer(db["monque_jobs"], f"node-{number}")
        while True:
            seen = due.survey(store, {"greet": 7}, PAST).jobs
            found = claiming.take(store, seen, PAST, stamp(f"us-{number}")) if seen else claiming.TakenJobs([])
            by_node = peer.claim("greet", PAST)
            with lock:
                taken.update(job.id for job in found.jobs)
                taken.update([by_node["_id"]] if by_node else [])
            if not found.jobs and not found.more and by_node is None:
                return

    threads = [threading.Thread(target=claim_until_empty, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 200
    assert set(taken.values()) == {1}


def test_claim_cycle_takes_two_round_trips_whatever_the_number_of_names_and_jobs(
    mongod: EmbeddedServer, db: Database, store: JobCollection
) -> None:
    names = {f"name-{number}": 10 for number in range(8)}
    for name in names:
        for _ in range(10):
            insert(store, name)
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder]) as client:
        taken = claim_due(handle(client[db.name]), names)
    assert len(taken) == 80
    commands = [name for name, _ in recorder.commands if name not in ("endSessions", "hello")]
    assert commands == ["aggregate", "update"]


def test_lost_claim_is_resolved_by_what_a_majority_holds(store: JobCollection) -> None:
    insert(store)
    insert(store)
    mark = stamp()
    taken = claiming.take(store, due.look(store, {"greet": 1}, PAST).jobs, PAST, mark)
    later = PAST + timedelta(seconds=9)
    resolved = claiming.resolve(store, mark, later)
    assert [job.id for job in resolved] == [job.id for job in taken.jobs]
    assert [flat(job).last_heartbeat for job in resolved] == [later]
    assert claiming.resolve(store, stamp(), later) == []


def test_disowned_claim_is_given_back_by_its_fence_and_nothing_else_is(store: JobCollection) -> None:
    ours, others = stamp(), stamp()
    insert(store)
    insert(store)
    (mine,) = claiming.take(store, due.look(store, {"greet": 1}, PAST).jobs, PAST, ours).jobs
    (kept,) = claiming.take(store, due.look(store, {"greet": 1}, PAST).jobs, PAST, others).jobs
    assert claiming.release_all(store, ours, PAST) == 1
    assert claiming.release_all(store, ours, PAST) == 0
    given_back = as_stored(store, mine)
    assert given_back is not None
    assert (given_back.status, given_back.claim, given_back.attempts) == ("pending", None, 1)
    assert as_stored(store, kept) == kept


def test_suspects_are_seen_only_where_one_may_run(store: JobCollection, jobs: Collection) -> None:
    suspects, innocents = [insert(store) for _ in range(3)], [insert(store) for _ in range(2)]
    jobs.update_many({"_id": {"$in": [job.id for job in suspects]}}, {"$set": {"rescues": 2}})
    jobs.update_one({"_id": innocents[0].id}, {"$set": {"rescues": 1}})
    assert len(due.look(store, {"greet": 5, "other": 1}, PAST).jobs) == 5
    for wanted in ({"greet": 2}, {"greet": 2, "other": 1}):
        seen = due.look(store, wanted, PAST, suspects=False).jobs
        assert {job.id for job in seen} == {job.id for job in innocents}


@pytest.mark.parametrize("pasts", [1, 2, claiming.MOST_PASTS, claiming.MOST_PASTS + 1])
def test_what_became_a_suspect_since_the_look_is_not_claimed_among_others(
    store: JobCollection, jobs: Collection, pasts: int
) -> None:
    """A pin excludes it, as it is no longer what was read; with too many pasts for pins, the write itself asks."""
    first, *others = [insert(store) for _ in range(max(pasts, 2))]
    for number, job in enumerate([first, *others]):
        jobs.update_one({"_id": job.id}, {"$set": {"attempts": number % pasts}})
    candidates = due.look(store, {"greet": len(others) + 1}, PAST).jobs
    assert len({past(job) for job in candidates}) == pasts
    jobs.update_one({"_id": first.id}, {"$set": {"rescues": SUSPECT_FROM}})
    as_suspected = as_stored(store, first)
    taken = claiming.take(store, candidates, PAST, stamp())
    assert {job.id for job in taken.jobs} == {job.id for job in others}
    assert [as_stored(store, job) for job in taken.jobs] == list(taken.jobs)
    assert taken.more
    assert as_stored(store, first) == as_suspected


def test_one_job_is_claimed_by_its_id_in_one_command_and_is_what_the_database_holds(
    mongod: EmbeddedServer, db: Database, store: JobCollection
) -> None:
    job, recorder = insert(store, data={"n": 1}), Recorder()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        taken = claiming.take_one(handle(client[db.name]), job.id, "greet", 0, PAST, stamp())
    assert [name for name, _ in recorder.commands if name != "endSessions"] == ["findAndModify"]
    assert [as_stored(store, job)] == list(taken.jobs)
    assert (taken.jobs[0].attempts, taken.more) == (1, False)


@pytest.mark.parametrize(
    "change",
    [
        {"$set": {"nextRunAt": PAST + timedelta(milliseconds=1)}},
        {"$set": {"status": "cancelled"}},
        {"$set": {"status": "processing", "claimedBy": "another"}},
        {"$set": {"claimedBy": "left over"}},
        {"$set": {"name": "other"}},
        {"$set": {"attempts": 1}},
        {"$set": {"attempts": "many"}},
        {"$set": {"rescues": 2}},
    ],
)
def test_claim_of_one_repeats_the_whole_condition(store: JobCollection, jobs: Collection, change: Any) -> None:
    job = insert(store)
    jobs.update_one({"_id": job.id}, change)
    before = jobs.find_one({"_id": job.id})
    assert claiming.take_one(store, job.id, "greet", 0, PAST, stamp()) == claiming.TakenJobs([])
    assert jobs.find_one({"_id": job.id}) == before


def test_job_that_is_claimed_by_its_id_and_lacks_its_time_zone_here_is_given_back_and_left_to_others(
    store: JobCollection, jobs: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    job = insert(store)
    jobs.update_one({"_id": job.id}, {"$set": {"repeatInterval": "0 9 * * *", "timezone": "Mars/Olympus_Mons"}})
    assert claiming.take_one(store, job.id, "greet", 0, PAST, stamp()) == claiming.TakenJobs([], more=True)
    assert jobs.count_documents({"_id": job.id, "status": "pending", "claimedBy": None}) == 1
    assert "to other instances: " in caplog.text
    # For a minute, this instance does not claim it again: that would only move it to and fro.
    before = jobs.find_one({"_id": job.id})
    assert claiming.take_one(store, job.id, "greet", 1, PAST, stamp()) == claiming.TakenJobs([])
    assert jobs.find_one({"_id": job.id}) == before


def test_job_that_is_claimed_by_its_id_after_its_start_limit_is_given_back(
    store: JobCollection, jobs: Collection
) -> None:
    late, in_time = insert(store), insert(store)
    jobs.update_one({"_id": late.id}, {"$set": {"startBy": PAST}})
    jobs.update_one({"_id": in_time.id}, {"$set": {"startBy": PAST + timedelta(milliseconds=1)}})
    # The look that follows ends it.
    assert claiming.take_one(store, late.id, "greet", 0, PAST, stamp()) == claiming.TakenJobs([], more=True)
    assert jobs.count_documents({"_id": late.id, "status": "pending", "claimedBy": None}) == 1
    assert [job.id for job in claiming.take_one(store, in_time.id, "greet", 0, PAST, stamp()).jobs] == [in_time.id]


def test_first_candidates_are_passed_over_and_a_name_that_is_too_short_is_looked_at_again(
    store: JobCollection,
) -> None:
    many = [insert(store, "many", run_at=PAST - timedelta(seconds=100 - number)) for number in range(30)]
    few = [insert(store, "few") for _ in range(3)]
    wanted = {"many": 5, "few": 5}
    seen = due.survey(store, wanted, PAST, passed_over={"many": 10, "few": 5})
    assert [job.id for job in seen.jobs if job.name == "many"] == [job.id for job in many[10:15]]
    assert {job.id for job in seen.jobs if job.name == "few"} == {job.id for job in few}
    assert (set(seen.exhausted), set(seen.short)) == ({"few"}, {"few"})
    alone = due.survey(store, {"many": 5}, PAST, passed_over={"many": 3})
    assert [job.id for job in alone.jobs] == [job.id for job in many[3:8]]


def test_next_due_returns_the_due_time_and_the_job_if_it_is_the_only_one(store: JobCollection) -> None:
    moments = [PAST + timedelta(seconds=number) for number in range(4)]
    insert(store, run_at=moments[0])
    later = [insert(store, name, run_at=moments[1 + number]) for number, name in enumerate(["other", "greet", "alien"])]
    found = next_due.next_due(store, ["greet", "other"], moments[0])
    assert found == next_due.NextDue(moments[1], next_due.OneJob(later[0].id, "other", 0))
    assert next_due.next_due(store, ["greet"], moments[0]) == next_due.NextDue(
        moments[2], next_due.OneJob(later[1].id, "greet", 0)
    )
    assert next_due.next_due(store, ["greet"], moments[2]) is None
    insert(store, "greet", run_at=moments[1])
    assert next_due.next_due(store, ["greet", "other"], moments[0]) == next_due.NextDue(moments[1], None)


def test_two_of_one_moment_are_seen_although_their_names_are_asked_for_in_turn(
    store: JobCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due, "MOST_NAMES_IN_ONE_LOOK", 1)
    moment = PAST + timedelta(seconds=1)
    insert(store, "greet", run_at=moment)
    assert next_due.next_due(store, ["greet", "other"], PAST) != next_due.NextDue(moment, None)
    insert(store, "other", run_at=moment)
    assert next_due.next_due(store, ["greet", "other"], PAST) == next_due.NextDue(moment, None)


@pytest.mark.full
def test_claim_of_a_broken_document_that_cannot_be_released_has_an_unknown_outcome() -> None:
    """The claim is written: the caller must find out, and release it as soon as the server allows."""
    with refusing_server() as server, server.client() as client, MongoClient[Any](server.uri) as admin:
        store, documents = handle(client["shop"]), admin["shop"]["monque_jobs"]
        job = insert(store)
        documents.update_one({"_id": job.id}, {"$set": {"timeout": "soon"}})
        with server.refusing(13, ["update"]), pytest.raises(MonqueConnectionError) as caught:
            claiming.take_one(store, job.id, "greet", 0, PAST, stamp())
        assert documents.count_documents({"_id": job.id, "status": "processing"}) == 1
        assert caught.value.unknown_outcome


@pytest.mark.parametrize(
    ("change", "alone"),
    [
        ({"attempts": 7}, True),
        ({"attempts": Int64(7), "rescues": 1}, True),
        ({"attempts": 7, "rescues": 2}, False),
        ({"attempts": "many"}, False),
    ],
)
def test_next_due_returns_only_the_due_time_of_a_job_that_cannot_be_claimed_by_its_id(
    store: JobCollection, jobs: Collection, change: Any, alone: bool
) -> None:
    moment = PAST + timedelta(seconds=1)
    job = insert(store, run_at=moment)
    jobs.update_one({"_id": job.id}, {"$set": change})
    found = next_due.next_due(store, ["greet"], PAST)
    assert found == next_due.NextDue(moment, next_due.OneJob(job.id, "greet", 7) if alone else None)
    if alone:
        (taken,) = claiming.take_one(store, job.id, "greet", 7, moment, stamp()).jobs
        assert (taken.attempts, taken) == (8, as_stored(store, job))


def test_next_due_returns_only_the_due_time_of_a_job_with_an_invalid_id(store: JobCollection, jobs: Collection) -> None:
    moment = PAST + timedelta(seconds=1)
    job = insert(store, run_at=moment)
    document = jobs.find_one_and_delete({"_id": job.id})
    assert document is not None
    jobs.insert_one({**document, "_id": "a text"})
    assert next_due.next_due(store, ["greet"], PAST) == next_due.NextDue(moment, None)


@pytest.mark.parametrize("field", ["claimedBy", "lockedAt", "claimToken"])
@pytest.mark.parametrize("way", ["by its id", "beside one that is lost", "resolved"])
def test_claim_that_reads_otherwise_than_the_server_compares_it_is_given_back(
    store: JobCollection, jobs: Collection, field: str, way: str
) -> None:
    """Its document has a field twice: no end of the claim would match what was read."""
    job, lost = insert(store, run_at=PAST), insert(store, run_at=PAST)
    (document,) = jobs.find({"_id": job.id})
    document[field] = None
    jobs.delete_one({"_id": job.id})
    jobs.insert_one(
        with_field(document, field, Element.of(PAST - timedelta(days=1) if field == "lockedAt" else None), as_well=True)
    )
    mine = stamp()
    jobs.delete_one({"_id": lost.id})
    if way == "by its id":
        taken = claiming.take_one(store, job.id, "greet", 0, PAST, mine).jobs
    else:
        copies = [job, lost]
        if way == "resolved":
            jobs.update_one({"_id": job.id}, {"$set": {"status": "processing", "claimedBy": mine.claimed_by}})
            jobs.update_one({"_id": job.id}, {"$set": {"lockedAt": PAST, "claimToken": mine.claim_token}})
            taken = claiming.resolve(store, mine, PAST + timedelta(seconds=1))
        else:
            taken = claiming.take(store, copies, PAST, mine).jobs
    assert list(taken) == []
    assert jobs.count_documents({"_id": job.id, "status": "pending"}) == 1
    # The release has removed the first of the two.
    (again,) = claiming.take(store, due.look(store, {"greet": 5}, PAST).jobs, PAST, stamp()).jobs
    assert as_stored(store, again) == again


class TakenByAnotherClaim(dict[Any, Any]):
    """What was missed, as a claim sees it while another claim, in another thread, deals with the same job."""

    def get(self, key: Any, default: Any = None) -> Any:
        return self.pop(key, default)


def test_two_claims_at_once_may_both_find_that_a_job_has_changed_since_it_was_missed(db: Database) -> None:
    store = handle(db)
    job = insert(store)
    once = replace(store, missed=TakenByAnotherClaim({job.id: "another past"}))
    assert [one.id for one in claiming.take(once, [job], PAST, stamp()).jobs] == [job.id]


def test_job_that_cannot_be_read_is_released_only_while_this_claim_holds_it(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    """Between the claim and the release it was rescued and claimed by another instance."""
    job = insert(handle(db))
    jobs.update_one({"_id": job.id}, {"$set": {"createdAt": "a text"}})
    theirs, interceptor = {"claimedBy": "other", "claimToken": "theirs"}, Interceptor()
    interceptor.before(lambda name, _: name == "update", lambda: jobs.update_one({"_id": job.id}, {"$set": theirs}))
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        taken = claiming.take_one(handle(client[db.name]), job.id, "greet", 0, PAST, stamp())
    assert (list(taken.jobs), interceptor.times) == ([], 1)
    assert jobs.count_documents({"_id": job.id, "status": "processing", **theirs}) == 1


def test_claim_keeps_what_it_took_although_the_question_about_doubled_fields_fails(
    store: JobCollection, jobs: Collection
) -> None:
    gone = insert(store)
    jobs.delete_one({"_id": gone.id})
    assert claiming.take(store, [gone], PAST, stamp()).jobs == []
    free, fault = insert(store), Failing("look for fields that documents have twice")
    store.interference.append(fault)
    assert [job.id for job in claiming.take(store, [gone, free], PAST, stamp()).jobs] == [free.id]
    assert fault.times == 1
