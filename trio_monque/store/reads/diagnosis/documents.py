"""Documents that no scheduler can run: broken ones, and those without room for a claim.

The whole collection is read on request only (`broken_documents.sift`). These questions read the heads of the queues,
which is where schedulers meet such documents, and what the indexes show of fields with values of a wrong type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pymongo import ASCENDING, IndexModel

from ....jobs.job import JobStatus
from ....jobs.views import BrokenDocument
from ...broken.broken_documents import LARGEST_DOCUMENT, ROOM_FOR_A_CLAIM, broken_among
from ...codec import LENIENT
from ...driver.bounded_counts import Stages, first_of, joined
from ...driver.commands import command, in_chunks
from ...driver.raw_batches import aggregated_in_batches, found_in_batches
from ...fields import BUT_HEAVY, FIELD
from ...job_collection import JobCollection
from ...jobs import indexes
from .caps import briefly

MOST_READ: Final = 5_000
MOST_FOUND: Final = 100
NEARLY_FULL: Final = LARGEST_DOCUMENT - (1 << 20)
"""Bytes from which on a job may have no room for its progress, its result or its errors."""

_NAMES_AT_ONCE: Final = 50
# Every type but the right one, and arrays: for those, the server would read the whole index.
_NOT_A_DATE: Final = (
    "double",
    "string",
    "object",
    "binData",
    "objectId",
    "bool",
    "int",
    "long",
    "decimal",
    "timestamp",
)
_NOT_TEXT: Final = ("double", "object", "binData", "objectId", "bool", "date", "int", "long", "decimal", "timestamp")


@dataclass(frozen=True, kw_only=True)
class FullDocument:
    """A pending job that is as large as MongoDB allows, or nearly.

    Attributes:
        id, name: Of the job.
        size: Its bytes.
    """

    id: Any
    name: str
    size: int

    @property
    def is_claimable(self) -> bool:
        """Whether the document has room for a claim."""
        return self.size <= LARGEST_DOCUMENT - ROOM_FOR_A_CLAIM


@command("look for oversized documents", writes=False)
def full_documents(jobs: JobCollection, names: Sequence[str]) -> Sequence[FullDocument]:
    """Return the large ones at the heads of these names' queues. Needs the claim index."""
    size = {"$bsonSize": "$$ROOT"}
    steps: Stages = [
        {"$project": {"name": f"${FIELD['name']}", "size": size}},
        {"$match": {"size": {"$gte": NEARLY_FULL}}},
        {"$limit": MOST_FOUND},
    ]
    collection = jobs.collection.with_options(codec_options=LENIENT)
    return [
        FullDocument(id=one["_id"], name=str(one["name"]), size=one["size"])
        for pipeline in _heads(jobs, names, steps)
        for one in briefly(partial(collection.aggregate, pipeline, hint=indexes.name_of(indexes.CLAIM)))
    ]


@command("look for broken documents", writes=False)
def broken_at_the_heads(jobs: JobCollection, names: Sequence[str]) -> Sequence[BrokenDocument]:
    """Return broken documents at the heads of these names' queues. Needs the claim index."""
    found: list[BrokenDocument] = []
    for pipeline in _heads(jobs, names, [{"$project": BUT_HEAVY}]):
        hint = indexes.name_of(indexes.CLAIM)
        for batch in briefly(partial(aggregated_in_batches, jobs.collection, pipeline, hint=hint)):
            found += broken_among(jobs, batch, MOST_FOUND - len(found))
            if len(found) == MOST_FOUND:
                return found
    return found


def _heads(jobs: JobCollection, names: Sequence[str], steps: Stages) -> list[Stages]:
    """Return pipelines that read the earliest jobs of each name, MOST_READ together."""
    most = max(MOST_READ // max(len(names), 1), 1)
    return [
        joined(jobs.collection, (_head(name, most) + steps for name in chunk))
        for chunk in in_chunks(names, _NAMES_AT_ONCE)
    ]


def _head(name: str, most: int) -> Stages:
    pending = {FIELD["name"]: name, FIELD["status"]: JobStatus.PENDING.value}
    return first_of(pending, most, {FIELD["next_run_at"]: ASCENDING})


@command("look for documents without a due date", writes=False)
def has_undated(jobs: JobCollection) -> bool:
    """Return whether a document that does not run has no due date, or one of a wrong type. False without the index."""

    def look(hint: str | None) -> bool:
        condition = {"$or": _wrong(indexes.LISTING), FIELD["status"]: {"$ne": JobStatus.PROCESSING.value}}
        return hint is not None and bool(briefly(lambda: jobs.raw.find(condition, {"_id": True}, limit=1, hint=hint)))

    return indexes.hinted(indexes.LISTING, look)


@command("look for fields of a wrong type", writes=False)
def wrong_by_index(jobs: JobCollection, index: IndexModel) -> Sequence[BrokenDocument]:
    """Return documents whose first field in the index is missing or of a wrong type. Reads these keys only."""
    at_rest = index.document.get("partialFilterExpression", {})
    condition = {**at_rest, "$or": _wrong(index)}
    found: list[BrokenDocument] = []
    hint = indexes.name_of(index)
    for batch in briefly(partial(found_in_batches, jobs.collection, condition, BUT_HEAVY, hint=hint, limit=MOST_FOUND)):
        found += broken_among(jobs, batch, MOST_FOUND - len(found))
    return found


def _wrong(index: IndexModel) -> list[Mapping[str, Any]]:
    """Return conditions. A document with a wrong value in the first field of the index meets one of them."""
    field = next(iter(index.document["key"]))
    wrong = _NOT_TEXT if field == FIELD["name"] else _NOT_A_DATE
    return [{field: None}, {field: {"$type": list(wrong)}}]
