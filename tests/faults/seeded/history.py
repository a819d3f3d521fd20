"""What the server really did: every change of the collection in order, from its own stream of changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bson import ObjectId
from pymongo.write_concern import WriteConcern

from trio_monque.store.driver.types import Collection

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """One write to one document: what it was, and what it is; None where it is not there."""

    job: ObjectId
    before: Document | None
    after: Document | None


class History:
    """The changes; filled when the block of `recorded` ends."""

    def __init__(self) -> None:
        self.changes: list[Change] = []


@contextmanager
def recorded(jobs: Collection) -> Iterator[History]:
    """Whatever happens to the collection while inside."""
    history = History()
    with jobs.watch() as stream:
        yield history
        # Behind all the others, and acknowledged by a majority: so the stream has all of them.
        last = jobs.with_options(write_concern=WriteConcern("majority")).insert_one({"is": "the last"}).inserted_id
        documents: dict[Any, dict[str, Any]] = {}
        for entry in stream:
            job_id = entry["documentKey"]["_id"]
            if job_id == last:
                break
            before = documents.pop(job_id, None)
            after = _after(before, entry)
            if after is not None:
                documents[job_id] = after
            history.changes.append(Change(job_id, before, after))
    jobs.delete_one({"_id": last})


def _after(before: Document | None, entry: Mapping[str, Any]) -> dict[str, Any] | None:
    match entry["operationType"]:
        case "insert" | "replace":
            inserted: dict[str, Any] = entry["fullDocument"]
            return inserted
        case "delete":
            return None
        case "update":
            assert before is not None
            document = dict(before)
            description = entry["updateDescription"]
            for path, value in description["updatedFields"].items():
                _put(document, path.split("."), value)
            for path in description["removedFields"]:
                document.pop(path, None)
            return document
        case other:
            raise AssertionError(f"the collection is emptied, not dropped: {other}")


def _put(document: dict[str, Any], path: list[str], value: Any) -> None:
    first, *rest = path
    if first == "errors":
        return  # The history of errors is not judged; and it is the only list.
    if rest:
        document[first] = dict(document[first])
        _put(document[first], rest, value)
    else:
        document[first] = value
