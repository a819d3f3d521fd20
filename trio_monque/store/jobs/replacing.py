"""Replaces what the job with a unique key is to do, or inserts the job: one round trip.

Many callers may replace one key at the same moment, and the job may start or end at that moment. So it is one statement
for all of it, and the server applies one such statement after the other: it sees whether there is a job with the key
and whether that runs, and writes the data and the due date of one call together, never a mixture.

- A pending job gets them at once. `rev` grows with each call: a scheduler that has read the job before cannot claim it
  with the data from before, because a claim pins `rev`. Steady calls do not keep the job from its start: a claim that
  has missed it for that takes it without pins the next time, and reads what it took (`claiming.py`).
- Its failures and deaths in a row are still counted: see `_OF_THE_DATA`. When they are used up, it has failed for good,
  and the next call inserts a new job.
- A running job keeps its own, and has the new ones beside them (`again`). Its end starts it once more; see
  `jobs/run_again.py`.
- A delay (`debounce`) is computed by the server, from the moment of the first call, which the document has.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson.raw_bson import RawBSONDocument
from pymongo import ReturnDocument
from pymongo import errors as driver

from ...error_types import InvalidPayloadError
from ...jobs.claim_stamps_and_fences import is_to_be_cancelled
from ...jobs.enqueued import Enqueued
from ...jobs.job import Job, JobStatus, value_at
from ..codec import document_of
from ..driver.commands import by_majority, command
from ..driver.driver_errors import TOO_LARGE_CODES
from ..fields import FIELD
from ..job_collection import JobCollection
from . import indexes, inserting

MOST_ROUNDS: Final = 10
"""A round is lost if the job with the key changes its status between two commands. Ten in a row are not chance."""

_STATUS: Final = f"${FIELD['status']}"
_IS_NEW: Final = {"$eq": [{"$type": _STATUS}, "missing"]}
_RUNS: Final = {"$eq": [_STATUS, JobStatus.PROCESSING.value]}

# What belongs to the replaced data: what its handler saved for another attempt, the scope of its job nurseries, without
# which nothing else of them counts, and its steps. Its failures and deaths stay counted: under steady calls, a job that
# fails each time would otherwise never end.
_OF_THE_DATA: Final = ("saved", "nursery.id", "nursery.steps")


@dataclass(frozen=True, slots=True)
class Replacement:
    """A new job, and what it means for one that has its key.

    Attributes:
        job: The new job.
        payload: Its data, encoded as `{"": data}`.
        max_wait: For a job that is debounced: how many seconds calls may delay it in all; None for any number.
    """

    job: Job
    payload: bytes
    max_wait: float | None = None


@command("enqueue the job")
def replace_or_insert(jobs: JobCollection, new: Replacement) -> Enqueued[Any]:
    """Insert the new job; or give its data and its due date to the pending or running job that has the key.

    A schedule that has the key is kept, and a job whose cancellation is requested.

    Raises:
        IndexesGoneError: Nothing would keep the key unique.
        InvalidPayloadError: A running job has the key, and its document has no room for the data beside its own.
    """
    job = new.job
    for remaining in reversed(range(MOST_ROUNDS)):
        try:
            with indexes.relied_on():
                return _upsert(jobs, new)
        except driver.DuplicateKeyError as error:
            if dict((error.details or {}).get("keyPattern", ())) == {"_id": 1}:
                return Enqueued(inserting.sent_before(jobs, job, error), "created")
            holder = _holder(jobs, job)
            if holder is not None:
                # Our own job holds the key if an earlier sending has inserted it. The servers that we know name the
                # index of the ids in the error then, which is found above; nothing promises that they always will.
                return Enqueued(holder, "created" if holder.id == job.id else "kept")
            if not remaining:
                raise
    raise AssertionError("unreachable: the last round returns or raises")


def _upsert(jobs: JobCollection, new: Replacement) -> Enqueued[Any]:
    guard = {
        **inserting.in_use(new.job.name, new.job.unique_key),
        # Not a schedule, not a run that is to be cancelled, and not this job, if an earlier sending has stored it. In
        # this form, because an upsert would store what an equality compares.
        "_id": {"$ne": new.job.id},
        FIELD["schedule.cron"]: {"$not": {"$type": "string"}},
        "$nor": [{FIELD["status"]: JobStatus.PROCESSING.value, FIELD["claim.cancel_requested_at"]: {"$type": "date"}}],
    }
    try:
        found = jobs.raw.find_one_and_update(
            guard,
            [{"$set": _values(new)}],
            let={"data": _literal(new.payload)},  # The data are sent once, although two fields may get them.
            upsert=True,
            return_document=ReturnDocument.AFTER,
            hint=indexes.hint(jobs, indexes.UNIQUE_KEY),
        )
    except driver.OperationFailure as error:
        if error.code not in TOO_LARGE_CODES:
            raise
        raise InvalidPayloadError(
            "the data and what the job with this key has already do not fit into one document (16 MiB); nothing was "
            "changed. Store large data elsewhere, and enqueue a reference to it"
        ) from error
    job = jobs.codec.decode(found)
    if job.id == new.job.id:
        return Enqueued(job, "created")
    return Enqueued(job, "replaced" if job.status is JobStatus.PENDING else "again")


def _values(new: Replacement) -> dict[str, Any]:
    """For each field, what the server computes from the document. A document that it inserts has only the key yet."""
    job = new.job
    fresh = document_of(job)
    for name in ("name", "unique_key"):
        del fresh[FIELD[name]]  # The server copies them from the guard into a document that it inserts.
    # `fresh` goes into a new document only. The fields below it are also written to a job that waits.
    data, rev = FIELD["data"], FIELD["internals.rev"]
    return {
        **{field: {"$cond": [_IS_NEW, {"$literal": value}, f"${field}"]} for field, value in fresh.items()},
        FIELD["updated_at"]: _unless_it_runs(FIELD["updated_at"], fresh[FIELD["updated_at"]]),
        **{FIELD[name]: _unless_it_runs(FIELD[name], "$$REMOVE") for name in _OF_THE_DATA},
        rev: {"$cond": [_IS_NEW, "$$REMOVE", _unless_it_runs(rev, {"$add": [_or(rev, 0), 1]})]},
        data: _unless_it_runs(data, "$$data"),
        **_moments(new),
        FIELD["again.call"]: _if_it_runs(job.id),
        FIELD["again.data"]: _if_it_runs("$$data"),
    }


def _moments(new: Replacement) -> dict[str, Any]:
    """The moments that a call decides: of the job itself, or of its other run."""
    moments = dict[str, Any]()
    for own, other in (
        ("next_run_at", "again.next_run_at"),
        ("limits.start_by", "again.start_by"),
        ("debounced_since", "again.debounced_since"),
    ):
        moments[FIELD[own]] = _unless_it_runs(FIELD[own], _moment(new, own, FIELD["debounced_since"]))
        moments[FIELD[other]] = _if_it_runs(_moment(new, own, FIELD["again.debounced_since"]))
    # Deaths count for as long as `resumes_at` is the due date. So it moves with that date: otherwise a replacement
    # would forget them.
    due, resumes_at = FIELD["next_run_at"], FIELD["internals.resumes_at"]
    counts = {"$and": [{"$ne": [_STATUS, JobStatus.PROCESSING.value]}, {"$eq": [_or(resumes_at, 0), f"${due}"]}]}
    moments[resumes_at] = {"$cond": [counts, _moment(new, "next_run_at", FIELD["debounced_since"]), f"${resumes_at}"]}
    return moments


def _moment(new: Replacement, name: str, since: str) -> Any:
    value: datetime | None = value_at(new.job, name)
    if value is None:
        return "$$REMOVE"
    if name == "limits.start_by" or new.job.debounced_since is None:
        return value
    first = _or(since, new.job.debounced_since)
    if name == "debounced_since":
        return first
    if new.max_wait is None:
        return value
    return {"$min": [value, {"$add": [first, round(new.max_wait * 1000)]}]}


def _unless_it_runs(field: str, value: Any) -> dict[str, Any]:
    return {"$cond": [_RUNS, f"${field}", value]}


def _if_it_runs(value: Any) -> dict[str, Any]:
    return {"$cond": [_RUNS, value, "$$REMOVE"]}


def _or(field: str, value: Any) -> dict[str, Any]:
    return {"$ifNull": [f"${field}", value]}


def _literal(payload: bytes) -> RawBSONDocument:
    """The data as an expression that the server does not evaluate: it would read a text with a dollar as a field."""
    elements = payload[4:5] + b"$literal" + payload[5:]
    return RawBSONDocument((len(elements) + 4).to_bytes(4, "little") + elements)


def _holder(jobs: JobCollection, new: Job) -> Job | None:
    """Return the job that has the key and cannot be replaced; None if there is no such job any more."""
    document = by_majority(jobs.raw).find_one(inserting.in_use(new.name, new.unique_key))
    if document is None:
        return None
    job = jobs.codec.decode(document)
    if job.id == new.id or job.schedule is not None:
        return job
    return job if job.status is JobStatus.PROCESSING and is_to_be_cancelled(job) else None
