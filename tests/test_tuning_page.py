"""The numbers of the page on tuning are those that were measured, and those that follow from the options."""

from __future__ import annotations

from typing import Final

import pytest

from tests.support.pages import DOCS, rows
from trio_monque.engine.lease import LeaseTerms
from trio_monque.options_and_defaults import LEASE_IN_BEATS, SchedulerConfig

PAGE: Final = "how-to/tune.md"
MEASURED: Final = "<!-- numbers of explanation/performance.md -->"


def test_measured_numbers_are_those_of_the_page_on_performance() -> None:
    measured = {row[0]: row[1] for row in rows("explanation/performance.md", "## What was found") if len(row) > 2}
    parts = (DOCS / PAGE).read_text(encoding="utf-8").split(MEASURED)[1:]
    assert len(parts) == 2
    for part in parts:
        table = part.strip().partition("\n\n")[0].splitlines()[2:]
        for what, found in (line.strip("|").split("|") for line in table):
            assert measured[what.strip()] == found.strip(), f"{what}: copy the number of explanation/performance.md"


@pytest.mark.parametrize(
    "row", rows(PAGE, "<!-- the arithmetic of leases -->")[:4], ids=lambda row: row[0].partition(" ")[0]
)
def test_leases_follow_from_the_heartbeat(row: list[str]) -> None:
    interval = float(row[0].partition(" ")[0])
    terms = LeaseTerms(interval, SchedulerConfig().cleanup_timeout)
    deadline = terms.lease_deadline(0)
    expected = [LEASE_IN_BEATS * interval, deadline, deadline - interval, LEASE_IN_BEATS * interval + interval / 2]
    assert [float(cell) for cell in row[1:]] == [round(value, 1) for value in expected]
