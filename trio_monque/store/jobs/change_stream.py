"""The change stream: one for the whole database. The server filters it: it reports what this instance should wake for.

It only wakes the scheduler earlier. A broken stream is not resumed, but opened anew: after every opening the scheduler
looks for due jobs once, and finds what the stream has missed. So it does not matter if the server no longer has the
place at which the stream broke (codes 280 and 286).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final, TypeVar

import pymongo
from bson import ObjectId
from bson.errors import BSONError
from pymongo import ReadPreference, WriteConcern
from pymongo import errors as driver
from pymongo.command_cursor import CommandCursor

from ...error_types import MonqueConnectionError
from ..codec import LENIENT, OWN_OPTIONS
from ..driver.commands import MAJORITY, Interference, command
from ..driver.driver_errors import UNAUTHORIZED, translated
from ..driver.types import Collection
from ..fields import FIELD
from ..job_collection import JobCollection
from .instances import BEAT, LEAVING, PAUSE, name_of_collection

EventT = TypeVar("EventT", bound=Mapping[str, Any])

LONGEST_AWAIT: Final = 10.0
"""Seconds that the server waits before it answers that nothing happened.

Only `end_wait` ends such a wait early: closing the cursor or the client does not reach a wait that has begun. If the
write of `end_wait` fails, the waiting thread is left behind, for this time and `ANSWER_MARGIN` at most.
"""

ANSWER_MARGIN: Final = 5.0
"""Further seconds, after which a server that has not answered is taken for gone."""

CLOSING_TIMEOUT: Final = 1.0
"""Seconds that closing a cursor may take. A server that does not answer drops the cursor by itself."""

_LEAVING: Final = "leaving:"

_STANDALONE: Final = 40573


class NoStreamError(MonqueConnectionError):
    """This server or this user has no change streams: another try would not help.

    Attributes:
        is_of_user: The user lacks the right. If a stream was open before, the right was revoked, and may come back.
    """

    def __init__(self, message: str, *, is_of_user: bool) -> None:
        super().__init__(message)
        self.is_of_user = is_of_user


class ChangeKind(Enum):
    """What happened."""

    JOB = auto()
    """A job was written so that it may be due, or that its run is to end."""
    PAUSE = auto()
    """A name was paused or resumed."""
    LEAVING = auto()
    """This instance has announced that it leaves."""
    GONE = auto()
    """The jobs collection was dropped or renamed, or another has taken its name: no index need be there any more."""
    ANYTHING = auto()
    """Changes were left out (`cli/run/change_relay.py`): any of these may have happened."""


@dataclass(frozen=True, slots=True)
class JobChange:
    """One thing that happened.

    Attributes:
        kind: What it was.
        job_id: Of a job, its id.
        name: Its name where it is known (of updates it is not), or the name that was paused or resumed.
        is_new: Of a job: it was inserted, and is whole enough to be claimed by its id.
        is_pending: Of a job: the write made or left it pending, as far as can be seen.
        due: When it is due, where that was written.
        cancel_requested: A cancellation of the job was requested.
    """

    kind: ChangeKind
    job_id: Any = None
    name: str | None = None
    is_new: bool = False
    is_pending: bool = False
    due: datetime | None = None
    cancel_requested: bool = False


ANYTHING: Final = JobChange(ChangeKind.ANYTHING)


@dataclass(slots=True)
class Watch:
    """An open stream. One thread at a time.

    Attributes:
        operation_timeout: Seconds in which `read` has answered or failed.
        interference: What a test has put in the way.
    """

    operation_timeout: float
    interference: list[Interference]
    _cursor: CommandCursor[Mapping[str, Any]]
    _namespace: Mapping[str, str]

    @property
    def is_open(self) -> bool:
        """False once the server has ended it: after a drop of the whole database."""
        return self._cursor.alive

    @command("read changes", writes=False)
    def read(self, wait: float = LONGEST_AWAIT) -> Sequence[JobChange]:
        """Return the changes of the server's next answer; maybe none.

        Args:
            wait: Seconds that the server waits for a change, `LONGEST_AWAIT` at most. A wait that has begun cannot be
                shortened. Every write on the server, also one that is filtered out, costs a waiting stream some work.
        """
        try:
            events = next_events(self._cursor, wait)
            return [change for event in events for change in _changes(event, self._namespace)]
        except BSONError as error:
            raise MonqueConnectionError(f"could not read changes: {error}", transient=True) from error

    def close(self) -> None:
        """Close the cursor, within `CLOSING_TIMEOUT`. Never raises."""
        close_cursor(self._cursor)


# --- Streams of any kind ---


def open_stream(aggregate: Callable[[int], CommandCursor[EventT]]) -> CommandCursor[EventT]:
    """Return the cursor that `aggregate` opens, with the longest wait in milliseconds.

    Raises:
        NoStreamError: This server or this user has no change streams.
        MonqueConnectionError: The first answer has an event that the driver cannot decode. Later openings begin behind
            it, so the error is transient.
    """
    try:
        return aggregate(round(LONGEST_AWAIT * 1000))
    except BSONError as error:
        raise MonqueConnectionError(f"could not open the change stream: {error}", transient=True) from error
    except driver.OperationFailure as error:
        if error.code in (UNAUTHORIZED, _STANDALONE):
            message = str(translated(error, "open the change stream", writes=False))
            raise NoStreamError(message, is_of_user=error.code == UNAUTHORIZED) from error
        raise


def next_events(cursor: CommandCursor[EventT], wait: float) -> Iterator[EventT]:
    """Yield the events of the server's next answer, for which the server may take `wait` seconds."""
    # An open cursor of an aggregation has no public attribute for this time. Zero would mean no limit.
    cursor._max_await_time_ms = max(1, round(min(wait, LONGEST_AWAIT) * 1000))  # noqa: SLF001
    event = cursor.try_next()
    while event is not None:
        yield event
        # As the driver's own ChangeStream does: otherwise `try_next` would wait although an event is here already.
        event = cursor.try_next() if cursor._has_next() else None  # noqa: SLF001


