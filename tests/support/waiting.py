"""Waiting for a state of the database, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from trio_monque.store.types import Collection


async def wait_for_jobs(jobs: Collection, count: int, within: float = 3600.0, **fields: Any) -> None:
    """Returns when `count` documents have these fields; looks every tenth of a virtual second."""
    found = -1
    with trio.move_on_after(within):
        while (found := jobs.count_documents(fields)) != count:
            await trio.sleep(0.1)
        return
    raise AssertionError(f"{found} jobs have {fields} after {within} s, not {count}: {_statuses(jobs)}")


def _statuses(jobs: Collection) -> Mapping[str, int]:
    return {row["_id"]: row["n"] for row in jobs.aggregate([{"$group": {"_id": "$status", "n": {"$sum": 1}}}])}
