"""Converts values to plain BSON, which any driver can read. The value decides, not its declared type.

| Python | stored as |
| --- | --- |
| None, bool, str, int (64 bits), float, bytes, ObjectId | the same |
| datetime, timezone-aware | a BSON date: UTC, in whole milliseconds |
| date, time | ISO 8601 text: `2026-01-31`, `09:30:00` |
| timedelta | ISO 8601 text: `PT90S`, `P1DT0.5S` |
| Decimal | a BSON Decimal128: up to 34 digits |
| UUID | a BSON UUID: a binary value of subtype 4 |
| an Enum's member | its value |
| Path, IP addresses, ZoneInfo | their text |
| list, tuple, deque | an array |
| set, frozenset | an array, in an order that is always the same |
| dict | a document; keys of other types become text |
| dataclass, attrs class, pydantic model, msgspec struct, TypedDict | a document of its fields |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal, DecimalException
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from bson import Binary, Decimal128, Int64, ObjectId

from .declared_types import Kind, fields_of, kind_of
from .libraries import dumped_by_msgspec, dumped_by_pydantic, plain_of_pydantic
from .problems import ValueProblem, described, key_step

TEXT_TYPES: Final = (
    PurePath,
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ZoneInfo,
)
"""Classes whose values are stored as `str(value)`, and made again by calling the class with that text."""

_AS_IT_IS: Final = frozenset({type(None), bool, str, float, bytes, ObjectId, Binary, Decimal128, Int64})
_LARGEST: Final = (1 << 63) - 1

Store = Callable[[Any], Any]


def stored_form(value: Any) -> Any:
    """The value in a form that BSON can hold. Types that are not in the table above are left to the codec options.

    Raises:
        ValueProblem: A value cannot be stored; with its path.
    """
    cls: Any = type(value)
    return value if cls in _AS_IT_IS else _store_of(cls)(value)


@lru_cache(maxsize=1024)
def _store_of(cls: type) -> Store:
    kind = kind_of(cls)
    if kind is Kind.PYDANTIC:
        return lambda value: stored_form(dumped_by_pydantic(value))
    if kind is Kind.MSGSPEC:
        return lambda value: stored_form(dumped_by_msgspec(value, stored_form))
    if kind is Kind.DATACLASS or kind is Kind.ATTRS:
        return _fields_store(cls, kind)
    for types, store in _STORES:
        if issubclass(cls, types):
            return store
    return plain_of_pydantic if cls.__module__.partition(".")[0] in ("pydantic", "pydantic_core") else _unchanged


def _fields_store(cls: type, kind: Kind) -> Store:
    names = [(field.attribute, field.key) for field in fields_of(cls, kind)]

    def store(value: Any) -> Any:
        document = {}
        for attribute, key in names:
            try:
                document[key] = stored_form(getattr(value, attribute))
            except ValueProblem as problem:
                problem.under(f".{key}")
                raise
        return document

    return store


def _unchanged(value: Any) -> Any:
    return value


def _whole(value: int) -> int:
    if not -_LARGEST - 1 <= value <= _LARGEST:
        raise ValueProblem("is a whole number of more than 64 bits, which BSON does not have: store it as text")
    return int(value)


def _moment(value: datetime) -> datetime:
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValueProblem(f"{described(value)} has no time zone: give it one, for example datetime.now(UTC)")
    return value


def _decimal(value: Decimal) -> Decimal128:
    try:
        return Decimal128(value)
    except DecimalException as error:
        raise ValueProblem(
            f"{described(value)} has more than 34 digits, or an exponent too large for a BSON Decimal128"
        ) from error


def _duration(value: timedelta) -> str:
    sign, value = ("-", -value) if value < timedelta(0) else ("", value)
    fraction = f".{value.microseconds:06}".rstrip("0") if value.microseconds else ""
    days = f"{value.days}D" if value.days else ""
    seconds = f"T{value.seconds}{fraction}S" if value.seconds or fraction or not days else ""
    return f"{sign}P{days}{seconds}"


def _array(value: Iterable[Any]) -> list[Any]:
    items = []
    for number, item in enumerate(value):
        try:
            items.append(stored_form(item))
        except ValueProblem as problem:
            problem.under(f"[{number}]")
            raise
    return items


def _set(value: Set[Any]) -> list[Any]:
    # A set has another order in each process. Without a fixed order, each start would write its schedules again.
    return sorted(_array(value), key=repr)


def _document(value: Mapping[Any, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, item in value.items():
        try:
            name = stored_key(key)
            if name in document:
                raise ValueProblem(f"the keys {described(key)} and {name!r} would be the same key when stored")
            document[name] = stored_form(item)
        except ValueProblem as problem:
            problem.under(key_step(key))
            raise
    return document


def stored_key(key: Any) -> str:
    """The text that stands for a key. Raises ValueProblem for one that cannot be stored."""
    plain = stored_key(key.value) if isinstance(key, Enum) else stored_form(key)
    if isinstance(plain, str):
        return plain
    if isinstance(key, int | UUID) and not isinstance(key, bool):
        return str(key)
    raise ValueProblem("the keys of a document are strings: use a str, int, UUID, date or Enum")


# The first match counts: an IntEnum is an Enum before it is an int, and a datetime is also a date.
_STORES: Final[tuple[tuple[type | tuple[type, ...], Store], ...]] = (
    (Enum, lambda value: stored_form(value.value)),
    (str, str.__str__),
    (int, _whole),
    (datetime, _moment),
    (date, lambda value: value.isoformat()),
    (time, lambda value: value.isoformat()),
    (timedelta, _duration),
    (Decimal, _decimal),
    (UUID, Binary.from_uuid),
    ((bytearray, memoryview), bytes),
    (TEXT_TYPES, str),
    ((list, tuple, deque), _array),
    ((set, frozenset), _set),
    (Mapping, _document),
)