def close_cursor(cursor: CommandCursor[Any]) -> None:
    """Close the cursor, within `CLOSING_TIMEOUT`. Never raises."""
    with suppress(driver.PyMongoError), pymongo.timeout(CLOSING_TIMEOUT):
        cursor.close()


# --- The stream of a scheduler ---


@command("open the change stream", writes=False)
def open_watch(jobs: JobCollection, instance_id: str) -> Watch:
    """Open the stream; when this returns, the server has begun to watch.

    Raises:
        NoStreamError: This server or this user has no change streams.
    """
    database = jobs.collection.database.with_options(
        codec_options=LENIENT, read_preference=ReadPreference.PRIMARY, read_concern=MAJORITY
    )
    pipeline = pipeline_of(jobs.collection, instance_id)
    cursor = open_stream(lambda most_ms: database.aggregate(pipeline, maxAwaitTimeMS=most_ms))
    return Watch(LONGEST_AWAIT + ANSWER_MARGIN, jobs.interference, cursor, _namespace(jobs.collection))


@command("end the wait for changes")
def end_wait(jobs: JobCollection, instance_id: str) -> None:
    """End the wait of this instance's stream, by a write that the stream reports.

    The write changes the entry of the instance. If there is none, it inserts a mark, which is deleted at once.
    """
    marks = _instances(jobs.collection)
    if marks.update_one({"_id": instance_id}, {"$set": {LEAVING: True}}).modified_count:
        return
    mark = {"_id": _LEAVING + instance_id}
    # Another value each time: where the mark of a killed process remained, writing the same value would cause no event.
    marks.replace_one(mark, {"at": ObjectId()}, upsert=True)
    marks.delete_one(mark)


def _instances(jobs: Collection) -> Collection:
    # Acknowledged by the primary alone: the mark only ends a wait. If it is rolled back, the wait ends by itself.
    return jobs.database.get_collection(
        name_of_collection(jobs.name), codec_options=OWN_OPTIONS, write_concern=WriteConcern(1)
    )


def _namespace(collection: Collection) -> Mapping[str, str]:
    """Return the namespace as events have it. The server compares it as a whole, with the order of its fields."""
    return {"db": collection.database.name, "coll": collection.name}


