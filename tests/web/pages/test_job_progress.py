"""What values of any shape say of the progress of a run."""

from __future__ import annotations

from typing import Any

import pytest

from trio_monque.web.pages.job_progress import progress_of, time_left


@pytest.mark.parametrize(
    ("value", "percent", "words"),
    [
        ({"done": 37410, "rows": 60233, "now": "supplier 7 of 9"}, 62, "37,410 of 60,233 rows · “supplier 7 of 9”"),
        ({"done": 2, "total": 2}, 100, "2 of 2"),
        ({"done": 999, "total": 1000}, 99, "999 of 1,000"),
        ({"done": 0, "total": 0}, None, ""),
        ({"done": 5, "total": 2}, None, ""),
        ({"done": 1, "a": 2, "b": 3}, None, ""),
        ({"row": 37000, "supplier": 7}, None, ""),
        ({"percent": 33.4}, 33, ""),
        ({"percent": 101}, None, ""),
        ({"share": 0.5, "step": "copy"}, 50, "“copy”"),
        ({"done": True, "total": 3}, None, ""),
        ({"done": float("nan"), "total": 3}, None, ""),
        ({"done": 1, "total": float("inf")}, 0, "1 of inf"),
        (0.62, 62, ""),
        (1.0, 100, ""),
        (7.5, None, ""),
        (1204, None, "1,204"),
        ("copying", None, "“copying”"),
        ("x" * 500, None, f"“{'x' * 199}…”"),
        ([1, 2], None, ""),
        (None, None, ""),
        (True, None, ""),
    ],
)
def test_progress_is_read_from_what_handlers_report(value: Any, percent: int | None, words: str) -> None:
    found = progress_of(value)
    assert (found.percent, found.words) == (percent, words)


@pytest.mark.parametrize(
    ("share", "elapsed", "left"),
    [
        (0.62, 192.0, "about 1 m left"),
        (0.5, 7300.0, "about 2 h left"),
        (0.5, 30.0, "about 30 s left"),
        (0.99, 100.0, "a few seconds left"),
        (0.001, 100.0, None),
        (1.0, 100.0, None),
        (0.5, 0.0, None),
        (0.5, -5.0, None),
    ],
)
def test_time_that_is_left_is_estimated_in_one_unit(share: float, elapsed: float, left: str | None) -> None:
    assert time_left(progress_of(share), elapsed) == left
