"""The documents that claims are tried on: a user's own collection, which has no jobs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

from bson import Decimal128, Int64, ObjectId

COLLECTION: Final = "messages"
WANTED: Final = {"state": "new"}

LEFT_ALONE: Final = "left alone"
"""A field of the documents that match, and that claims must not touch all the same."""


def document(random: Random, number: int, **fields: Any) -> dict[str, Any]:
    """Of several types, with a plan: how many steps of how many seconds its handler takes, and how often it fails."""
    takes_long = random.random() < 0.02
    plan = {
        "steps": 5 if takes_long else random.randint(1, 2),
        "step": 0.1 if takes_long else random.uniform(0.01, 0.05),
        "fails": int(random.random() < 0.1),
    }
    return {
        "_id": (number, f"message {number}", ObjectId(number.to_bytes(12, "big")))[number % 3],
        "state": "new",
        "results": 0,
        "plan": plan,
        "address": {"street": f"{number} High Street", "floors": [Int64(1), 2.0, {"half": Decimal128("0.5")}]},
        "sent": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=number),
        "": None,
        **fields,
    }


def documents(random: Random, number: int) -> list[dict[str, Any]]:
    """Documents to work through, some of them with an invalid or expired lock."""
    found = [document(random, one) for one in range(number)]
    over = [{"until": _at(-60)}, {"by": None, "until": _at(-60), "tries": 2}]
    free: list[Any] = [None, {"by": None, "until": None}, *over]
    for one, lock in zip(random.sample(found, 10 * len(free)), free * 10, strict=True):
        one["lock"] = lock
    return found


def left_alone(random: Random, number: int) -> list[dict[str, Any]]:
    """Others, numbered from that on, whose locks or states say that they are not to be taken."""
    return [document(random, number + one, **fields) for one, fields in enumerate(_reasons())]


def _reasons() -> Iterator[dict[str, Any]]:
    held = {"by": "somebody", "until": _at(3600)}
    aside = {"by": None, "until": datetime(9000, 1, 1, tzinfo=UTC), "tries": 10, "error": "no such street"}
    unknown: list[Any] = ["by hand", ["by", "hand"], [held], [None], {}, {"by": 7, "until": _at(-60)}, {"by": "me"}]
    for lock in (held, aside, *unknown):
        yield {"lock": lock, LEFT_ALONE: True}
    for state in ("done", "draft"):
        yield {"state": state, LEFT_ALONE: True}


def _at(seconds: float) -> datetime:
    now = datetime.now(UTC) + timedelta(seconds=seconds)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)
