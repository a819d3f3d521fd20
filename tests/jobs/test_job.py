"""The value: what it takes in memory, and that one that is kept is one like any other."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId

from trio_monque import Job
from trio_monque.jobs import transitions
from trio_monque.jobs.conditional_write import applied
from trio_monque.jobs.fences import ClaimStamp

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NEW: dict[str, Any] = {"name": "greet", "data": {"n": 1}, "next_run_at": NOW, "created_at": NOW, "updated_at": NOW}
TRIED: dict[str, Any] = {
    "fail_count": 1,
    "attempts": 1,
    "receipt": "r",
    "fail_reason": "why",
    "started_at": NOW,
    "finished_at": NOW,
    "errors": [{"error": "why"}],
}
UNUSUAL = {**TRIED, "unique_key": "k", "timeout": 5.0}
OURS = tracemalloc.Filter(inclusive=True, filename_pattern=str(Path(transitions.__file__).parent / "*"))
CLAIM = transitions.claim(["greet"], NOW, ClaimStamp.new("us", NOW, 30.0, "random"))


def claimed(**fields: Any) -> Job:
    return applied(Job.of({"id": ObjectId(), **NEW, **fields}), CLAIM)


@pytest.mark.full
@pytest.mark.parametrize("fields", [{}, TRIED], ids=["first try", "second try"])
def test_ten_thousand_claimed_jobs_take_a_quarter_of_a_kilobyte_each(fields: dict[str, Any]) -> None:
    """Beside their values: these are small only as long as Python holds the names of their fields once for all."""
    for number in range(50):
        Job(id=ObjectId(), **{**NEW, **UNUSUAL, "attempts": number})  # Others have all their fields, and spoil nothing.
    candidates = [Job.of({"id": None, **NEW, **fields}) for _ in range(10_000)]
    tracemalloc.start()
    try:
        held = [applied(candidate, CLAIM) for candidate in candidates]
        traces = tracemalloc.take_snapshot().filter_traces([OURS]).traces  # Other threads are there, too.
    finally:
        tracemalloc.stop()
    assert 128 < sum(trace.size for trace in traces) / len(held) <= 256


@pytest.mark.parametrize("fields", [{}, TRIED, UNUSUAL], ids=["first try", "second try", "unusual"])
def test_claimed_job_is_a_value_like_any_other(fields: dict[str, Any]) -> None:
    job = claimed(**fields)
    assert vars(job) == {"id": job.id, **NEW, **fields, **CLAIM.set, "attempts": fields.get("attempts", 0) + 1}
    assert job == Job(**vars(job)) == replace(job) == copy.deepcopy(job) == pickle.loads(pickle.dumps(job))
    assert job != replace(job, attempts=7)
    assert repr(job) == repr(Job(**vars(job)))
    with pytest.raises(AttributeError):
        job.name = "other"  # type: ignore[misc]
