"""The stages of counts that read a bounded part of an index, and several such counts in one command.

A collection may have years of history. So a count names its condition as an index has it, and reads the first documents
only. With one document more than it counts, it also shows whether there are more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .types import Collection

Stages = list[dict[str, Any]]


def first_of(condition: Mapping[str, Any], most: int, order: Mapping[str, int] | None = None) -> Stages:
    """Return the stages that read the documents that match: `most` at most, the first in this order."""
    return [{"$match": condition}, *([{"$sort": order}] if order else []), {"$limit": most}]


def number_by(key: Any, **computed: Any) -> dict[str, Any]:
    """Return the stage that counts the documents for each value of an expression, as `number`."""
    return {"$group": {"_id": key, "number": {"$sum": 1}, **computed}}


def joined(collection: Collection, pipelines: Iterable[Stages]) -> Stages:
    """Return one pipeline that answers all of them, in their order. Each reads the collection by itself."""
    first, *others = pipelines
    return [*first, *({"$unionWith": {"coll": collection.name, "pipeline": one}} for one in others)]
