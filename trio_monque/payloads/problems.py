"""Describes invalid values in a payload: what is wrong, the path of the value, and what to store instead. Pure.

The BSON encoder names neither the path nor a remedy, and may repeat the whole document. So it runs first, and
`why_unstorable` only after it has failed, or if its output cannot be read again.
"""

from __future__ import annotations

import dataclasses
import datetime
import inspect
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final, TypeGuard
from uuid import UUID

import bson
from bson import DBRef
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from ..safe_text import shown

_LARGEST_INT: Final = 2**63

# The first that fits: a datetime is a date, and an Enum may be a str.
_INSTEAD: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (Enum, "store its .value"),
    ((set, frozenset), "store a list, for example sorted(...)"),
    (Decimal, "store a str, or bson.Decimal128(...)"),
    (datetime.datetime, "store one that is between the years 1 and 9999 in UTC"),
    (datetime.date, "store a datetime, or the str of .isoformat()"),
    (datetime.time, "store the str of .isoformat()"),
    (datetime.timedelta, "store the number of .total_seconds()"),
    (UUID, "store a str, or make the client with uuidRepresentation='standard'"),
    (PurePath, "store a str"),
    ((bytearray, memoryview), "store bytes(...)"),
    (complex, "store a list of its two parts"),
    (BaseException, "store the str of it"),
    (type, "store its name"),
)


def why_unstorable(value: object, root: str, codec_options: CodecOptions[Any]) -> str | None:
    """Describes the first invalid value, such as "data['tags'] is a set: store a list"; None if none is found.

    Args:
        value: The value that the encoder or the decoder refused.
        root: The name of the value in messages, before the path inside it.
        codec_options: The options with which it was encoded.
    """
    walked: list[tuple[str, object, frozenset[int]]] = [(root, value, frozenset())]
    while walked:  # Not by recursion: the value may be nested deeper than Python's stack.
        path, one, around = walked.pop()
        if id(one) in around:
            return f"{path} contains itself"
        if _has_parts(one):
            for key in one if isinstance(one, Mapping) else ():
                if problem := _problem_of_key(key):
                    return f"{path} {problem}"
            inside = around | {id(one)}
            walked.extend((f"{path}[{shown(key)}]", inner, inside) for key, inner in reversed(list(_parts(one))))
        elif problem := _problem_of(one, codec_options):
            return f"{path} {problem}"
    return None


def why_misread(value: object, root: str, codec_options: CodecOptions[Any]) -> str | None:
    """Describes the first value that MongoDB stores, and gives back as another one; None if there is none.

    A datetime without a time zone is stored as if it was in UTC, which `datetime.now()` is not. And a document with
    "$ref" and "$id" is read as a reference.

    Args:
        value: A value that the encoder has accepted.
        root: The name of the value in messages, before the path inside it.
        codec_options: The options with which it was encoded.
    """
    walked: list[tuple[str, object]] = [(root, value)]
    while walked:
        path, one = walked.pop()
        if isinstance(one, datetime.datetime) and one.utcoffset() is None:
            return f"{path} {described(one)} has no time zone: give it one, for example datetime.now(UTC)"
        if not _has_parts(one):
            continue
        if isinstance(one, Mapping) and "$ref" in one and _is_read_as_a_reference(one, codec_options):
            return (
                f"{path} has the keys '$ref' and '$id', and would be read as a bson.DBRef: rename one of them, or "
                "store a DBRef"
            )
        walked.extend((f"{path}[{shown(key)}]", inner) for key, inner in reversed(list(_parts(one))))
    return None


def _is_read_as_a_reference(document: Mapping[Any, Any], codec_options: CodecOptions[Any]) -> bool:
    encoded = bson.encode({"": document}, codec_options=codec_options)
    return isinstance(bson.decode(encoded, codec_options=codec_options.with_options(document_class=dict))[""], DBRef)


def _has_parts(value: object) -> TypeGuard[Mapping[Any, Any] | list[Any] | tuple[Any, ...]]:
    # The walk would decode a raw document, and that may be exactly what fails.
    return (isinstance(value, Mapping) and not isinstance(value, RawBSONDocument)) or type(value) in (list, tuple)


