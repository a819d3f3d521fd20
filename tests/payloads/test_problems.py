"""What is wrong with a value is found when it is stored or read, and the message names the path to it."""

from __future__ import annotations

import datetime as dt
from collections import deque
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypedDict
from uuid import UUID

import attrs
import pytest
from bson import Binary, Code

from trio_monque import Workers
from trio_monque.errors import InvalidOptionError
from trio_monque.payloads.payload_type import PayloadType
from trio_monque.payloads.problems import LONGEST_PROBLEM, ValueProblem

from .everything import Circle, Colour, Item, Options, Place


@dataclass
class Line:
    price: Decimal
    count: int = 1


@dataclass
class Order:
    items: list[Line] = field(default_factory=list)
    at: dt.datetime | None = None
    notes: dict[str, list[Line]] = field(default_factory=dict)


def problem_of(call: Any, *arguments: Any) -> str:
    with pytest.raises(ValueProblem) as caught:
        call(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        (Order([Line(Decimal(1)), Line("?")]), "data.items[1].price: must be a number, or one as text, not str '?'"),  # type: ignore[arg-type]
        (Order([Line(Decimal(1), "2")]), "data.items[0].count: must be int, not str '2'"),  # type: ignore[arg-type]
        (Order(notes={"a b": [Line(Decimal(1), 1 << 63)]}), "data.notes['a b'][0].count: is a whole number of"),
        (Order(at=dt.datetime(2026, 1, 31)), "data.at: datetime datetime.datetime(2026, 1, 31, 0, 0) has no time zone"),  # noqa: DTZ001
        (Order([Line(Decimal("1." + "1" * 40))]), "data.items[0].price: Decimal Decimal('1.1111"),
        (Order(items=5), "data.items: must be list[Line], not int 5"),  # type: ignore[arg-type]
        (Order(items=[None]), "data.items[0]: must be Line, not NoneType"),  # type: ignore[list-item]
    ],
)  # fmt: skip
def test_a_value_that_is_not_what_its_field_declares_is_refused_with_its_path(order: Order, problem: str) -> None:
    assert problem_of(PayloadType(Order).store, order).startswith(problem)


class Nothing:
    pass


try:
    WHY_NOT_IN_A_SET = str({{}})
except TypeError as error:
    WHY_NOT_IN_A_SET = str(error)  # Python says it in other words from 3.14 on.


@pytest.mark.parametrize(
    ("declared", "stored", "problem"),
    [
        (Order, {"items": [{}]}, ".items[0].price: is missing: Line needs it"),
        (Order, [], ": must be Order, not list []"),
        (int, 1.5, ": must be int, not float 1.5"),
        (float, "1", ": must be float, not str '1'"),
        (str, 1, ": must be str, not int 1"),
        (str, Code("x"), ": must be str, not Code 'x'"),
        (bytes, "x", ": must be bytes, not str 'x'"),
        (bool, 1, ": must be bool, not int 1"),
        (None, 0, ": must be None, not int 0"),
        (dt.date, "31.1.2026", ": must be a date as text, for example 2026-01-31, not str '31.1.2026'"),
        (dt.date, dt.datetime(2026, 1, 1), ": must be a date as text"),  # noqa: DTZ001
        (dt.datetime, "2026-01-31T09:30", ": must be a BSON date, not str"),
        (dt.datetime, 5, ": must be a BSON date, not int 5"),
        (dt.time, "x", ": must be a time as text"),
        (dt.timedelta, "P", ": must be a duration as ISO 8601 text, for example PT90S, or in seconds, not str 'P'"),
        (dt.timedelta, "PT", ": must be a duration"),
        (dt.timedelta, "P1DT", ": must be a duration"),
        (dt.timedelta, True, ": must be a duration"),
        (dt.timedelta, "P999999999999D", ": must be a duration"),
        (dt.timedelta, 1e300, ": must be a duration"),
        (Decimal, True, ": must be a number"),
        (UUID, "x", ": must be a UUID, not str 'x'"),
        (UUID, b"0" * 16, ": must be a UUID"),
        (UUID, Binary(b"0" * 16, 3), ": must be a UUID"),  # An older form, whose bytes may be in another order.
        (UUID, Binary(b"0" * 15, 4), ": must be a UUID"),
        (Path, 5, ": must be a Path as text, not int 5"),
        (Colour, "blue", ": must be the value of a Colour ('red', 2), not str 'blue'"),
        (Literal["a", 1], True, ": must be 'a' or 1, not bool True"),
        (Literal["a", 1], ["a"], ": must be 'a' or 1, not list ['a']"),
        (int | None, "x", ": must be int | None, not str 'x'"),
        (Order | None, {"items": 5}, ".items: must be list[Line], not int 5"),
        (tuple[int, str], [1], ": must be tuple[int, str], not list [1]"),
        (tuple[int, str], [1, 2], "[1]: must be str, not int 2"),
        (dict[int, str], {"a": "b"}, "['a']: must be int, not str 'a'"),
        (dict[int, str], ["b"], ": must be dict[int, str], not list ['b']"),
        (Line | Order, {"price": "?", "items": 5}, ": must be Line | Order, not dict {"),
        (set[Any], [{}], f": must be set[Any]: {WHY_NOT_IN_A_SET}"),
        (Options, {"since": "2026-01-31"}, ".depth: is missing: Options needs it"),
        (Place, [], ": must be Place, not list []"),
        (Nothing, 1, ": must be Nothing, not int 1"),
    ],
)
def test_stored_data_of_another_form_is_refused_with_its_path(declared: Any, stored: Any, problem: str) -> None:
    # Inside of a list, as a class alone is called with what is stored.
    assert problem_of(PayloadType(list[declared]).read, [stored]).startswith(f"data[0]{problem}")


