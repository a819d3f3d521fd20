"""One statement that gives each of many documents its own values: an aggregation looks them up by `_id`.

A thousand claims may end in the same moment, each with a result of its own. A statement for each costs the server more
than one that has all results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

MOST_BYTES: Final = 1024 * 1024
"""Bytes of values in one statement; larger values go alone. The server takes 16 MiB. Chosen, not measured."""


def each_its_own(
    values: Sequence[object],
    place: Mapping[str, Any],
    unset: str | list[str],
    *,
    shared: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Return the stages that merge values into each document, and remove fields from it.

    Args:
        values: The values of each document: a document of fields.
        place: The expression that finds the place of a document in `values`.
        unset: The fields to remove.
        shared: Fields that all of the documents get.
    """
    # All values are literals, also those that are ours: an aggregation would evaluate one such as {"$add": [1, 2]}.
    own = {"$arrayElemAt": [{"$literal": values}, place]}
    same = [] if shared is None else [{"$literal": shared}]
    # Merged at the top level only: a stage `$set` would merge a document into the one that the field had before.
    return [{"$replaceWith": {"$mergeObjects": ["$$ROOT", *same, own]}}, {"$unset": unset}]
