"""`suggested_repair`: what makes a job of a document, where a value is evident."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import pytest
from bson import DatetimeMS, ObjectId

from trio_monque.store.broken.suggested_repairs import suggested_repair

PAST: Final = datetime(2026, 1, 1, tzinfo=UTC)
ABSENT: Final = object()


def a_document(**changes: Any) -> dict[str, Any]:
    dates = {"nextRunAt": PAST, "createdAt": PAST, "updatedAt": PAST}
    whole = {"_id": ObjectId(), "name": "greet", "data": {}, "status": "pending", "failCount": 0, **dates, **changes}
    return {field: value for field, value in whole.items() if value is not ABSENT}


EVIDENT: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "text that is a date": ({"nextRunAt": "2030-01-31T12:00:00Z"}, "--set nextRunAt=2030-01-31T12:00:00.000+00:00"),
    "text that is a date with an offset": (
        {"nextRunAt": " 2030-01-31 12:00:00.123456+01:00"},
        "--set nextRunAt=2030-01-31T12:00:00.123+01:00",
    ),
    "text that is a day": ({"nextRunAt": "2030-01-31"}, "--set nextRunAt=2030-01-31T00:00:00.000+00:00"),
    "no date": ({"nextRunAt": ABSENT}, "--set nextRunAt=now"),
    "null instead of a date": ({"nextRunAt": None, "status": "processing"}, "--set nextRunAt=now"),
    "date that Python cannot have": ({"createdAt": DatetimeMS(2**60)}, "--set createdAt=now"),
    "several dates": (
        {"nextRunAt": None, "createdAt": 17, "updatedAt": "x"},
        "--set nextRunAt=now --set createdAt=now --set updatedAt=now",
    ),
    "null counters": ({"failCount": None, "attempts": None}, "--set failCount=0 --set attempts=0"),
    "owner of a pending job": ({"claimedBy": "worker-1"}, "--unset claimedBy"),
    "both": ({"nextRunAt": ABSENT, "claimedBy": "worker-1"}, "--set nextRunAt=now --unset claimedBy"),
}
NOT_EVIDENT: Final[dict[str, dict[str, Any]]] = {
    "a job": {},
    "a running job": {"status": "processing", "claimedBy": "worker-1"},
    "due date that is another text": {"nextRunAt": "tomorrow"},
    "due date that is a number": {"nextRunAt": 1_900_000_000},
    "due date beyond those of Python": {"nextRunAt": DatetimeMS(2**60)},
    "no name": {"nextRunAt": ABSENT, "name": ABSENT},
    "unknown status": {"status": "waiting"},
    "foreign id": {"_id": "order-17", "nextRunAt": ABSENT},
    "counter that is text": {"failCount": "7"},
    "nothing": dict.fromkeys(a_document(), ABSENT),
}


@pytest.mark.parametrize(("changes", "options"), EVIDENT.values(), ids=EVIDENT)
def test_evident_values_are_suggested(changes: dict[str, Any], options: str) -> None:
    assert suggested_repair(a_document(**changes)) == options


@pytest.mark.parametrize("changes", NOT_EVIDENT.values(), ids=NOT_EVIDENT)
def test_nothing_is_suggested_that_would_not_make_a_job(changes: dict[str, Any]) -> None:
    assert suggested_repair(a_document(**changes)) is None
