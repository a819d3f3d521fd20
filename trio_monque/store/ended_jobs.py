"""Which of the jobs that callers wait for have ended: a look at their ids, and a change stream that says when to look.

The stream decides nothing: what it reports, a majority need not hold yet. A look reads what a majority holds, so an
election cannot take back what it finds. A look may be late, though: a majority read during an election may not find
a job that was acknowledged a moment ago. So a job counts as gone only after a linearizable read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bson.errors import BSONError
from pymongo import ReadPreference
from pymongo.command_cursor import CommandCursor
from pymongo.read_concern import ReadConcern

from ..errors import BrokenDocumentError, MonqueConnectionError
from ..jobs.job import Job, JobStatus
from .change_stream import ANSWER_MARGIN, LONGEST_AWAIT, close_cursor, next_events, open_stream
from .codec import LENIENT
from .commands import BY_ID, MAJORITY, Interference, by_majority, command, in_chunks, is_standalone
from .fields import FIELD
from .job_collection import JobCollection
from .types import ObjectId

ENDED: Final = tuple(status.value for status in JobStatus if status not in (JobStatus.PENDING, JobStatus.PROCESSING))

_MOST_IN_A_QUERY: Final = 1000
_STATUS, _SCHEDULE = FIELD["status"], FIELD["repeat_interval"]
_LINEARIZABLE: Final = ReadConcern("linearizable")


@dataclass(frozen=True, slots=True)
class Look:
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
def look_at(jobs: JobCollection, ids: Iterable[ObjectId]) -> Look:
    """Return which of these jobs have ended."""
    look = Look()
    collection = by_majority(jobs.raw)
    for chunk in in_chunks(ids, _MOST_IN_A_QUERY):
        wanted = {"_id": {"$in": chunk}, "$or": [{_STATUS: {"$in": ENDED}}, {_SCHEDULE: {"$type": "string"}}]}
        for document in collection.find(wanted, hint=BY_ID):
            job_id = document["_id"]
            try:
                job = jobs.codec.decode(document)
            except BrokenDocumentError as error:
                look.ended[job_id] = error
                continue
            if job.status.value in ENDED:
                look.ended[job_id] = job
            else:
                look.recurring.add(job_id)
        live = [one for one in chunk if one not in look.ended and one not in look.recurring]
        # After the first query: a job that ends in between is found by the next look.
        found = collection.find({"_id": {"$in": live}}, {"_id": True}, hint=BY_ID)
        look.unseen.update(set(live).difference(document["_id"] for document in found))
    return look


@command("make sure that the job is gone", writes=False)
def is_gone(jobs: JobCollection, job_id: ObjectId) -> bool:
    """Return whether there is no such job: the server confirms with a majority that it knows all that was written."""
    collection = jobs.collection.with_options(codec_options=LENIENT)
    if not is_standalone(jobs.collection):
        collection = collection.with_options(read_concern=_LINEARIZABLE, read_preference=ReadPreference.PRIMARY)
    return collection.find_one({"_id": job_id}, {"_id": True}, hint=BY_ID) is None


@dataclass(slots=True)
class EndStream:
    """An open stream of ends. One thread at a time.

    Attributes:
        operation_timeout: Seconds in which `read` has answered or failed.
        interference: What a test has put in the way.
    """

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

    Raises:
        NoStreamError: This server or this user has no change streams.
    """
    collection = jobs.collection.with_options(
        codec_options=LENIENT, read_preference=ReadPreference.PRIMARY, read_concern=MAJORITY
    )
    # No list of ids: for the server, each write would then cost more, not less (measured).
    pipeline: list[dict[str, Any]] = [
        {"$changeStream": {}},
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
    return EndStream(LONGEST_AWAIT + ANSWER_MARGIN, jobs.interference, cursor)
