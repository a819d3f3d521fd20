"""Jobs that have ended and still owe a follow-up: no scheduler can pay, or the `then` of their worker fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ...jobs.follow_ups import OWED, OWING
from .. import indexes
from ..codec import OWN_OPTIONS
from ..commands import command
from ..fields import FIELD
from ..job_collection import JobCollection
from .limits import briefly

MOST_READ: Final = 1000
"""Jobs that are read."""


@dataclass(frozen=True, kw_only=True)
class Owed:
    """Jobs of one name that owe a follow-up.

    Attributes:
        name: The name.
        count: How many; a lower bound if there are very many.
        since: When the first of them ended.
    """

    name: str
    count: int
    since: datetime


@command("look for jobs that owe a follow-up", writes=False)
def owed(jobs: JobCollection, before: datetime) -> Sequence[Owed]:
    """Return the jobs that ended before a moment and owe a follow-up. Needs the index of follow-ups."""
    ended = FIELD["updated_at"]
    pipeline: list[dict[str, Any]] = [
        {"$match": {FIELD["follow_up"]: OWED, FIELD["status"]: {"$in": [status.value for status in OWING]}}},
        {"$limit": MOST_READ},
        {"$match": {ended: {"$lt": before}}},
        {"$group": {"_id": f"${FIELD['name']}", "count": {"$sum": 1}, "since": {"$min": f"${ended}"}}},
        {"$sort": {"_id": 1}},
    ]
    collection = jobs.collection.with_options(codec_options=OWN_OPTIONS)
    hint = indexes.name_of(indexes.FOLLOW_UPS)
    rows = briefly(lambda: collection.aggregate(pipeline, hint=hint))
    return [Owed(name=str(row["_id"]), count=row["count"], since=row["since"]) for row in rows]
