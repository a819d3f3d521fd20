"""Readers of values that contain others: lists, sets, dictionaries, and documents with fields."""

from __future__ import annotations

import collections
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

from .problems import ValueProblem, key_step, wrong
from .reading_scalars import Read


@dataclass(slots=True)
class Reader:
    """Reads stored values as one type.

    Attributes:
        read: Raises ValueProblem for a value that cannot be read. Looked up at each use, because the reader of a class
            that has itself as a field is completed after it was passed on.
        first: A union tries this reader first for stored values of these types.
        keys: The fields that it reads; None if it does not read a document of fields.
    """

    read: Read
    first: frozenset[type] = frozenset()
    keys: frozenset[str] | None = None


def anything(stored: Any) -> Any:
    """Returns a value of any type unchanged."""
    return stored


# --- Without fields ---


def _each(items: Iterable[tuple[Reader, Any]]) -> Iterator[Any]:
    """Reads the items of an array, each by its reader. A problem gets the number of its item as a step of its path."""
    for number, (reader, item) in enumerate(items):
        try:
            yield reader.read(item)
        except ValueProblem as problem:
            problem.under(f"[{number}]")
            raise


def _collection(make: Callable[[list[Any]], Any], name: str, parts: Sequence[Reader]) -> Read:
    item = parts[0] if parts else Reader(anything)

    def read(stored: Any) -> Any:
        if not isinstance(stored, list | tuple):
            raise wrong(name, stored)
        items = list(_each(zip(repeat(item), stored, strict=False)))
        try:
            return make(items)
        except TypeError as error:  # Not hashable, in a set.
            raise ValueProblem(f"must be {name}: {error}") from error

    return read


def tuple_reader(name: str, parts: Sequence[Reader]) -> Read:
    """The reader of a tuple with a type for each place."""

    def read(stored: Any) -> Any:
        if not isinstance(stored, list | tuple) or len(stored) != len(parts):
            raise wrong(name, stored)
        return tuple(_each(zip(parts, stored, strict=True)))

    return read


def _mapping(make: Callable[[dict[Any, Any]], Any], name: str, parts: Sequence[Reader]) -> Read:
    key, item = parts if parts else (Reader(anything), Reader(anything))

    def read(stored: Any) -> Any:
        if not isinstance(stored, Mapping):
            raise wrong(name, stored)
        found = {}
        for text, value in stored.items():
            try:
                found[_key(key, text)] = item.read(value)
            except ValueProblem as problem:
                problem.under(key_step(text))
                raise
        return make(found)

    return read


def _key(reader: Reader, text: Any) -> Any:
    try:
        return reader.read(text)
    except ValueProblem:
        # The keys of documents are strings: an int key was stored as its digits.
        with suppress(ValueError):
            return reader.read(int(text))
        raise


_Maker = Callable[[str, Sequence[Reader]], Read]


def _collections(make: Callable[[list[Any]], Any], *types: Any) -> dict[Any, _Maker]:
    return {one: lambda name, parts: _collection(make, name, parts) for one in types}


def _mappings(make: Callable[[dict[Any, Any]], Any], *types: Any) -> dict[Any, _Maker]:
    return {one: lambda name, parts: _mapping(make, name, parts) for one in types}


CONTAINERS: Final[Mapping[Any, _Maker]] = {
    **_collections(list, list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable),
    **_collections(set, set, abc.Set, abc.MutableSet),
    **_collections(tuple, tuple),
    **_collections(frozenset, frozenset),
    **_collections(collections.deque, collections.deque),
    **_mappings(dict, dict, abc.Mapping, abc.MutableMapping),
    **_mappings(collections.OrderedDict, collections.OrderedDict),
}
"""For each type: a function that makes its reader from its name and the readers of its items, or keys and values."""


# --- With fields ---


def document_reader(
    make: Callable[..., Any], name: str, fields: Mapping[str, Reader], required: frozenset[str]
) -> Read:
    """The reader of a class that `make` makes from its fields. Unknown fields of a document are ignored."""

    def read(stored: Any) -> Any:
        if not isinstance(stored, Mapping):
            raise wrong(name, stored)
        found = {}
        for key, field in fields.items():
            try:
                if key in stored:
                    found[key] = field.read(stored[key])
                elif key in required:
                    raise ValueProblem(f"is missing: {name} needs it")
            except ValueProblem as problem:
                problem.under(f".{key}")
                raise
        try:
            return make(**found)
        except Exception as error:
            raise ValueProblem(f"{name} refused it: {type(error).__name__}: {error}") from error

    return read


def named_tuple_reader(cls: Callable[..., Any], name: str, parts: Sequence[Reader], least: int) -> Read:
    """The reader of a NamedTuple, which is stored as an array. Fields that were added since get their defaults."""

    def read(stored: Any) -> Any:
        if not isinstance(stored, list | tuple) or len(stored) < least:
            raise wrong(name, stored)
        return cls(*_each(zip(parts, stored, strict=False)))

    return read