def test_a_long_value_is_shown_in_part() -> None:
    problem = problem_of(PayloadType(list[int]).read, ["x" * 10_000_000])
    assert problem.startswith("data[0]: must be int, not str 'xxx")
    assert len(problem) < 200


def test_a_long_problem_is_cut() -> None:
    """As the text of a class that refuses its fields, which may repeat all of the data."""
    short, long = ("x" * LONGEST_PROBLEM, "x" * (LONGEST_PROBLEM + 1))
    assert ValueProblem(short).problem == short
    assert ValueProblem(long).problem == "x" * (LONGEST_PROBLEM - 1) + "…"


def test_a_value_whose_repr_fails_does_not_hide_the_problem() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert problem_of(PayloadType(list[int]).read, [Bad()]) == "data[0]: must be int, not Bad <Bad>"


def test_a_class_that_refuses_its_fields_is_named_with_its_reason() -> None:
    assert problem_of(PayloadType(list[Positive]).read, [{"number": -1}]) == (
        "data[0]: Positive refused it: ValueError: -1 is not positive"
    )


@dataclass
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ValueError(f"{self.number} is not positive")


class NoOffset(dt.tzinfo):
    def utcoffset(self, moment: dt.datetime | None) -> None:
        return None

    dst = tzname = utcoffset


def test_a_moment_whose_time_zone_has_no_offset_is_refused() -> None:
    """MongoDB's driver would store it as if it was in UTC."""
    moment = dt.datetime(2026, 1, 31, tzinfo=NoOffset())
    assert "has no time zone" in problem_of(PayloadType(list[dt.datetime]).store, [moment])


@pytest.mark.parametrize(("least_or_most", "beyond"), [(-(1 << 63), -(1 << 63) - 1), ((1 << 63) - 1, 1 << 63)])
def test_whole_numbers_are_stored_up_to_64_bits(least_or_most: int, beyond: int) -> None:
    assert PayloadType(list[int]).store([least_or_most]) == [least_or_most]
    assert "of more than 64 bits" in problem_of(PayloadType(list[int]).store, [beyond])


def test_keys_that_would_be_one_when_stored_are_refused() -> None:
    assert "would be the same key when stored" in problem_of(PayloadType(dict[Any, int]).store, {1: 1, "1": 2})
    assert "data[True]: the keys of a document are strings" in problem_of(PayloadType(dict[Any, int]).store, {True: 1})
    assert "data[1.5]: the keys of a document are strings" in problem_of(PayloadType(dict[float, int]).store, {1.5: 1})


@dataclass
class Round:
    size: int


