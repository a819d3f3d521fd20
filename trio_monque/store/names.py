"""Which names there are jobs of: what rests by stepping through an index from name to name, and all that runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymongo import ASCENDING

from ..jobs.job import JobStatus
from . import indexes
from .codec import LENIENT
from .commands import command
from .connection import JobCollection
from .fields import FIELD
from .types import ClientSession

_STATUS, _NAME = FIELD["status"], FIELD["name"]


@command("look for the names of jobs", writes=False, aggregates=True)
def names(jobs: JobCollection) -> set[str]:
    """The names that there are jobs of: one key of an index for each, and all claims."""
    collection = jobs.collection.with_options(codec_options=LENIENT)
    running = {_STATUS: JobStatus.PROCESSING.value}
    only_name = {"_id": False, _NAME: True}
    held = indexes.hinted(indexes.HELD, lambda hint: list(collection.find(running, only_name, hint=hint)))
    found = {document[_NAME] for document in held if type(document.get(_NAME)) is str}
    return (found | set(names_at_rest(jobs, indexes.AT_REST))) - {""}


def names_at_rest(
    jobs: JobCollection, statuses: Sequence[JobStatus], most: int | None = None, session: ClientSession | None = None
) -> Sequence[str]:
    """So many names that have jobs of these statuses, which are one, or all at rest; part of a command.

    In one answer, and one key for each name: the server skips through the index (DISTINCT_SCAN), as it does of a
    partial one only where the statuses are just those, and the name has a bound. Bounded as it is, it leaves out what
    is no text.
    """
    values = [status.value for status in statuses]
    steps: list[dict[str, Any]] = [
        {"$match": {_NAME: {"$gte": ""}, _STATUS: values[0] if len(values) == 1 else {"$in": values}}},
        {"$sort": {_NAME: ASCENDING, _STATUS: ASCENDING}},
        {"$group": {"_id": "$" + _NAME}},
    ]
    if most is not None:
        steps.append({"$limit": most})
    collection = jobs.collection.with_options(codec_options=LENIENT)
    found = indexes.hinted(
        indexes.CLAIM,
        lambda hint: list(collection.aggregate(steps, session=session, **indexes.hinting(hint))),
    )
    return [one["_id"] for one in found if type(one["_id"]) is str]
