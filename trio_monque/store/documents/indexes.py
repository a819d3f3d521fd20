"""The indexes for the looks at documents to claim. Created on request only: the collection is the caller's.

An index is partial on the caller's filter if the server supports that filter: then documents that are done, and the
rest of the collection, cost nothing. Otherwise the index begins with the fields of the filter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import bson
from pymongo import ASCENDING, IndexModel
from pymongo import errors as driver

from ...error_types import MonqueConnectionError
from ..codec import OWN_OPTIONS
from ..driver.commands import command
from .due import looked_for
from .locked_collection import EARLIEST, LockedCollection

LARGE: Final = 10_000
"""Documents from which on a collection is not read without an index, unless the caller asks for that."""

MOST_ALTERNATIVES: Final = 8
"""The most alternatives of an `$or` that get an index each. For more of them, the fields beside the `$or` are used."""

# CannotCreateIndex: the server does not support partial indexes with such a filter.
# QueryFeatureNotAllowed: the same for `$expr`.
_CANNOT_CREATE: Final = frozenset({67, 224})
# CannotIndexParallelArrays: two of the filter's fields hold arrays in one document.
_PARALLEL_ARRAYS: Final = 171
# IndexOptionsConflict, IndexKeySpecsConflict.
_CONFLICTS: Final = frozenset({85, 86})

_Keys = list[tuple[str, int]]


@command("create the index for claims")
def create(locked: LockedCollection) -> str:
    """Create the missing indexes for the looks; return the name of the first one.

    With a `sort`, there are two: the first in that order, the second by `until`. If no partial index serves an `$or`,
    each alternative has an index of its own; their names begin with the same text.

    Raises:
        MonqueConnectionError: An index with these keys exists under another name, or the server refuses the index; the
            message says why.
    """
    try:
        name = _make(locked, [[]], {"partialFilterExpression": locked.filter})
    except driver.OperationFailure as error:
        if error.code not in _CANNOT_CREATE:
            raise _explained(locked, error) from error
    else:
        if _is_usable(locked, name):
            return name
        # Some servers accept filters for a partial index, `$or` among them, for which they never use the index.
        for one in _names(locked, [[]]):
            locked.locks.drop_index(one)
    try:
        return _make(locked, list(_heads(locked.filter)), {})
    except driver.OperationFailure as error:
        if error.code != _PARALLEL_ARRAYS:
            raise _explained(locked, error) from error
        return _make(locked, [[]], {})


def _make(locked: LockedCollection, heads: Sequence[Sequence[str]], options: Mapping[str, Any]) -> str:
    """Create, for each head, the indexes in the order of `sort` and by `until` alone.

    A head is the fields that an index begins with; an empty one stands for none.
    """
    by_until = [(locked.at("until"), ASCENDING), (locked.at("by"), ASCENDING)]
    tails = [[*locked.sort, *by_until], by_until] if locked.sort else [by_until]
    keys = [_joined(head, tail) for tail in tails for head in heads]
    names = _names(locked, heads)
    locked.locks.create_indexes([IndexModel(one, name=name, **options) for one, name in zip(keys, names, strict=True)])
    return names[0]


def _names(locked: LockedCollection, heads: Sequence[Sequence[str]]) -> list[str]:
    """Return names made from the filter and the sort. The index by `until` has the same name for each sort."""
    names = []
    for sort in [locked.sort, ()] if locked.sort else [()]:
        what = bson.encode({"filter": locked.filter, "sort": [list(one) for one in sort]}, codec_options=OWN_OPTIONS)
        name = f"trio_monque_claims_{locked.lock_field}_{hashlib.sha256(what).hexdigest()[:8]}"
        names += [name if not place else f"{name}_{place + 1}" for place in range(len(heads))]
    return names


def _is_usable(locked: LockedCollection, name: str) -> bool:
    """Return whether the query planner considers the index. Not by a hint: the server obeys it with any index."""
    return name in set(_values_of("indexName", _plans(locked, EARLIEST)))


def _explained(locked: LockedCollection, error: driver.OperationFailure) -> Exception:
    if error.code not in _CONFLICTS:
        return error
    return MonqueConnectionError(
        f"could not create the index for claims: {locked.collection.full_name} has one with the same keys or name that "
        f"is another. If that serves the claims as well, nothing needs to be created. The server says: {error}"
    )


def _joined(head: Sequence[str], tail: _Keys) -> _Keys:
    in_tail = {name for name, _ in tail}
    return [*((name, ASCENDING) for name in head if name not in in_tail), *tail]


def _heads(condition: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the fields of a filter; if it has an `$or`, the fields for each of its alternatives."""
    fields, alternatives = _named(condition)
    if not 0 < len(alternatives) <= MOST_ALTERNATIVES:
        yield fields
        return
    for one in alternatives:
        more, _ = _named(one)
        yield list(dict.fromkeys([*fields, *more]))


def _named(condition: Mapping[str, Any]) -> tuple[list[str], list[Mapping[str, Any]]]:
    """Return the fields of the conditions that always hold, and the alternatives of the `$or`."""
    fields: dict[str, None] = {}
    alternatives: list[Mapping[str, Any]] = []
    for name, value in condition.items():
        if name == "$and":
            for one in value:
                more, others = _named(one)
                fields.update(dict.fromkeys(more))
                alternatives = alternatives or others
        elif name == "$or":
            alternatives = alternatives or list(value)
        elif not name.startswith("$"):
            fields[name] = None
    return list(fields), alternatives


@command("read the query plan of claims", writes=False)
def is_served(locked: LockedCollection, now: datetime) -> bool:
    """Return whether an index serves the looks at documents to claim, so that no look reads the whole collection."""
    plans = _plans(locked, now)
    # On shards it stands below each of them.
    return "COLLSCAN" not in set(_values_of("stage", plans, but="rejectedPlans"))


def _plans(locked: LockedCollection, now: datetime) -> Mapping[str, Any]:
    search = {"find": locked.collection.name, "filter": looked_for(locked, now), "projection": {"_id": 1}, "limit": 1}
    if locked.sort:
        search["sort"] = dict(locked.sort)
    answer = locked.locks.database.command("explain", search, verbosity="queryPlanner")
    plans: Mapping[str, Any] = answer.get("queryPlanner", answer)
    return plans


def _values_of(name: str, plan: Any, but: str = "") -> Iterator[str]:
    """Yield all texts under that name, at any depth of the plan."""
    if isinstance(plan, Mapping):
        for key, value in plan.items():
            if key == name and isinstance(value, str):
                yield value
            elif key not in (but, "parsedQuery", "command"):  # The query itself may have fields with any name.
                yield from _values_of(name, value, but)
    elif isinstance(plan, list):
        for one in plan:
            yield from _values_of(name, one, but)


@command("count the documents", writes=False)
def is_large(locked: LockedCollection) -> bool:
    """Return whether the collection is too large to be read without an index, by the server's estimate."""
    return locked.locks.estimated_document_count() > LARGE
