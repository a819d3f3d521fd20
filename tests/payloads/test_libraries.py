"""Models of pydantic, structs of msgspec and classes of attrs: by these libraries, alone and inside of each other."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

import attrs
import bson
import msgspec
import pydantic
import pytest
from bson import Binary, Decimal128, Int64, ObjectId

from trio_monque import Workers
from trio_monque.errors import InvalidOptionError
from trio_monque.payloads.payload_type import PayloadType
from trio_monque.payloads.problems import ValueProblem

from .everything import ITEM, NOW, ONE, Item

T = TypeVar("T")


class Colour(Enum):
    """msgspec knows only those whose values are all text or all numbers."""

    RED = "red"
    BLUE = "blue"


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True, strict=True)

    day: dt.date
    duration: dt.timedelta
    moment: dt.datetime
    money: Decimal
    uuid: UUID
    path: PurePosixPath
    colours: set[Colour]
    numbered: dict[int, Item]
    object_id: ObjectId
    url: pydantic.AnyUrl
    number: int = pydantic.Field(alias="theNumber", gt=0)


class Struct(msgspec.Struct, rename="camel", tag="struct"):
    day: dt.date
    duration: dt.timedelta
    moment: dt.datetime
    money: Decimal
    uuid: UUID
    path: PurePosixPath
    colours: set[Colour]
    numbered: dict[int, Item]
    object_id: ObjectId
    the_number: int


VALUES: dict[str, Any] = {
    "day": NOW.date(),
    "duration": dt.timedelta(hours=1),
    "moment": NOW,
    "money": Decimal("1.50"),
    "uuid": ONE,
    "path": PurePosixPath("/a"),
    "colours": {Colour.RED, Colour.BLUE},
    "numbered": {1: ITEM},
    "object_id": ObjectId("64b000000000000000000001"),
}


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]


class Slice(msgspec.Struct, Generic[T]):
    items: list[T]


class Small(pydantic.BaseModel):
    x: int


class Large(pydantic.BaseModel):
    """All that a Small needs is in one of these, too."""

    x: int
    y: int = pydantic.Field(alias="theY")


class Either(pydantic.BaseModel):
    """pydantic would take what BSON has for these for the other type: only Python's own types tell them apart."""

    money: Decimal | str
    key: UUID | bytes
    anything: Any


@pydantic.dataclasses.dataclass
class Checked:
    number: Annotated[int, pydantic.Field(gt=0)]


@attrs.frozen
class Frozen:
    model: Model
    struct: Struct | None = None
    number: int = attrs.field(default=1, converter=int, validator=attrs.validators.gt(0))
    twice: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "twice", 2 * self.number)


@dataclass
class Mixed:
    models: list[Model]
    struct: Struct
    either: Model | Struct


MODEL = Model(**VALUES, url=pydantic.AnyUrl("https://example.org/"), theNumber=7)
STRUCT = Struct(**VALUES, the_number=7)


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (Model, MODEL),
        (Struct, STRUCT),
        (Frozen, Frozen(MODEL, STRUCT, 3)),
        (Mixed, Mixed([MODEL], STRUCT, STRUCT)),
        (Page[Model], Page[Model](items=[MODEL])),
        (Page[int], Page[int](items=[1])),
        (Slice[Item], Slice([ITEM])),
        (Checked, Checked(1)),
        (Either, Either(money=Decimal("1.50"), key=ONE, anything={"sums": [Decimal("2.5")], "id": ONE, "at": NOW})),
        (list[Small | Large], [Small(x=1), Large(x=1, theY=2)]),
        (Either, Either(money="1.50", key=b"\0" * 16, anything=b"\0" * 16)),
        (list[Model | Struct], [MODEL, STRUCT]),
        (dict[str, Checked | None], {"a": Checked(1), "b": None}),
    ],
    ids=lambda part: getattr(part, "__name__", str(part)) if isinstance(part, type) else "",
)
def test_an_instance_is_read_as_it_was(declared: Any, value: Any) -> None:
    payload = PayloadType(declared)
    payload.prepare()
    stored = bson.decode(bson.encode({"": payload.store(value)}))[""]
    assert payload.read(stored) == value


def test_stored_forms_are_those_of_a_dataclass() -> None:
    """So a payload may become a class of another kind while jobs are pending."""
    same = {
        "day": "2026-01-31",
        "moment": NOW,
        "money": Decimal128("1.50"),
        "uuid": Binary(ONE.bytes, 4),
        "path": "/a",
        "theNumber": 7,
    }
    for payload, value, duration, object_id in (
        (PayloadType(Model), MODEL, "PT3600S", VALUES["object_id"]),
        (PayloadType(Struct), STRUCT, "PT3600S", str(VALUES["object_id"])),
    ):
        stored = payload.store(value)
        assert same.items() <= {key: part for key, part in stored.items() if key in same}.items()
        assert (stored.get("duration"), stored.get("object_id", stored.get("objectId"))) == (duration, object_id)
        assert stored["numbered"]["1"]["price"] == Decimal128("1.50")
        assert set(stored["colours"]) == {"red", "blue"}


