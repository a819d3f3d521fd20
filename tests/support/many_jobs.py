"""A hundred thousand jobs, or more, as a queue has them after some weeks. Inserted raw, as fast as the server can."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from bson import ObjectId

from trio_monque.store.driver.types import Collection

BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)

# Enqueued in groups of one millisecond, as `enqueue_many` does.
GROUP: Final = 2_000
BATCH: Final = 20_000
RARE_NAME: Final = "rare"
NAMES: Final = ("mail", "report", "sync")


def documents(number: int) -> Iterator[dict[str, Any]]:
    """Mostly completed; one in fifty pending, one in 1,000 running and failed each, one in 5,000 cancelled."""
    for one in range(number):
        created = BEGIN + timedelta(milliseconds=one // GROUP)
        status = _status(one)
        document: dict[str, Any] = {
            "_id": ObjectId(one.to_bytes(12, "big")),
            "name": RARE_NAME if one % 1_009 == 0 or one % 20_000 == 1_003 else NAMES[one % 3],
            "data": {"number": one},
            "status": status,
            "failCount": 0,
            "nextRunAt": created + timedelta(seconds=one * 7919 % 50),
            "createdAt": created,
            "updatedAt": created + timedelta(seconds=one * 104729 % 50),
        }
        if status == "failed":
            document["failReason"] = "card declined" if one % 3 else "timed out"
        if status == "processing":
            document |= {"claimedBy": f"host-{one % 4}", "lockedAt": created, "lastHeartbeat": created}
        yield document


def _status(one: int) -> str:
    for every, status in ((5_000, "cancelled"), (1_000, "failed"), (500, "processing"), (50, "pending")):
        if one % every == 3:
            return status
    return "completed"


def insert(jobs: Collection, number: int) -> None:
    """Before the indexes are made: that is faster."""
    insert_all(jobs, documents(number))


def insert_all(jobs: Collection, made: Iterator[dict[str, Any]]) -> None:
    """As many at a time as are in memory at once."""
    while batch := list(islice(made, BATCH)):
        jobs.insert_many(batch, ordered=False)
