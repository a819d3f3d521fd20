"""The real side: the library's blocking functions on a real collection, at moments that the test says."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

import bson
from bson import ObjectId

from tests.support.jobs_in_memory import with_flat
from trio_monque.client.client_context import ClientContext
from trio_monque.clock import ServerClock
from trio_monque.exponential_backoff import Backoff
from trio_monque.jobs.conditional_write import Transition
from trio_monque.jobs.job import Job
from trio_monque.jobs.outcomes import CutShort, Discard, Discarded, Failed, Outcome, Snooze, Snoozed, Succeeded
from trio_monque.jobs.rescue_policy import RescuePolicy, decide_rescue
from trio_monque.jobs.retries_and_next_occurrences import RetryPolicy, decide
from trio_monque.options_and_defaults import ClientConfig
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import inserting
from trio_monque.store.jobs.inserting import Parcel

from .model import BASE_DELAY, LONGEST_DELAY, MAX_RESCUES, MAX_RETRIES, SOON
from .state import ModelJob

POLICY: Final = RetryPolicy(max_attempts=MAX_RETRIES, backoff=Backoff(base=BASE_DELAY, cap=LONGEST_DELAY, jitter=0.0))

RESCUES: Final = RescuePolicy(max_rescues=MAX_RESCUES, backoff=POLICY.backoff)


class SetClock(ServerClock):
    """The server's time, as the test sets it."""

    def __init__(self, moment: datetime) -> None:
        super().__init__()
        self.moment = moment

    def now(self) -> datetime:
        return self.moment

    def is_stale(self) -> bool:
        return False


class SetContext(ClientContext):
    """What the library's blocking calls stand on."""

    def __init__(self, jobs: JobCollection, moment: datetime) -> None:
        super().__init__(jobs, ClientConfig())
        self.clock: SetClock = SetClock(moment)


def transition_of(copy: Job, outcome: str, now: datetime, result: str) -> Transition:
    """What the library would write for this end of a run."""
    if outcome == "rescue":
        return decide_rescue(copy, now, RESCUES).transition
    return decide(copy, _outcome(outcome, result), now, POLICY)


def _outcome(outcome: str, result: str) -> Outcome:
    match outcome:
        case "succeed":
            return Succeeded(result)
        case "fail":
            return Failed(ValueError("no"))
        case "fail soon":
            return Failed(ValueError("no"), after=SOON)
        case "discard":
            return Discarded(Discard("enough"))
        case "snooze":
            return Snoozed(Snooze(after=SOON))
    assert outcome == "cut short"
    return CutShort()


def new_pair(job_id: ObjectId, now: datetime, *, delay: float = 0.0, **content: Any) -> tuple[ModelJob, Job]:
    """The same new job for both sides."""
    common: dict[str, Any] = {
        "id": job_id,
        "next_run_at": now + timedelta(seconds=delay),
        "created_at": now,
        "updated_at": now,
    }
    return ModelJob(**common, **content), with_flat(Job(name=content["name"], **common), **content)


def parcel_of(job: Job) -> Parcel:
    """As it is sent."""
    return inserting.parcel(job, bson.encode({"": job.data}))
