"""The jobs that are in `processing`, by their holders: who holds them, and since when the claims were not renewed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

from bson import ObjectId

from ....jobs.claim_stamps_and_fences import claimed_at, is_ours, last_sign_of_life
from ....jobs.instance import is_alive
from ....jobs.job import Job
from ....jobs.job_parts import NO_CLAIM
from ....jobs.rescue_policy import lease_of
from ...codec import LENIENT
from ...driver.bounded_counts import first_of
from ...driver.commands import command
from ...fields import BUT_HEAVY, FIELD
from ...job_collection import JobCollection
from ...jobs import indexes
from ...jobs.rescuing import CLAIM_VIEW, CLAIMED, IN_ORDER
from .caps import Count, briefly

MOST_CLAIMS: Final = 5_000
"""Running jobs that are looked at: some 50 ms of the server's time."""


MOST_HELD: Final = 100_000
"""Running jobs that are counted by their holders."""


@dataclass(frozen=True, kw_only=True)
class RunsOfName:
    """The running jobs of one name that one holder has.

    Attributes:
        number: How many.
        longest: The one that was claimed first.
        since: When that was.
        latest: When the last one was claimed.
    """

    number: int
    longest: ObjectId
    since: datetime
    latest: datetime


@dataclass(frozen=True, kw_only=True)
class Holder:
    """What one instance, or a process of another library, holds.

    Attributes:
        instance_id: The `claimedBy` of the jobs; None for jobs in `processing` without a holder.
        is_ours: This library made the claims.
        held: How many jobs it holds.
        silent: How many of these claims count as not renewed: for more than two of their heartbeat intervals.
        silent_since: The earliest last sign of life among these.
        lease: Seconds after which another instance may take them.
        example: One of them.
        claimed_at: The earliest claim.
        by_name: The jobs that it holds, by their names.
    """

    instance_id: str | None
    is_ours: bool
    held: Count
    silent: Count
    silent_since: datetime | None
    lease: float
    example: ObjectId
    claimed_at: datetime
    by_name: Mapping[str, RunsOfName] = field(default_factory=dict)


@command("read the running jobs", writes=False)
def look_at_claims(jobs: JobCollection, now: datetime, name: str | None = None) -> Sequence[Holder]:
    """Return the holders of MOST_CLAIMS running jobs at most, of one name or of all. Needs the index `HELD`."""
    of_name = {} if name is None else {FIELD["name"]: name}
    found = jobs.decoded(
        lambda collection: indexes.hinted(
            indexes.HELD,
            lambda hint: briefly(
                partial(
                    collection.find,
                    {**CLAIMED, **of_name},
                    CLAIM_VIEW,
                    sort=IN_ORDER,
                    limit=MOST_CLAIMS,
                    hint=hint,
                )
            ),
        )
    )
    by_holder: dict[tuple[str | None, bool], list[Job]] = defaultdict(list)
    for job in found:
        by_holder[(job.claim or NO_CLAIM).by, is_ours(job)].append(job)
    is_capped = len(found) >= MOST_CLAIMS
    return [_holder(key[0], held, now, is_capped=is_capped) for key, held in by_holder.items()]


@command("count the running jobs by their holders", writes=False)
def numbers_held(jobs: JobCollection) -> Mapping[str, Count]:
    """Return how many jobs each instance holds, of MOST_HELD running jobs at most. Reads the index `HELD` alone."""
    holder = FIELD["claim.by"]
    steps = [*first_of(CLAIMED, MOST_HELD + 1), {"$group": {"_id": f"${holder}", "count": {"$sum": 1}}}]
    collection = jobs.collection.with_options(codec_options=LENIENT)
    rows = indexes.hinted(indexes.HELD, lambda hint: list(collection.aggregate(steps, **indexes.hinting(hint))))
    is_capped = sum(row["count"] for row in rows) > MOST_HELD
    return {row["_id"]: Count(row["count"], is_capped) for row in rows if isinstance(row["_id"], str)}


@command("read the jobs of the instance", writes=False)
def jobs_held_by(jobs: JobCollection, instance_id: str, limit: int) -> Sequence[Job]:
    """Return the running jobs that an instance holds, the longest held first, without their large fields."""
    held = {**CLAIMED, FIELD["claim.by"]: instance_id}
    return jobs.decoded(
        lambda collection: indexes.hinted(
            indexes.HELD,
            lambda hint: list(collection.find(held, BUT_HEAVY, sort=IN_ORDER, limit=limit, hint=hint)),
        )
    )


def _holder(instance_id: str | None, held: Sequence[Job], now: datetime, *, is_capped: bool) -> Holder:
    silent = sorted((sign for job in held if (sign := _silent_since(job, now)) is not None), key=lambda one: one[0])
    since, job = silent[0] if silent else (None, held[0])
    by_name: dict[str, list[Job]] = defaultdict(list)
    for one in held:
        by_name[one.name].append(one)
    return Holder(
        instance_id=instance_id,
        is_ours=is_ours(held[0]),
        held=Count(len(held), is_capped),
        silent=Count(len(silent), is_capped),
        silent_since=since,
        lease=lease_of(job),
        example=job.id,
        claimed_at=min(claimed_at(job) for job in held),
        by_name={name: _runs_of(jobs) for name, jobs in by_name.items()},
    )


def _runs_of(jobs: Sequence[Job]) -> RunsOfName:
    first = min(jobs, key=claimed_at)
    return RunsOfName(number=len(jobs), longest=first.id, since=claimed_at(first), latest=max(map(claimed_at, jobs)))


def _silent_since(job: Job, now: datetime) -> tuple[datetime, Job] | None:
    last = last_sign_of_life(job) or claimed_at(job)
    return None if is_alive(last, (job.claim or NO_CLAIM).heartbeat_interval, now) else (last, job)
