"""The files of the demo, and the records of the runs that read them.

The records are in a collection of the demo's own, as any program has its own data beside the jobs. The library does not
read it.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any

from ...store.commands import command
from ...store.types import Collection, Database, ObjectId

# Installed packages do not belong to the standard library.
_NOT_OURS = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True)
class Content:
    """What a job stores about a file."""

    digest: str
    lines: int
    bytes: int


def standard_library() -> Path:
    """Return the folder of the standard library of this interpreter."""
    return Path(sysconfig.get_path("stdlib"))


def find_files(folder: Path, pattern: str, most: int | None) -> Sequence[Path]:
    """Return the readable files below the folder, always in the same order."""
    return list(islice(_walk(folder, pattern), most))


def _walk(folder: Path, pattern: str) -> Iterator[Path]:
    for parent, subfolders, names in os.walk(folder):
        subfolders[:] = sorted(set(subfolders) - _NOT_OURS)
        for name in sorted(names):
            path = Path(parent, name)
            if fnmatch(name, pattern) and path.is_file() and os.access(path, os.R_OK) and _can_be_stored(path):
                yield path


def _can_be_stored(path: Path) -> bool:
    # A name that is not in the encoding of the file system has surrogates, which UTF-8, and so BSON, cannot store.
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def measure(path: Path) -> Content:
    """Read the file; raise OSError if that fails."""
    content = path.read_bytes()
    return Content(hashlib.sha256(content).hexdigest(), content.count(b"\n"), len(content))


# --- The records of the runs ---


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What one run of one job found.

    Attributes:
        job_id, attempt: The run. Both are in the `_id`, so that no run overwrites the record of another.
        instance: The scheduler that ran it.
        due_at, claimed_at: When the job was due, and when it was claimed for this run.
        path: The file.
        content: What was found in the file; None if the run failed.
        failure: Why the run failed; None if it did not.
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
    """The collection of the records. Its calls block: use them in plain handlers and threads."""

    collection: Collection
    operation_timeout: float = 10.0

    @classmethod
    def of(cls, database: Database, name: str) -> Records:
        aware = database.codec_options.with_options(tz_aware=True)
        return cls(database.get_collection(name, codec_options=aware))

    @command("store what a run found")
    def store(self, record: RunRecord) -> None:
        """Write the record of a run. A second write for the same run replaces the first."""
        document = _document_of(record)
        self.collection.replace_one({"_id": document["_id"]}, document, upsert=True)

    @command("read what the runs found")
    def read(self) -> Sequence[RunRecord]:
        """Return all records, in no order."""
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
