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
from trio_monque.jobs.claim_stamps_and_fences import ClaimStamp
from trio_monque.jobs.conditional_write import applied
from trio_monque.jobs.job import made_of
from trio_monque.jobs.job_parts import NO_INTERNALS, NO_LIMITS, PARTS, JobInternals, JobLimits
from trio_monque.store.codec import document_of
from trio_monque.store.decoding import job_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NEW: dict[str, Any] = {"name": "greet", "data": {"n": 1}, "next_run_at": NOW, "created_at": NOW, "updated_at": NOW}
TRIED: dict[str, Any] = {
    "fail_count": 1,
    "attempts": 1,
    "internals": JobInternals(receipt="r"),
    "fail_reason": "why",
    "started_at": NOW,
    "finished_at": NOW,
    "errors": [{"error": "why"}],
}
UNUSUAL = {**TRIED, "unique_key": "k", "limits": JobLimits(timeout=5.0)}
OURS = tracemalloc.Filter(inclusive=True, filename_pattern=str(Path(transitions.__file__).parent / "*"))
CLAIM = transitions.claim(["greet"], NOW, ClaimStamp.new("us", NOW, 30.0, "random"))


def claimed(**fields: Any) -> Job:
    return applied(made_of({"id": ObjectId(), **NEW, **fields}), CLAIM)


def test_names_of_a_job_are_those_that_a_program_uses() -> None:
    """They are what an editor completes. What only some jobs have, and what serves the library, is in parts."""
    of_every_job = ["id", "name", "data", "status", "next_run_at", "created_at", "updated_at", "unique_key", "meta"]
    of_its_runs = ["attempts", "fail_count", "fail_reason", "errors", "rescues", "started_at", "finished_at"]
    of_its_handler = ["result", "progress", "saved"]
    of_its_enqueue = ["debounced_since", "follows"]
    parts = ["limits", "schedule", "claim", "again", "follow_up", "nursery", "child", "internals"]
    names = [*of_every_job, *of_its_runs, *of_its_handler, *of_its_enqueue, *parts]
    assert [name for name in dir(claimed()) if not name.startswith("_")] == sorted(names)


def test_job_has_only_the_parts_that_it_needs_and_jobs_of_one_claim_share_it() -> None:
    """No part is made for each job: thousands of jobs are read, and held, at once."""
    new = job_of(document_of(made_of({"id": ObjectId(), **NEW})))
    assert not vars(new).keys() & {*PARTS, "follow_up"}
    assert (new.limits, new.internals) == (NO_LIMITS, NO_INTERNALS)
    assert claimed().claim is claimed().claim is CLAIM.set["claim"]


def test_part_with_nothing_in_it_any_more_is_gone() -> None:
    asked = transitions.request_cancel(claimed(), NOW)
    assert applied(claimed(), asked).claim == replace(CLAIM.set["claim"], cancel_requested_at=NOW)
    limited = claimed(limits=JobLimits(start_by=NOW))
    assert "limits" not in vars(applied(limited, transitions.snooze(limited, NOW, NOW)))
    both = claimed(limits=JobLimits(start_by=NOW, timeout=5.0))
    assert applied(both, transitions.snooze(both, NOW, NOW)).limits == JobLimits(timeout=5.0)


@pytest.mark.full
@pytest.mark.parametrize("fields", [{}, TRIED], ids=["first try", "second try"])
def test_ten_thousand_claimed_jobs_take_a_quarter_of_a_kilobyte_each(fields: dict[str, Any]) -> None:
    """Beside their values: these are small only as long as Python holds the names of their fields once for all."""
    for number in range(50):
        Job(id=ObjectId(), **{**NEW, **UNUSUAL, "attempts": number})  # Others have all their fields, and spoil nothing.
    candidates = [made_of({"id": None, **NEW, **fields}) for _ in range(10_000)]
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
