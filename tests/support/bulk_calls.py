"""The three bulk calls, what they do and report, and documents of jobs to call them on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from bson import ObjectId

from trio_monque import Monque
from trio_monque.events import Event, JobsCancelled, JobsDeleted, JobsRetried
from trio_monque.store.driver.types import Collection

DAY = datetime(2026, 1, 1, tzinfo=UTC)

STATUSES = ("pending", "processing", "completed", "failed", "cancelled")


def put(jobs: Collection, status: str, name: str = "greet", **fields: Any) -> ObjectId:
    document = {"name": name, "data": {}, "status": status, "failCount": 0, "nextRunAt": DAY}
    inserted = jobs.insert_one({**document, "createdAt": DAY, "updatedAt": DAY, **fields}).inserted_id
    assert isinstance(inserted, ObjectId)
    return inserted


def statuses(jobs: Collection) -> Counter[str]:
    return Counter(job["status"] for job in jobs.find())


def listening(monque: Monque) -> list[Event]:
    reported: list[Event] = []
    monque.on(Event, reported.append)
    return reported


CALLS: dict[str, Callable[..., Any]] = {
    "cancel": lambda monque, **selection: monque.cancel_jobs(**selection),
    "retry": lambda monque, **selection: monque.retry_jobs(**selection),
    "delete": lambda monque, **selection: monque.delete_jobs(**selection),
}

POSSIBLE = {"cancel": {"pending"}, "retry": {"failed", "cancelled"}, "delete": set(STATUSES)}

AFTER = {"cancel": "cancelled", "retry": "pending", "delete": None}

EVENT = {"cancel": JobsCancelled, "retry": JobsRetried, "delete": JobsDeleted}
