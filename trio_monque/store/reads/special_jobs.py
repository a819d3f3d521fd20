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
from ..driver.bounded_counts import first_of
from ..driver.commands import command
from ..driver.types import Collection
from ..fields import FIELD
from ..job_collection import JobCollection
from ..jobs import indexes

MOST_READ: Final = 5_000
"""Jobs that are read to find those that recur, if the index of schedules is missing."""

MOST_IN_BRIEF: Final = 1_000
"""Schedules that are read for an overview."""

_STATUS, _SINCE, _CRON, _DUE = (FIELD[name] for name in ("status", "claim.since", "schedule.cron", "next_run_at"))


@command("read the running jobs", writes=False)
def running_jobs(jobs: JobCollection, instance: str | None, most: int) -> JobList:
    """Return the jobs that run longest: of one instance, or of all."""
    condition: dict[str, Any] = {_STATUS: JobStatus.PROCESSING.value}
    if instance is not None:
        condition[FIELD["claim.by"]] = instance

    def read(collection: Collection) -> list[Any]:
        find = partial(collection.find, condition, sort={_SINCE: ASCENDING}, limit=most + 1)
        # The server sorts the keys, and reads the documents of the first ones only.
        return indexes.hinted(indexes.HELD, lambda hint: list(find(hint=hint)))

    found, others = jobs.sorted_out(read)
    return JobList(jobs=found[:most], is_capped=len(found) + len(others) > most)


@command("read the schedules", writes=False)
def recurring_jobs(jobs: JobCollection, most: int) -> JobList:
    """Return the recurring jobs, next run first.

    Without their index, because no client of this library has declared one, it reads MOST_READ live jobs with a unique
    key, as declared schedules have one.
    """
    is_without_index = False

    def read(collection: Collection) -> list[Any]:
        def by_next_run(hint: str | None) -> list[Any]:
            nonlocal is_without_index
            is_without_index = hint is None
            if hint is None:
                return _with_unique_key(collection, most)
            order = {_DUE: ASCENDING, FIELD["id"]: ASCENDING}
            return list(collection.find({_CRON: {"$exists": True}}, sort=order, limit=most + 1, hint=hint))

        return indexes.hinted(indexes.SCHEDULES, by_next_run)

    found = [job for job in jobs.decoded(read) if job.schedule is not None]
    return JobList(jobs=found[:most], is_capped=is_without_index or len(found) > most)


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
            return _with_unique_key(collection, most, most)
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


def _with_unique_key(collection: Collection, most: int, most_read: int = MOST_READ) -> list[Any]:
    live = {
        FIELD["name"]: {"$gte": ""},
        FIELD["unique_key"]: {"$exists": True},
        _STATUS: {"$in": [JobStatus.PENDING.value, JobStatus.PROCESSING.value]},
    }
    steps = [*first_of(live, most_read), {"$match": {_CRON: {"$exists": True}}}, {"$sort": {_DUE: ASCENDING}}]
    steps.append({"$limit": most + 1})
    find = partial(collection.aggregate, steps)
    return indexes.hinted(indexes.UNIQUE_KEY, lambda hint: list(find(**indexes.hinting(hint))))
