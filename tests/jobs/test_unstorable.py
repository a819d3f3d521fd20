"""What cannot be stored is named by its place, with what to store instead."""

from __future__ import annotations

import asyncio
import datetime
from collections import deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import DBRef
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument

from trio_monque.errors import InvalidPayloadError, PayloadTooLargeError
from trio_monque.jobs.stored_value_limits import check_payload, snapshot

OPTIONS: CodecOptions[Any] = CodecOptions()
Point = namedtuple("Point", "x y")  # The kind without types exists, too.


class Colour(Enum):
    RED = 1


@dataclass
class Order:
    number: int


class Model:
    def model_dump(self) -> dict[str, Any]:
        return {}


async def asynchronous() -> None: ...


SHARED = {"a": [1]}


def holding_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


class Leaky:
    def __repr__(self) -> str:
        return "mongodb://root:hunter2@h"


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "set": (lambda: {"tags": {1, 2}}, r"data\['tags'\] is a set, which BSON does not have: store a list"),
    "frozenset": (lambda: frozenset(), r"data is a frozenset, .*store a list"),
    "Decimal": (lambda: [{"price": Decimal("1.5")}], r"data\[0\]\['price'\] is a Decimal, .*Decimal128"),
    "date": (lambda: {"day": datetime.date(2026, 1, 1)}, r"data\['day'\] is a date, .*isoformat"),
    "time": (lambda: {"at": datetime.time(1)}, r"data\['at'\] is a time, .*isoformat"),
    "timedelta": (lambda: (1, datetime.timedelta(1)), r"data\[1\] is a timedelta, .*total_seconds"),
    "UUID": (lambda: {"id": UUID(int=1)}, r"data\['id'\] is a UUID, .*store a str, or .*uuidRepresentation"),
    "Path": (lambda: {"file": Path("x")}, r"data\['file'\] is a PosixPath, .*store a str"),
    "Enum": (lambda: {"colour": Colour.RED}, r"data\['colour'\] is a Colour, .*\.value"),
    "bytearray": (lambda: bytearray(b"x"), r"data is a bytearray, .*bytes"),
    "complex": (lambda: 1j, r"data is a complex"),
    "exception": (lambda: {"error": ValueError("x")}, r"data\['error'\] is a ValueError, .*the str"),
    "dataclass": (lambda: {"order": Order(1)}, r"data\['order'\] is an Order, .*asdict"),
    "pydantic": (lambda: {"order": Model()}, r"data\['order'\] is a Model, .*\.model_dump\(mode=\"json\"\)"),
    "named tuple": (lambda: {"at": Point(1, {2})}, r"data\['at'\] is a Point, .*_asdict"),
    "deque": (lambda: {"all": deque([1])}, r"data\['all'\] is a deque, .*list\(\.\.\.\)"),
    "class": (lambda: {"type": int}, r"data\['type'\] is a type, .*name"),
    "function": (lambda: {"call": print}, r"data\['call'\] is a builtin_function_or_method, .*name"),
    "object": (lambda: {"x": object()}, r"data\['x'\] is an object, .*what the worker needs"),
    "large int": (lambda: {"n": 2**63}, r"data\['n'\] is an int of more than 64 bits: store a str"),
    "surrogate": (lambda: {"s": "\ud800"}, r"data\['s'\] is '\\ud800', which is not valid Unicode"),
    "key": (lambda: {"by_id": {7: "x"}}, r"data\['by_id'\] has the key 7, of type int: keys are strings"),
    "key with NUL": (lambda: {"a\0": 1}, r"data has the key 'a\\x00': keys have no NUL"),
    "key of lone surrogates": (lambda: {"\ud800": 1}, r"data has the key '\\ud800', which is not valid Unicode"),
    "small int": (lambda: {"a": [-(2**63)], "n": -(2**63) - 1}, r"data\['n'\] is an int of more than 64 bits"),
    "one value twice": (lambda: [SHARED, {"again": SHARED}, {1}], r"data\[2\] is a set"),
    "itself": (holding_itself, r"data\[0\] contains itself"),
    "the second": (lambda: {"a": [1, {"b": "x"}], "c": [{}, {"d": {3}}]}, r"data\['c'\]\[1\]\['d'\] is a set"),
    "secret": (lambda: {"x": Leaky()}, r"data\['x'\] is a Leaky"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "expected"), CASES.values(), ids=CASES)
