"""How long it takes to read the data of one job as its `payload=` type, by the size of what is stored.

    python -m benchmarks.payload_reading [how often]

Prints a table in Markdown: milliseconds on one core, the fastest of several reads. It needs no database. The data are a
list of lines with a text, a number and a date each, as BSON gives them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import bson
import msgspec
import pydantic

from trio_monque.payloads.payload_type import PayloadType

SIZES = (4, 16, 64)  # Kilobytes.


@dataclass
class Line:
    text: str
    count: int
    at: datetime


@dataclass
class Lines:
    lines: list[Line]


class PydanticLine(pydantic.BaseModel):
    text: str
    count: int
    at: datetime


class PydanticLines(pydantic.BaseModel):
    lines: list[PydanticLine]


class MsgspecLine(msgspec.Struct):
    text: str
    count: int
    at: datetime


class MsgspecLines(msgspec.Struct):
    lines: list[MsgspecLine]


def stored(kilobytes: int, *, right: bool = True) -> Mapping[str, Any]:
    """Data of at least this size in BSON. Wrong ones have a text where a number should be, in each line."""
    line = {"text": "a line of an order", "count": 1 if right else "many", "at": datetime(2026, 1, 31, tzinfo=UTC)}
    lines = [line]
    while len(bson.encode({"lines": lines})) < kilobytes * 1024:
        lines.append(dict(line))
    return {"lines": lines}


def fastest(work: Callable[[], object], count: int) -> float:
    """In milliseconds."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return 1000 * min(times)


def refused(payload: PayloadType, data: object) -> None:
    try:
        payload.read(data)
    except Exception:  # noqa: BLE001 - The error of the class's own library.
        return
    raise AssertionError("wrong data were read")


def table(count: int) -> str:
    heads = ("Stored size", "dataclass", "pydantic", "msgspec", "pydantic, all values wrong")
    lines = [f"| {' | '.join(heads)} |", f"|{'--:|' * len(heads)}"]
    kinds = [PayloadType(kind) for kind in (Lines, PydanticLines, MsgspecLines)]
    for size in SIZES:
        right, wrong = stored(size), stored(size, right=False)
        found = [fastest(lambda kind=kind, data=right: kind.read(data), count) for kind in kinds]  # type: ignore[misc]
        found.append(fastest(lambda data=wrong: refused(kinds[1], data), count))  # type: ignore[misc]
        lines.append(f"| {size} kB | {' | '.join(f'{one:.2g}' for one in found)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