def _parts(container: Any) -> Iterator[tuple[object, object]]:
    return iter(container.items()) if isinstance(container, Mapping) else iter(enumerate(container))


def _problem_of_key(key: object) -> str | None:
    if not isinstance(key, str):
        return f"has the key {shown(key)}, of type {type(key).__name__}: keys are strings"
    if "\0" in key:
        return f"has the key {shown(key)}: keys have no NUL character"
    return None if _is_text(key) else f"has the key {shown(key)}, which is not valid Unicode"


def _problem_of(value: object, codec_options: CodecOptions[Any]) -> str | None:
    if value is None or type(value) in (bool, float, bytes):
        return None
    if type(value) is str:
        return None if _is_text(value) else f"is {shown(value)}, which is not valid Unicode: it has lone surrogates"
    if type(value) is int:
        return None if -_LARGEST_INT <= value < _LARGEST_INT else "is an int of more than 64 bits: store a str"
    try:
        encoded = bson.encode({"": value}, codec_options=codec_options)
    except Exception:  # noqa: BLE001  # Encoders of the caller may raise anything.
        return f"is {_a(type(value).__name__)}, which BSON does not have: {_instead_of(value)}"
    try:
        bson.decode(encoded, codec_options=codec_options.with_options(document_class=dict))
    except Exception:  # noqa: BLE001  # So may decoders.
        return f"is {shown(value)}, which the client's codec options cannot decode"
    return None


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _instead_of(value: object) -> str:
    if inspect.isawaitable(value):
        return "await it first"
    for types, advice in _INSTEAD:
        if isinstance(value, types):
            return advice
    if dataclasses.is_dataclass(value):
        return "store dataclasses.asdict(...)"
    if hasattr(value, "model_dump"):  # A pydantic model. Without the mode, dates and decimals would fail next.
        return 'store what its .model_dump(mode="json") returns'
    for method in ("_asdict", "item", "tolist"):  # Named tuples, numpy.
        if hasattr(value, method):
            return f"store what its .{method}() returns"
    if inspect.isroutine(value):
        return "store its name, or what it returns"
    if hasattr(value, "__iter__"):
        return "store list(...) of it"
    return "store a str, a number, a list or a dict of what the worker needs"


def _a(noun: str) -> str:
    return f"an {noun}" if noun[:1] in "aeiouAEIO" else f"a {noun}"


LONGEST_SHOWN: Final = 60
LONGEST_PROBLEM: Final = 400


class ValueProblem(Exception):  # noqa: N818  # The callers turn it into an error that fits the call.
    """Raised for a value that cannot be stored, or cannot be read as the declared type.

    Each container that it passes on its way out adds its step of the path, so a valid payload costs nothing for paths.

    Attributes:
        problem: What is wrong with the value.
        root: The name of the whole value, with which the path begins.
    """

    root = "data"

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem if len(problem) <= LONGEST_PROBLEM else problem[: LONGEST_PROBLEM - 1] + "…"
        self._steps: list[str] = []

    def under(self, step: str) -> None:
        """Adds an outer step to the path: `.field`, `[3]` or `['key']`."""
        self._steps.append(step)

    @property
    def is_inside(self) -> bool:
        """Whether a part of the value is wrong, not the value itself."""
        return bool(self._steps)

    def __str__(self) -> str:
        return f"{self.root}{''.join(reversed(self._steps))}: {self.problem}"


def wrong(expected: str, value: Any) -> ValueProblem:
    """The problem of a value with the wrong type or form."""
    return ValueProblem(f"must be {expected}, not {described(value)}")


def described(value: Any) -> str:
    """A value in a message: its type, and the beginning of its repr."""
    name = type(value).__name__
    return name if value is None else f"{name} {shown(value, LONGEST_SHOWN)}"


def key_step(key: Any) -> str:
    """The step of a path that leads to the value of a key."""
    return f"[{shown(key, LONGEST_SHOWN)}]"
