"""Documents that no scheduler runs: they are found, and looked at again after somebody may have mended them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import bson
from bson.errors import BSONError
from pymongo.cursor import RawBatchCursor

from ..errors import BrokenDocumentError
from ..jobs.broken_document import BrokenDocument
from ..jobs.job import JobStatus
from ..log import logger_of
from ..safe_text import shown
from .codec import OWN_OPTIONS, RawDocument
from .connection import JobCollection
from .fields import FIELD
from .known import Known
from .outcomes import command

MOST_IN_A_BATCH: Final = 1000
# What a value may have, and a document show, in full.
MOST_BYTES_SHOWN: Final = 1024
MOST_FIELDS_SHOWN: Final = 100

logger = logger_of("store")

# Of what is passed over, at once: each of them may have to be read alone.
MOST_LOOKED_AT: Final = 100

_BY_ID: Final = {"_id": 1}
_BUT_HEAVY: Final = {FIELD[name]: False for name in ("data", "result", "progress", "saved", "errors")}
_LENIENT: Final = OWN_OPTIONS.with_options(unicode_decode_error_handler="replace")


class Look:
    """One look through the whole collection, batch by batch: the server's cursor, which each batch moves on."""

    def __init__(self) -> None:
        self._batches: RawBatchCursor[Any] | None = None
        self.is_over = False

    def next_batch(self, jobs: JobCollection) -> bytes:
        if self._batches is None:
            # Not by ids: a condition on `_id` finds those of one type only. Raw: one that cannot be decoded must
            # not spoil the others.
            self._batches = jobs.collection.find_raw_batches({}, batch_size=MOST_IN_A_BATCH)
        return next(self._batches, b"")

    def end(self) -> None:
        self.is_over = True
        if self._batches is not None:
            self._batches.close()


@command("look for broken documents", writes=False)
def sift(jobs: JobCollection, look: Look, limit: int) -> list[BrokenDocument]:
    """The broken ones among the next documents, a thousand or 16 MB; at most `limit`."""
    found: list[BrokenDocument] = []
    batch = look.next_batch(jobs)
    for raw, document in _documents(jobs, batch):
        problem = _problem(jobs, document)
        if problem is not None:
            shown = _shown(raw)
            found.append(BrokenDocument(shown.get("_id"), problem, shown))
            if len(found) == limit:
                break
    if not batch or len(found) == limit:
        look.end()
    return found


def _documents(jobs: JobCollection, batch: bytes) -> Iterator[tuple[bytes, Any]]:
    """Each document as it is, and as the codec takes it."""
    parts = []
    place = 0
    while place < len(batch):
        end = place + int.from_bytes(batch[place : place + 4], "little")
        parts.append(batch[place:end])
        place = end
    try:
        return zip(parts, bson.decode_all(batch, jobs.codec.reading), strict=True)
    except (BSONError, UnicodeDecodeError):
        return ((part, RawDocument(part, jobs.codec.raw)) for part in parts)


def _problem(jobs: JobCollection, document: Any) -> str | None:
    try:
        job = jobs.codec.decode(document)
    except BrokenDocumentError as error:
        return error.problem
    if job.status is JobStatus.PENDING and job.claimed_by is not None:
        return f"it is pending, and still bears {FIELD['claimed_by']}={shown(job.claimed_by)}"
    return None


# --- What is shown ---


def _shown(raw: bytes) -> dict[str, Any]:
    try:
        decoded = bson.decode(raw, codec_options=_LENIENT)
    except BSONError as error:
        return {"": f"{len(raw)} bytes that cannot be decoded ({error})"}
    shown = {}
    for place, (field, value) in enumerate(decoded.items()):
        if place == MOST_FIELDS_SHOWN:
            shown["..."] = f"{len(decoded) - place} fields more"
            break
        shown[field[:MOST_BYTES_SHOWN]] = _value_shown(value)
    return shown


def _value_shown(value: Any) -> Any:
    try:
        size = len(bson.encode({"": value})) - 7
    except (BSONError, ValueError, OverflowError):
        return value  # A date that only its milliseconds can say: as small as it is strange.
    return value if size <= MOST_BYTES_SHOWN else f"({size} bytes)"


# --- Looking again ---


def are_old(jobs: JobCollection) -> bool:
    """Whether it is time to look again at what is passed over."""
    return jobs.broken.is_old() or jobs.left_over.is_old()


@command("look again at broken documents", writes=False)
def look_again(jobs: JobCollection) -> None:
    """Forgets, of what is passed over, what was mended or is gone. One round trip or two, once a minute at most."""
    if jobs.broken:
        _look_at_broken(jobs)
    if jobs.left_over:
        _look_at_left_over(jobs)


def _look_at_broken(jobs: JobCollection) -> None:
    asked = jobs.broken.to_look_at(MOST_LOOKED_AT)
    wrong = Known()
    # Without what may be large, at first. It may be just that which cannot be decoded: what is well without it
    # is read whole.
    for document in jobs.raw.find({"_id": {"$in": asked}}, _BUT_HEAVY, hint=_BY_ID):
        own_id = _shown(document.raw).get("_id")
        problem = _problem(jobs, document) or _problem_of_all(jobs, own_id)
        if problem is not None:
            wrong.add(own_id)
            if jobs.report_broken(own_id, problem):  # Another than before: somebody has tried.
                logger.warning("document %s is no job still: %s", own_id, problem)
    for document_id in asked:
        if document_id not in wrong:
            jobs.broken.discard(document_id)


def _problem_of_all(jobs: JobCollection, document_id: object) -> str | None:
    document = jobs.raw.find_one({"_id": document_id}, hint=_BY_ID)
    return None if document is None else _problem(jobs, document)


def _look_at_left_over(jobs: JobCollection) -> None:
    asked = jobs.left_over.to_look_at(MOST_LOOKED_AT)
    pending = {FIELD["status"]: JobStatus.PENDING.value, FIELD["claimed_by"]: {"$ne": None}, "_id": {"$in": asked}}
    still = {document["_id"] for document in jobs.collection.find(pending, ["_id"], hint=_BY_ID)}
    for document_id in asked:
        if document_id not in still:
            jobs.left_over.discard(document_id)
