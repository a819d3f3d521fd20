"""What the server examined for the commands that were sent, by its profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from trio_monque.store.driver.types import Database

T = TypeVar("T")


@dataclass(frozen=True)
class Examined:
    """Of all commands of a call together.

    Attributes:
        keys, documents: How many the server looked at.
        plans: The server's summary of each plan.
        sorted: Whether anything was sorted in memory.
    """

    keys: int
    documents: int
    plans: tuple[str, ...]
    sorted: bool


def examined(db: Database, call: Callable[[], T]) -> tuple[T, Examined]:
    """What the call returns, and what it cost the server."""
    with profiling(db) as reported:
        result = call()
    entries = list(reported())
    return result, Examined(
        keys=sum(entry.get("keysExamined", 0) for entry in entries),
        documents=sum(entry.get("docsExamined", 0) for entry in entries),
        plans=tuple(entry.get("planSummary", "") for entry in entries),
        sorted=any(entry.get("hasSortStage", False) for entry in entries),
    )


@contextmanager
def profiling(
    db: Database, size: int | None = None, collection: str = "monque_jobs"
) -> Iterator[Callable[[], Iterator[dict[str, Any]]]]:
    """The entries of all that the block sent to a collection; asked for after the block.

    Args:
        db: Whose collection.
        size: Bytes that the entries may take; the server's default is a megabyte, and it drops the earliest entries.
        collection: Its name.
    """
    db.command("profile", 0)
    db["system.profile"].drop()
    if size is not None:
        db.create_collection("system.profile", capped=True, size=size)
    db.command("profile", 2)
    try:
        yield lambda: db["system.profile"].find(
            {"ns": f"{db.name}.{collection}", "op": {"$in": ["query", "command", "getmore", "update"]}},
            sort=[("$natural", 1)],
        )
    finally:
        db.command("profile", 0)
