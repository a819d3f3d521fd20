"""Ended jobs that still owe a follow-up: no running scheduler knows their worker, or its `then` raises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ....jobs.follow_ups import OWED, OWING
from ...codec import OWN_OPTIONS, stored_follow_up
from ...driver.bounded_counts import first_of
from ...driver.commands import command
from ...fields import FIELD
from ...job_collection import JobCollection
from ...jobs import indexes
from .caps import Count, briefly

MOST_READ: Final = 1000
"""Jobs that are read."""


@dataclass(frozen=True, kw_only=True)
class Owed:
    """Jobs of one name that owe a follow-up.

    Attributes:
        name: The name.
        count: How many.
        since: When the first of them ended.
    """

    name: str
    count: Count
    since: datetime


@command("look for jobs that owe a follow-up", writes=False)
def owed(jobs: JobCollection, before: datetime, name: str | None = None) -> Sequence[Owed]:
    """Return the jobs, of one name or of all, that ended before a moment and owe a follow-up. Needs their index."""
    ended = FIELD["updated_at"]
    of_name = {} if name is None else {FIELD["name"]: name}
    is_owing = {
        FIELD["follow_up"]: stored_follow_up(OWED),
        **of_name,
        FIELD["status"]: {"$in": [status.value for status in OWING]},
    }
    pipeline = [
        *first_of(is_owing, MOST_READ),
        {
            "$group": {
                "_id": f"${FIELD['name']}",
                "read": {"$sum": 1},
                "count": {"$sum": {"$cond": [{"$lt": [f"${ended}", before]}, 1, 0]}},
                "since": {"$min": f"${ended}"},
            }
        },
        {"$sort": {"_id": 1}},
    ]
    collection = jobs.collection.with_options(codec_options=OWN_OPTIONS)
    hint = indexes.name_of(indexes.FOLLOW_UPS)
    rows = briefly(lambda: collection.aggregate(pipeline, hint=hint))
    is_capped = sum(row["read"] for row in rows) >= MOST_READ
    return [
        Owed(name=str(row["_id"]), count=Count(row["count"], is_capped), since=row["since"])
        for row in rows
        if row["count"]
    ]