def test_value_that_bson_does_not_have_is_named_with_its_path(make: Callable[[], object], expected: str) -> None:
    with pytest.raises(InvalidPayloadError, match=rf"^the job's data cannot be stored as BSON: {expected}") as raised:
        check_payload(make(), None, OPTIONS)
    assert "hunter2" not in str(raised.value)


def test_awaitable_is_to_be_awaited() -> None:
    coroutine = asynchronous()
    with pytest.raises(InvalidPayloadError, match=r"data\['x'\] is a coroutine, .*await it first"):
        check_payload({"x": coroutine}, None, OPTIONS)
    coroutine.close()
    loop = asyncio.new_event_loop()
    with pytest.raises(InvalidPayloadError, match="await it first"):
        check_payload(loop.create_future(), None, OPTIONS)
    loop.close()


def test_what_the_callers_options_can_store_is_not_named() -> None:
    options = OPTIONS.with_options(uuid_representation=UuidRepresentation.STANDARD)
    with pytest.raises(InvalidPayloadError, match=r"data\['b'\] is a set"):
        check_payload({"a": UUID(int=1), "b": {1}}, None, options)


def test_raw_document_that_cannot_be_decoded_is_named_and_not_walked() -> None:
    raw = RawBSONDocument(bson.encode({"text": "abc"}).replace(b"abc", b"ab\xff"))
    with pytest.raises(InvalidPayloadError, match=r"not read back: data\['raw'\] is .* codec options cannot decode"):
        check_payload({"raw": raw}, None, OPTIONS)


def test_first_of_several_values_that_would_be_misread_is_named() -> None:
    with pytest.raises(InvalidPayloadError, match=r"data\['a'\]\[0\] datetime"):
        check_payload({"a": [LOCAL, LOCAL], "b": LOCAL}, None, OPTIONS)


@pytest.mark.parametrize("what", ["data", "result", "progress", "saved state"])
def test_message_names_what_the_caller_gave(what: str) -> None:
    with pytest.raises(InvalidPayloadError, match=rf"^the job's {what} cannot be stored as BSON: {what} is a set"):
        snapshot({1}, None, OPTIONS, what)
    with pytest.raises(PayloadTooLargeError, match=rf"^the job's {what} is \d+ bytes"):
        snapshot("x" * 100, 50, OPTIONS, what)


def test_deep_and_wide_values_are_walked() -> None:
    deep: Any = {1}
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(InvalidPayloadError, match="is a set"):
        check_payload({"wide": [{"n": n} for n in range(10_000)], "deep": [{1}]}, None, OPTIONS)
    with pytest.raises(InvalidPayloadError):  # Whichever fault is found first.
        check_payload(deep, None, OPTIONS)


def test_storable_values_are_stored() -> None:
    value = {
        "a": [1, 2.5, None, True, "x", b"y", (1, 2)],
        "when": bson.ObjectId().generation_time,
        "id": bson.ObjectId(),
    }
    assert snapshot(value, None, OPTIONS)["a"] == [1, 2.5, None, True, "x", b"y", [1, 2]]


# --- What would be stored, and read as something else ---

LOCAL = datetime.datetime(2026, 1, 1)  # noqa: DTZ001  # What `datetime.now()` gives.


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (LOCAL, r"data datetime datetime.datetime\(2026.* has no time zone: give it one"),
        ({"order": [{"at": LOCAL}]}, r"data\['order'\]\[0\]\['at'\] datetime .*datetime.now\(UTC\)"),
        ({"a": {"$ref": "x", "$id": 1}}, r"data\['a'\] has the keys '\$ref' and '\$id', .*bson.DBRef: rename"),
        ([{"$id": 1, "b": 2, "$ref": "x"}], r"data\[0\] has the keys"),
    ],
)
@pytest.mark.parametrize("options", [OPTIONS, OPTIONS.with_options(tz_aware=True)], ids=["naive", "aware"])
def test_value_that_would_be_read_as_another_one_is_refused(
    value: object, problem: str, options: CodecOptions[Any]
) -> None:
    with pytest.raises(InvalidPayloadError, match=rf"^the job's data would not be read back as it is: {problem}"):
        check_payload(value, None, options)


def test_value_that_only_resembles_a_reference_or_a_date_is_stored() -> None:
    schema = {"$ref": "#/definitions/order", "$defs": {"a": {"$ref": 5, "$id": "x"}}, "tab": "\t", "n": 9}
    reference = DBRef("orders", 1)
    value = {"schema": schema, "ref": reference, "at": LOCAL.replace(tzinfo=datetime.UTC)}
    assert snapshot(value, None, OPTIONS.with_options(tz_aware=True, tzinfo=datetime.UTC)) == value
