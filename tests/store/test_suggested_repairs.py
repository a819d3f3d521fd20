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
    "text instead of a date": ({"nextRunAt": "tomorrow"}, "--set nextRunAt=now"),
    "no date": ({"nextRunAt": ABSENT}, "--set nextRunAt=now"),
    "null instead of a date": ({"nextRunAt": None, "status": "processing"}, "--set nextRunAt=now"),
    "date that Python cannot have": ({"createdAt": DatetimeMS(2**60)}, "--set createdAt=now"),
    "several dates": (
        dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), 17),
        "--set nextRunAt=now --set createdAt=now --set updatedAt=now",
    ),
    "null counters": ({"failCount": None, "attempts": None}, "--set failCount=0 --set attempts=0"),
    "owner of a pending job": ({"claimedBy": "worker-1"}, "--unset claimedBy"),
    "both": ({"nextRunAt": 0, "claimedBy": "worker-1"}, "--set nextRunAt=now --unset claimedBy"),
}
NOT_EVIDENT: Final[dict[str, dict[str, Any]]] = {
    "a job": {},
    "a running job": {"status": "processing", "claimedBy": "worker-1"},
    "no name": {"nextRunAt": "tomorrow", "name": ABSENT},
    "unknown status": {"status": "waiting"},
    "foreign id": {"_id": "order-17", "nextRunAt": "tomorrow"},
    "counter that is text": {"failCount": "7"},
    "nothing": dict.fromkeys(a_document(), ABSENT),
}


@pytest.mark.parametrize(("changes", "options"), EVIDENT.values(), ids=EVIDENT)
def test_evident_values_are_suggested(changes: dict[str, Any], options: str) -> None:
    assert suggested_repair(a_document(**changes)) == options


@pytest.mark.parametrize("changes", NOT_EVIDENT.values(), ids=NOT_EVIDENT)
def test_nothing_is_suggested_that_would_not_make_a_job(changes: dict[str, Any]) -> None:
    assert suggested_repair(a_document(**changes)) is None
