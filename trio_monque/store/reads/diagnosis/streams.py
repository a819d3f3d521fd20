"""How many change streams of schedulers are open, and how much the server writes: each stream reads all of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ...codec import OWN_OPTIONS
from ...driver.commands import command
from ...job_collection import JobCollection
from .server import ask, permitted


@dataclass(frozen=True, kw_only=True)
class WriteTotals:
    """What the server has written by some moment.

    Attributes:
        documents: How many documents, of all databases.
        seconds: When, in seconds since its start.
    """

    documents: int
    seconds: float

    def a_second_since(self, earlier: WriteTotals) -> float:
        """Return the documents a second; 0.0 if no time has passed, or if the server was restarted."""
        seconds = self.seconds - earlier.seconds
        return max(0.0, (self.documents - earlier.documents) / seconds) if seconds > 0 else 0.0


@command("ask the server for its open cursors", writes=False, aggregates=True)
def open_streams(jobs: JobCollection) -> int | None:
    """Return how many change streams follow these jobs: of this user, if it may not ask for those of others.

    None if it may not even ask for its own.
    """
    found = permitted(lambda: _cursors(jobs, of_all_users=True))
    if found is None:
        found = permitted(lambda: _cursors(jobs, of_all_users=False))
    namespace = {"db": jobs.collection.database.name, "coll": jobs.collection.name}
    return None if found is None else sum(_follows(one.get("pipeline"), namespace) for one in found)


def _cursors(jobs: JobCollection, *, of_all_users: bool) -> list[dict[str, Any]]:
    admin = jobs.collection.database.client.get_database("admin", codec_options=OWN_OPTIONS)
    steps: list[dict[str, Any]] = [
        {"$currentOp": {"allUsers": of_all_users, "idleCursors": True}},
        {"$match": {"cursor.originatingCommand.pipeline": {"$exists": True}}},
        {"$project": {"pipeline": "$cursor.originatingCommand.pipeline"}},
    ]
    return list(admin.aggregate(steps))


def _follows(pipeline: Any, namespace: Mapping[str, str]) -> bool:
    """Whether it is a pipeline of `store/jobs/change_stream.py`. Others are those of any program: of any form."""
    with suppress(LookupError, TypeError):
        return "$changeStream" in pipeline[0] and pipeline[1]["$match"]["$or"][0]["ns"] == namespace
    return False


@command("ask the server for its write counters", writes=False)
def look_at_writes(jobs: JobCollection) -> WriteTotals | None:
    """Return what the server has written since its start; None if that may not be asked."""
    found = permitted(lambda: ask(jobs, "serverStatus", **_ONLY_METRICS))
    if found is None:
        return None
    documents = found["metrics"]["document"]
    number = sum(int(documents[what]) for what in ("inserted", "updated", "deleted"))
    return WriteTotals(documents=number, seconds=int(found["uptimeMillis"]) / 1000)


# Sections of serverStatus that are large, and not needed.
_ONLY_METRICS: Final = dict.fromkeys(("repl", "wiredTiger", "locks", "tcmalloc", "sharding"), 0)