class Tagged(msgspec.Struct, tag=True):
    number: int


def test_tag_of_a_struct_is_one_of_its_fields_for_a_union() -> None:
    payload = PayloadType(list[Tagged | dict[str, Any]])
    assert payload.read(payload.store([Tagged(1)])) == [Tagged(1)]


def test_model_gets_no_types_of_bson() -> None:
    stored = {"money": "1", "key": b"x", "anything": [Int64(1), Binary(b"x", 5)]}
    found = PayloadType(Either).read(stored)
    assert [type(one) for one in found.anything] == [int, bytes]


def problem_of(call: Any, *arguments: Any) -> str:
    with pytest.raises(ValueProblem) as caught:
        call(*arguments)
    return str(caught.value)


def test_problems_name_the_path() -> None:
    stored = PayloadType(Model).store(MODEL)
    read = PayloadType(list[Model]).read
    assert problem_of(read, [stored, {**stored, "theNumber": 0}]) == (
        "data[1].theNumber: Input should be greater than 0"
    )
    assert problem_of(read, [{}]).endswith(".day: Field required (and 10 more)")
    stored = PayloadType(Struct).store(STRUCT)
    read = PayloadType(dict[str, Struct]).read
    assert problem_of(read, {"a": {**stored, "theNumber": "x"}}) == "data['a'].theNumber: Expected `int`, got `str`"
    assert problem_of(read, {"a": {**stored, "objectId": "x"}}).startswith("data['a'].objectId: must be an ObjectId")
    problem = problem_of(PayloadType(Frozen).read, {"model": PayloadType(Model).store(MODEL), "number": 0})
    assert problem.startswith("data: Frozen refused it: ValueError: ")


def test_a_model_that_was_changed_past_its_validation_is_refused_when_it_is_stored() -> None:
    changed = MODEL.model_copy(update={"number": -1})
    assert problem_of(PayloadType(Model).store, changed) == "data.theNumber: Input should be greater than 0"
    struct = msgspec.structs.replace(STRUCT, the_number="x")
    assert problem_of(PayloadType(Struct).store, struct) == "data.theNumber: Expected `int`, got `str`"


class Unsupported(msgspec.Struct):
    either: Model | Struct


def test_what_msgspec_does_not_support_is_found_at_registration() -> None:
    with pytest.raises(InvalidOptionError, match="payload"):
        Workers().register("x", payload=Unsupported)


class Secret(pydantic.BaseModel):
    password: pydantic.SecretStr


class OpenSecret(Secret):
    @pydantic.field_serializer("password")
    def _open(self, value: pydantic.SecretStr) -> str:
        return value.get_secret_value()


def test_a_secret_is_stored_only_by_a_serializer_of_the_model() -> None:
    """Its text is a row of asterisks, and the handler would get that."""
    secret = pydantic.SecretStr("x")
    assert "SecretStr is not stored" in problem_of(PayloadType(Secret).store, Secret(password=secret))
    payload = PayloadType(OpenSecret)
    assert payload.read(payload.store(OpenSecret(password=secret))).password == secret


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"


def test_pydantic_tells_the_models_of_a_union_apart() -> None:
    for declared in (list[Cat | Dog], list[Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]]):
        payload = PayloadType(declared)
        assert payload.read(payload.store([Dog(), Cat()])) == [Dog(), Cat()]


class Forbidding(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    number: int


class ForbiddingStruct(msgspec.Struct, forbid_unknown_fields=True):
    number: int


@pytest.mark.parametrize("declared", [Forbidding, ForbiddingStruct])
def test_unknown_fields_are_refused_by_a_class_that_forbids_them(declared: Any) -> None:
    assert problem_of(PayloadType(declared).read, {"number": 1, "new": 2})


class Order(pydantic.BaseModel):
    """What it computes is not among its fields, and one field holds JSON as text."""

    model_config = pydantic.ConfigDict(extra="forbid")

    price: int
    options: pydantic.Json[dict[str, int]]

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def with_tax(self) -> int:
        return self.price * 2


def test_model_is_stored_as_it_is_read_back() -> None:
    payload = PayloadType(Order)
    order = Order(price=3, options='{"gift": 1}')  # type: ignore[arg-type]
    stored = payload.store(order)
    assert stored == {"price": 3, "options": '{"gift":1}'}
    assert payload.read(stored) == order


def test_model_whose_value_bypassed_its_validation_warns_nowhere_but_is_refused() -> None:
    """Warnings are errors here, as in the tests of many programs."""
    wrong = Order.model_construct(price="three", options={})
    assert "price" in problem_of(PayloadType(Order).store, wrong)
