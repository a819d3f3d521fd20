"""What others change right before an end of a claim is written, or before what is written instead of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pytest
from pymongo import MongoClient

from tests.support.interception import Interceptor, is_settlement
from tests.support.jobs_in_memory import flat
from tests.support.node_peer import NodePeer
from tests.support.store import PAST, claim, handle
from trio_monque import Monque
from trio_monque.client.client_context import ClientContext
from trio_monque.client.rescuer import Rescuer
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import JobStateError
from trio_monque.jobs import transitions
from trio_monque.jobs.claim_stamps_and_fences import claim_id
from trio_monque.jobs.conditional_write import Transition
from trio_monque.jobs.error_history import Failure
from trio_monque.jobs.job import Job
from trio_monque.options_and_defaults import scheduler_config
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import job_changes, leases, settling
from trio_monque.store.jobs.settling import Fate, grouped
from trio_monque.store.reads import queries

LATER: Final = PAST + timedelta(hours=1)


@pytest.fixture
def interceptor() -> Interceptor:
    return Interceptor()


@pytest.fixture
def watched(mongod: EmbeddedServer, db: Database, interceptor: Interceptor) -> Iterator[JobCollection]:
    """The store whose commands are intercepted. What happens meanwhile goes through another client."""
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[interceptor]) as client:
        yield handle(client[db.name])


@pytest.fixture
def store(db: Database) -> JobCollection:
    return handle(db)


def rescuer_of(store: JobCollection) -> Rescuer:
    return Rescuer(ClientContext(store, scheduler_config({"retry_jitter": 0.0})))


def settled(store: JobCollection, transition: Transition) -> Fate:
    (fate,) = settling.settle(store, grouped([transition], "r")).values()
    return fate


def request_cancel(store: JobCollection, job: Job) -> None:
    assert job_changes.apply_if_allowed(store, transitions.request_cancel(job, PAST)) is not None


def renew(store: JobCollection, job: Job) -> None:
    assert leases.renew(store, [job], PAST + timedelta(milliseconds=1)).lost == set()


# --- Deaths: a holder that shows life before the write keeps its claim ---

ENDS_OF_THE_DEAD: Final[Mapping[str, Mapping[str, Any]]] = {
    "rescued": {},
    "given up": {"maxRescues": 0},
    "goes on": {"maxRescues": 0, "repeatInterval": "0 * * * *"},
}


@pytest.mark.parametrize("end", ENDS_OF_THE_DEAD)
@pytest.mark.parametrize("holder", ["ours", "node"])
def test_claim_that_shows_a_sign_of_life_before_the_write_is_left_alone(
    store: JobCollection, watched: JobCollection, jobs: Collection, interceptor: Interceptor, holder: str, end: str
) -> None:
    peer = NodePeer(jobs)
    if holder == "node":
        peer.hold("greet", 1, PAST)
        interceptor.before(is_settlement, lambda: peer.beat(LATER))
    else:
        (job,) = claim(store, 1)
        interceptor.before(is_settlement, partial(renew, store, job))
    jobs.update_one({}, {"$set": ENDS_OF_THE_DEAD[end]})
    rescuer = rescuer_of(watched)
    assert rescuer.take(rescuer.look()) == []
    assert interceptor.times == 1
    assert jobs.count_documents({"status": "processing", "lastHeartbeat": {"$gt": PAST}}) == 1


def test_rescue_of_a_claim_that_was_renewed_is_reported_as_lost_and_not_decided_again(store: JobCollection) -> None:
    (job,) = claim(store, 1)
    renew(store, job)
    assert settled(store, transitions.rescue(job, LATER, LATER)) is Fate.LOST


@pytest.mark.parametrize("second", ["renewed", "claimed by node"])
@pytest.mark.parametrize("end", ENDS_OF_THE_DEAD)
def test_cancellation_of_a_dead_run_is_not_written_once_its_claim_shows_life(
    store: JobCollection, watched: JobCollection, jobs: Collection, interceptor: Interceptor, second: str, end: str
) -> None:
    """First the request, which keeps the rescue from being written; then the sign of life, before the cancellation."""
    (job,) = claim(store, 1)
    jobs.update_one({}, {"$set": ENDS_OF_THE_DEAD[end]})
    shows_life = partial(renew, store, job) if second == "renewed" else partial(node_takes, jobs)
    interceptor.before(is_settlement, partial(request_cancel, store, job), shows_life)
    rescuer = rescuer_of(watched)
    assert rescuer.take(rescuer.look()) == []
    assert interceptor.times == 2
    assert jobs.count_documents({"status": "processing", "lastHeartbeat": {"$gt": PAST}}) == 1


def node_takes(jobs: Collection) -> None:
    """A restart of Node recovers the claim, and Node claims the job at once; our token stays in the document."""
    peer = NodePeer(jobs)
    peer.recover(timedelta(days=-1))
    claimed = peer.claim("greet", LATER)
    assert claimed is not None
    assert claimed["claimToken"]


# --- Runs: what is lost, refused or cancelled in the second window is reported as that ---


@pytest.mark.parametrize("second", ["taken by node", "deleted"])
def test_claim_that_is_lost_before_its_cancellation_is_written_is_reported_as_lost(
    store: JobCollection, watched: JobCollection, jobs: Collection, interceptor: Interceptor, second: str
) -> None:
    (job,) = claim(store, 1)
    goes = partial(node_takes, jobs) if second == "taken by node" else partial(job_changes.delete, store, job.id)
    interceptor.before(is_settlement, partial(request_cancel, store, job), goes)
    assert settled(watched, transitions.release(job, LATER)) is Fate.LOST
    assert interceptor.times == 2
    assert jobs.count_documents({"status": "cancelled"}) == 0


def test_cancellation_that_the_server_refuses_is_reported_as_refused(
    store: JobCollection, db: Database, jobs: Collection
) -> None:
    (job,) = claim(store, 1)
    request_cancel(store, job)
    db.command("collMod", jobs.name, validator={"status": {"$ne": "cancelled"}})
    assert settled(store, transitions.release(job, LATER)) is Fate.REFUSED


@pytest.mark.parametrize(
    ("meanwhile", "reported"), [("requested", Fate.CANCELLED), ("taken", Fate.LOST), (None, Fate.REFUSED)]
)
def test_end_that_the_server_refuses_is_reported_as_what_became_of_the_claim_since(
    store: JobCollection,
    watched: JobCollection,
    db: Database,
    jobs: Collection,
    interceptor: Interceptor,
    meanwhile: str | None,
    reported: Fate,
) -> None:
    """Between the write that was refused and the read that shows what became of the claim."""
    (job,) = claim(store, 1)
    db.command("collMod", jobs.name, validator={"failReason": {"$exists": False}})
    acts: Mapping[str | None, Callable[[], object]] = {
        "requested": partial(request_cancel, store, job),
        "taken": partial(node_takes, jobs),
        None: lambda: None,
    }
    interceptor.before(lambda name, _: name == "find", acts[meanwhile])
    assert settled(watched, transitions.fail(job, LATER, Failure("why"))) is reported
    assert interceptor.times == 1
    assert jobs.count_documents({"status": "cancelled"}) == (reported is Fate.CANCELLED)


# --- What an end was decided from, and is something else by now ---

DECIDED_FROM: Final = [
    # As it was, and what is declared meanwhile: with that, the schedule goes on.
    ({}, {"repeatInterval": "0 * * * *"}),
    ({"repeatInterval": "not a line"}, {"repeatInterval": "0 * * * *"}),
    ({"repeatInterval": "0 * * * *", "timezone": "No/Where"}, {"timezone": "Europe/Berlin"}),
    ({"repeatInterval": "0 * * * *", "onExhausted": "fail"}, {"onExhausted": "continue"}),
]


@pytest.mark.parametrize("end", [transitions.fail, transitions.give_up])
@pytest.mark.parametrize(("before", "after"), DECIDED_FROM)
def test_end_of_a_schedule_is_not_written_once_it_is_another(
    store: JobCollection,
    jobs: Collection,
    end: Callable[[Job, Any, Failure], Transition],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> None:
    (claimed,) = claim(store, 1)
    jobs.update_one({}, {"$set": before}) if before else None
    job = queries.get_job(store, claimed.id)
    assert job is not None
    jobs.update_one({}, {"$set": after})
    stored = jobs.find_one()
    assert settled(store, end(job, LATER, Failure("why"))) is Fate.JOB_CHANGED
    assert jobs.find_one() == stored


@pytest.mark.parametrize("end", [transitions.complete, transitions.complete_claimed_with])
def test_job_that_has_become_a_schedule_is_not_completed(
    store: JobCollection, jobs: Collection, end: Callable[[Job, Any], Transition]
) -> None:
    (job,) = claim(store, 1)
    jobs.update_one({}, {"$set": {"repeatInterval": "0 * * * *"}})
    statements = settling.statements_for([(claim_id(job), end(job, LATER))], "r")
    assert list(settling.settle(store, statements).values()) == [Fate.JOB_CHANGED]
    assert jobs.count_documents({"status": "processing"}) == 1


@pytest.mark.parametrize(("before", "after"), DECIDED_FROM)
def test_schedule_that_is_declared_while_its_last_death_is_written_goes_on(
    store: JobCollection,
    watched: JobCollection,
    jobs: Collection,
    interceptor: Interceptor,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> None:
    claim(store, 1)
    jobs.update_one({}, {"$set": {"maxRescues": 0, **before}})
    interceptor.before(is_settlement, lambda: jobs.update_one({}, {"$set": after}))
    rescuer = rescuer_of(watched)
    (rescued,) = rescuer.take(rescuer.look())
    assert interceptor.times == 1
    assert rescued.after.status == "pending"
    assert jobs.count_documents({"status": "pending", "nextRunAt": {"$gt": PAST}}) == 1


# --- Requests to cancel: for the claim that was read, and no other ---


def is_request(name: str, command: Any) -> bool:
    return name == "findAndModify" and "cancelRequestedAt" in command["update"]["$set"]


def test_request_does_not_land_on_a_claim_that_node_has_made_meanwhile(
    store: JobCollection, watched: JobCollection, jobs: Collection, interceptor: Interceptor
) -> None:
    (job,) = claim(store, 1)
    interceptor.before(is_request, partial(node_takes, jobs))
    with pytest.raises(JobStateError, match="another library holds it"):
        Monque(watched.collection.database).sync.cancel_job(job.id)
    assert interceptor.times == 1
    assert jobs.count_documents({"cancelRequestedAt": {"$exists": True}}) == 0


def test_request_keeps_the_moment_of_the_one_that_was_faster(
    store: JobCollection, watched: JobCollection, jobs: Collection, interceptor: Interceptor
) -> None:
    (job,) = claim(store, 1)
    interceptor.before(is_request, partial(request_cancel, store, job))
    asked = Monque(watched.collection.database).sync.cancel_job(job.id)
    assert interceptor.times == 1
    assert asked is not None
    assert flat(asked).cancel_requested_at == PAST == flat(queries.get_job(store, job.id)).cancel_requested_at
