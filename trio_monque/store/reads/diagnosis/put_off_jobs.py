"""Jobs that have run, are due in the far future, and hold a unique key until then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from ....jobs.job import JobStatus
from ...codec import LENIENT
from ...driver.bounded_counts import first_of
from ...driver.commands import command
from ...fields import FIELD
from ...job_collection import JobCollection
from ...jobs import indexes
from .caps import briefly
from .jobs import MOST_READ

PUT_OFF_FOR: Final = timedelta(days=7)
"""How far away a job is due that counts as put off. A backoff is at most a day."""

_NAME, _KEY, _STATUS, _DUE = (FIELD[name] for name in ("name", "unique_key", "status", "next_run_at"))


@dataclass(frozen=True, kw_only=True)
class PutOffJob:
    """A pending job with a unique key that its handler has put off.

    Attributes:
        id, name, key: Of the job.
        due: When it is due.
    """

    id: Any
    name: str
    key: str
    due: datetime


@command("look for keys of jobs that were put off", writes=False)
def put_off_jobs(jobs: JobCollection, now: datetime, name: str | None = None) -> Sequence[PutOffJob]:
    """Return such jobs among MOST_READ with a unique key, of one name or of all; no schedules. Needs `UNIQUE_KEY`."""
    of_name = {"$gte": ""} if name is None else name
    # Both statuses are in the index, and no key has them: with one alone, the server would read more than the limit.
    live = [JobStatus.PENDING.value, JobStatus.PROCESSING.value]
    condition = {_NAME: of_name, _KEY: {"$exists": True}, _STATUS: {"$in": live}}
    put_off: Mapping[str, Any] = {
        _STATUS: JobStatus.PENDING.value,
        _DUE: {"$gt": now + PUT_OFF_FOR},
        FIELD["attempts"]: {"$gte": 1},
        FIELD["schedule.cron"]: None,
        **{field: {"$type": "string"} for field in (_NAME, _KEY)},
    }
    steps = [*first_of(condition, MOST_READ), {"$match": put_off}, {"$project": dict.fromkeys((_NAME, _KEY, _DUE), 1)}]
    collection = jobs.collection.with_options(codec_options=LENIENT)
    found = briefly(partial(collection.aggregate, steps, hint=indexes.name_of(indexes.UNIQUE_KEY)))
    jobs_found = [
        PutOffJob(id=one[FIELD["id"]], name=one[_NAME], key=one[_KEY], due=one[_DUE])
        for one in found
        if type(one[_DUE]) is datetime  # A date beyond the year 9999 has another type.
    ]
    return sorted(jobs_found, key=lambda one: one.due, reverse=True)
