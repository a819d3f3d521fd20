"""One payload with a field of each type that a dataclass may have, and instances of it."""

from __future__ import annotations

import collections
import datetime as dt
import enum
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from decimal import Decimal
from ipaddress import IPv4Address
from pathlib import PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, Required, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
from bson import ObjectId

T = TypeVar("T")
UserId = NewType("UserId", int)


class Colour(enum.Enum):
    RED = "red"
    TWO = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Item:
    price: Decimal
    tags: set[str] = field(default_factory=set)
    parent: Item | None = None


@dataclass
class Base(Generic[T]):
    base: T


@dataclass
class Page(Base[list[str]], Generic[T]):
    """Its T is another one than that of its base class."""

    items: list[T]


@dataclass
class Circle:
    size: float
    kind: Literal["circle"] = "circle"


@dataclass
class Square:
    size: float
    kind: Literal["square"] = "square"


class Options(TypedDict, total=False):
    depth: Required[int]
    since: NotRequired[dt.date]


class Place(NamedTuple):
    row: int
    column: str = "A"


@attrs.define
class Box:
    _weight: Decimal
    closed_for: dt.timedelta = dt.timedelta(0)


@dataclass
class Everything:
    whole: int
    number: float
    text: str
    binary: bytes
    flag: bool
    nothing: None
    moment: dt.datetime
    day: dt.date
    time: dt.time
    duration: dt.timedelta
    money: Decimal
    uuid: UUID
    colour: Colour
    level: Level
    path: PurePosixPath
    address: IPv4Address
    zone: ZoneInfo
    choice: Literal["a", 1, True]
    user: UserId
    page: Page[Item]
    items: list[Item]
    pair: tuple[int, dt.date]
    numbers: tuple[int, ...]
    numbered: dict[int, Item]
    by_uuid: dict[UUID, Decimal]
    by_colour: Mapping[Colour, int]
    frozen: frozenset[int]
    queue: collections.deque[int]
    sequence: Sequence[dt.datetime]
    either: int | str | None
    shapes: list[Circle | Square]
    options: Options
    place: Place
    box: Box
    object_id: ObjectId
    anything: Any
    annotated: Annotated[int, "a comment"]
    _: KW_ONLY
    computed: int = field(init=False, default=4)


NOW = dt.datetime(2026, 1, 31, 9, 30, 15, 123000, tzinfo=dt.UTC)
ONE = UUID("00000000-0000-4000-8000-000000000001")
ITEM = Item(Decimal("1.50"), {"b", "a"}, Item(Decimal(1)))


def example() -> Everything:
    return Everything(
        whole=1 << 62,
        number=1.5,
        text="ä",
        binary=b"\0",
        flag=True,
        nothing=None,
        moment=NOW,
        day=NOW.date(),
        time=dt.time(9, 30),
        duration=dt.timedelta(days=1, seconds=5, microseconds=30),
        money=Decimal("-2.50"),
        uuid=ONE,
        colour=Colour.TWO,
        level=Level.LOW,
        path=PurePosixPath("/a/b"),
        address=IPv4Address("10.0.0.1"),
        zone=ZoneInfo("Europe/Berlin"),
        choice=1,
        user=UserId(3),
        page=Page(["x"], [ITEM]),
        items=[ITEM],
        pair=(1, NOW.date()),
        numbers=(1, 2),
        numbered={1: ITEM},
        by_uuid={ONE: Decimal("0.1")},
        by_colour={Colour.RED: 1, Colour.TWO: 2},
        frozen=frozenset({1, 2}),
        queue=collections.deque([1, 2]),
        sequence=[NOW],
        either="text",
        shapes=[Circle(1), Square(2)],
        options={"depth": 1, "since": NOW.date()},
        place=Place(1),
        box=Box(Decimal(5), dt.timedelta(hours=-1)),
        object_id=ObjectId("64b000000000000000000001"),
        anything={"x": [1, None]},
        annotated=7,
    )
