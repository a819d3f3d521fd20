"""Readers of single values: the stored form of each type, and other forms that another program may have stored."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeVar
from uuid import UUID

from bson import Binary, Code, Decimal128, ObjectId
from bson.errors import InvalidId

from .libraries import as_uuid, aware
from .problems import wrong

T = TypeVar("T")

Read = Callable[[Any], Any]


def _text(stored: Any) -> str:
    # bson.Code is a subclass of str, but in BSON it is code.
    if isinstance(stored, str) and not isinstance(stored, Code):
        return str(stored)
    raise wrong("str", stored)


def _whole(stored: Any) -> int:
    # JavaScript stores a whole number beyond 32 bits as a double.
    if isinstance(stored, int) or (isinstance(stored, float) and stored.is_integer()):
        return stored if isinstance(stored, bool) else int(stored)
    raise wrong("int", stored)


def _number(stored: Any) -> float:
    if isinstance(stored, int | float):
        return float(stored)
    raise wrong("float", stored)


def _flag(stored: Any) -> bool:
    if isinstance(stored, bool):
        return stored
    raise wrong("bool", stored)


def _nothing(stored: Any) -> None:
    if stored is not None:
        raise wrong("None", stored)


def _bytes(stored: Any) -> bytes:
    if isinstance(stored, bytes):
        return bytes(stored)
    raise wrong("bytes", stored)


def _moment(stored: Any) -> datetime:
    if isinstance(stored, datetime):
        return aware(stored)
    if isinstance(stored, str):
        moment = _parsed(datetime.fromisoformat, "a date and time as ISO 8601 text", stored)
        if moment.tzinfo is not None:
            return moment
    raise wrong("a BSON date", stored)


def _date(stored: Any) -> date:
    if isinstance(stored, str):
        return _parsed(date.fromisoformat, "a date as text, for example 2026-01-31", stored)
    if isinstance(stored, date) and not isinstance(stored, datetime):
        return stored
    raise wrong("a date as text, for example 2026-01-31", stored)


def _time(stored: Any) -> time:
    if isinstance(stored, str):
        return _parsed(time.fromisoformat, "a time as text, for example 09:30:00", stored)
    raise wrong("a time as text, for example 09:30:00", stored)


_DURATION: Final = re.compile(
    r"([+-]?)P(?:(\d+)W)?(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,6})\d*)?S)?)?", re.ASCII
)


def _duration(stored: Any) -> timedelta:
    expected = "a duration as ISO 8601 text, for example PT90S, or in seconds"
    if isinstance(stored, int | float) and not isinstance(stored, bool):
        return _parsed(lambda seconds: timedelta(seconds=seconds), expected, stored)
    found = _DURATION.fullmatch(stored) if isinstance(stored, str) else None
    if found is None or not any(found.groups()[1:]):
        raise wrong(expected, stored)
    sign, weeks, days, hours, minutes, seconds = (found.group(number) for number in range(1, 7))
    numbers = [int(number or 0) for number in (weeks, days, hours, minutes, seconds)]
    microseconds = int((found.group(7) or "").ljust(6, "0"))
    names = ("weeks", "days", "hours", "minutes", "seconds")
    parts = dict(zip(names, numbers, strict=True))
    length = _parsed(lambda _: timedelta(**parts, microseconds=microseconds), expected, stored)
    return -length if sign == "-" else length


def _decimal(stored: Any) -> Decimal:
    expected = "a number, or one as text"
    if isinstance(stored, Decimal128):
        return stored.to_decimal()
    if isinstance(stored, str | int | float | Decimal):  # The str of a bool is not a number.
        return _parsed(lambda number: Decimal(str(number)), expected, stored)
    raise wrong(expected, stored)


def _uuid(stored: Any) -> UUID:
    if isinstance(stored, UUID):  # Some codec options decode to it.
        return stored
    if isinstance(stored, Binary) and (found := as_uuid(stored)) is not None:
        return found
    if isinstance(stored, str):
        return _parsed(UUID, "a UUID", stored)
    raise wrong("a UUID", stored)


def _object_id(stored: Any) -> ObjectId:
    if isinstance(stored, ObjectId):
        return stored
    if isinstance(stored, str):
        return _parsed(ObjectId, "an ObjectId", stored)
    raise wrong("an ObjectId", stored)


def _parsed(parse: Callable[[Any], T], expected: str, stored: Any) -> T:
    try:
        return parse(stored)
    except (ValueError, ArithmeticError, InvalidId) as error:
        raise wrong(expected, stored) from error


# For each type: its reader, and the types of stored values for which a union tries this reader first.
SCALARS: Final[dict[Any, tuple[Read, frozenset[type]]]] = {
    str: (_text, frozenset({str})),
    int: (_whole, frozenset({int})),
    float: (_number, frozenset({float})),
    bool: (_flag, frozenset({bool})),
    None: (_nothing, frozenset({type(None)})),
    type(None): (_nothing, frozenset({type(None)})),
    bytes: (_bytes, frozenset({bytes})),
    datetime: (_moment, frozenset({datetime})),
    date: (_date, frozenset()),
    time: (_time, frozenset()),
    timedelta: (_duration, frozenset()),
    Decimal: (_decimal, frozenset({Decimal128, Decimal})),
    UUID: (_uuid, frozenset({Binary, UUID})),
    ObjectId: (_object_id, frozenset({ObjectId})),
}


def text_reader(cls: Any) -> Read:
    """The reader of a class that is made from its text, such as a Path."""

    def read(stored: Any) -> Any:
        if not isinstance(stored, str):
            raise wrong(f"a {cls.__name__} as text", stored)
        return _parsed(cls, f"a {cls.__name__}", stored)

    return read


def enum_reader(cls: type[Enum]) -> Read:
    values = ", ".join(repr(member.value) for member in list(cls)[:10])

    def read(stored: Any) -> Any:
        try:
            return cls(stored)
        except ValueError:
            raise wrong(f"the value of a {cls.__name__} ({values})", stored) from None

    return read


def literal_reader(allowed: tuple[Any, ...]) -> Read:
    # By stored value, because a literal may be a member of an Enum. True is not 1 here.
    by_value = {(_kind(value), _value(value)): value for value in allowed}
    expected = " or ".join(repr(_value(value)) for value in allowed)

    def read(stored: Any) -> Any:
        try:
            return by_value[_kind(stored), stored]
        except (KeyError, TypeError):
            raise wrong(expected, stored) from None

    return read


def _value(literal: Any) -> Any:
    return literal.value if isinstance(literal, Enum) else literal


def _kind(literal: Any) -> type:
    value = _value(literal)
    return bool if isinstance(value, bool) else int if isinstance(value, int) else type(value)
