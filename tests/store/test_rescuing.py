"""Dead claims are taken away under all that was observed of them: on the real server."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect

from tests.support.interception import Interceptor, is_settlement
from tests.support.node_peer import NodePeer
from tests.support.store import PAST, claim, handle, insert, stamp
from trio_monque import JobStatus
from trio_monque.client.ground import Ground
from trio_monque.client.rescuing import Rescued, Rescuer, log_and_events_of
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs import events, transitions
from trio_monque.jobs.job import Job
from trio_monque.options import scheduler_config
from trio_monque.store import claiming, indexes, leases, managing, queries, rescuing
from trio_monque.store.connection import JobCollection
from trio_monque.store.types import Collection, Database


@pytest.fixture
def store(db: Database) -> JobCollection:
    jobs = handle(db)
    indexes.ensure(jobs)
    return jobs


def rescuer_of(store: JobCollection) -> Rescuer:
    return Rescuer(Ground(store, scheduler_config({"retry_jitter": 0.0})))


def stored(store: JobCollection, job: Job) -> Job:
    found = queries.get_job(store, job.id)
    assert found is not None
    return found


def told(rescued: Sequence[Rescued]) -> list[type]:
    return [type(event) for event in log_and_events_of(rescued)]


def request_cancel(store: JobCollection, job: Job) -> None:
    assert managing.apply_if_allowed(store, transitions.request_cancel(job, PAST)) is not None


def test_look_shows_every_claim_of_whomever_and_nothing_else(store: JobCollection, jobs: Collection) -> None:
    held = claim(store, 2)
    insert(store, "pending", data={"large": "x" * 1000})
    NodePeer(jobs).enqueue("theirs")
    theirs = NodePeer(jobs).claim("theirs")
    assert theirs is not None
    jobs.update_one({"_id": held[0].id}, {"$unset": {"claimedBy": ""}})  # Still processing: somebody must end it.
    seen = {job.id: job for job in rescuing.look(store)}
    assert seen.keys() == {held[0].id, held[1].id, theirs["_id"]}
    assert seen[held[1].id].claim_token == held[1].claim_token


def test_dead_claims_are_pending_again_with_their_data_and_nothing_is_counted_as_failure(store: JobCollection) -> None:
    held = claim(store, 3)
    rescued = rescuer_of(store).take(rescuing.look(store))
    assert {one.after.id for one in rescued} == {job.id for job in held}
    for one in rescued:
        after = stored(store, one.after)
        assert after.status is JobStatus.PENDING
        assert (after.rescues, after.fail_count, after.attempts, after.next_run_at) == (1, 0, 1, PAST)
        assert (after.claimed_by, after.claim_token, after.last_heartbeat, after.heartbeat_interval) == (None,) * 4
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
            claiming.claim_batch(store, {"greet": 1}, lambda found: found, PAST, stamp("another"))
        case _:
            managing.delete(store, job.id)
    before = list(jobs.find())
    assert rescuer_of(store).take(seen) == []
    assert list(jobs.find()) == before


def test_renewal_between_the_read_and_the_write_holds(mongod: EmbeddedServer, db: Database) -> None:
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[interceptor]) as client:
        store = handle(db)
        (job,) = claim(store, 1)
        seen = rescuing.look(store)

        def renew() -> None:
            leases.renew(store, [job], PAST + timedelta(milliseconds=1))

        interceptor.before(is_settlement, renew)
        assert rescuer_of(handle(client[db.name])).take(seen) == []
    assert interceptor.times == 1
    assert stored(store, job).claim_token == job.claim_token


def test_two_rescuers_at_once_are_harmless(store: JobCollection, db: Database) -> None:
    held = claim(store, 40)
    seen = rescuing.look(store)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: rescuer_of(handle(db)).take(seen), range(4)))
    assert sorted(one.after.id for rescued in results for one in rescued) == sorted(job.id for job in held)
    assert {stored(store, job).rescues for job in held} == {1}


def test_requested_cancellation_is_written_instead(store: JobCollection) -> None:
    wanted, unwanted = claim(store, 2)
    request_cancel(store, unwanted)
    rescued = rescuer_of(store).take(rescuing.look(store))
    assert stored(store, unwanted).status is JobStatus.CANCELLED
    assert stored(store, unwanted).cancel_requested_at is None
    assert stored(store, wanted).status is JobStatus.PENDING
    assert sorted(one.__name__ for one in told(rescued)) == ["JobCancelled", "StaleJobsRecovered"]


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

        interceptor.before(is_settlement, meanwhile)
        rescued = rescuer_of(handle(client[db.name])).take(rescuing.look(store))
    assert told(rescued) == ([] if renewed else [events.JobCancelled])
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
    assert (after.status, after.cancel_requested_at, after.claim_token) == (JobStatus.PENDING, None, None)
    assert after == rescued.after or after.receipt is not None


def test_above_the_limit_it_is_given_up_and_told_whole(store: JobCollection) -> None:
    insert(store, "greet", data={"who": "world"}, max_rescues=0)
    claiming.claim_batch(store, {"greet": 1}, lambda found: found, PAST, stamp())
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
    assert told(rescued) == [events.StaleJobsRecovered, events.ScheduleExhausted, events.JobFailed]
    after = stored(store, job)
    assert (after.status, after.rescues, after.next_run_at.minute) == (JobStatus.PENDING, 0, 30)


def test_rescue_whose_answer_was_lost_is_told_and_counted_once(store: JobCollection) -> None:
    held = claim(store, 5)

    class LostAnswer:
        times = 2

        def takes(self, purpose: str) -> bool:
            return purpose == "settle jobs" and self.times > 0

        def befall(self, call: Any) -> Any:
            self.times -= 1
            call()
            raise AutoReconnect("the answer was lost")

    store.interference.append(LostAnswer())
    rescued = rescuer_of(store).take(rescuing.look(store))
    assert {one.after.id for one in rescued} == {job.id for job in held}
    assert {stored(store, job).rescues for job in held} == {1}