@dataclass
class Square:
    size: int


@dataclass
class Drawing:
    shapes: dict[str, list[Round | Square]]


def test_an_instance_that_would_be_read_as_another_class_is_refused() -> None:
    problem = problem_of(PayloadType(Drawing).store, Drawing({"a": [Round(1), Square(1)]}))
    assert problem.startswith("data.shapes['a'][1]: a stored Square would be read as Round: give the classes")
    PayloadType(Drawing).store(Drawing({"a": [Round(1)]}))


class Pair(NamedTuple):
    left: Round | Square


@attrs.define
class Framed:
    inside: Round | Square


@pytest.mark.parametrize(
    ("declared", "data", "path"),
    [
        (list[Pair], [Pair(Square(1))], "[0][0]"),
        (Framed, Framed(Square(1)), ".inside"),
        (deque[Round | Square], deque([Square(1)]), "[0]"),
        (dict[int, Round | Square], {1: Square(1)}, "[1]"),
        (dict[Any, Round | Square], {1: Square(1)}, "[1]"),  # The key comes back as text.
    ],
)
def test_an_instance_of_a_union_is_found_in_each_container(declared: Any, data: Any, path: str) -> None:
    assert problem_of(PayloadType(declared).store, data).startswith(f"data{path}: a stored Square would be read as")


@dataclass(frozen=True)
class Even:
    number: int
    kind: Literal["even"] = "even"


@dataclass(frozen=True)
class Odds:
    number: int
    kind: Literal["odd"] = "odd"


def test_a_list_may_stand_for_a_set_whatever_the_order_of_that() -> None:
    numbers = [Odds(number) if number % 2 else Even(number) for number in range(50)]
    payload = PayloadType(set[Even | Odds])
    assert payload.read(payload.store(numbers)) == set(numbers)


class Shown(TypedDict):
    shape: Circle | Square


def test_what_is_read_back_in_another_form_is_not_taken_for_another_class() -> None:
    """A dict may stand for a class, keys come back as text where they may be anything, and unknown keys are ignored."""

    @dataclass
    class Special(Circle):
        colour: str = "red"

    circle = {"size": 1, "kind": "circle"}
    payload = PayloadType(list[Circle | Square])
    assert payload.store([circle]) == [circle]
    assert payload.store([Special(1)]) == [circle | {"colour": "red"}]
    assert PayloadType(dict[Any, Circle | Square]).store({1: Circle(1)}) == {"1": circle}
    assert PayloadType(Shown).store({"shape": Circle(1), "unknown": Item(Decimal(1))})["shape"] == circle


# --- At registration ---


class Talking(Protocol):
    def talk(self) -> None: ...


@dataclass
class WithInitVar:
    a: int
    b: InitVar[int]


@dataclass
class WithDefault:
    a: int
    b: InitVar[int] = 1


def test_an_init_var_with_a_default_is_not_stored() -> None:
    payload = PayloadType(WithDefault)
    assert payload.read(payload.store(WithDefault(1, 2))) == WithDefault(1)


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (5, "5 cannot be the type of a payload"),
        (WithInitVar, "WithInitVar.b is an InitVar"),
        (WithInitVar(1, 2), "must be a class, not an instance of it: write payload=WithInitVar"),
        (list["Order"], "'Order' cannot be the type"),
    ],
)
def test_a_type_that_no_payload_can_have_is_refused_at_registration(payload: Any, problem: str) -> None:
    with pytest.raises(InvalidOptionError, match="payload") as caught:
        Workers().register("x", payload=payload)
    assert problem in str(caught.value)


def test_a_class_may_use_a_name_that_is_defined_later() -> None:
    payload = PayloadType(Early)
    payload.prepare()
    globals()["Later"] = Item
    try:
        assert payload.read({"later": {"price": 1}}) == Early(Item(Decimal(1)))
    finally:
        del globals()["Later"]


@dataclass
class Early:
    later: Later  # type: ignore[name-defined]  # noqa: F821


class Odd(Enum):
    PAIR = (1, 2)


def test_an_enum_whose_values_change_when_stored_is_refused() -> None:
    assert "must be the value of a Odd" in problem_of(PayloadType(list[Odd]).store, [Odd.PAIR])
