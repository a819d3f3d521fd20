"""The number of selected jobs: exact, or a lower bound where the count or the reading has reached its bound."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.bulk_calls import DAY, put
from tests.support.store import handle
from trio_monque.jobs.job import JobStatus
from trio_monque.jobs.job_selector import JobSelector
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import indexes
from trio_monque.store.reads import selection_counts


def test_count_beyond_a_bound_is_a_lower_bound(db: Database, jobs: Collection) -> None:
    for number in range(10):
        put(jobs, "failed", "odd" if number % 2 else "even", createdAt=DAY + timedelta(days=number))
    indexes.ensure(handle(db))

    def count(most_counted: int = 100, most_read: int = 100, **selection: Any) -> str:
        selector = JobSelector(**selection)
        chosen = selector.among(tuple(JobStatus))
        found = selection_counts.count_selected(handle(db), selector, chosen, most_counted, most_read)
        return f"{found.number}{'+' if found.is_capped else ''}"

    late = datetime(2026, 1, 8, tzinfo=UTC)
    assert count() == count(status="failed") == "10"
    assert count(most_counted=9) == count(status="failed", most_counted=9) == "9+"
    assert count(most_counted=10) == "10"
    assert count(name="odd", most_counted=4) == "4+"
    assert count(older_than=late) == "7"
    assert count(older_than=late, most_read=1) == "7"  # The ages alone need no documents.
    assert count(older_than=late, most_counted=6) == "6+"
    assert count(status="failed", older_than=late, most_read=7) == "7"  # Along the ages.
    assert count(status="failed", older_than=late, most_read=6) == "6+"
    assert count(name="odd", older_than=late, most_read=5) == "3"  # Along the names.
    assert count(name="odd", older_than=late, most_read=4) in ("2+", "3+")
    assert count(status="failed", fail_reason="x", most_read=9) == "0+"
    assert count(status="failed", fail_reason="x", most_read=10) == "0"
    for day in range(10):
        put(jobs, "processing", createdAt=DAY + timedelta(days=day))
    assert count(status="processing") == count(name="greet") == "10"
    assert count(name="greet", older_than=late) == count(status="processing", older_than=late) == "7"
    assert count(fail_reason="x", most_read=19) == "0+"  # All statuses together.
    assert count(fail_reason="x", most_read=20) == "0"


def test_count_is_shown_as_what_it_is() -> None:
    most = selection_counts.MOST_COUNTED
    shown = [
        str(selection_counts.SelectionCount(number, is_capped))
        for number, is_capped in ((1204, False), (most, False), (most, True), (1204, True), (0, True))
    ]
    assert shown == ["1,204", "100,000", "more than 100,000", "at least 1,204", "an unknown number of"]
