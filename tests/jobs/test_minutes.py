"""What was done in each minute: buckets, percentiles of several schedulers, and the counts of one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from unittest.mock import ANY

import bson
import pytest
from bson import ObjectId
from hypothesis import given
from hypothesis import strategies as st

from trio_monque.jobs import Figures, Histogram
from trio_monque.jobs.conditional_write import Transition
from trio_monque.jobs.job import Job, JobStatus
from trio_monque.jobs.job_parts import JobClaim
from trio_monque.jobs.minutes import (
    BUCKETS,
    DONE,
    FAILED_ATTEMPTS,
    MOST_NAMES,
    NUMBERS,
    OTHER_NAMES,
    ROW,
    RUN_BUCKETS,
    RUN_MS,
    Part,
    bucket_of,
    merged,
    total,
)
from trio_monque.jobs.outcomes import Succeeded
from trio_monque.scheduler.minute_counts import MOST_WAITING, MinuteCounts
from trio_monque.scheduler.settlement import JobSettlement
from trio_monque.store.jobs.minutes_written import document_of

NOW: Final = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
MINUTE: Final = NOW.replace(second=0)
POLICY: Final[Any] = None


def settlement(
    name: str = "mail", at: datetime = NOW, *, ran: float = 0.2, waited: float = 1.5, status: JobStatus
) -> Any:
    since = at - timedelta(seconds=ran)
    due = since - timedelta(seconds=waited)
    job = Job(
        id=ObjectId(),
        name=name,
        data=None,
        status=JobStatus.PROCESSING,
        next_run_at=due,
        created_at=due,
        updated_at=since,
        fail_count=0,
        claim=JobClaim(by="w1", since=since),
    )
    made = JobSettlement(job, Succeeded(), POLICY, ran)
    made.transition = Transition(guard={}, set={"status": status, "updated_at": at})
    return made


def done(name: str = "mail", at: datetime = NOW, **times: float) -> Any:
    return settlement(name, at, status=JobStatus.COMPLETED, **times)


def failed(name: str = "mail", at: datetime = NOW, **times: float) -> Any:
    return settlement(name, at, status=JobStatus.FAILED, **times)


def counts() -> MinuteCounts:
    return MinuteCounts(lambda: 7)


# --- Buckets and percentiles ---


def test_buckets_double_from_a_millisecond_to_nine_hours() -> None:
    assert [bucket_of(one) for one in (0, 1, 2, 3, 4, 5, 8, 9)] == [0, 0, 1, 2, 2, 3, 3, 4]
    nine_hours = 9 * 3_600_000
    assert bucket_of(nine_hours) == BUCKETS - 1
    assert bucket_of(100 * nine_hours) == BUCKETS - 1


@given(st.integers(0, 2**40))
def test_value_is_not_above_its_bucket_and_above_the_one_before(milliseconds: int) -> None:
    place = bucket_of(milliseconds)
    assert place == BUCKETS - 1 or milliseconds <= 2**place
    assert place == 0 or milliseconds > 2 ** (place - 1)


def histogram(*milliseconds: int) -> Histogram:
    row = [0] * BUCKETS
    for one in milliseconds:
        row[bucket_of(one)] += 1
    return Histogram(tuple(row), sum(milliseconds) / 1000)


@given(st.lists(st.integers(0, 30_000_000), min_size=1), st.floats(0, 1))
def test_percentile_is_right_to_its_bucket(values: list[int], share: float) -> None:
    found = histogram(*values).percentile(share)
    rank = max(0, -int(-share * len(values) // 1) - 1)
    exact = sorted(values)[min(rank, len(values) - 1)]
    place = bucket_of(exact)
    assert found is not None
    assert (0 if place == 0 else 2 ** (place - 1)) <= found * 1000 + 1e-6
    assert found * 1000 <= 2**place + 1e-6


def test_no_values_have_no_percentile_and_no_mean() -> None:
    assert (Histogram().percentile(0.95), Histogram().mean, Histogram().number) == (None, None, 0)


@given(st.lists(st.integers(0, 100_000), min_size=1), st.lists(st.integers(0, 100_000), min_size=1), st.floats(0, 1))
def test_percentiles_of_two_schedulers_are_those_of_all_values(one: list[int], other: list[int], share: float) -> None:
    """They are taken from buckets that were added, and are not means of percentiles."""
    together, added = histogram(*one, *other), histogram(*one) + histogram(*other)
    assert added.counts == together.counts
    assert added.percentile(share) == together.percentile(share)
    assert added.mean == pytest.approx(together.mean)


# --- One scheduler ---


def test_minute_has_what_became_of_its_runs() -> None:
    found = counts()
    found.count(done(ran=0.2, waited=1.5), DONE)
    found.count(done(ran=0.001, waited=-1.0), DONE)
    found.count(settlement(status=JobStatus.PENDING), FAILED_ATTEMPTS)
    found.count(failed("letter"), FAILED_ATTEMPTS)
    found.rescued(replace(done("letter").job, status=JobStatus.PENDING, updated_at=NOW))
    assert found.over_by(NOW) == ()
    (part,) = found.over_by(MINUTE + timedelta(minutes=1))
    assert (part.at, part.slots) == (MINUTE, 7)
    (minute,) = merged([part])
    mail, letter = minute.by_name["mail"], minute.by_name["letter"]
    assert (mail.done, mail.failed_attempts, mail.failed_for_good, mail.rescued) == (2, 1, 0, 0)
    assert (letter.done, letter.failed_attempts, letter.failed_for_good, letter.rescued) == (0, 1, 1, 1)
    assert mail.run.seconds == pytest.approx(0.401)
    assert mail.wait.seconds == pytest.approx(3.0)  # One was claimed before it was due, by the clock of another.
    assert mail.run.number == mail.wait.number == 3
    assert minute.in_all.done == 2
    assert minute.in_all.rescued == 1


def test_each_minute_is_by_itself_and_one_without_a_job_is_left_out() -> None:
    found = counts()
    for minutes in (0, 0, 1, 5):
        found.count(done(at=NOW + timedelta(minutes=minutes)), DONE)
    parts = found.over_by(NOW + timedelta(minutes=6))
    assert [(minute.at - MINUTE, minute.in_all.done) for minute in merged(parts)] == [
        (timedelta(minutes=0), 2),
        (timedelta(minutes=1), 1),
        (timedelta(minutes=5), 1),
    ]


def test_clock_that_steps_back_loses_no_run() -> None:
    found = counts()
    found.count(done(at=NOW), DONE)
    found.count(done(at=NOW - timedelta(minutes=3)), DONE)
    assert [minute.in_all.done for minute in merged(found.all_so_far())] == [2]


def test_clock_that_was_set_back_begins_its_minutes_anew() -> None:
    """Without that, all would count in one minute of the future until the clock has caught up."""
    found, later = counts(), NOW + timedelta(hours=1)
    found.count(done(), DONE)
    found.count(done(at=later), DONE)
    found.over_by(later)
    found.over_by(NOW)  # The heartbeat after the step.
    found.count(done(), DONE)
    parts = found.over_by(MINUTE + timedelta(minutes=1))
    assert [part.at for part in parts] == [MINUTE, MINUTE + timedelta(hours=1), MINUTE]
    ids = [str(document_of(part, "one", "r")["_id"]) for part in parts]
    assert len(set(ids)) == 3
    assert [minute.in_all.done for minute in merged(parts)] == [2, 1]


def test_heartbeat_whose_time_is_a_moment_behind_splits_no_minute() -> None:
    found = counts()
    found.count(done(at=MINUTE), DONE)
    found.over_by(MINUTE - timedelta(milliseconds=5))
    found.count(done(at=MINUTE), DONE)
    assert [minute.in_all.done for minute in merged(found.all_so_far())] == [2]


def test_job_does_not_wait_before_it_is_there() -> None:
    """A date in the past puts a job in front of the others."""
    found = counts()
    first = done(waited=2)
    first.job = replace(first.job, next_run_at=datetime(1970, 1, 1, tzinfo=UTC))
    found.count(first, DONE)
    (minute,) = merged(found.all_so_far())
    assert minute.in_all.wait.seconds == pytest.approx(2)


def test_jobs_that_fail_for_good_without_a_run_are_counted() -> None:
    found = counts()
    job = replace(failed().job, status=JobStatus.FAILED)
    found.rescued(job)
    found.failed_without_run(job)
    (minute,) = merged(found.all_so_far())
    assert (minute.in_all.rescued, minute.in_all.failed_attempts, minute.in_all.failed_for_good) == (1, 0, 2)


def test_scheduler_that_starts_again_within_a_minute_has_its_slots_once() -> None:
    parts = [Part(MINUTE, slots, {"mail": [1] * ROW}, by=by) for by, slots in (("one", 3), ("one", 5), ("two", 7))]
    (minute,) = merged(parts)
    assert (minute.slots, minute.in_all.done) == (12, 3)


def test_sum_beyond_the_integers_of_the_database_is_its_largest_one() -> None:
    part = Part(NOW, 1, {"mail": [2**70] * NUMBERS + [0] * 2 * BUCKETS})
    stored = bson.decode(bson.encode(document_of(part, "one", "r")))
    assert stored["n"][0][1 : NUMBERS + 1] == [2**63 - 1] * NUMBERS


def test_what_was_written_is_forgotten_and_what_was_not_is_kept() -> None:
    found = counts()
    found.count(done(at=NOW), DONE)
    first = found.over_by(NOW + timedelta(minutes=1))
    found.count(done(at=NOW + timedelta(minutes=2)), DONE)
    assert [part.at for part in found.over_by(NOW + timedelta(minutes=3))] == [MINUTE, MINUTE + timedelta(minutes=2)]
    found.written(first)
    assert [part.at for part in found.all_so_far()] == [MINUTE + timedelta(minutes=2)]
    found.written(found.all_so_far())
    assert found.all_so_far() == ()


def test_outage_keeps_the_last_hour() -> None:
    found = counts()
    for minutes in range(MOST_WAITING + 10):
        found.count(done(at=NOW + timedelta(minutes=minutes)), DONE)
    parts = found.all_so_far()
    assert [part.at for part in parts] == [MINUTE + timedelta(minutes=minutes) for minutes in range(10, 70)]
    found.written(parts)
    assert found.all_so_far() == ()


def test_names_beyond_a_hundred_share_one() -> None:
    found = counts()
    for number in range(MOST_NAMES + 20):
        found.count(done(f"name {number}"), DONE)
        found.count(done(f"name {number}"), DONE)
    (minute,) = merged(found.all_so_far())
    assert len(minute.by_name) == MOST_NAMES + 1
    assert minute.by_name[OTHER_NAMES].done == 40
    assert minute.in_all.done == 2 * (MOST_NAMES + 20)


def test_run_takes_no_memory() -> None:
    found = counts()
    found.count(done(), DONE)
    (part,) = found.all_so_far()
    row = part.rows["mail"]
    assert len(row) == ROW
    assert (row[DONE], row[RUN_MS], row[RUN_BUCKETS + bucket_of(200)]) == (1, 200, 1)


def test_parts_of_several_schedulers_are_one_minute() -> None:
    one, other = counts(), counts()
    one.count(done(), DONE)
    other.count(done(), DONE)
    other.count(done("letter"), DONE)
    parts = [replace(part, by=by) for by, found in (("one", one), ("two", other)) for part in found.all_so_far()]
    (minute,) = merged(parts)
    assert minute.slots == 14
    assert {name: figures.done for name, figures in minute.by_name.items()} == {"mail": 2, "letter": 1}
    assert sum([minute.in_all, minute.in_all], Figures()).done == 6


@given(st.lists(st.lists(st.integers(0, 100_000), min_size=1)))
def test_total_is_the_sum(several: list[list[int]]) -> None:
    figures = [Figures(1, 2, 3, 4, histogram(*values), histogram(*values[1:])) for values in several]
    found, expected = total(figures), sum(figures, Figures())
    assert found == replace(expected, run=replace(expected.run, seconds=ANY), wait=replace(expected.wait, seconds=ANY))
    assert found.run.seconds == pytest.approx(expected.run.seconds)
    assert found.wait.seconds == pytest.approx(expected.wait.seconds)


def test_document_of_twenty_names_is_a_few_kilobytes() -> None:
    """Runs of a name, and its waits, are in some six buckets, as they do not differ by more than thirty times."""
    row = [1000] * NUMBERS + [900 if 5 <= place % BUCKETS < 11 else 0 for place in range(2 * BUCKETS)]
    part = Part(NOW, 100, {f"service.action-{number}": row for number in range(20)})
    assert len(bson.encode(document_of(part, "worker-1", "0" * 16))) < 6_000