def pipeline_of(jobs: Collection, instance_id: str) -> list[dict[str, Any]]:
    """Return the pipeline of the stream. The server runs its filter on every write: a slow one makes each job dearer.

    Namespaces are compared as whole documents, once for each collection. From `ns.coll`, and from conditions in several
    branches, the server makes regular expressions, and tries all of them.
    """
    updated = "updateDescription.updatedFields."
    job = {
        "ns": _namespace(jobs),
        "$or": [
            {"operationType": "insert"},
            {
                # The server reports some updates like this, too: statements with many results, on small documents.
                "operationType": "replace",
                "$or": [
                    {"fullDocument." + FIELD["status"]: "pending"},
                    {"fullDocument." + FIELD["claim.cancel_requested_at"]: {"$exists": True}},
                ],
            },
            {
                "operationType": "update",
                "$or": [
                    {updated + FIELD["status"]: "pending"},
                    {updated + FIELD["next_run_at"]: {"$exists": True}},
                    {updated + FIELD["claim.cancel_requested_at"]: {"$exists": True}},
                ],
            },
        ],
    }
    # Pauses, the leaving mark of this instance, and its own entry, but not its heartbeats.
    beside = {
        "ns": _namespace(_instances(jobs)),
        "documentKey._id": {"$in": [re.compile(f"^{re.escape(PAUSE)}"), _LEAVING + instance_id, instance_id]},
        updated + BEAT: {"$exists": False},
    }
    # These events are rare, so they come for every collection: `_changes` checks whether it was ours.
    vanished = {"operationType": {"$in": ["drop", "rename", "dropDatabase", "invalidate"]}}
    # Only these fields: the data of each job would travel to every instance, and might make an event too large.
    kept = [FIELD[field] for field in ("name", "status", "next_run_at", "claim.cancel_requested_at", "claim.by")]
    return [
        {"$changeStream": {}},
        {"$match": {"$or": [job, beside, vanished]}},
        {
            "$project": {
                "operationType": True,
                "ns": True,
                "to": True,
                "documentKey": True,
                **{f"fullDocument.{field}": True for field in kept},
                **{updated + field: True for field in (*kept, LEAVING)},
            }
        },
    ]


def _is_claimable(inserted: Mapping[str, Any]) -> bool:
    """Return whether a claim may succeed. A job with an owner is left to a look, which logs it."""
    return (
        inserted.get(FIELD["status"]) == "pending"
        and type(inserted.get(FIELD["name"])) is str
        and type(inserted.get(FIELD["next_run_at"])) is datetime
        and inserted.get(FIELD["claim.by"]) is None
    )


def _changes(event: Mapping[str, Any], ours: Mapping[str, str]) -> Sequence[JobChange]:
    if event["operationType"] in ("drop", "rename"):
        return [JobChange(ChangeKind.GONE)] if ours in (event["ns"], event.get("to")) else []
    if event["operationType"] in ("dropDatabase", "invalidate"):
        return [JobChange(ChangeKind.GONE)]
    document_id = event["documentKey"]["_id"]
    if isinstance(document_id, str):  # A document with a string for its id is not a job.
        if document_id.startswith(PAUSE):
            return [JobChange(ChangeKind.PAUSE, name=document_id.removeprefix(PAUSE))]
        is_mark, is_deleted = document_id.startswith(_LEAVING), event["operationType"] == "delete"
        written = event.get("updateDescription", {}).get("updatedFields", {})
        # An instance leaves, and the jobs that it released can be claimed. Its mark is written and deleted at once: of
        # the mark, the write counts. For the instance's entry, both its deletion and the `leaving` field count.
        is_leaving = not is_deleted if is_mark else is_deleted or LEAVING in written
        return [JobChange(ChangeKind.LEAVING)] if is_leaving else []
    if event["operationType"] == "update":
        written = event["updateDescription"]["updatedFields"]
        # A write of the due date without a status usually leaves a job pending.
        is_pending = written.get(FIELD["status"], "pending") == "pending" and (
            FIELD["status"] in written or FIELD["next_run_at"] in written
        )
    else:
        written = event["fullDocument"]
        is_pending = written.get(FIELD["status"]) == "pending"
    if type(document_id) is not ObjectId:
        # No job has such an id, which may be unhashable. A look logs the document.
        return [JobChange(ChangeKind.JOB, is_pending=is_pending)]
    name, due = written.get(FIELD["name"]), written.get(FIELD["next_run_at"])
    return [
        JobChange(
            ChangeKind.JOB,
            document_id,
            name if type(name) is str else None,
            is_new=event["operationType"] == "insert" and _is_claimable(written),
            is_pending=is_pending,
            due=due if type(due) is datetime else None,
            cancel_requested=written.get(FIELD["claim.cancel_requested_at"]) is not None,
        )
    ]
