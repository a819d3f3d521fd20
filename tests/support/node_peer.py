"""A Node peer: the commands that Monque for Node sends, by plain pymongo. One function a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, IndexModel

from trio_monque.store.driver.types import Collection

Document = Mapping[str, Any]

INDEXES = (
    IndexModel([("status", ASCENDING), ("nextRunAt", ASCENDING)]),
    IndexModel(
        [("name", ASCENDING), ("uniqueKey", ASCENDING)],
        unique=True,
        partialFilterExpression={"uniqueKey": {"$exists": True}, "status": {"$in": ["pending", "processing"]}},
    ),
    IndexModel([("name", ASCENDING), ("status", ASCENDING)]),
    IndexModel([("createdAt", DESCENDING), ("_id", DESCENDING)]),
    IndexModel([("updatedAt", DESCENDING), ("_id", DESCENDING)]),
    IndexModel([("nextRunAt", DESCENDING), ("_id", DESCENDING)]),
    IndexModel([("claimedBy", ASCENDING), ("status", ASCENDING)]),
    IndexModel([("lastHeartbeat", ASCENDING), ("status", ASCENDING)]),
    IndexModel([("name", ASCENDING), ("status", ASCENDING), ("nextRunAt", ASCENDING), ("claimedBy", ASCENDING)]),
    IndexModel([("status", ASCENDING), ("lockedAt", ASCENDING), ("lastHeartbeat", ASCENDING)]),
    IndexModel(
        [("status", ASCENDING), ("updatedAt", ASCENDING)],
        partialFilterExpression={"status": {"$in": ["completed", "failed"]}, "updatedAt": {"$exists": True}},
    ),
)


def now() -> datetime:
    """A Node process goes by its own wall clock."""
    return datetime.now(UTC).replace(microsecond=0)


@dataclass(frozen=True)
class NodePeer:
    """One Node process."""

    jobs: Collection
    instance: str = "node-1"
    heartbeat_interval: int = 30_000

    def enqueue(self, name: str, data: Any = None, **fields: Any) -> ObjectId:
        at = now()
        document = {
            "name": name,
            "data": data,
            "status": "pending",
            "nextRunAt": at,
            "failCount": 0,
            "createdAt": at,
            "updatedAt": at,
            **fields,
        }
        inserted = self.jobs.insert_one(document).inserted_id
        assert isinstance(inserted, ObjectId)
        return inserted

    def claim(self, name: str, at: datetime | None = None) -> Document | None:
        at = at or now()
        found: Document | None = self.jobs.find_one_and_update(
            {"name": name, "status": "pending", "nextRunAt": {"$lte": at}},
            {
                "$set": {
                    "status": "processing",
                    "claimedBy": self.instance,
                    "lockedAt": at,
                    "lastHeartbeat": at,
                    "heartbeatInterval": self.heartbeat_interval,
                    "updatedAt": at,
                }
            },
            sort=[("nextRunAt", ASCENDING)],
            return_document=True,
        )
        return found

    def hold(self, name: str, count: int, since: datetime) -> None:
        """Jobs that it claimed then."""
        self.jobs.insert_many(
            {
                "name": name,
                "data": None,
                "status": "processing",
                "nextRunAt": since,
                "failCount": 0,
                "createdAt": since,
                "updatedAt": since,
                "claimedBy": self.instance,
                "lockedAt": since,
                "lastHeartbeat": since,
                "heartbeatInterval": self.heartbeat_interval,
            }
            for _ in range(count)
        )

    def complete(self, job_id: ObjectId) -> bool:
        return self._settle(
            job_id,
            {"status": "completed", "updatedAt": now()},
            ("lockedAt", "claimedBy", "lastHeartbeat", "failReason"),
        )

    def complete_occurrence(self, job_id: ObjectId, following: datetime) -> bool:
        """The same for a recurring job."""
        return self._settle(
            job_id,
            {"status": "pending", "nextRunAt": following, "failCount": 0, "updatedAt": now()},
            ("lockedAt", "claimedBy", "lastHeartbeat", "failReason"),
        )

    def release(self, job_id: ObjectId) -> bool:
        return self._settle(
            job_id, {"status": "pending", "updatedAt": now()}, ("lockedAt", "claimedBy", "lastHeartbeat")
        )

    def fail(self, claimed: Document, due: datetime, at: datetime) -> bool:
        """With a try left. Its count is absolute, and known from its claim."""
        return self._settle(
            claimed["_id"],
            {
                "status": "pending",
                "failCount": claimed["failCount"] + 1,
                "failReason": "no",
                "nextRunAt": due,
                "updatedAt": at,
            },
            ("lockedAt", "claimedBy", "lastHeartbeat"),
        )

    def cancel(self, job_id: ObjectId, at: datetime) -> bool:
        cancelled = self.jobs.update_one(
            {"_id": job_id, "status": "pending"}, {"$set": {"status": "cancelled", "updatedAt": at}}
        )
        return bool(cancelled.modified_count)

    def retry(self, job_id: ObjectId, due: datetime, at: datetime) -> bool:
        """What has failed or was cancelled."""
        retried = self.jobs.update_one(
            {"_id": job_id, "status": {"$in": ["failed", "cancelled"]}},
            {
                "$set": {"status": "pending", "failCount": 0, "nextRunAt": due, "updatedAt": at},
                "$unset": dict.fromkeys(("failReason", "lockedAt", "claimedBy", "lastHeartbeat"), ""),
            },
        )
        return bool(retried.modified_count)

    def beat(self, at: datetime | None = None) -> int:
        """Its heartbeat: of every claim under its id, also those of other processes."""
        at = at or now()
        return self.jobs.update_many(
            {"claimedBy": self.instance, "status": "processing"}, {"$set": {"lastHeartbeat": at, "updatedAt": at}}
        ).modified_count

    def recover(self, lock_timeout: timedelta) -> int:
        """What a Node process does at its start: by the age of the lock alone, live heartbeats or not."""
        return self.jobs.update_many(
            {"status": "processing", "lockedAt": {"$lt": now() - lock_timeout}},
            {
                "$set": {"status": "pending", "updatedAt": now()},
                "$unset": {"lockedAt": "", "claimedBy": "", "lastHeartbeat": ""},
            },
        ).modified_count

    def _settle(self, job_id: ObjectId, written: Document, cleared: tuple[str, ...]) -> bool:
        return bool(
            self.jobs.update_one(
                {"_id": job_id, "status": "processing", "claimedBy": self.instance},
                {"$set": dict(written), "$unset": dict.fromkeys(cleared, "")},
            ).modified_count
        )
