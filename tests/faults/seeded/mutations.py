"""Guards of the library, to be taken out one at a time: the schedules must find each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime
from typing import Any, Final

import pytest
from pymongo import UpdateMany, UpdateOne

from trio_monque.client import rescuer
from trio_monque.engine.lease import LeaseTerms
from trio_monque.jobs import transitions
from trio_monque.jobs.claim_stamps_and_fences import ClaimStamp
from trio_monque.jobs.conditional_write import applied
from trio_monque.jobs.job import Job
from trio_monque.store.driver.types import ObjectId
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import claiming, settling, settling_statements
from trio_monque.store.reads import queries

Mutation = Callable[[pytest.MonkeyPatch], None]


def _without(kind: Callable[..., Any], fields: tuple[str, ...]) -> Callable[..., Any]:
    def made(filter: dict[str, Any], update: object, **options: Any) -> Any:  # noqa: A002  # The driver's name.
        return kind({name: one for name, one in filter.items() if name not in fields}, update, **options)

    return made


def _settling_without(*fields: str) -> Mutation:
    def mutate(patch: pytest.MonkeyPatch) -> None:
        for kind in (UpdateOne, UpdateMany):
            patch.setattr(settling_statements, kind.__name__, _without(kind, fields))

    return mutate


def _without_lease(patch: pytest.MonkeyPatch) -> None:
    """A run goes on until a write shows that its claim is gone."""
    patch.setattr(LeaseTerms, "lease_deadline", lambda self, sent: math.inf)
    patch.setattr(LeaseTerms, "cleaned_up_by", lambda self, sent: math.inf)


def _without_receipts(patch: pytest.MonkeyPatch) -> None:
    """What was written, and its answer lost, is not known again."""
    fate = settling.fate_of

    def blind(statement: settling.Statement, document: Mapping[str, Any]) -> settling.Fate:
        return fate(statement, {**document, "receipt": None})

    patch.setattr(settling, "fate_of", blind)


def _without_resolving(patch: pytest.MonkeyPatch) -> None:
    """A claim whose answer was lost is taken for held."""

    asked: dict[ClaimStamp, Sequence[ObjectId]] = {}
    take, take_one = claiming.take, claiming.take_one

    def remembered(
        jobs: JobCollection, chosen: Sequence[Job], now: datetime, stamp: ClaimStamp, followed: Set[str]
    ) -> claiming.TakenJobs:
        asked[stamp] = [job.id for job in chosen]
        return take(jobs, chosen, now, stamp, followed)

    def one_remembered(jobs: JobCollection, job_id: ObjectId, *rest: Any) -> claiming.TakenJobs:
        asked[next(one for one in rest if isinstance(one, ClaimStamp))] = [job_id]
        return take_one(jobs, job_id, *rest)

    def guess(jobs: JobCollection, stamp: ClaimStamp, beat: datetime) -> Sequence[Job]:
        seen = [queries.get_job(jobs, job_id) for job_id in asked.get(stamp, ())]
        return [applied(job, transitions.claim([job.name], stamp.locked_at, stamp)) for job in seen if job is not None]

    patch.setattr(claiming, "take", remembered)
    patch.setattr(claiming, "take_one", one_remembered)
    patch.setattr(claiming, "resolve", guess)


def _without_observing(patch: pytest.MonkeyPatch) -> None:
    """A sign of life is overlooked."""
    patch.setattr(rescuer, "mark_of", lambda job: (job.claim.by, job.claim.since, job.claim.token))
    _settling_without("lastHeartbeat", "renewedAt")(patch)


MUTATIONS: Final[Mapping[str, Mutation]] = {
    "no lease": _without_lease,
    "no receipts": _without_receipts,
    "a claim is guessed": _without_resolving,
    "signs of life are overlooked": _without_observing,
    "settled without the fence": _settling_without("claimedBy", "lockedAt", "claimToken"),
    "requests to cancel are wiped": _settling_without("cancelRequestedAt"),
}
