"""A value of every BSON type, also of those that Python cannot write, and documents with one in a field."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import bson
from bson import Code, DatetimeMS, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.raw_bson import RawBSONDocument

from tests.support.thoroughly import THOROUGH


@dataclass(frozen=True, slots=True)
class Element:
    """A BSON value: the byte that names its type, and its own bytes."""

    type: int
    value: bytes

    @classmethod
    def of(cls, value: object) -> Element:
        encoded = bson.encode({"": value})
        return cls(encoded[4], encoded[6:-1])

    def named(self, name: str) -> bytes:
        return bytes([self.type]) + name.encode() + b"\0" + self.value


def _text(content: bytes) -> bytes:
    return struct.pack("<i", len(content) + 1) + content + b"\0"


def _binary(subtype: int, content: bytes) -> Element:
    return Element(0x05, struct.pack("<i", len(content)) + bytes([subtype]) + content)


def _document(*elements: bytes) -> bytes:
    content = b"".join(elements)
    return struct.pack("<i", len(content) + 5) + content + b"\0"


def within(element: Element, *, array: bool) -> Element:
    """A document, or an array, that holds the element alone."""
    return Element(0x04 if array else 0x03, _document(element.named("0")))


def _nested(depth: int) -> Element:
    element = Element.of(1)
    for _ in range(depth):
        element = within(element, array=False)
    return element


def text(content: bytes) -> Element:
    """Text of these bytes, which need not be UTF-8."""
    return Element(0x02, _text(content))


_BAD_TEXT: Final = _text(b"\xff\xfe")

ELEMENTS: Final[Mapping[str, Element]] = {
    **{
        name: Element.of(value)
        for name, value in {
            "null": None,
            "true": True,
            "false": False,
            "zero": 0,
            "number": 7,
            "negative": -1,
            "largest int": 2**31 - 1,
            "long": Int64(3),
            "largest long": 2**63 - 1,
            "smallest long": -(2**63),
            "double": 1.5,
            "whole double": 2.0,
            "huge double": 1e300,
            "not a number": float("nan"),
            "infinity": float("inf"),
            "empty text": "",
            "text": "text",
            "status": "processing",
            "text with a zero byte": "a\0b",
            "long text": "x" * 900,
            "lines": "a\nb\x1b[31m",
            "document": {"a": 1},
            "empty document": {},
            "operator": {"$gt": ""},
            "reference": DBRef("c", {"a": 1}),
            "empty array": [],
            "array of null": [None],
            "array of text": ["greet"],
            "array of status": ["pending"],
            "array of dates": [datetime(2026, 1, 1, tzinfo=UTC)],
            "date": datetime(2026, 1, 1, tzinfo=UTC),
            "first date": DatetimeMS(-62135596800000),
            "date before all": DatetimeMS(-(2**62)),
            "last date": DatetimeMS(253402300799999),
            "date of the year 10000": DatetimeMS(253402300800000),
            "date after all": DatetimeMS(2**63 - 1),
            "id": ObjectId("5" * 24),
            "regex": Regex("^a", "im"),
            "code": Code("f()"),
            "code like a status": Code("pending"),
            "code with scope": Code("f()", {"x": 1}),
            "timestamp": Timestamp(1, 2),
            "decimal": Decimal128("3"),
            "decimal that is not a number": Decimal128("NaN"),
            "smallest key": MinKey(),
            "largest key": MaxKey(),
            "bytes": b"bytes",
        }.items()
    },
    **{f"binary {subtype}": _binary(subtype, bytes(16)) for subtype in (1, 3, 4, 5, 6, 8, 9, 128)},
    "old binary": _binary(2, struct.pack("<i", 4) + b"abcd"),
    "short uuid": _binary(4, b"abc"),
    "short vector": _binary(9, b""),
    "bad text": text(b"\xff\xfe"),
    "surrogate": text(b"\xed\xa0\x80"),
    "bad reference": Element(0x03, _document(Element.of(7).named("$ref"), Element.of(1).named("$id"))),
    "undefined": Element(0x06, b""),
    "pointer": Element(0x0C, _text(b"c") + bytes(12)),
    "bad code": Element(0x0D, _BAD_TEXT),
    "symbol": Element(0x0E, _text(b"pending")),
    "bad regex": Element(0x0B, b"\xff\0i\0"),
    "deep document": _nested(150),
}


def with_field(document: Mapping[str, Any], field: str, element: Element, *, as_well: bool = False) -> RawBSONDocument:
    """The document, with the element in that field; where it is there `as_well`, the field is there twice."""
    others = bson.encode({name: value for name, value in document.items() if as_well or name != field})[4:-1]
    return RawBSONDocument(_document(others, element.named(field)))


SHARE: Final = 1 if THOROUGH else 3
"""Each kind is tried in each field, but only in one of SHARE states; the states rotate."""


def chunks(kinds: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """Kinds of values that one test tries together."""
    return [tuple(kinds[start : start + size]) for start in range(0, len(kinds), size)]
