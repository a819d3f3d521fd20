"""The second collection: what each run found, under its own attempt.

It is the demo's own, as any program has its own data beside the jobs. Nothing of the library reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...store.commands import command
from ...store.types import Collection, Database, ObjectId
from .files import Content


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What one run of one job left behind.

    Attributes:
        job_id, attempt: Which run. Both make the key, so that no run can overwrite another's record.
        instance: Which scheduler ran it.
        due_at, claimed_at: When the job was due, and when this run's claim was made.
        path: The file.
        content: What was found in it; None where the run failed.
        failure: Why it failed; None where it did not.
    """

    job_id: ObjectId
    attempt: int
    instance: str
    due_at: datetime
    claimed_at: datetime
    path: str
    content: Content | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Records:
    """The collection. Blocking: for plain handlers and threads."""

    collection: Collection
    operation_timeout: float = 10.0

    @classmethod
    def of(cls, database: Database, name: str) -> Records:
        aware = database.codec_options.with_options(tz_aware=True)
        return cls(database.get_collection(name, codec_options=aware))

    @command("store what a run found")
    def store(self, record: RunRecord) -> None:
        """Writes the record of a run; the same run's again is the same record."""
        document = _document_of(record)
        self.collection.replace_one({"_id": document["_id"]}, document, upsert=True)

    @command("read what the runs found")
    def read(self) -> Sequence[RunRecord]:
        """All records, in no order."""
        return [_record_of(document) for document in self.collection.find()]


def _document_of(record: RunRecord) -> dict[str, Any]:
    content = record.content
    return {
        "_id": f"{record.job_id}:{record.attempt}",
        "job": record.job_id,
        "attempt": record.attempt,
        "instance": record.instance,
        "dueAt": record.due_at,
        "claimedAt": record.claimed_at,
        "path": record.path,
        **({} if content is None else {"digest": content.digest, "lines": content.lines, "bytes": content.bytes}),
        **({} if record.failure is None else {"failure": record.failure}),
    }


def _record_of(document: dict[str, Any]) -> RunRecord:
    digested = "digest" in document
    return RunRecord(
        job_id=document["job"],
        attempt=document["attempt"],
        instance=document["instance"],
        due_at=document["dueAt"],
        claimed_at=document["claimedAt"],
        path=document["path"],
        content=Content(document["digest"], document["lines"], document["bytes"]) if digested else None,
        failure=document.get("failure"),
    )
