"""What is stored for each type, and that it is read as what it was, whatever codec options the client has."""

from __future__ import annotations

import datetime as dt
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, Literal, Optional, TypeVar
from uuid import UUID, uuid4

import bson
import pytest
from bson import Binary, Decimal128, Int64, ObjectId
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trio_monque.payloads.payload_type import PayloadType

from .everything import ITEM, NOW, ONE, Circle, Colour, Everything, Item, Page, Place, Square, example

T = TypeVar("T")

CODEC_OPTIONS = {
    "default": CodecOptions[Any](),
    "aware": CodecOptions[Any](tz_aware=True),
    "uuids": CodecOptions[Any](uuid_representation=UuidRepresentation.STANDARD),
    "legacy uuids": CodecOptions[Any](uuid_representation=UuidRepresentation.JAVA_LEGACY),
    "SON": CodecOptions[Any](document_class=bson.SON),
}


def through_bson(stored: Any, codec_options: CodecOptions[Any] = CODEC_OPTIONS["default"]) -> Any:
    return bson.decode(bson.encode({"": stored}, codec_options=codec_options), codec_options=codec_options)[""]


@pytest.mark.parametrize("codec_options", CODEC_OPTIONS.values(), ids=CODEC_OPTIONS)
def test_a_dataclass_with_a_field_of_each_type_is_read_as_it_was(codec_options: CodecOptions[Any]) -> None:
    payload = PayloadType(Everything)
    found = payload.read(through_bson(payload.store(example()), codec_options))
    assert found == example()
    # Equal is not enough where 1 == True == 1.0, and for subclasses. What is not declared is as the client reads it.
    types = {name: type(value) for name, value in vars(example()).items()} | {"anything": codec_options.document_class}
    assert {name: type(value) for name, value in vars(found).items()} == types
    assert found.moment.tzinfo is not None


def test_stored_forms_are_those_of_the_documentation() -> None:
    stored = through_bson(PayloadType(Everything).store(example()))
    assert stored["moment"] == NOW.replace(tzinfo=None)
    assert stored["uuid"] == Binary(ONE.bytes, 4)
    assert stored["money"] == Decimal128("-2.50")
    text = {name: stored[name] for name in ("day", "time", "duration", "path", "address", "zone")}
    assert text == {
        "day": "2026-01-31",
        "time": "09:30:00",
        "duration": "P1DT5.00003S",
        "path": "/a/b",
        "address": "10.0.0.1",
        "zone": "Europe/Berlin",
    }
    assert stored["colour"] == 2
    assert stored["items"] == [
        {
            "price": Decimal128("1.50"),
            "tags": ["a", "b"],
            "parent": {"price": Decimal128("1"), "tags": [], "parent": None},
        }
    ]
    assert stored["numbered"].keys() == {"1"}
    assert stored["by_uuid"] == {str(ONE): Decimal128("0.1")}
    assert stored["by_colour"] == {"red": 1, "2": 2}
    assert stored["box"] == {"weight": Decimal128("5"), "closed_for": "-PT3600S"}
    assert stored["place"] == [1, "A"]
    assert stored["computed"] == 4


def test_what_a_javascript_program_would_store_is_read() -> None:
    """Numbers beyond 32 bits are doubles there, and text stands for what JSON does not have."""
    stored = through_bson(PayloadType(Everything).store(example()))
    stored |= {
        "whole": float(1 << 62),
        "number": 2,
        "moment": "2026-01-31T09:30:15.123Z",
        "duration": 86405.00003,
        "money": -2.5,
        "uuid": str(ONE),
        "object_id": "64b000000000000000000001",
        "annotated": Int64(7),
    }
    assert PayloadType(Everything).read(stored) == Everything(**{**_arguments(example()), "number": 2.0})


def _arguments(instance: Everything) -> dict[str, Any]:
    return {name: value for name, value in vars(instance).items() if name != "computed"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT0S", 0),
        ("P0D", 0),
        ("PT1H30M", 5400),
        ("P1W", 604800),
        ("P1DT0.5S", 86400.5),
        ("-PT90S", -90),
        ("+PT0.000001S", 1e-6),
        ("P2DT3H4M5S", 183845),
        ("PT0.1234567S", 0.123456),
    ],
)
def test_durations_are_read_in_all_forms_that_iso_8601_has_for_them(text: str, seconds: float) -> None:
    assert PayloadType(dt.timedelta).read(text) == dt.timedelta(seconds=seconds)


@pytest.mark.parametrize("days", [0, 1])
@pytest.mark.parametrize("seconds", [0, 1])
@pytest.mark.parametrize("microseconds", [0, 500_000])
def test_no_part_of_a_duration_is_lost(days: int, seconds: int, microseconds: int) -> None:
    duration = dt.timedelta(days, seconds, microseconds)
    payload = PayloadType(dt.timedelta)
    assert payload.read(payload.store(duration)) == duration
    assert payload.read(payload.store(-duration)) == -duration


def test_set_is_stored_in_the_same_order_by_each_process() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    assert PayloadType(set[str]).store(set(letters)) == list(letters)


@pytest.mark.parametrize(
    ("declared", "stored", "value"),
    [
        (int, True, True),
        (Decimal, 0.1, Decimal("0.1")),
        (Literal[Colour.RED], "red", Colour.RED),
        (Literal[1], Int64(1), 1),
        (bytes, Binary(b"x", 5), b"x"),
        (UUID | bytes, Binary(b"x", 5), b"x"),
        (Place, [1], Place(1)),
        (Place, [1, "B", "added later"], Place(1, "B")),
    ],
)
def test_value_is_read_as_exactly_the_declared_type(declared: Any, stored: Any, value: Any) -> None:
    (found,) = PayloadType(list[declared]).read([stored])
    assert (found, type(found)) == (value, type(value))


