"""Lists broken documents, which no scheduler can run, and looks at skipped ones again: they may have been repaired."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import bson
from bson.errors import BSONError

from ...error_types import BrokenDocumentError
from ...jobs.cron import look_for_zones_again
from ...jobs.job import JobStatus
from ...jobs.views import BrokenDocument
from ...log import logger_of
from ...safe_text import shown
from ..codec import LENIENT, RawDocument
from ..driver.commands import BY_ID, command, of_ids
from ..driver.raw_batches import RawBatches, found_in_batches
from ..fields import BUT_HEAVY, FIELD
from ..job_collection import JobCollection, name_in
from ..skipped_documents import SkippedDocuments, can_be_named
from . import doubled_fields

MOST_IN_A_BATCH: Final = 1000
# A listed document shows values up to this size, and this number of fields.
MOST_BYTES_SHOWN: Final = 1024
MOST_FIELDS_SHOWN: Final = 100
CUT_OFF: Final = "..."

logger = logger_of("store")

# Skipped documents that are looked at again in one call: each of them may have to be read alone.
MOST_LOOKED_AT: Final = 100

LARGEST_DOCUMENT: Final = 16 * 1024 * 1024
ROOM_FOR_A_CLAIM: Final = 148
"""The least number of bytes that a claim adds to a document. No claim takes a job with less room."""


class BrokenLook:
    """One read of the whole collection, batch by batch, with one cursor of the server."""

    def __init__(self) -> None:
        self._batches: RawBatches | None = None
        self.is_over = False

    def next_batch(self, jobs: JobCollection) -> bytes:
        if self._batches is None:
            # No range of ids: it finds ids of one type only. As bytes: one document that cannot be decoded must not
            # spoil the others.
            self._batches = found_in_batches(jobs.collection, {}, batch_size=MOST_IN_A_BATCH)
        return next(self._batches, b"")

    def end(self) -> None:
        self.is_over = True
        if self._batches is not None:
            self._batches.close()


@command("look for broken documents", writes=False)
def sift(jobs: JobCollection, look: BrokenLook, limit: int) -> list[BrokenDocument]:
    """Return the broken documents in the next batch (a thousand documents, or 16 MB); at most `limit`."""
    batch = look.next_batch(jobs)
    found = broken_among(jobs, batch, limit)
    if not batch or len(found) == limit:
        look.end()
    return found


def broken_among(jobs: JobCollection, batch: bytes, limit: int) -> list[BrokenDocument]:
    """Return the broken ones among these documents, at most `limit`. A part of a command."""
    found: list[BrokenDocument] = []
    for raw, document in _documents(jobs, batch):
        if len(found) == limit:
            break
        problem = problem_of(jobs, raw, document)
        if problem is not None:
            shown = _shown(raw)
            found.append(BrokenDocument(shown.get("_id"), problem, shown))
    return found


def problem_of(jobs: JobCollection, raw: bytes, document: Any) -> str | None:
    """Return why no scheduler runs a document, given as bytes and as read; None if it is a job."""
    return _problem(jobs, document) or doubled_fields.problem_of(raw) or _refusal(jobs, raw)


def _documents(jobs: JobCollection, batch: bytes) -> Iterator[tuple[bytes, Any]]:
    """Return each document as bytes, and as the codec reads it."""
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
    if job.status is JobStatus.PENDING and job.claim is not None and job.claim.by is not None:
        return f"it is pending but still has {FIELD['claim.by']}={shown(job.claim.by)}"
    return None


def _refusal(jobs: JobCollection, raw: bytes) -> str | None:
    """Return why a pending job cannot be claimed: it has no room for a claim, or the server refused one."""
    if not jobs.unclaimable and len(raw) <= LARGEST_DOCUMENT - ROOM_FOR_A_CLAIM:
        return None
    document = RawDocument(raw, jobs.codec.raw)
    if document[FIELD["status"]] != JobStatus.PENDING:
        return None
    if len(raw) > LARGEST_DOCUMENT - ROOM_FOR_A_CLAIM:
        return f"it has {len(raw)} bytes, and leaves no room for a claim: MongoDB stores {LARGEST_DOCUMENT} at most"
    return jobs.unclaimable.problem_of(document["_id"])


# --- What is shown ---


def _shown(raw: bytes) -> dict[str, Any]:
    try:
        decoded = bson.decode(raw, codec_options=LENIENT)
    except BSONError as error:
        return {"": f"{len(raw)} bytes that cannot be decoded ({error})"}
    shown = {}
    for place, (field, value) in enumerate(decoded.items()):
        if place == MOST_FIELDS_SHOWN:
            shown[CUT_OFF] = f"{len(decoded) - place} fields more"
            break
        shown[field[:MOST_BYTES_SHOWN]] = _value_shown(value)
    return shown


def _value_shown(value: Any) -> Any:
    try:
        size = len(bson.encode({"": value})) - 7
    except (BSONError, ValueError, OverflowError):
        return value  # A date that Python has no datetime for. It is small.
    return value if size <= MOST_BYTES_SHOWN else f"({size} bytes)"


# --- Looking again ---


def look_again_if_it_is_time(jobs: JobCollection) -> bool:
    """Once a minute, look again at some skipped documents, and log how many new ones were not logged one by one.

    Return whether it is time again already: some were repaired, and the next look checks further ones at once.
    """
    if any(known.is_old() for known in jobs.skipped):
        look_again(jobs)
        unlogged = sum(known.take_unlogged() for known in (*jobs.skipped, jobs.refused))
        if unlogged:
            logger.warning("skipped %d more documents that cannot be run; get_broken_documents lists them", unlogged)
    return any(known.is_old() for known in jobs.skipped)


@command("look again at broken documents", writes=False)
def look_again(jobs: JobCollection) -> None:
    """Forget skipped documents that were repaired or are gone. One or two round trips.

    If some were, the next look checks further ones at once: an operator may be repairing all of them.
    """
    if jobs.broken.is_old() and _look_at_broken(jobs):
        jobs.broken.look_again_at_once()
    if jobs.left_over.is_old() and _look_at_left_over(jobs):
        jobs.left_over.look_again_at_once()
    if jobs.elsewhere.is_old():
        look_for_zones_again()  # A time zone database may have been installed.
        for document_id in jobs.elsewhere.to_look_at(MOST_LOOKED_AT):
            jobs.elsewhere.discard(document_id)
    if jobs.unclaimable.is_old():
        # Only a claim shows whether the server accepts it now.
        for document_id in jobs.unclaimable.to_look_at(MOST_LOOKED_AT):
            jobs.unclaimable.discard(document_id)


def _look_at_broken(jobs: JobCollection) -> bool:
    asked = jobs.broken.to_look_at(MOST_LOOKED_AT)
    wrong = SkippedDocuments()  # Used as a set: the ids may be unhashable.
    # First without the large fields. A large field may be the one that cannot be decoded: so a document that is a job
    # without them is read whole.
    for document in jobs.raw.find(of_ids(asked), BUT_HEAVY, hint=BY_ID):
        own_id = _shown(document.raw).get("_id")
        doubled = doubled_fields.problem_of(document.raw)
        problem = _problem(jobs, document) or doubled or _problem_of_all(jobs, own_id)
        if problem is not None:
            wrong.add(own_id)
            # Logged again if the problem is a new one: a repair has failed.
            if jobs.report_broken(own_id, problem, name_in(document)):
                logger.warning("document %s is still not a job: %s", own_id, problem)
    # This query cannot find a document with such an id, which is therefore not known to be gone.
    return _forget(jobs.broken, [one for one in asked if one not in wrong and can_be_named(one)])


def _problem_of_all(jobs: JobCollection, document_id: object) -> str | None:
    document = jobs.raw.find_one({"_id": document_id}, hint=BY_ID)
    return None if document is None else _problem(jobs, document)


def _look_at_left_over(jobs: JobCollection) -> bool:
    asked = jobs.left_over.to_look_at(MOST_IN_A_BATCH)
    pending = {FIELD["status"]: JobStatus.PENDING.value, FIELD["claim.by"]: {"$ne": None}, **of_ids(asked)}
    still = {document["_id"] for document in jobs.collection.find(pending, ["_id"], hint=BY_ID)}
    return _forget(jobs.left_over, [document_id for document_id in asked if document_id not in still])


def _forget(known: SkippedDocuments, document_ids: Sequence[object]) -> bool:
    """Forget these documents; return whether there were any."""
    for document_id in document_ids:
        known.discard(document_id)
    return bool(document_ids)
