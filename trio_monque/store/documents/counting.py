"""Counts documents by the state of their locks, and by their holders. Each count has a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ...locks_and_dead_letters import NEVER
from ..driver.bounded_counts import Stages, first_of
from ..driver.commands import command
from .claiming import selection_of
from .locked_collection import LockedCollection

MOST_COUNTED: Final = 100_000
"""The number up to which the documents of a state are counted."""

MOST_HOLDERS: Final = 100


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A program that holds documents.

    Attributes:
        by: Its name in the locks.
        held: How many it holds.
        until: When the first of these locks ends, unless it is renewed.
    """

    by: str
    held: int
    until: datetime


@dataclass(frozen=True, slots=True)
class LockCounts:
    """How many documents match the filter, by the state of their locks; each at most as many as were asked for.

    Attributes:
        claimable: May be claimed now.
        waiting: Are free from a later moment on: an attempt failed.
        held: An instance or another program holds them.
        overdue: Of these, those whose lock has ended without a renewal.
        dead_letters: Have no attempts left.
        unreadable: Have something else in the lock field. They are never claimed. Counted among the first documents
            whose lock is not a lock until a later moment, as many as were asked for.
        holders: Who holds the most.
    """

    claimable: int
    waiting: int
    held: int
    overdue: int
    dead_letters: int
    unreadable: int
    holders: Sequence[LockHolder]


@command("count the documents by their locks", writes=False, aggregates=True)
def count(locked: LockedCollection, now: datetime, most: int | None = None) -> LockCounts:
    """Count the documents that match the filter, those of each state up to `most`; None for MOST_COUNTED."""
    until = locked.at("until")
    most = MOST_COUNTED if most is None else most

    def number(*conditions: Mapping[str, Any]) -> int:
        return locked.locks.count_documents(locked.meant(*conditions), limit=most)

    return LockCounts(
        claimable=number(locked.claimable(now)),
        waiting=number(locked.waiting, {until: {"$gt": now, "$lt": NEVER}}),
        held=number(locked.held),
        overdue=number(locked.held, {until: {"$lte": now}}),
        dead_letters=number(locked.is_dead_letter),
        unreadable=_unreadable(locked, now, most),
        holders=_holders(locked, most),
    )


def _unreadable(locked: LockedCollection, now: datetime, most: int) -> int:
    # An index by `until` does not tell such locks from missing ones: without the limit, each free document is read.
    steps: Stages = [
        *first_of(locked.meant({locked.at("until"): {"$not": {"$gt": now}}}), most),
        {"$match": locked.unreadable(now)},
        {"$count": "found"},
    ]
    return next((int(one["found"]) for one in locked.locks.aggregate(steps)), 0)


def _holders(locked: LockedCollection, most: int) -> Sequence[LockHolder]:
    steps: Stages = [
        *first_of(locked.meant(locked.held), most),
        {"$group": {"_id": f"${locked.at('by')}", "held": {"$sum": 1}, "until": {"$min": f"${locked.at('until')}"}}},
        {"$sort": {"held": -1, "_id": 1}},
        {"$limit": MOST_HOLDERS},
    ]
    return [LockHolder(str(one["_id"]), one["held"], one["until"]) for one in locked.locks.aggregate(steps)]


@command("count dead letters", writes=False, aggregates=True)
def count_dead_letters(locked: LockedCollection, ids: Sequence[Any] | None) -> int:
    """Return how many documents `listing_and_readmitting.readmit` would free with these arguments."""
    which, hint = selection_of(locked, ids)
    options: dict[str, Any] = {} if hint is None else {"hint": hint}
    return locked.locks.count_documents({"$and": [which, locked.is_dead_letter]}, **options)
