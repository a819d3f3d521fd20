"""Which of the jobs that callers wait for have ended: a look at their ids, and a change stream that says when to look.

The stream decides nothing: what it reports, a majority need not hold yet. A look reads what a majority holds, so an
election cannot take back what it finds. A look may be late, though: a majority read during an election may not find
a job that was acknowledged a moment ago. So a job counts as gone only after a read that cannot be late: see
`gone_among`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bson import Timestamp
from bson.errors import BSONError
from pymongo import ReadPreference
from pymongo.command_cursor import CommandCursor
from pymongo.read_concern import ReadConcern

from ...error_types import BrokenDocumentError, MonqueConnectionError
from ...jobs.job import Job, JobStatus
from ..codec import LENIENT, RawDocument
from ..driver.commands import (
    BY_ID,
    MAJORITY,
    Interference,
    by_majority,
    causal_session,
    command,
    in_chunks,
    is_standalone,
    of_ids,
)
from ..driver.types import ObjectId
from ..fields import FIELD
from ..job_collection import JobCollection
from .change_stream import ANSWER_MARGIN, LONGEST_AWAIT, close_cursor, next_events, open_stream

ENDED: Final = tuple(status.value for status in JobStatus if status not in (JobStatus.PENDING, JobStatus.PROCESSING))

MOST_IN_A_QUERY: Final = 1000
_STATUS, _SCHEDULE = FIELD["status"], FIELD["schedule.cron"]
_LINEARIZABLE: Final = ReadConcern("linearizable")

# A look returns the whole document of a job that has ended, or that recurs and never will; of every other job only the
# id, which shows that it exists. One command does both, because the ids make up most of what a look costs: twice ten
# thousand of them are half a megabyte.
_IS_OF_INTEREST: Final = {"$or": [{"$in": [f"${_STATUS}", ENDED]}, {"$eq": [{"$type": f"${_SCHEDULE}"}, "string"]}]}
_WHAT_IS_SHOWN: Final = {"$replaceWith": {"$cond": [_IS_OF_INTEREST, "$$ROOT", {"_id": "$_id"}]}}


@dataclass(frozen=True, slots=True)
class EndedLook:
    """What a look at some jobs found.

    Attributes:
        ended: Those that have ended, and the errors of documents that are not jobs, by id.
        recurring: Those that have not ended, and will not: they recur.
        unseen: Those that were not found. They need not be gone.
    """

    ended: dict[ObjectId, Job | BrokenDocumentError] = field(default_factory=dict)
    recurring: set[ObjectId] = field(default_factory=set)
    unseen: set[ObjectId] = field(default_factory=set)


@command("look for the ends of jobs", writes=False)
def look_at(jobs: JobCollection, ids: Iterable[ObjectId], since: Timestamp | None = None) -> EndedLook:
    """Return which of these jobs have ended, at the moment `since` of the server or later."""
    look = EndedLook()
    with causal_session(jobs.collection) as session:
        if since is not None:
            session.advance_operation_time(since)
        for chunk in in_chunks(ids, MOST_IN_A_QUERY):
            look.unseen.update(chunk)
            shown = by_majority(jobs.raw).aggregate(
                [{"$match": of_ids(chunk)}, _WHAT_IS_SHOWN], hint=BY_ID, session=session
            )
            for document in shown:
                _note(jobs, document, look)
    return look


def _note(jobs: JobCollection, document: RawDocument, look: EndedLook) -> None:
    job_id = document["_id"]
    look.unseen.discard(job_id)
    if len(document) == 1:
        return  # It is live.
    try:
        job = jobs.codec.decode(document)
    except BrokenDocumentError as error:
        look.ended[job_id] = error
        return
    if job.status.value in ENDED:
        look.ended[job_id] = job
    else:
        look.recurring.add(job_id)


@command("look whether jobs are live", writes=False)
def are_live(jobs: JobCollection, ids: Iterable[ObjectId]) -> bool:
    """Return whether all these jobs are pending or run, as a majority holds them."""
    reader = by_majority(jobs.raw)
    for chunk in in_chunks(ids, MOST_IN_A_QUERY):
        if reader.count_documents({**of_ids(chunk), _STATUS: {"$nin": ENDED}}, hint=BY_ID) < len(chunk):
            return False
    return True


@command("make sure that jobs are gone", writes=False)
def gone_among(jobs: JobCollection, ids: Collection[ObjectId]) -> set[ObjectId]:
    """Return which of these jobs do not exist, for certain.

    A linearizable read proves that its server was the primary when it began: the server answers only once a majority
    has confirmed a write that the server makes after the read. So that primary's log had every write that was
    acknowledged by then, and the time of the answer is not before any of them. A majority read in a causal session
    that goes on from there waits until its server holds all up to that time. So it finds each job that was
    acknowledged before this call began, whichever server answers. A job that it does not find was never stored, or
    its deletion is held by a majority.

    A linearizable read for each job would prove the same: of these, a server answers about ten in a second.
    """
    if not ids:
        return set()
    gone = set(ids)
    with causal_session(jobs.collection) as session:
        if not is_standalone(jobs.collection):
            proven = _time_of_primary(jobs)
            if proven is None:
                return set()
            session.advance_operation_time(proven)
        reader = by_majority(jobs.collection, LENIENT)
        for chunk in in_chunks(ids, MOST_IN_A_QUERY):
            found = reader.find(of_ids(chunk), {"_id": True}, hint=BY_ID, session=session)
            gone.difference_update(document["_id"] for document in found)
    return gone


def _time_of_primary(jobs: JobCollection) -> Timestamp | None:
    """Return the time of a linearizable read; None if the server sends none."""
    reader = jobs.collection.with_options(
        codec_options=LENIENT, read_concern=_LINEARIZABLE, read_preference=ReadPreference.PRIMARY
    )
    # Not causal: after an error, the driver would repeat the read as one that comes after the time of that error, and
    # every server refuses that for a linearizable read.
    with jobs.collection.database.client.start_session(causal_consistency=False) as session:
        # Any document will do: the proof is about the server, and not about what it finds.
        reader.find_one({}, {"_id": True}, hint=BY_ID, session=session)
        return session.operation_time


@dataclass(slots=True)
class EndStream:
    """An open stream of ends. One thread at a time.

    Attributes:
        since: It reports each end from this moment of the server on. A majority has held all that was before it.
        operation_timeout: Seconds in which `read` has answered or failed.
        interference: What a test has put in the way.
    """

    since: Timestamp | None
    operation_timeout: float
    interference: list[Interference]
    _cursor: CommandCursor[Mapping[str, Any]]

    @property
    def is_open(self) -> bool:
        """False once the server has ended it: after a drop of the collection."""
        return self._cursor.alive

    @command("read the ends of jobs", writes=False)
    def read(self, wait: float) -> set[ObjectId]:
        """Return the ids of jobs that may have ended, or are deleted, in the server's next answer; maybe none.

        Args:
            wait: Seconds that the server waits for one.
        """
        try:
            keys = (event.get("documentKey", {}).get("_id") for event in next_events(self._cursor, wait))
            return {key for key in keys if type(key) is ObjectId}
        except BSONError as error:
            raise MonqueConnectionError(f"could not read the ends of jobs: {error}", transient=True) from error

    def close(self) -> None:
        """Close the cursor, within a second. Never raises."""
        close_cursor(self._cursor)


@command("open the stream of ends", writes=False)
def open_end_stream(jobs: JobCollection) -> EndStream:
    """Open the stream; when this returns, the server has begun to watch.

    By itself a stream would begin with what its server has written last, which a majority need not hold yet. A majority
    read right after the opening would not find that, and the stream would not report it. So the stream begins earlier:
    at the moment that a majority read has seen.

    Raises:
        NoStreamError: This server or this user has no change streams.
    """
    with causal_session(jobs.collection) as session:
        by_majority(jobs.collection, LENIENT).find_one({"_id": None}, {"_id": True}, hint=BY_ID, session=session)
        since = session.operation_time  # None without a replica set.
    collection = jobs.collection.with_options(
        codec_options=LENIENT, read_preference=ReadPreference.PRIMARY, read_concern=MAJORITY
    )
    # No list of ids: for the server, each write would then cost more, not less (measured).
    pipeline: list[dict[str, Any]] = [
        {"$changeStream": {} if since is None else {"startAtOperationTime": since}},
        {
            "$match": {
                "$or": [
                    {"operationType": "update", f"updateDescription.updatedFields.{_STATUS}": {"$in": ENDED}},
                    {"operationType": "replace", f"fullDocument.{_STATUS}": {"$in": ENDED}},
                    {"operationType": {"$in": ["delete", "drop", "rename", "dropDatabase", "invalidate"]}},
                ]
            }
        },
        {"$project": {"documentKey": True, "operationType": True}},
    ]
    cursor = open_stream(lambda most_ms: collection.aggregate(pipeline, maxAwaitTimeMS=most_ms))
    return EndStream(since, LONGEST_AWAIT + ANSWER_MARGIN, jobs.interference, cursor)
