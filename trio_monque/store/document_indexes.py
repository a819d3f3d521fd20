"""The indexes that serve the search for documents to claim. Made on request only: the collection is not ours.

One is partial on the caller's filter where the server can have such a one: then what is done costs nothing, and the
rest of the collection neither. Otherwise it begins with the fields of the filter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import bson
from pymongo import ASCENDING, IndexModel
from pymongo import errors as driver

from ..errors import MonqueConnectionError
from .codec import OWN_OPTIONS
from .document_looks import looked_for
from .locked_collection import LockedCollection
from .outcomes import command

LARGE: Final = 10_000
"""Documents in a collection that is not searched without an index unless that is asked for."""

MOST_ALTERNATIVES: Final = 8
"""Each alternative of an `$or` needs an index of its own; a filter with more is served by none of them."""

# CannotCreateIndex: the server has no partial indexes with such a filter.
_CANNOT_CREATE: Final = 67
# CannotIndexParallelArrays: two of the filter's fields hold arrays in one document.
_PARALLEL_ARRAYS: Final = 171
# IndexOptionsConflict, IndexKeySpecsConflict.
_CONFLICTS: Final = frozenset({85, 86})

_Keys = list[tuple[str, int]]


@command("create the index for claims")
def create(locked: LockedCollection) -> str:
    """Creates what serves the search, where it is not there already; returns the name of the index.

    With a `sort` it is two: one in that order, and one by `until`. An `$or` that no partial index can have takes one
    for each alternative. The name is that of the first; all begin with it.

    Raises:
        MonqueConnectionError: An index with these keys exists under another name, or the server refuses; says why.
    """
    name = _name(locked)
    tails = [_tail(locked)] if not locked.sort else [list(locked.sort) + _tail(locked), _tail(locked)]
    try:
        _make(locked, name, tails, {"partialFilterExpression": locked.filter})
    except driver.OperationFailure as error:
        if error.code != _CANNOT_CREATE:
            raise _told(locked, error) from error
        heads = list(_heads(locked.filter))
        _make_whole(locked, name, [_joined(head, tail) for head in heads for tail in tails], tails)
    return name


def _make_whole(locked: LockedCollection, name: str, keys: Sequence[_Keys], tails: Sequence[_Keys]) -> None:
    try:
        _make(locked, name, keys, {})
    except driver.OperationFailure as error:
        if error.code != _PARALLEL_ARRAYS:
            raise _told(locked, error) from error
        _make(locked, name, tails, {})


def _make(locked: LockedCollection, name: str, keys: Sequence[_Keys], options: Mapping[str, Any]) -> None:
    names = [name, *(f"{name}_{number}" for number in range(2, len(keys) + 1))]
    locked.locks.create_indexes([IndexModel(one, name=each, **options) for one, each in zip(keys, names, strict=True)])


def _told(locked: LockedCollection, error: driver.OperationFailure) -> Exception:
    if error.code not in _CONFLICTS:
        return error
    return MonqueConnectionError(
        f"could not create the index for claims: {locked.collection.full_name} has one with the same keys or name that "
        f"is another. If that serves the claims as well, nothing needs to be created. The server says: {error}"
    )


def _name(locked: LockedCollection) -> str:
    """The same for the same filter and order, and another for any other."""
    what = bson.encode({"filter": locked.filter, "sort": list(locked.sort)}, codec_options=OWN_OPTIONS)
    return f"trio_monque_claims_{locked.lock_field}_{hashlib.sha256(what).hexdigest()[:8]}"


def _tail(locked: LockedCollection) -> _Keys:
    return [(locked.at("until"), ASCENDING), (locked.at("by"), ASCENDING)]


def _joined(head: Sequence[str], tail: _Keys) -> _Keys:
    in_tail = {name for name, _ in tail}
    return [*((name, ASCENDING) for name in head if name not in in_tail), *tail]


def _heads(condition: Mapping[str, Any]) -> Iterator[list[str]]:
    """The fields that a filter names, for each of its alternatives where it has an `$or`."""
    fields, alternatives = _named(condition)
    if not 0 < len(alternatives) <= MOST_ALTERNATIVES:
        yield fields
        return
    for one in alternatives:
        more, _ = _named(one)
        yield list(dict.fromkeys([*fields, *more]))


def _named(condition: Mapping[str, Any]) -> tuple[list[str], list[Mapping[str, Any]]]:
    """The fields that all documents of it are looked for by, and its alternatives."""
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


@command("ask how claims are looked for", writes=False)
def is_served(locked: LockedCollection, now: datetime) -> bool:
    """Whether an index serves the search for documents to claim: the server need not look at all of the collection."""
    search = {"find": locked.collection.name, "filter": looked_for(locked, now), "projection": {"_id": 1}, "limit": 1}
    if locked.sort:
        search["sort"] = dict(locked.sort)
    answer = locked.locks.database.command("explain", search, verbosity="queryPlanner")
    return "COLLSCAN" not in set(_stages(answer.get("queryPlanner", answer)))


def _stages(plan: Any) -> Iterator[str]:
    """Of the plan that wins, wherever in the answer it stands: on shards, below each of them."""
    if isinstance(plan, Mapping):
        for name, value in plan.items():
            if name == "stage" and isinstance(value, str):
                yield value
            elif name not in ("rejectedPlans", "parsedQuery"):
                yield from _stages(value)
    elif isinstance(plan, list):
        for one in plan:
            yield from _stages(one)


@command("count the documents", writes=False)
def is_large(locked: LockedCollection) -> bool:
    """Whether the collection is too large to be searched without an index, by the server's estimate."""
    return locked.locks.estimated_document_count() > LARGE
