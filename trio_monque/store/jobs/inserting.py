"""Inserts jobs: one round trip for each function.

The client chooses the `_id` of a job before it sends the job. So if the answer is lost, a read shows whether the job is
stored, and a second sending does not store it twice.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import bson
import pymongo
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo import ReturnDocument, UpdateOne
from pymongo import errors as driver
from pymongo.client_session import ClientSession

from ...error_types import InvalidOptionError, MonqueConnectionError, MonqueError
from ...jobs.conditional_write import OneOf
from ...jobs.job import Job, JobStatus
from ..codec import document_of, filter_of
from ..driver.commands import by_majority, command, of_ids
from ..driver.driver_errors import has_unknown_outcome, translated
from ..fields import FIELD
from ..job_collection import JobCollection
from . import indexes

_PURPOSE = "enqueue the job"
_LENGTH: Final = struct.Struct("<i")
_TRANSIENT_TRANSACTION = "TransientTransactionError"


@dataclass(frozen=True, slots=True)
class Parcel:
    """A job, and the document that is sent for it."""

    job: Job
    document: RawBSONDocument | Mapping[str, Any]


# The attributes that every new job has. Jobs of one sending that have no others usually differ in `_id` and data only.
_PLAIN: Final = frozenset({"id", "name", "data", "next_run_at", "created_at", "updated_at"})

# An element of a BSON document is its type (one byte), its name, and its value. In a payload, the name is empty.
_ID: Final = b"\x07" + FIELD["id"].encode() + b"\0"
_DATA: Final = FIELD["data"].encode()


def parcel(job: Job, payload: bytes) -> Parcel:
    """Make the document of a job from its data, which is encoded already, as `{"": data}`: it is copied as bytes."""
    return _packed(job, _others(job), payload)


def parcels(made: Iterable[tuple[Job, bytes]]) -> list[Parcel]:
    """Make the documents of many jobs. The fields that jobs of one sending have in common are encoded once."""
    shared: dict[tuple[object, ...], bytes] = {}
    packed: list[Parcel] = []
    for job, payload in made:
        if vars(job).keys() == _PLAIN:
            common = (job.name, job.next_run_at, job.created_at, job.updated_at)
            others = shared.get(common)
            if others is None:
                others = shared[common] = _others(job)
        else:
            others = _others(job)
        packed.append(_packed(job, others, payload))
    return packed


def _others(job: Job) -> bytes:
    """Return the elements of the document of a job without its id and its data."""
    fields = document_of(job)
    del fields[FIELD["id"]], fields[FIELD["data"]]
    return bson.encode(fields)[4:-1]


def _packed(job: Job, others: bytes, payload: bytes) -> Parcel:
    # The payload ends with the zero byte that ends a document.
    elements = b"".join((_ID, job.id.binary, others, payload[4:5], _DATA, payload[5:]))
    return Parcel(job, RawBSONDocument(_LENGTH.pack(_LENGTH.size + len(elements)) + elements))


@command(_PURPOSE)
def insert_all(
    jobs: JobCollection, parcels: Sequence[Parcel], session: ClientSession | None = None
) -> Mapping[int, MonqueError]:
    """Insert jobs without unique keys in one unordered statement; return which were refused, by place, and why.

    A job whose `_id` is there already counts as inserted, by an earlier sending. This answer, which is acknowledged as
    the write concern demands, proves that the job stays.
    """
    # Never insert_one: beside a duplicate key, it hides an error of the write concern.
    try:
        jobs.collection.insert_many([one.document for one in parcels], ordered=False, session=session)
    except driver.BulkWriteError as error:
        return _refused(error)
    return {}


@command(_PURPOSE)
def insert_new(jobs: JobCollection, parcels: Sequence[Parcel]) -> tuple[set[int], Mapping[int, MonqueError]]:
    """Insert jobs as `insert_all` does; return also the places of those whose `_id` existed already."""
    try:
        jobs.collection.insert_many([one.document for one in parcels], ordered=False)
    except driver.BulkWriteError as error:
        refused = _refused(error)
        return {entry["index"] for entry in error.details["writeErrors"] if entry["index"] not in refused}, refused
    return set(), {}


def _refused(error: driver.BulkWriteError) -> Mapping[int, MonqueError]:
    """Return what was not written, by place. Raises if that is not certain."""
    if error.details["writeConcernErrors"]:
        raise error
    refused: dict[int, MonqueError] = {}
    for entry in error.details["writeErrors"]:
        if entry.get("keyPattern") == {"_id": 1}:
            continue
        cause = driver.WriteError(entry["errmsg"], entry["code"], entry)
        if has_unknown_outcome(cause):  # Interrupted, by an election for example.
            raise cause
        refused[entry["index"]] = translated(cause, _PURPOSE)
        refused[entry["index"]].__cause__ = cause
    return refused


@command("look for the job", writes=False)
def stored(jobs: JobCollection, ids: Sequence[ObjectId]) -> set[ObjectId]:
    """Return which of these jobs a majority holds: they are stored for good."""
    found = by_majority(jobs.collection).find(of_ids(ids), {"_id": 1})
    return {document["_id"] for document in found}


@command("look for the job", writes=False)
def stored_job(jobs: JobCollection, job_id: ObjectId) -> Job | None:
    """Return the job with that id if a majority holds it: it is stored for good."""
    document = by_majority(jobs.raw).find_one({"_id": job_id})
    return None if document is None else jobs.codec.decode(document)


# --- Unique keys ---


def in_use(name: str, unique_key: str | OneOf | None) -> dict[str, Any]:
    """Return the filter for the pending or processing jobs that have the key."""
    live = OneOf((JobStatus.PENDING, JobStatus.PROCESSING))
    return filter_of({"name": name, "unique_key": unique_key, "status": live})


@command(_PURPOSE)
def insert_unless_key_is_in_use(jobs: JobCollection, new: Parcel, session: ClientSession | None = None) -> Job:
    """Insert a job with a unique key, or return the pending or processing job that has the key.

    Raises:
        IndexesGoneError: Nothing would keep the key unique.
    """
    # If another client inserts a job with the key first, the server reports a duplicate key, and the next round finds
    # that job. If that job has ended meanwhile, the race begins again. Ten lost races are not chance: then this raises.
    for remaining in reversed(range(10)):
        try:
            with indexes.relied_on():
                return _upsert(jobs, new, session, indexes.hint(jobs, indexes.UNIQUE_KEY))
        except driver.DuplicateKeyError as error:
            # The reply is as raw as the documents.
            if dict((error.details or {}).get("keyPattern", ())) == {"_id": 1}:
                # An earlier sending was applied late, and its job has ended already: the key is free again.
                return sent_before(jobs, new.job, error)
            if not remaining:
                raise
    raise AssertionError("unreachable: the last round returns or raises")


def sent_before(jobs: JobCollection, new: Job, error: driver.DuplicateKeyError) -> Job:
    """Return the job as an earlier sending has stored it."""
    document = by_majority(jobs.raw).find_one({"_id": new.id})
    if document is None:
        raise MonqueConnectionError(f"could not {_PURPOSE}: {error}", transient=True, unknown_outcome=True) from error
    return jobs.codec.decode(document)


def _upsert(jobs: JobCollection, new: Parcel, session: ClientSession | None, index: str | None = None) -> Job:
    # Raw: the job that has the key may be a document that cannot be decoded.
    found = jobs.raw.find_one_and_update(
        in_use(new.job.name, new.job.unique_key),
        {"$setOnInsert": new.document},
        upsert=True,
        return_document=ReturnDocument.AFTER,
        session=session,
        hint=index,
    )
    return jobs.codec.decode(found)


@command(_PURPOSE)
def insert_where_keys_are_free(jobs: JobCollection, parcels: Sequence[Parcel]) -> set[int]:
    """Insert jobs with different unique keys in one unordered statement; return which were inserted, by place.

    The others were not inserted: a pending or processing job has the key, another client inserted one at the same time,
    or the server refuses the document. The caller sends each of them alone, unless it finds the job that has the key.

    Raises:
        IndexesGoneError: Nothing would keep the keys unique.
    """
    index = indexes.hint(jobs, indexes.UNIQUE_KEY)
    upserts = [
        UpdateOne(in_use(one.job.name, one.job.unique_key), {"$setOnInsert": one.document}, upsert=True, hint=index)
        for one in parcels
    ]
    try:
        with indexes.relied_on():
            result = jobs.collection.bulk_write(upserts, ordered=False)
    except driver.BulkWriteError as error:
        _refused(error)  # Raises if it is not certain that the others were not written.
        return {entry["index"] for entry in error.details["upserted"]}
    return set(result.upserted_ids or ())


@command("look for the jobs that have the keys", writes=False)
def holders(jobs: JobCollection, wanted: Iterable[Job]) -> Mapping[tuple[str, str | None], Job]:
    """Return the pending or processing jobs that have the names and keys of these jobs, by name and key."""
    keys: dict[str, list[str | None]] = {}
    for job in wanted:
        keys.setdefault(job.name, []).append(job.unique_key)
    found: dict[tuple[str, str | None], Job] = {}
    for name, unique_keys in keys.items():
        for job in _of_keys(jobs, in_use(name, OneOf(tuple(unique_keys)))):
            found[job.name, job.unique_key] = job
    return found


def _of_keys(jobs: JobCollection, in_use: Mapping[str, Any]) -> Sequence[Job]:
    return jobs.decoded(lambda collection: by_majority(collection).find(in_use))


# --- Inside the caller's transaction ---


def check_session(jobs: JobCollection, session: object) -> None:
    """Raises InvalidOptionError unless this is a session of the client that the jobs collection belongs to."""
    if not isinstance(session, ClientSession):
        raise InvalidOptionError(
            "session",
            session,
            "must be a pymongo ClientSession. For the transaction of another driver, let document() make the "
            "document, and insert it there",
        )
    if session.client is not jobs.collection.database.client:
        raise InvalidOptionError("session", session, "belongs to another MongoClient than the one that was given")


def insert_within(jobs: JobCollection, new: Parcel, session: ClientSession) -> Job:
    """Insert a job in the caller's transaction; if its unique key is in use, return the job that has it.

    A driver's error after which the whole transaction may be tried again is raised unchanged, for `with_transaction`. A
    lost race for a unique key is such an error.
    """
    try:
        with pymongo.timeout(jobs.operation_timeout):
            if new.job.unique_key is not None:
                # Without the hint: where the index is missing, that error would end the caller's transaction, and no
                # index can be made inside one.
                return _upsert(jobs, new, session)
            jobs.collection.insert_one(cast("Any", new.document), session=session)
            return new.job
    except driver.PyMongoError as error:
        if error.has_error_label(_TRANSIENT_TRANSACTION):
            raise
        # Not an unknown outcome: nothing is stored unless the transaction is committed.
        raise translated(error, f"{_PURPOSE} in this transaction", writes=False) from error
