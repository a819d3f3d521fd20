"""What becomes stale where jobs are shown, by the writes of all programs: a change stream without any data. Blocking.

A viewer reads a region that is stale again, so it does not matter which write it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any, Final

from pymongo import ReadPreference
from pymongo.command_cursor import CommandCursor

from ..codec import LENIENT
from ..driver.commands import MAJORITY, Interference, command
from ..driver.types import ObjectId
from ..fields import FIELD
from ..job_collection import JobCollection
from .change_stream import ANSWER_MARGIN, close_cursor, next_events, open_stream
from .instances import name_of_collection
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

_STATUS, _DUE, _CRON = (FIELD[name] for name in ("status", "next_run_at", "schedule.cron"))
_WRITTEN: Final = "updateDescription.updatedFields."


def region_of(job_id: object) -> str:
    """Return the region that one job is."""
    return f"job:{job_id}"


class RegionWatch:
    """An open stream. One thread at a time.

    Attributes:
        operation_timeout: Seconds in which `read` has answered or failed.
        interference: What a test has put in the way.
    """

    def __init__(self, jobs: JobCollection, cursor: CommandCursor[Mapping[str, Any]]) -> None:
        self.operation_timeout = LONGEST_READ + ANSWER_MARGIN
        self.interference: list[Interference] = jobs.interference
        self._cursor = cursor
        name = jobs.collection.name
        self._beside = {name_of_collection(name): INSTANCES, name_of_minutes(name): MINUTES}

    @property
    def is_open(self) -> bool:
        """False once the server has ended it: after a drop of the whole database."""
        return self._cursor.alive

    @command("read which regions are stale", writes=False)
    def read(self) -> Set[str]:
        """Return what has become stale; wait for a second at most, if nothing has."""
        return {region for event in next_events(self._cursor, LONGEST_READ) for region in self._regions(event)}

    def close(self) -> None:
        """Close the cursor, within a second. Never raises."""
        close_cursor(self._cursor)

    def _regions(self, event: Mapping[str, Any]) -> Iterator[str]:
        beside = self._beside.get(event["ns"].get("coll"))
        if beside is not None:
            yield beside
            if beside == INSTANCES:
                yield NAMES  # It may have been a pause.
            return
        job_id = event["documentKey"]["_id"]
        if isinstance(job_id, ObjectId):
            yield region_of(job_id)
        kind = event["operationType"]
        written = event.get("updateDescription", {}).get("updatedFields", {}) if kind == "update" else {}
        # A renewal changes nothing that many look at.
        if kind == "update" and _STATUS not in written and _DUE not in written:
            return
        yield NAMES
        if kind != "insert" or event.get("fullDocument", {}).get(_STATUS) == "failed":
            yield ERRORS
        if kind != "insert" or _CRON in event.get("fullDocument", {}):
            yield SCHEDULES


@command("open the stream of stale regions", writes=False)
def open_regions(jobs: JobCollection) -> RegionWatch:
    """Open the stream; when this returns, the server has begun to watch.

    Raises:
        NoStreamError: This server or this user has no change streams.
    """
    collection = jobs.collection
    database = collection.database.with_options(
        codec_options=LENIENT, read_preference=ReadPreference.PRIMARY, read_concern=MAJORITY
    )
    names = (collection.name, name_of_collection(collection.name), name_of_minutes(collection.name))
    pipeline: list[dict[str, Any]] = [
        {"$changeStream": {}},
        {
            "$match": {
                "ns": {"$in": [{"db": database.name, "coll": name} for name in names]},
                "operationType": {"$in": ["insert", "update", "replace", "delete"]},
            }
        },
        {
            "$project": {
                "operationType": True,
                "ns": True,
                "documentKey": True,
                **{f"{_WRITTEN}{field}": True for field in (_STATUS, _DUE)},
                **{f"fullDocument.{field}": True for field in (_STATUS, _CRON)},
            }
        },
    ]
    cursor = open_stream(lambda most_ms: database.aggregate(pipeline, maxAwaitTimeMS=most_ms))
    return RegionWatch(jobs, cursor)
