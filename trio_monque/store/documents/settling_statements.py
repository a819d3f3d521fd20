"""The fewest statements that write the ends of claims on documents.

Equal endings of one claim share a statement. Endings that set the same fields to different values share one, too: an
aggregation that looks up, by `_id`, the values to merge into each document.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from types import NoneType
from typing import Any, Final

import bson
from bson import ObjectId
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo import UpdateMany, UpdateOne

from ...error_types import InvalidPayloadError
from ...locks_and_dead_letters import Fence
from ...options_and_defaults import LARGEST_PAYLOAD
from ..codec import OWN_OPTIONS
from ..driver.commands import BY_ID, in_chunks_by_size
from ..driver.joined_update import MOST_BYTES, each_its_own
from .locked_collection import LockedCollection

FEWEST_JOINED: Final = 3
"""The number of different updates from which on they share a statement.

Measured: one for three costs the server a tenth less than three statements; one for two saves hardly anything.
"""

LEAST_KEPT: Final = 48
"""Bytes of a document that an aggregation must leave unchanged, beside the name of the lock field.

Then change streams report an update. The server reports the changes or the whole document, whichever is smaller: 43
bytes are just enough for MongoDB 6.
"""

_UPDATE: Final = "u"
_SET: Final = "$set"

# Where the document of `$set` begins and ends in {"u": {"$set": {...}}} as BSON.
_EMPTY: Final = bson.encode({})
_ENDS: Final = 2
_BEFORE: Final = len(bson.encode({_UPDATE: {_SET: {}}})) - len(_EMPTY) - _ENDS

# These options decode an update down to its operators, and leave their values as bytes.
_SHALLOW: Final = OWN_OPTIONS.with_options(document_class=RawBSONDocument)

# Values without parts, which change streams report as a whole, and how many bytes each has at least.
_SCALARS: Final[Mapping[type, int]] = {NoneType: 0, bool: 1, int: 4, float: 8, str: 5, datetime: 8, ObjectId: 12}


@dataclass(frozen=True, slots=True)
class EncodedUpdate:
    """The update of one document, encoded.

    Attributes:
        encoded: The document {"u": update} in BSON.
        names: The fields that the update sets, sorted, if it may share a statement with updates to other values;
            otherwise empty.
    """

    encoded: bytes
    names: tuple[str, ...] = ()

    @property
    def values(self) -> RawBSONDocument:
        """The document of `$set`. Only if there are names."""
        return RawBSONDocument(self.encoded[_BEFORE:-_ENDS])


@dataclass(frozen=True, slots=True)
class DocumentWrite:
    """What to write at the end of one claim.

    Attributes:
        id: The `_id` of the document.
        fence: The condition that the claim still holds the lock.
        update: The result; None for none.
        lock: The new lock; None to remove the lock.
    """

    id: Any
    fence: Fence
    update: EncodedUpdate | None = None
    lock: Mapping[str, Any] | None = None


# --- Encoding ---


def encoded_update(locked: LockedCollection, update: object, document: object = None) -> EncodedUpdate:
    """Encode an update for an ending. `document` is the claimed document, as the caller's handle has decoded it.

    Raises:
        InvalidPayloadError: The update cannot be encoded, or is too large for a statement.
    """
    names = _names(locked, update, document)
    if names:
        assert isinstance(update, dict)
        values = update[_SET]
        # In the order in which `$set` appends new fields. An aggregation appends them in the order of its document.
        update = {_SET: {name: values[name] for name in names}}
    try:
        encoded = bson.encode({_UPDATE: update}, codec_options=locked.callers)
    except (BSONError, ValueError, OverflowError, TypeError, RecursionError) as error:
        raise InvalidPayloadError(f"the update cannot be encoded as BSON: {error}") from error
    if len(encoded) > LARGEST_PAYLOAD:
        raise InvalidPayloadError(
            f"the update is {len(encoded)} bytes as BSON, more than the {LARGEST_PAYLOAD} allowed"
        )
    return EncodedUpdate(encoded, names)


def _names(locked: LockedCollection, update: object, document: object) -> tuple[str, ...]:
    """Return the fields that the update sets, if an aggregation may set them instead; otherwise none."""
    if type(update) is not dict or len(update) != 1:
        return ()
    values = update.get(_SET)
    if type(values) is not dict or not all(_is_plain(name) for name in values):
        return ()
    if not _is_reported_as_update(locked, values, document):
        return ()
    return tuple(sorted(values))


def _is_plain(name: object) -> bool:
    # Not a decimal name: `$set` appends such fields in the order of their numbers.
    return (
        isinstance(name, str)
        and name not in ("", "_id")
        and not name.startswith("$")
        and "." not in name
        and not name.isdecimal()
    )


def _is_reported_as_update(locked: LockedCollection, values: Mapping[str, Any], document: object) -> bool:
    """Return whether change streams report the aggregation as they report a `$set`."""
    # For an aggregation, the server reports the difference between the documents, also inside of fields that are
    # replaced. If the difference is longer than the document, the server reports a replacement instead, and observers
    # of updates do not wake.
    if type(document) is not dict or not locked.is_plain or locked.is_encrypted:
        return False
    if any(type(document.get(name)) not in _SCALARS for name in values):
        return False
    missing = LEAST_KEPT + len(locked.lock_field)
    for name, value in document.items():
        if name in values or name == locked.lock_field or type(name) is not str:
            continue
        missing -= len(name) + 2 + _SCALARS.get(type(value), 0) + (len(value) if type(value) is str else 0)
        if missing <= 0:
            return True
    return False


# --- Grouping ---


def grouped(locked: LockedCollection, endings: Sequence[DocumentWrite]) -> list[list[DocumentWrite]]:
    """Return the endings in groups, one for each statement."""
    equal: dict[object, list[DocumentWrite]] = defaultdict(list)
    for one in endings:
        lock = None if one.lock is None else bson.encode(one.lock, codec_options=OWN_OPTIONS)
        equal[one.fence, one.update, lock].append(one)
    alike: dict[object, list[list[DocumentWrite]]] = defaultdict(list)
    groups = []
    for group in equal.values():
        first = group[0]
        if first.update is not None and first.update.names and first.lock is None:
            alike[first.fence, first.update.names].append(group)
        else:
            groups.append(group)
    for those in alike.values():
        groups += those if len(those) < FEWEST_JOINED else _in_parts(locked, those)
    return groups


def _in_parts(locked: LockedCollection, groups: Sequence[Sequence[DocumentWrite]]) -> Iterator[list[DocumentWrite]]:
    """Join the groups, and divide them into parts that one statement may hold."""

    def size_of(one: DocumentWrite) -> int:
        assert one.update is not None
        return len(one.update.encoded) + len(locked.key_of(one.id))

    return in_chunks_by_size(chain.from_iterable(groups), size_of, MOST_BYTES)


# --- Sending ---


def request_of(locked: LockedCollection, group: Sequence[DocumentWrite]) -> UpdateOne | UpdateMany:
    """Return the statement that writes a group: its fence is in the filter, and its lock and result in one update."""
    first, *others = group
    guard = locked.fenced(first.fence)
    if not others:
        return UpdateOne(*filter_and_update(locked, first), hint=BY_ID)
    ids = [one.id for one in group]
    is_equal = all(one.update == first.update for one in others)
    update = _update(locked, first) if is_equal else _with_own_values(locked, ids, group)
    return UpdateMany({**locked.ids(ids), **guard}, update, hint=BY_ID)


def filter_and_update(
    locked: LockedCollection, ending: DocumentWrite
) -> tuple[dict[str, Any], dict[str, Any] | list[Any]]:
    """Return the condition of one ending, and its update."""
    return {**locked.one(ending.id), **locked.fenced(ending.fence)}, _update(locked, ending)


def _update(locked: LockedCollection, ending: DocumentWrite) -> dict[str, Any] | list[Any]:
    field = locked.lock_field
    if ending.update is not None and ending.update.names and ending.lock is None:
        return {_SET: ending.update.values, "$unset": {field: ""}}
    theirs: Any = {} if ending.update is None else RawBSONDocument(ending.update.encoded, _SHALLOW)[_UPDATE]
    if isinstance(theirs, list):
        # `$literal`: a stage `$set` merges a plain document into the fields of the old lock.
        last = {"$unset": field} if ending.lock is None else {_SET: {field: {"$literal": ending.lock}}}
        return [*theirs, last]
    operator, value = ("$unset", "") if ending.lock is None else (_SET, ending.lock)
    return {**theirs, operator: {**theirs.get(operator, {}), field: value}}


def _with_own_values(
    locked: LockedCollection, ids: Sequence[Any], group: Sequence[DocumentWrite]
) -> list[dict[str, Any]]:
    """Return the stages that set the fields of each document to its own values, and remove the lock."""
    values: list[Any] = [one.update.values for one in group if one.update is not None]
    # If this expression compared an id otherwise than the filter, the place would be -1, which means the last element:
    # a text, which `$mergeObjects` refuses. Without that element, the document would get the values of another one.
    return each_its_own([*values, "not found"], locked.place_among(ids), locked.lock_field)