# --- Any values ---

_OBJECTS = st.builds(ObjectId, st.binary(min_size=12, max_size=12))
st.register_type_strategy(ObjectId, _OBJECTS)
st.register_type_strategy(int, st.integers(-(1 << 63), (1 << 63) - 1))
st.register_type_strategy(float, st.floats(allow_nan=False))
st.register_type_strategy(str, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
st.register_type_strategy(
    Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(1 << 60), max_value=1 << 60)
)
_MOMENTS = st.datetimes(min_value=dt.datetime(1900, 1, 1), timezones=st.just(dt.UTC))  # noqa: DTZ001
st.register_type_strategy(dt.datetime, _MOMENTS.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)))


@dataclass
class Some:
    whole: int
    number: float
    text: str
    optional: Optional[bytes]  # noqa: UP045  # The old spelling is one, too.
    moment: dt.datetime
    day: dt.date
    duration: dt.timedelta
    money: Decimal
    uuid: UUID
    colour: Colour
    items: list[Item]
    shapes: tuple[Circle | Square, ...]
    numbered: dict[int, dict[str, bool]]
    days: frozenset[dt.date]
    either: int | str | bytes | Decimal | None


@pytest.mark.full
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.from_type(Some))
def test_any_values_are_read_as_they_were(some: Some) -> None:
    payload = PayloadType(Some)
    assert payload.read(through_bson(payload.store(some))) == some


def test_numbers_that_are_not_numbers_stay_so() -> None:
    for declared, value in ((float, math.nan), (Decimal, Decimal("NaN"))):
        payload = PayloadType(list[declared])  # type: ignore[valid-type]
        (found,) = payload.read(through_bson(payload.store([value])))
        assert type(found) is declared
        assert found != found


# --- Which libraries are installed ---

_ALONE = """
import json, sys
for name in ("pydantic", "pydantic_core", "msgspec", "cattrs"):
    sys.modules[name] = None  # As if it were not installed.
import bson
from tests.payloads.everything import Everything, example
from trio_monque.payloads.payload_type import PayloadType
from trio_monque.payloads.problems import ValueProblem
payload = PayloadType(Everything)
stored = bson.encode(payload.store(example()))
assert payload.read(bson.decode(stored)) == example()
try:
    payload.read(bson.decode(stored) | {"items": [{"price": "much"}]})
except ValueProblem as problem:
    print(json.dumps([stored.hex(), str(problem)]))
"""


@pytest.mark.full
def test_other_libraries_change_nothing_for_a_dataclass() -> None:
    """Stored and read by a process that has none of them, as by one that has all."""
    alone = subprocess.run(
        [sys.executable, "-c", _ALONE], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert alone.returncode == 0, alone.stderr
    stored, problem = json.loads(alone.stdout)
    assert bytes.fromhex(stored) == bson.encode(PayloadType(Everything).store(example()))
    assert problem == "data.items[0].price: must be a number, or one as text, not str 'much'"


@pytest.mark.full
def test_reading_does_not_import_what_was_not_given() -> None:
    program = (
        "import sys, trio_monque; from tests.payloads.everything import *; "
        "from trio_monque.payloads.payload_type import PayloadType as P; P(Everything).store(example()); "
        "print({'pydantic', 'msgspec'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


# --- Unions, generic classes and subclasses ---


def test_what_a_union_stores_as_text_is_read_as_text_where_that_is_allowed() -> None:
    payload = PayloadType(list[Path | str | dt.date | UUID])
    one = uuid4()
    assert payload.read(through_bson(payload.store([one, "x", Path("/a")]))) == [one, "x", "/a"]
    payload = PayloadType(list[dt.date | float | int])
    found = payload.read(through_bson(payload.store([NOW.date(), 2, 2.0])))
    assert list(map(repr, found)) == [repr(NOW.date()), "2", "2.0"]


def test_a_document_is_read_as_the_class_of_a_union_that_knows_its_fields() -> None:
    payload = PayloadType(list[Item | dict[str, Any] | Page[int]])
    values = [Page(["x"], [1]), ITEM, {"price": 1, "name": "not an item"}]
    assert payload.read(through_bson(payload.store(values))) == values


def test_an_instance_of_a_subclass_is_read_as_the_class_that_is_declared() -> None:
    @dataclass
    class Special(Circle):
        colour: str = "red"

    payload = PayloadType(Circle)
    assert payload.store(Special(1)) == {"size": 1, "kind": "circle", "colour": "red"}
    assert type(payload.read(payload.store(Special(1)))) is Circle


ItemT = TypeVar("ItemT", bound=Item)


@dataclass
class Shelf(Generic[ItemT]):
    item: ItemT


def test_a_generic_class_without_an_argument_has_the_bound_of_its_variable() -> None:
    payload = PayloadType(Shelf)
    assert payload.read(payload.store(Shelf(ITEM))) == Shelf(ITEM)


def test_a_generic_class_without_an_argument_takes_anything() -> None:
    payload = PayloadType(Page)
    assert payload.read(payload.store(Page(["a"], [1, "x"]))) == Page(["a"], [1, "x"])
