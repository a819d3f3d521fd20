"""The checker of the elections finds each broken promise: one story that is well, and what spoils it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from .checker import violations
from .load import Ledger, Managed, Sent, Told
from .records import Record

TOMORROW = datetime(2026, 1, 2, tzinfo=UTC)


class Story:
    """Job "a" fails once and is completed, "b" was told as unknown and is there, "c" was refused."""

    def __init__(self) -> None:
        self.ledger = Ledger(
            sent={0: Sent(Told.DONE, "a"), 1: Sent(Told.UNKNOWN), 2: Sent(Told.REFUSED)},
            keyed={"k": {"key"}},
            managed={
                "cancelled": Managed("cancel", Told.DONE),
                "deleted": Managed("delete", Told.DONE),
                "moved": Managed("reschedule", Told.DONE, TOMORROW),
                "unclear": Managed("cancel", Told.UNKNOWN),
            },
        )
        self.records = [
            Record("one", "a", 1, "start", 1.0),
            Record("one", "a", 1, "end", 2.0),
            Record("one", "a", 1, "told failed", 2.1, "1"),
            Record("two", "a", 2, "start", 3.0),
            Record("two", "a", 2, "end", 4.0),
            Record("two", "a", 2, "told completed", 4.1, "1"),
            Record("two", "b", 1, "start", 1.0),
            Record("two", "b", 1, "end", 2.0),
        ]
        self.documents: dict[str, dict[str, Any]] = {
            "a": {"name": "counts", "data": {"n": 0, "fails": 1}, "status": "completed", "attempts": 2, "failCount": 1},
            "b": {"name": "counts", "data": {"n": 1, "fails": 0}, "status": "completed", "attempts": 1, "failCount": 0},
            "key": {"name": "keyed", "uniqueKey": "k"},
            "cancelled": {"name": "managed", "status": "cancelled"},
            "moved": {"name": "managed", "status": "pending", "nextRunAt": TOMORROW},
            "unclear": {"name": "managed", "status": "pending"},
        }

    def violations(self) -> list[str]:
        documents = [{"_id": job, **document} for job, document in self.documents.items()]
        return list(violations(self.ledger, self.records, documents))

    def change(self, number: int, **changes: Any) -> None:
        self.records[number] = replace(self.records[number], **changes)


def again(story: Story) -> None:
    story.records.append(Record("one", "a", 3, "start", 5.0))
    story.records.append(Record("one", "a", 3, "end", 6.0))


def shrink(story: Story) -> None:
    story.change(0, attempt=3)
    story.change(1, attempt=3)


SPOILT: dict[str, Callable[[Story], object]] = {
    "acknowledged and lost: number 0": lambda story: story.documents.pop("a"),
    "told as refused, and there": lambda story: story.ledger.sent.update({1: Sent(Told.REFUSED)}),
    "told under another id": lambda story: story.ledger.sent.update({1: Sent(Told.UNKNOWN, "x")}),
    "enqueued twice": lambda story: story.documents.update({"b2": story.documents["b"]}),
    "nobody enqueued it": lambda story: story.ledger.sent.pop(1),
    "not ended": lambda story: story.documents["a"].update(status="processing"),
    "completed without a run": lambda story: story.records.__delitem__(slice(6, 8)),
    "run, and not stored": lambda story: (story.documents.pop("b"), story.ledger.sent.pop(1)),
    "two runs at once": lambda story: story.change(3, at=1.5),
    "one attempt was started 2 times": lambda story: story.change(3, attempt=1),
    "attempts do not grow": shrink,
    "completed by no run": lambda story: story.documents["b"].update(attempts=2),
    "failures were miscounted": lambda story: story.documents["a"].update(failCount=2),
    "told failed, and not stored": lambda story: story.documents["a"].update(failCount=0),
    "told failed 2 times": lambda story: story.records.append(story.records[2]),
    "told completed, and not so stored": lambda story: story.documents["a"].update(attempts=3),
    "told completed, and run again": again,
    "2 jobs have key k": lambda story: story.documents.update(other=story.documents["key"]),
    "key k: told": lambda story: story.ledger.keyed["k"].add("another"),
    "cancel was told as DONE": lambda story: story.documents["cancelled"].update(status="pending"),
    "delete was told as DONE": lambda story: story.documents.update(deleted={"name": "managed", "status": "pending"}),
    "reschedule was told as DONE": lambda story: story.documents["moved"].update(nextRunAt=None),
    "acknowledged and lost: managed": lambda story: story.documents.pop("unclear"),
}


def test_story_that_is_well_breaks_no_promise() -> None:
    assert Story().violations() == []


@pytest.mark.parametrize("expected", SPOILT)
def test_broken_promise_is_found(expected: str) -> None:
    story = Story()
    SPOILT[expected](story)
    assert any(one.startswith(expected) for one in story.violations()), story.violations()
