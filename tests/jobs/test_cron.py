from __future__ import annotations

from datetime import UTC, datetime

import pytest

from trio_monque.errors import InvalidCronError
from trio_monque.jobs.cron import next_occurrence

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "timezone", "following"),
    [
        ("0 12 * * *", None, datetime(2026, 3, 2, 12, tzinfo=UTC)),  # Strictly after.
        ("*/15 * * * *", None, datetime(2026, 3, 1, 12, 15, tzinfo=UTC)),
        ("@hourly", None, datetime(2026, 3, 1, 13, tzinfo=UTC)),
        ("@monthly", None, datetime(2026, 4, 1, tzinfo=UTC)),
        ("0 9 * * 1-5", "Europe/Berlin", datetime(2026, 3, 2, 8, tzinfo=UTC)),
        ("0 9 30 3 *", "Europe/Berlin", datetime(2026, 3, 30, 7, tzinfo=UTC)),  # In summer time by then.
    ],
)
def test_next_occurrence(expression: str, timezone: str | None, following: datetime) -> None:
    assert next_occurrence(expression, timezone, NOON) == following


@pytest.mark.parametrize(
    "expression", ["", "* * *", "0 0 * * * *", "60 * * * *", "0 25 * * *", "0 0 30 2 *", "x * * * *", "@never"]
)
def test_expression_that_cannot_be_understood_is_refused_with_an_example(expression: str) -> None:
    with pytest.raises(InvalidCronError, match="for example '0 9 \\* \\* 1-5'") as caught:
        next_occurrence(expression, None, NOON)
    assert caught.value.expression == expression


def test_unknown_time_zone_is_refused() -> None:
    with pytest.raises(InvalidCronError, match="Mars/Olympus"):
        next_occurrence("0 9 * * *", "Mars/Olympus", NOON)
