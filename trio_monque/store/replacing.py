"""Replaces what a pending job with a unique key is to do, or inserts the job: one round trip.

Many callers may replace one key at the same moment. The server applies one write after the other, and each writes the
data and the due date together, so the job has those of one call, never a mixture. `rev` grows with each: a scheduler
that has read the job before cannot claim it with the replaced data, because a claim pins `rev`.
"""

from __future__ import annotations

from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import ReturnDocument
from pymongo import errors as driver

from ..jobs.enqueued import Enqueued
from ..jobs.job import Job, JobStatus
from . import indexes, inserting
from .codec import document_of, filter_of
from .commands import by_majority, command
from .fields import FIELD
from .job_collection import JobCollection

# Each call gives these: a replaced job has all its attempts again.
_WRITTEN: Final = ("next_run_at", "updated_at", "fail_count")

# What belongs to the replaced data: its last error, its deaths, and what its handler saved for another attempt.
_CLEARED: Final = ("fail_reason", "rescues", "saved")

MOST_ROUNDS: Final = 10
"""A round is lost if the job with the key changes its status between two commands. Ten in a row are not chance."""


@command("enqueue the job")
def replace_or_insert(jobs: JobCollection, new: Job, payload: bytes) -> Enqueued[Any]:
    """Give the pending job that has the unique key the data and the due date of a new one, or insert the new one.

    A running job and a schedule that have the key are kept.

    Args:
        new: The new job.
        payload: Its data, encoded as `{"": data}`.

    Raises:
        IndexesGoneError: Nothing would keep the key unique.
    """
    for remaining in reversed(range(MOST_ROUNDS)):
        try:
            with indexes.relied_on():
                return _upsert(jobs, new, payload)
        except driver.DuplicateKeyError as error:
            if dict((error.details or {}).get("keyPattern", ())) == {"_id": 1}:
                return Enqueued(inserting.sent_before(jobs, new, error), "created")
            holder = _holder(jobs, new)
            if holder is not None:
                # Our own job holds the key if an earlier sending has inserted it, and it runs already.
                return Enqueued(holder, "created" if holder.id == new.id else "kept")
            if not remaining:
                raise
    raise AssertionError("unreachable: the last round returns or raises")


def _upsert(jobs: JobCollection, new: Job, payload: bytes) -> Enqueued[Any]:
    document = document_of(new)
    written = {FIELD[name]: document.pop(FIELD[name]) for name in _WRITTEN}
    cleared: tuple[str, ...] = _CLEARED
    if new.start_by is None:
        cleared = (*cleared, "start_by")
    else:
        written[FIELD["start_by"]] = document.pop(FIELD["start_by"])
    del document[FIELD["data"]]
    found = jobs.raw.find_one_and_update(
        {
            **filter_of({"name": new.name, "unique_key": new.unique_key, "status": JobStatus.PENDING}),
            # Not a schedule. In this form, because an upsert would store the null of an equality.
            FIELD["repeat_interval"]: {"$not": {"$type": "string"}},
        },
        {
            "$set": _with_data(written, payload),
            "$inc": {FIELD["rev"]: 1},
            "$unset": {FIELD[name]: "" for name in cleared},
            "$setOnInsert": document,
        },
        upsert=True,
        return_document=ReturnDocument.AFTER,
        hint=indexes.hint(jobs, indexes.UNIQUE_KEY),
    )
    job = jobs.codec.decode(found)
    return Enqueued(job, "created" if job.id == new.id else "replaced")


def _with_data(written: dict[str, Any], payload: bytes) -> RawBSONDocument:
    elements = inserting.data_element(payload) + bson.encode(written)[4:]
    return RawBSONDocument((len(elements) + 4).to_bytes(4, "little") + elements)


def _holder(jobs: JobCollection, new: Job) -> Job | None:
    """Return the job that has the key and cannot be replaced; None if there is no such job any more."""
    document = by_majority(jobs.raw).find_one(inserting.in_use(new.name, new.unique_key))
    if document is None:
        return None
    job = jobs.codec.decode(document)
    is_replaceable = job.status is JobStatus.PENDING and job.repeat_interval is None
    return None if is_replaceable and job.id != new.id else job
