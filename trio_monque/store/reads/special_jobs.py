"""Jobs that an operator asks for by what they are: those that run, and those that recur. Each read is bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from bson import ObjectId
from pymongo import ASCENDING

from ...jobs.job import JobStatus
from ...jobs.views import JobList, ScheduleBrief
from ..codec import LENIENT
from ..driver.bounded_counts import Stages, first_of
from ..driver.commands import command
from ..driver.raw_batches import aggregated_in_batches, found_in_batches
from ..fields import FIELD
from ..job_collection import JobCollection
from ..jobs import indexes
from .bounded_bytes import ReadJobs, read_jobs

MOST_READ: Final = 5_000
"""Jobs that are read to find those that recur, if the index of schedules is missing."""

MOST_IN_BRIEF: Final = 1_000
"""Schedules that are read for an overview."""

_STATUS, _SINCE, _CRON, _DUE = (FIELD[name] for name in ("status", "claim.since", "schedule.cron", "next_run_at"))
_LIVE_WITH_KEY: Final[Mapping[str, Any]] = {
    FIELD["name"]: {"$gte": ""},
    FIELD["unique_key"]: {"$exists": True},
    _STATUS: {"$in": [JobStatus.PENDING.value, JobStatus.PROCESSING.value]},
}


@command("read the running jobs", writes=False)
def running_jobs(jobs: JobCollection, instance: str | None, most: int) -> JobList:
    """Return the jobs that run longest: of one instance, or of all."""
    condition: dict[str, Any] = {_STATUS: JobStatus.PROCESSING.value}
    if instance is not None:
        condition[FIELD["claim.by"]] = instance

    def longest_first(hint: str | None) -> ReadJobs:
        # The server sorts the keys, and reads the documents of the first ones only.
        order = {_SINCE: ASCENDING}
        return read_jobs(jobs, found_in_batches(jobs.collection, condition, sort=order, limit=most + 1, hint=hint))

    found = indexes.hinted(indexes.HELD, longest_first)
    return JobList(jobs=found.jobs[:most], is_capped=found.is_cut or found.number > most)


@command("read the schedules", writes=False)
def recurring_jobs(jobs: JobCollection, most: int) -> JobList:
    """Return the recurring jobs, next run first.

    Without their index, because no client of this library has declared one, it reads MOST_READ live jobs with a unique
    key, as declared schedules have one.
    """
    is_without_index = False

    def among_unique_keys(hint: str | None) -> ReadJobs:
        steps = _with_unique_key(most, MOST_READ)
        return read_jobs(jobs, aggregated_in_batches(jobs.collection, steps, **indexes.hinting(hint)))

    def by_next_run(hint: str | None) -> ReadJobs:
        nonlocal is_without_index
        is_without_index = hint is None
        if hint is None:
            return indexes.hinted(indexes.UNIQUE_KEY, among_unique_keys)
        order = {_DUE: ASCENDING, FIELD["id"]: ASCENDING}
        recurring = {_CRON: {"$exists": True}}
        return read_jobs(jobs, found_in_batches(jobs.collection, recurring, sort=order, limit=most + 1, hint=hint))

    read = indexes.hinted(indexes.SCHEDULES, by_next_run)
    found = [job for job in read.jobs if job.schedule is not None]
    return JobList(
        jobs=found[:most],
        is_capped=is_without_index or read.is_cut or len(found) > most,
        is_without_index=is_without_index,
    )


@command("count the live jobs with a unique key", writes=False)
def searches_all_keys(jobs: JobCollection) -> bool:
    """Return whether `recurring_jobs` reads all live jobs with a unique key, if it has no index of schedules."""
    number = indexes.hinted(
        indexes.UNIQUE_KEY,
        lambda hint: jobs.collection.count_documents(_LIVE_WITH_KEY, limit=MOST_READ + 1, **indexes.hinting(hint)),
    )
    return number <= MOST_READ


@command("read the schedules in brief", writes=False)
def schedules_in_brief(jobs: JobCollection, most: int = MOST_IN_BRIEF) -> tuple[Sequence[ScheduleBrief], bool]:
    """Return the recurring jobs, next run first, and whether there may be more. Without their index: see above."""
    collection = jobs.collection.with_options(codec_options=LENIENT)
    shown = dict.fromkeys((FIELD[name] for name in ("name", "unique_key", "status", "next_run_at")), True)
    is_without_index = False

    def in_order(hint: str | None) -> list[Any]:
        nonlocal is_without_index
        is_without_index = hint is None
        if hint is None:
            # Without the rest of the documents: they may be large.
            find = partial(collection.aggregate, [*_with_unique_key(most, most), {"$project": shown}])
            return indexes.hinted(indexes.UNIQUE_KEY, lambda by_key: list(find(**indexes.hinting(by_key))))
        order = {_DUE: ASCENDING, FIELD["id"]: ASCENDING}
        return list(collection.find({_CRON: {"$exists": True}}, shown, sort=order, limit=most + 1, hint=hint))

    found = indexes.hinted(indexes.SCHEDULES, in_order)
    brief = [
        ScheduleBrief(
            id=one[FIELD["id"]],
            name=one[FIELD["name"]],
            unique_key=one.get(FIELD["unique_key"]),
            status=one[_STATUS],
            at=one[_DUE],
        )
        for one in found[:most]
        if _is_schedule(one)
    ]
    return brief, is_without_index or len(found) > most


def _is_schedule(document: Mapping[str, Any]) -> bool:
    # Other programs may have written anything. By exact type: `Code` is a `str` that has no hash.
    return (
        type(document[FIELD["id"]]) is ObjectId
        and type(document.get(FIELD["name"])) is str
        and type(document.get(FIELD["unique_key"])) in (str, type(None))
        and document.get(_STATUS) in list(JobStatus)
        and type(document.get(_DUE)) is datetime
    )


def _with_unique_key(most: int, most_read: int) -> Stages:
    """Return the stages that find the recurring jobs among live ones with a unique key, next run first."""
    return [*first_of(_LIVE_WITH_KEY, most_read), *first_of({_CRON: {"$exists": True}}, most + 1, {_DUE: ASCENDING})]
