"""What becomes stale where jobs are shown, by the writes of all programs: a change stream without any data. Blocking.

A viewer reads a region that is stale again, so it does not matter which write it was.

Each change costs the server and this process something. Where they come without pause, a narrow stream has those alone
that are rare, and those of the jobs that are looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import ReadPreference
from pymongo.command_cursor import CommandCursor

from ..driver.commands import MAJORITY, Interference, command
from ..driver.types import ObjectId
from ..fields import FIELD
from ..job_collection import JobCollection
from .change_stream import ANSWER_MARGIN, close_cursor, next_events, open_stream
from .instances import IS_PAUSE, name_of_collection
from .minutes_written import name_of_minutes

NAMES: Final = "names"
ERRORS: Final = "errors"
SCHEDULES: Final = "schedules"
INSTANCES: Final = "instances"
MINUTES: Final = "minutes"
ALL_REGIONS: Final = frozenset({NAMES, ERRORS, SCHEDULES, INSTANCES, MINUTES})
"""What many viewers look at. Beside these, each job is a region: see `region_of`."""

LONGEST_READ: Final = 1.0
"""Seconds that one read waits for a change."""

OVERLAP: Final = 5
"""Seconds before its opening at which a narrow stream begins. So it has what came while the streams were changed, also
what a majority of the servers had not confirmed by then."""

_STATUS, _DUE, _CRON = (FIELD[name] for name in ("status", "next_run_at", "schedule.cron"))
_WRITTEN: Final = "updateDescription.updatedFields."

# How the fields of an event begin in BSON: a type, and the name. Before the first one there are four bytes.
_PLACE: Final = 4 + len(b"\x03_id\x00")
_WHAT: Final = b"\x03what\x00"
_JOB: Final = b"\x07job\x00"


_OF_JOB: Final = "job:"


def region_of(job_id: object) -> str:
    """Return the region that one job is."""
    return f"{_OF_JOB}{job_id}"


def jobs_of(regions: Set[str]) -> frozenset[ObjectId]:
    """Return the jobs that are among these regions."""
    return frozenset(ObjectId(one.removeprefix(_OF_JOB)) for one in regions if one.startswith(_OF_JOB))


class RegionWatch:
    """An open stream. One thread at a time.

    Attributes:
        operation_timeout: Seconds in which `read` has answered or failed.
        interference: What a test has put in the way.
    """

    def __init__(self, jobs: JobCollection, cursor: CommandCursor[RawBSONDocument]) -> None:
        self.operation_timeout = LONGEST_READ + ANSWER_MARGIN
        self.interference: list[Interference] = jobs.interference
        self._cursor = cursor
        self._known: dict[bytes, frozenset[str]] = {}
        name = jobs.collection.name
        self._beside = {name_of_collection(name): INSTANCES, name_of_minutes(name): MINUTES}

    @property
    def is_open(self) -> bool:
        """False once the server has ended it: after a drop of the whole database."""
        return self._cursor.alive

    @command("read which regions are stale", writes=False)
    def read(self, wait: float | None = None) -> Set[str]:
        """Return what has become stale; wait for a second at most, or a shorter time, if nothing has."""
        found = set[str]()
        for event in next_events(self._cursor, LONGEST_READ if wait is None else min(wait, LONGEST_READ)):
            what, job = _parts(bytes(event.raw))
            regions = self._known.get(what)
            if regions is None:
                regions = self._known[what] = frozenset(self._regions(bson.decode(what)))
            found |= regions
            if job is not None:
                found.add(region_of(job.hex()))
        return found

    def close(self) -> None:
        """Close the cursor, within a second. Never raises."""
        close_cursor(self._cursor)

    def _regions(self, what: Mapping[str, Any]) -> Iterator[str]:
        beside = self._beside.get(what["collection"])
        if beside is not None:
            yield beside
            if beside == INSTANCES:
                yield NAMES  # It may have been a pause.
            return
        kind = what["kind"]
        # A renewal changes nothing that many look at.
        if kind == "update" and not what["moved"]:
            return
        yield NAMES
        if kind != "insert" or what["failed"]:
            yield ERRORS
        if kind != "insert" or what["recurs"]:
            yield SCHEDULES


def _parts(event: bytes) -> tuple[bytes, bytes | None]:
    """Return what happened, which few values stand for, and the id of the job if it is an ObjectId.

    To decode whole events would cost the process five times as much, and there may be thousands a second. An event has
    the fields `_id`, the place in the stream, `what`, and `job`, in this order; the first two are documents.
    """
    what = _end_of(event, _PLACE) + len(_WHAT)
    end = _end_of(event, what)
    job = event[end + len(_JOB) : -1] if event.startswith(_JOB, end) else None
    return event[what:end], job


def _end_of(event: bytes, place: int) -> int:
    """Return where the document at this place ends."""
    return place + int.from_bytes(event[place : place + 4], "little")


def _is_there(path: str) -> dict[str, Any]:
    return {"$ne": [{"$type": f"${path}"}, "missing"]}


@command("open the stream of stale regions", writes=False)
def open_regions(jobs: JobCollection, only: Collection[ObjectId] | None = None) -> RegionWatch:
    """Open the stream; when this returns, the server has begun to watch.

    Args:
        jobs: The collection.
        only: For a narrow stream: these jobs, pauses, and instances that come or leave. None for all changes.

    Raises:
        NoStreamError: This server or this user has no change streams.
    """
    collection = jobs.collection
    database = collection.database.with_options(
        codec_options=CodecOptions(document_class=RawBSONDocument),
        read_preference=ReadPreference.PRIMARY,
        read_concern=MAJORITY,
    )
    pipeline: list[dict[str, Any]] = [
        {"$changeStream": {} if only is None else _a_moment_ago(jobs)},
        {"$match": {"operationType": {"$in": ["insert", "update", "replace", "delete"]}, **_written(jobs, only)}},
        {
            "$project": {
                "what": {
                    "collection": "$ns.coll",
                    "kind": "$operationType",
                    "moved": {"$or": [_is_there(f"{_WRITTEN}{field}") for field in (_STATUS, _DUE)]},
                    "failed": {"$eq": [f"$fullDocument.{_STATUS}", "failed"]},
                    "recurs": _is_there(f"fullDocument.{_CRON}"),
                },
                "job": "$documentKey._id",
            }
        },
    ]
    cursor = open_stream(lambda most_ms: database.aggregate(pipeline, maxAwaitTimeMS=most_ms))
    return RegionWatch(jobs, cursor)


def _a_moment_ago(jobs: JobCollection) -> dict[str, Any]:
    """Return where a stream begins that is to have what came shortly before it, by the server's clock."""
    client = jobs.collection.database.client
    with client.start_session() as session:
        client.admin.command("ping", session=session)
        now = session.operation_time
    return {} if now is None else {"startAtOperationTime": Timestamp(now.time - OVERLAP, 1)}


def _written(jobs: JobCollection, only: Collection[ObjectId] | None) -> dict[str, Any]:
    """Return which documents the stream is about."""
    collection = jobs.collection
    of_jobs, instances, minutes = (
        {"db": collection.database.name, "coll": name}
        for name in (collection.name, name_of_collection(collection.name), name_of_minutes(collection.name))
    )
    if only is None:
        return {"ns": {"$in": [of_jobs, instances, minutes]}}
    pauses = {"documentKey._id": IS_PAUSE}
    return {
        "$or": [
            {"ns": of_jobs, "documentKey._id": {"$in": list(only)}},
            {"ns": instances, "$or": [pauses, {"operationType": {"$in": ["insert", "delete"]}}]},
        ]
    }
