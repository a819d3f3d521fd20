"""The collection of what schedulers did in each minute: one document for a scheduler and a minute in which it worked.

Blocking. The `_id` has the minute first, so that a range of it is a range of time, and a random value of each start: an
instance that starts again within a minute writes a second document, and one that is sent twice is stored once.
That value counts, too, how often the server's clock was set back: a minute may come again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo import errors as driver

from ...jobs.minutes import KEPT_FOR, NUMBERS, ROW, Minute, Part, merged, minute_of
from ..codec import LENIENT
from ..driver.commands import command
from ..driver.types import Collection
from ..job_collection import JobCollection

VERSION: Final = 1

_DUPLICATE: Final = 11000

TTL: Final = IndexModel(
    [("at", ASCENDING)], name="trio_monque_minutes", expireAfterSeconds=int(KEPT_FOR.total_seconds())
)

MOST_READ: Final = 100_000
"""Documents of one answer at most, the latest ones: 26 hours of 64 instances."""

_LARGEST: Final = 2**63 - 1

# IndexOptionsConflict, IndexKeySpecsConflict.
_CONFLICTS: Final = frozenset({85, 86})


def name_of_minutes(collection_name: str) -> str:
    """Return the name of the collection beside the jobs."""
    return f"{collection_name}.minutes"


def _beside(jobs: JobCollection) -> Collection:
    return jobs.collection.database.get_collection(
        name_of_minutes(jobs.collection.name), codec_options=LENIENT, read_preference=jobs.collection.read_preference
    )


@command("create the index of the minutes")
def ensure_ttl(jobs: JobCollection) -> None:
    """Create the index by which old minutes are deleted; one that an operator has changed stays as it is."""
    try:
        _beside(jobs).create_indexes([TTL])
    except driver.OperationFailure as error:
        if error.code not in _CONFLICTS:
            raise


@command("write what was done in the last minutes")
def write(jobs: JobCollection, instance_id: str, incarnation: str, parts: Sequence[Part]) -> None:
    """Insert a document for each part; those that are there already stay as they are."""
    documents = [document_of(part, instance_id, incarnation) for part in parts]
    try:
        _beside(jobs).insert_many(documents, ordered=False)
    except driver.BulkWriteError as error:
        if any(one["code"] != _DUPLICATE for one in error.details["writeErrors"]):
            raise


def document_of(part: Part, instance_id: str, incarnation: str) -> dict[str, Any]:
    """Return the document of a part."""
    return {
        "_id": {"m": part.at, "i": instance_id, "r": f"{incarnation}-{part.steps}"},
        "v": VERSION,
        "at": part.at,
        "slots": part.slots,
        # A list, not a document by name: a job's name may contain dots and dollars.
        "n": [[name, *_short(row)] for name, row in part.rows.items()],
    }


def _short(row: Sequence[int]) -> list[Any]:
    """The first numbers, and of the histograms only the buckets that have something: place, count, place, count, ..."""
    numbers = [min(one, _LARGEST) for one in row[:NUMBERS]]
    return [*numbers, [one for place in range(NUMBERS, ROW) if row[place] for one in (place, row[place])]]


def _row(short: Sequence[Any]) -> list[int]:
    row = [*map(int, short[:NUMBERS]), *([0] * (ROW - NUMBERS))]
    buckets = short[NUMBERS]
    for place, count in zip(buckets[::2], buckets[1::2], strict=True):
        if not NUMBERS <= place < ROW:
            raise IndexError(place)
        row[place] = int(count)
    if min(row) < 0:
        raise ValueError("a negative number")
    return row


@command("read what was done in each minute", writes=False)
def read_minutes(jobs: JobCollection, since: datetime, until: datetime) -> Sequence[Minute]:
    """Return the minutes from `since` on, and before `until`, merged from what each scheduler wrote."""
    span = {"_id": {"$gte": {"m": since}, "$lt": {"m": until}}}
    found = _beside(jobs).find(span, sort=[("_id", DESCENDING)], limit=MOST_READ)
    return merged(part for part in map(_part, found) if part is not None)


def _part(document: Mapping[str, Any]) -> Part | None:
    try:
        if document["v"] != VERSION:
            return None
        key = document["_id"]  # Not `at`, which the server has not compared with the span.
        rows = {_name(name): _row(numbers) for name, *numbers in document["n"]}
        return Part(minute_of(key["m"]), max(0, int(document["slots"])), rows, by=str(key["i"]))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
        return None  # Damaged: the others are shown.


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(name)
    return name
