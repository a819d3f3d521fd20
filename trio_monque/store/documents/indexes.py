"""The indexes that serve the search for documents to claim. Made on request only: the collection is not ours.

The index is partial on the caller's filter where the server supports that: then handled documents, and the rest of the
collection, cost nothing. Otherwise it begins with the fields of the filter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import bson
from pymongo import ASCENDING, IndexModel
from pymongo import errors as driver

from ...errors import MonqueConnectionError
from ..codec import OWN_OPTIONS
from ..commands import command
from .due import looked_for
from .locked_collection import EARLIEST, LockedCollection

LARGE: Final = 10_000
"""Documents in a collection that is not searched without an index unless that is asked for."""

MOST_ALTERNATIVES: Final = 8
"""Each alternative of an `$or` needs an index of its own; a filter with more is served by none of them."""

# CannotCreateIndex: the server has no partial indexes with such a filter.
# QueryFeatureNotAllowed: the same of `$expr`.
_CANNOT_CREATE: Final = frozenset({67, 224})
# CannotIndexParallelArrays: two of the filter's fields hold arrays in one document.
_PARALLEL_ARRAYS: Final = 171
# IndexOptionsConflict, IndexKeySpecsConflict.
_CONFLICTS: Final = frozenset({85, 86})

_Keys = list[tuple[str, int]]


@command("create the index for claims")
def create(locked: LockedCollection) -> str:
    """Creates what serves the search, where it is not there already; returns the name of the index.

    With a `sort` it is two: one in that order, whose name this is, and one by `until`. An `$or` that no partial index
    serves takes one for each alternative: the name of each begins with this.

    Raises:
        MonqueConnectionError: An index with these keys exists under another name, or the server refuses; says why.
    """
    try:
        name = _make(locked, [[]], {"partialFilterExpression": locked.filter})
    except driver.OperationFailure as error:
        if error.code not in _CANNOT_CREATE:
            raise _explained(locked, error) from error
    else:
        if _is_usable(locked, name):
            return name
        # There are filters, `$or` among them, that a server lets into an index and then never finds it by.
        for one in _names(locked, [[]]):
            locked.locks.drop_index(one)
    try:
        return _make(locked, list(_heads(locked.filter)), {})
    except driver.OperationFailure as error:
        if error.code != _PARALLEL_ARRAYS:
            raise _explained(locked, error) from error
        return _make(locked, [[]], {})


def _make(locked: LockedCollection, heads: Sequence[Sequence[str]], options: Mapping[str, Any]) -> str:
    """One that begins with each of these; in the order of the sort, and by `until` alone."""
    by_until = [(locked.at("until"), ASCENDING), (locked.at("by"), ASCENDING)]
    tails = [[*locked.sort, *by_until], by_until] if locked.sort else [by_until]
    keys = [_joined(head, tail) for tail in tails for head in heads]
    names = _names(locked, heads)
    locked.locks.create_indexes([IndexModel(one, name=name, **options) for one, name in zip(keys, names, strict=True)])
    return names[0]


def _names(locked: LockedCollection, heads: Sequence[Sequence[str]]) -> list[str]:
    """The same for the same filter and order, and others for any other. That by `until` is the same for each order."""
    names = []
    for sort in [locked.sort, ()] if locked.sort else [()]:
        what = bson.encode({"filter": locked.filter, "sort": [list(one) for one in sort]}, codec_options=OWN_OPTIONS)
        name = f"trio_monque_claims_{locked.lock_field}_{hashlib.sha256(what).hexdigest()[:8]}"
        names += [name if not place else f"{name}_{place + 1}" for place in range(len(heads))]
    return names


def _is_usable(locked: LockedCollection, name: str) -> bool:
    """Return whether the planner considers it. Not by a hint: the server follows that also to an index of no use."""
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
    """What it says under that name, wherever in it."""
    if isinstance(plan, Mapping):
        for key, value in plan.items():
            if key == name and isinstance(value, str):
                yield value
            elif key not in (but, "parsedQuery", "command"):  # What was asked may have fields of any name.
                yield from _values_of(name, value, but)
    elif isinstance(plan, list):
        for one in plan:
            yield from _values_of(name, one, but)


@command("count the documents", writes=False)
def is_large(locked: LockedCollection) -> bool:
    """Whether the collection is too large to be searched without an index, by the server's estimate."""
    return locked.locks.estimated_document_count() > LARGE
