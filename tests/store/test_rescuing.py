"""Dead claims are taken away under all that was observed of them: on the real server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import DatetimeMS, Decimal128
from pymongo import MongoClient
from pymongo.errors import AutoReconnect

from tests.support.interception import Interceptor, Recorder, is_settlement
from tests.support.jobs_in_memory import flat, with_flat
from tests.support.node_peer import NodePeer
from tests.support.store import PAST, claim, claim_due, handle, insert, stamp
from tests.support.thoroughly import one_in, rows_in
from trio_monque import JobStatus, events
from trio_monque.client.client_context import ClientContext
from trio_monque.client.rescuer import Rescued, Rescuer, log_and_events_of
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import MonqueConnectionError
from trio_monque.jobs import transitions
from trio_monque.jobs.claim_stamps_and_fences import claim_id
from trio_monque.jobs.job import Job
from trio_monque.options_and_defaults import scheduler_config
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import indexes, job_changes, leases, rescuing, settling
from trio_monque.store.reads import queries

LATER = PAST + timedelta(hours=1)


@pytest.fixture
def store(db: Database) -> JobCollection:
    jobs = handle(db)
    indexes.ensure(jobs)
    return jobs


def rescuer_of(store: JobCollection) -> Rescuer:
    return Rescuer(ClientContext(store, scheduler_config({"retry_jitter": 0.0})))


def stored(store: JobCollection, job: Job) -> Job:
    found = queries.get_job(store, job.id)
    assert found is not None
    return found


def reported(rescued: Sequence[Rescued]) -> list[type]:
    return [type(event) for event in log_and_events_of(rescued)]


def request_cancel(store: JobCollection, job: Job) -> None:
    assert job_changes.apply_if_allowed(store, transitions.request_cancel(job, PAST)) is not None


def test_look_shows_the_claims_of_all_holders_and_nothing_else(store: JobCollection, jobs: Collection) -> None:
    held = claim(store, 2)
    insert(store, "pending", data={"large": "x" * 1000})
    NodePeer(jobs).enqueue("theirs")
    theirs = NodePeer(jobs).claim("theirs")
    assert theirs is not None
    jobs.update_one({"_id": held[0].id}, {"$unset": {"claimedBy": ""}})  # Still processing: a rescuer must end it.
    seen = {job.id: job for job in rescuing.look(store)}
    assert seen.keys() == {held[0].id, held[1].id, theirs["_id"]}
    assert claim_id(seen[held[1].id]) == claim_id(held[1])


def test_dead_claims_are_pending_again_with_their_data_and_nothing_is_counted_as_failure(store: JobCollection) -> None:
    held = claim(store, 3)
    rescued = rescuer_of(store).take(rescuing.look(store))
    assert {one.after.id for one in rescued} == {job.id for job in held}
    for one in rescued:
        after = stored(store, one.after)
        assert after.status is JobStatus.PENDING
        assert (after.rescues, after.fail_count, after.attempts, after.next_run_at) == (1, 0, 1, PAST)
        assert after.claim is None
    assert log_and_events_of(rescued) == [events.StaleJobsRecovered(3, {"greet": 3})]


@pytest.mark.parametrize("change", ["renewed", "settled", "claimed again", "deleted"])
def test_claim_that_has_changed_since_is_left_alone(store: JobCollection, jobs: Collection, change: str) -> None:
    (job,) = claim(store, 1)
    seen = rescuing.look(store)
    match change:
        case "renewed":
            leases.renew(store, [job], PAST + timedelta(milliseconds=1))
        case "settled":
            jobs.update_one({"_id": job.id}, {"$set": {"status": "completed"}})
        case "claimed again":
            rescuer_of(store).take(seen)
            claim_due(store, {"greet": 1}, stamp("another"))
        case _:
            job_changes.delete(store, job.id)
    before = list(jobs.find())
    assert rescuer_of(store).take(seen) == []
    assert list(jobs.find()) == before


def test_two_rescuers_at_once_are_harmless(store: JobCollection, db: Database) -> None:
    held = claim(store, 40)
    seen = rescuing.look(store)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: rescuer_of(handle(db)).take(seen), range(4)))
    assert sorted(one.after.id for rescued in results for one in rescued) == sorted(job.id for job in held)
    assert {stored(store, job).rescues for job in held} == {1}


def test_requested_cancellation_is_written_instead(store: JobCollection, jobs: Collection) -> None:
    wanted, unwanted = claim(store, 2)
    jobs.update_many({}, {"$set": {"data": "whole"}})
    request_cancel(store, unwanted)
    rescued = rescuer_of(store).take(rescuing.look(store))
    assert [one.after.data for one in rescued if one.after.status is JobStatus.CANCELLED] == ["whole"]
    assert stored(store, unwanted).status is JobStatus.CANCELLED
    assert flat(stored(store, unwanted)).cancel_requested_at is None
    assert stored(store, wanted).status is JobStatus.PENDING
    assert sorted(one.__name__ for one in reported(rescued)) == ["JobCancelled", "StaleJobsRecovered"]


@pytest.mark.parametrize("renewed", [False, True])
def test_request_between_the_read_and_the_write_is_obeyed_unless_the_holder_lives(
    mongod: EmbeddedServer, db: Database, renewed: bool
) -> None:
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[interceptor]) as client:
        store = handle(db)
        (job,) = claim(store, 1)

        def meanwhile() -> None:
            request_cancel(store, job)
            if renewed:
                leases.renew(store, [job], PAST + timedelta(milliseconds=1))

        db["monque_jobs"].update_one({"_id": job.id}, {"$set": {"data": "whole"}})
        interceptor.before(is_settlement, meanwhile)
        rescued = rescuer_of(handle(client[db.name])).take(rescuing.look(store))
    assert reported(rescued) == ([] if renewed else [events.JobCancelled])
    assert [one.after.data for one in rescued] == ([] if renewed else ["whole"])
    assert stored(store, job).status is (JobStatus.PROCESSING if renewed else JobStatus.CANCELLED)


def test_request_that_an_earlier_claim_of_ours_left_behind_is_neither_obeyed_nor_kept(
    store: JobCollection, jobs: Collection
) -> None:
    (job,) = claim(store, 1)
    request_cancel(store, job)
    NodePeer(jobs).recover(timedelta(days=-1))
    assert NodePeer(jobs).claim("greet", datetime.now(UTC)) is not None
    (rescued,) = rescuer_of(store).take(rescuing.look(store))
    after = stored(store, job)
    assert (after.status, after.claim) == (JobStatus.PENDING, None)
    assert after == rescued.after or after.internals.receipt is not None


def test_job_above_the_rescue_limit_fails_and_its_event_has_the_whole_job(store: JobCollection) -> None:
    insert(store, "greet", data={"who": "world"}, max_rescues=0)
    claim_due(store, {"greet": 1})
    rescued = rescuer_of(store).take(rescuing.look(store))
    (event,) = log_and_events_of(rescued)
    assert isinstance(event, events.JobFailed)
    assert (event.job.data, event.will_retry, event.job.fail_count) == ({"who": "world"}, False, 0)
    assert stored(store, event.job).fail_reason == str(event.error) == "died 1 time while running"


def test_schedule_above_the_limit_goes_on_from_what_it_is_now(mongod: EmbeddedServer, db: Database) -> None:
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[interceptor]) as client:
        store = handle(db)
        (job,) = claim(store, 1)
        jobs = db["monque_jobs"]
        jobs.update_one({"_id": job.id}, {"$set": {"repeatInterval": "0 * * * *", "maxRescues": 0}})

        def meanwhile() -> None:
            jobs.update_one({"_id": job.id}, {"$set": {"repeatInterval": "30 * * * *"}})

        interceptor.before(is_settlement, meanwhile)
        rescued = rescuer_of(handle(client[db.name])).take(rescuing.look(store))
    assert reported(rescued) == [events.StaleJobsRecovered, events.ScheduleExhausted, events.JobFailed]
    after = stored(store, job)
    assert (after.status, after.rescues, after.next_run_at.minute) == (JobStatus.PENDING, 0, 30)


def test_rescue_with_lost_answers_is_reported_and_counted_once(store: JobCollection) -> None:
    held = claim(store, 5)
    store.interference.append(LostAnswers(2))
    rescued = rescuer_of(store).take(rescuing.look(store))
    assert {one.after.id for one in rescued} == {job.id for job in held}
    assert {stored(store, job).rescues for job in held} == {1}


# --- Documents that cannot be, and documents that are large ---


def tokens(seen: Sequence[Job]) -> set[str | None]:
    return {flat(job).claim_token for job in seen}


def test_document_that_the_server_refuses_is_logged_once_and_delays_no_other_rescue(
    store: JobCollection, jobs: Collection, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    held = claim(store, 10)
    jobs.update_one({"_id": held[0].id}, {"$set": {"closed": True}})
    db.command("collMod", jobs.name, validator={"closed": {"$exists": False}})
    rescuer = rescuer_of(store)
    seen = rescuer.look()
    assert len(tokens(seen)) == 1
    assert {one.after.id for one in rescuer.take(seen)} == {job.id for job in held[1:]}
    for _ in range(3):
        assert rescuer.take(rescuer.look()) == []
    (line,) = (one.message for one in caplog.records if one.levelname == "ERROR")
    assert str(held[0].id) in line
    db.command("collMod", jobs.name, validator={})
    assert [one.after.id for one in rescuer.take(rescuer.look())] == [held[0].id]


BROKEN: dict[str, list[Any]] = {
    "rescues": [None, "x", -3, 1.5, math.nan, math.inf, 2**62, [], True],
    "maxRescues": ["x", -1, 1.5],
    "onExhausted": [5, "explode", {"$gt": ""}, ["fail"]],
    "lastHeartbeat": ["x", 5, {}, [], math.nan, True, DatetimeMS(2**62)],
    "lockedAt": ["x", {}, DatetimeMS(-(2**62))],
    "heartbeatInterval": ["x", True, Decimal128("3"), {}, []],
}


@pytest.mark.parametrize(
    ("field", "value"), rows_in(4, [(field, value) for field, values in BROKEN.items() for value in values])
)
def test_malformed_document_is_logged_once_and_delays_no_other_rescue(
    store: JobCollection, jobs: Collection, caplog: pytest.LogCaptureFixture, field: str, value: Any
) -> None:
    held = claim(store, 3)
    jobs.update_one({"_id": held[0].id}, {"$set": {field: value}})
    rescuer = rescuer_of(store)
    assert {one.after.id for one in rescuer.take(rescuer.look())} == {job.id for job in held[1:]}
    for _ in range(3):
        assert rescuer.take(rescuer.look()) == []
    (line,) = (one.message for one in caplog.records)
    assert str(held[0].id) in line
    assert field in line
    assert list(store.broken) == [held[0].id]
    # Whole again, it is rescued like any other.
    jobs.update_one({"_id": held[0].id}, {"$unset": {field: ""}})
    assert [one.after.id for one in rescuer.take(rescuer.look())] == [held[0].id]


INTERVALS = (0, -5, 0.0, float("nan"), float("inf"), float("-inf"), 2**62, 1e300, None)
BEATS = (None, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC))


@pytest.mark.parametrize(("interval", "beat"), one_in(3, INTERVALS, BEATS))
def test_interval_and_heartbeat_that_can_hardly_be_are_clamped_and_the_claim_is_rescued(
    store: JobCollection, jobs: Collection, interval: Any, beat: Any
) -> None:
    claim(store, 1)
    jobs.update_one({}, {"$set": {"heartbeatInterval": interval, "lastHeartbeat": beat}})
    rescuer = rescuer_of(store)
    (seen,) = rescuer.look()
    sighting = rescuer.sighting(seen, datetime.now(UTC))
    assert 0.6 <= sighting.lease <= 900.0
    assert sighting.protected_for <= 0
    assert len(rescuer.take([seen])) == 1


def test_claim_of_the_far_future_is_never_taken_and_no_timer_is_set_to_it(
    store: JobCollection, jobs: Collection
) -> None:
    claim(store, 1)
    jobs.update_one({}, {"$set": {"lockedAt": datetime(9999, 12, 31, tzinfo=UTC)}})
    rescuer = rescuer_of(store)
    (seen,) = rescuer.look()
    assert rescuer.sighting(seen, datetime.now(UTC)).protected_for == math.inf


def test_nothing_that_may_be_large_is_read_but_of_what_ends(mongod: EmbeddedServer, db: Database) -> None:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        store = handle(client[db.name])
        goes_on, ends = claim(store, 2)
        db["monque_jobs"].update_many({}, {"$set": {"data": "large", "errors": [{"attempt": 0}]}})
        db["monque_jobs"].update_one({"_id": ends.id}, {"$set": {"maxRescues": 0}})
        seen = rescuing.look(store)
        recorder.commands.clear()
        rescued = {one.after.id: one.after for one in rescuer_of(store).take(seen)}
    finds = [one for name, one in recorder.commands if name == "find"]
    assert finds[0]["projection"]["data"] is False
    assert [one["filter"]["_id"]["$in"] for one in finds if "projection" not in one] == [[ends.id]]
    store = handle(db)
    assert rescued[ends.id] == with_flat(stored(store, ends), receipt=None)
    assert (rescued[ends.id].data, len(rescued[ends.id].errors)) == ("large", 2)
    assert (stored(store, goes_on).data, stored(store, goes_on).errors) == ("large", [{"attempt": 0}])


def test_rescue_decides_again_when_another_client_changes_the_count_meanwhile(
    mongod: EmbeddedServer, db: Database
) -> None:
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[interceptor]) as client:
        store = handle(db)
        (job,) = claim(store, 1)

        def meanwhile() -> None:
            db["monque_jobs"].update_one({"_id": job.id}, {"$set": {"rescues": 3}})

        interceptor.before(is_settlement, meanwhile)
        (rescued,) = rescuer_of(handle(client[db.name])).take(rescuing.look(store))
    assert interceptor.times == 1
    assert (rescued.after.status, str(rescued.error)) == (JobStatus.FAILED, "died 4 times while running")


# --- Answers that are lost ---


class LostAnswers:
    def __init__(self, times: int) -> None:
        self.left = times

    def takes(self, purpose: str) -> bool:
        return purpose == "settle jobs" and self.left > 0

    def inject(self, call: Any) -> Any:
        self.left -= 1
        call()
        raise AutoReconnect("the answer was lost")


def test_rescue_that_was_never_answered_tells_later_what_was_its_own(store: JobCollection) -> None:
    held = claim(store, 4)
    rescuer = rescuer_of(store)
    batch = rescuer.batch(rescuer.look())
    store.interference.append(LostAnswers(3))
    with pytest.raises(MonqueConnectionError):
        batch.run_with_retries()
    assert (batch.collect(), batch.is_unknown) == ([], True)
    # Meanwhile one is claimed, and another was ended by its new holder: its outcome cannot be known any more.
    claim_due(store, {"greet": 2}, stamp("another", LATER), LATER)
    (first, second, *_) = [stored(store, job) for job in held if flat(stored(store, job)).claimed_by == "another"]
    settling.settle(store, settling.grouped([transitions.complete(second, LATER)], "theirs"))
    batch.run()
    assert {one.after.id for one in batch.collect()} == {job.id for job in held} - {second.id}
    assert flat(stored(store, first)).claimed_by == "another"
    assert not batch.is_unknown
