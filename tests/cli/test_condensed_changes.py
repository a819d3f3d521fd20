"""What a worker process is sent of many changes: enough to look at the right moments, and little."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from bson import ObjectId

from trio_monque.cli.run.condensed_changes import condensed
from trio_monque.store.jobs.change_stream import ANYTHING, ChangeKind, JobChange

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def new(name: str | None, due: float = 0.0) -> JobChange:
    moment = NOW + timedelta(seconds=due)
    return JobChange(ChangeKind.JOB, ObjectId(), name, is_new=True, is_pending=True, due=moment)


def test_one_or_two_jobs_of_a_name_remain_as_they_are() -> None:
    changes = [new("mail"), new("mail"), new("report", 5.0)]
    assert list(condensed(changes)) == changes


def test_of_many_jobs_of_a_name_the_first_and_the_last_due_remain() -> None:
    changes = [new("mail", due) for due in (3.0, 1.0, 4.0, 2.0)]
    found = condensed(changes)
    assert [change.job_id for change in found] == [changes[1].job_id, changes[2].job_id]


def test_jobs_that_are_due_at_one_moment_remain_two() -> None:
    """One alone would be taken for the only one, and would cost no look."""
    assert len(condensed([new("mail")] * 3)) == 2


def test_what_remains_of_many_is_not_ignored_by_the_process_that_has_enqueued_it() -> None:
    assert not any(change.is_new for change in condensed([new("mail") for _ in range(3)]))


def test_each_request_to_cancel_remains_and_so_does_what_is_not_about_a_job() -> None:
    requests = [JobChange(ChangeKind.JOB, ObjectId(), cancel_requested=True) for _ in range(5)]
    others = [JobChange(ChangeKind.PAUSE, name="mail"), JobChange(ChangeKind.GONE), ANYTHING]
    assert list(condensed([*requests, *others])) == [*requests, *others]


def test_of_jobs_without_a_date_one_of_each_name_remains() -> None:
    undated = [JobChange(ChangeKind.JOB, ObjectId(), name, is_pending=True) for name in ("mail", "mail", None, None)]
    assert [change.name for change in condensed(undated)] == ["mail", None]


def test_job_that_is_not_pending_concerns_no_process() -> None:
    assert not condensed([JobChange(ChangeKind.JOB, ObjectId(), "mail", is_new=True, due=NOW)])


def needs_of(changes: Sequence[JobChange], name: str) -> tuple[object, ...]:
    """What follows from these changes for a process with a worker of this name."""
    jobs = [change for change in changes if change.kind is ChangeKind.JOB]
    pending = [change for change in jobs if change.is_pending and change.name in (name, None)]
    dues = [change.due for change in pending if change.due is not None]
    return (
        min(dues, default=None),
        max(dues, default=None),
        min(len(dues), 2),
        len(dues) < len(pending),
        {change.job_id for change in jobs if change.cancel_requested},
        {(change.kind, change.name) for change in changes if change.kind is not ChangeKind.JOB},
    )


def some_change(source: random.Random) -> JobChange:
    if source.random() < 0.1:
        return JobChange(source.choice([ChangeKind.PAUSE, ChangeKind.GONE, ChangeKind.ANYTHING]))
    return JobChange(
        ChangeKind.JOB,
        ObjectId(),
        source.choice(["mail", "report", None]),
        is_new=source.random() < 0.5,
        is_pending=source.random() < 0.8,
        due=source.choice([None, *(NOW + timedelta(seconds=number) for number in range(5))]),
        cancel_requested=source.random() < 0.2,
    )


def test_the_same_follows_from_what_remains() -> None:
    source = random.Random(7)
    for _ in range(2_000):
        changes = [some_change(source) for _ in range(source.randrange(12))]
        for name in ("mail", "report"):
            assert needs_of(condensed(changes), name) == needs_of(changes, name), changes
