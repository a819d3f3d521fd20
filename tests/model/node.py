"""A Node peer on the model's time: the commands that Monque for Node sends, and what they do in the model.

Each function is one command on both sides; it returns whether the two did the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from bson import ObjectId
from pymongo import ASCENDING, ReturnDocument
from pymongo.errors import DuplicateKeyError

from trio_monque.store.driver.types import Collection

from .model import Model
from .state import Difference, ModelJob, check_equal, occurrence_after

NODE: Final = "node-1"
LOCK_TIMEOUT: Final = timedelta(minutes=9)
_DELAY: Final = timedelta(seconds=3)
_CLAIM: Final = ("lockedAt", "claimedBy", "lastHeartbeat")


@dataclass
class Node:
    """One Node process; `held` are the jobs as it claimed them, its own or no longer."""

    jobs: Collection
    model: Model
    held: list[ModelJob] = field(default_factory=list)

    def _mark(self, command: str) -> None:
        self.model.happened.add(f"node's {command}")

    # --- Runs ---

    def claim(self, name: str) -> None:
        now = self.model.now
        written = {"status": "processing", "claimedBy": NODE, "lockedAt": now, "lastHeartbeat": now}
        found = self.jobs.find_one_and_update(
            {"name": name, "status": "pending", "nextRunAt": {"$lte": now}},
            {"$set": {**written, "heartbeatInterval": 20_000, "updatedAt": now}},
            sort=[("nextRunAt", ASCENDING)],
            return_document=ReturnDocument.AFTER,
        )
        due = [job for job in self.model.jobs.values() if job.name == name and job.status == "pending"]
        earliest = min((job.next_run_at for job in due if job.next_run_at <= now), default=None)
        check_equal("node's claim", earliest, found and found["nextRunAt"])
        if found is None:
            return
        job = self.model.jobs[found["_id"]]
        if job not in due:
            raise Difference(f"node's claim: of {job}")
        self._mark("claim")
        job.status, job.claimed_by = "processing", NODE
        job.locked_at = job.last_heartbeat = job.updated_at = now
        job.heartbeat_interval = 20.0
        self.held.append(job.copy())

    def holds(self, held: ModelJob) -> bool:
        """As Node asks: by its name alone."""
        job = self.model.jobs.get(held.id)
        return job is not None and (job.status, job.claimed_by) == ("processing", NODE)

    def complete(self, held: ModelJob) -> None:
        if held.repeat_interval is None:
            job = self._settle(held, "complete", {"status": "completed"}, (*_CLAIM, "failReason"))
            if job is not None:
                job.status, job.fail_reason = "completed", None
            return
        following = occurrence_after(self.model.now, held.repeat_interval)
        written = {"status": "pending", "nextRunAt": following, "failCount": 0}
        job = self._settle(held, "completion of an occurrence", written, (*_CLAIM, "failReason"))
        if job is not None:
            job.status, job.next_run_at, job.fail_count, job.fail_reason = "pending", following, 0, None

    def fail(self, held: ModelJob, limit: int) -> None:
        """`limit` is what its worker says."""
        count = held.fail_count + 1
        following = self.model.now + _DELAY
        written: dict[str, Any] = {"failCount": count, "failReason": "node's"}
        if count >= limit:
            job = self._settle(held, "last failure", {**written, "status": "failed"}, _CLAIM)
        else:
            job = self._settle(held, "failure", {**written, "status": "pending", "nextRunAt": following}, _CLAIM)
            if job is not None:
                job.next_run_at = following
        if job is not None:
            job.status = "failed" if count >= limit else "pending"
            job.fail_count, job.fail_reason = count, "node's"

    def release(self, held: ModelJob) -> None:
        job = self._settle(held, "release", {"status": "pending"}, _CLAIM)
        if job is not None:
            job.status = "pending"

    def _settle(
        self, held: ModelJob, command: str, written: Mapping[str, Any], cleared: tuple[str, ...]
    ) -> ModelJob | None:
        """The job, with all done that every end has in common; None where the claim is not Node's."""
        real = self.jobs.update_one(
            {"_id": held.id, "status": "processing", "claimedBy": NODE},
            {"$set": {**written, "updatedAt": self.model.now}, "$unset": dict.fromkeys(cleared, "")},
        )
        job = self.model.jobs[held.id] if self.holds(held) else None
        check_equal(f"node's {command}", job is not None, bool(real.matched_count))
        if job is not None:
            self._mark(command)
            self._free(job)
        return job

    def _free(self, job: ModelJob) -> None:
        """It knows nothing of our token, and does not clear even its own heartbeatInterval."""
        job.claimed_by = job.locked_at = job.last_heartbeat = None
        job.updated_at = self.model.now

    # --- At its start, and at every beat ---

    def recover(self) -> None:
        now = self.model.now
        real = self.jobs.update_many(
            {"status": "processing", "lockedAt": {"$lt": now - LOCK_TIMEOUT}},
            {"$set": {"status": "pending", "updatedAt": now}, "$unset": dict.fromkeys(_CLAIM, "")},
        )
        count = 0
        for job in self.model.jobs.values():
            if job.status == "processing" and job.locked_at is not None and job.locked_at < now - LOCK_TIMEOUT:
                self._mark("recovery")
                job.status = "pending"
                self._free(job)
                count += 1
        check_equal("node's recovery", count, real.matched_count)

    def beat(self) -> None:
        now = self.model.now
        self.jobs.update_many(
            {"claimedBy": NODE, "status": "processing"}, {"$set": {"lastHeartbeat": now, "updatedAt": now}}
        )
        for job in self.model.jobs.values():
            if (job.status, job.claimed_by) == ("processing", NODE):
                self._mark("heartbeat")
                job.last_heartbeat = job.updated_at = now

    # --- By hand ---

    def enqueue(self, job: ModelJob) -> None:
        """With a unique key, only where no pending or processing job has it."""
        document = {
            "name": job.name,
            "data": job.data,
            "status": job.status,
            "nextRunAt": job.next_run_at,
            "failCount": 0,
            "createdAt": job.created_at,
            "updatedAt": job.updated_at,
            **({} if job.repeat_interval is None else {"repeatInterval": job.repeat_interval}),
        }
        if job.unique_key is None:
            self.jobs.insert_one({"_id": job.id, **document})
            real = job.id
        else:
            found = self.jobs.find_one_and_update(
                {"name": job.name, "uniqueKey": job.unique_key, "status": {"$in": ["pending", "processing"]}},
                {"$setOnInsert": {"_id": job.id, **{key: document[key] for key in document if key not in _IN_FILTER}}},
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
            assert found is not None
            real = found["_id"]
        check_equal("node's enqueue", self.model.enqueue(job).id, real)

    def cancel(self, job_id: ObjectId) -> None:
        job = self._by_hand("cancel", job_id, ("pending",), {"status": "cancelled"})
        if job is not None:
            job.status = "cancelled"

    def retry(self, job_id: ObjectId) -> None:
        now = self.model.now
        written = {"status": "pending", "failCount": 0, "nextRunAt": now}
        job = self._by_hand("retry", job_id, ("failed", "cancelled"), written, ("failReason", *_CLAIM))
        if job is not None:
            job.status, job.fail_count, job.next_run_at, job.fail_reason = "pending", 0, now, None
            self._free(job)

    def reschedule(self, job_id: ObjectId, moment: datetime) -> None:
        job = self._by_hand("reschedule", job_id, ("pending",), {"nextRunAt": moment})
        if job is not None:
            job.next_run_at = moment

    def _by_hand(
        self,
        command: str,
        job_id: ObjectId,
        sources: tuple[str, ...],
        written: Mapping[str, Any],
        cleared: tuple[str, ...] = (),
    ) -> ModelJob | None:
        update: dict[str, Any] = {"$set": {**written, "updatedAt": self.model.now}}
        if cleared:
            update["$unset"] = dict.fromkeys(cleared, "")
        try:
            real = self.jobs.update_one({"_id": job_id, "status": {"$in": list(sources)}}, update).matched_count
        except DuplicateKeyError:
            real = 0
        job = self.model.jobs.get(job_id)
        if job is not None and (job.status not in sources or (command == "retry" and self.model.holder_of_key(job))):
            job = None
        check_equal(f"node's {command}", job is not None, bool(real))
        if job is not None:
            self._mark(command)
            job.updated_at = self.model.now
        return job


# An upsert makes these from its filter's equalities.
_IN_FILTER: Final = frozenset({"name"})
