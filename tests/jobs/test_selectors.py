"""Which jobs a selection means, and how its options are checked: what the guard of each write repeats."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from trio_monque import JobFilter
from trio_monque.errors import InvalidOptionError
from trio_monque.jobs.conditional_write import Containing, OneOf, Within
from trio_monque.jobs.job import JobStatus
from trio_monque.jobs.job_selector import LONGEST_TEXT, JobSelector, checked_name, checked_statuses, one_of, within

AT = datetime(2026, 3, 1, 12, 0, 0, 5000, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
MILLISECOND = timedelta(milliseconds=1)
PENDING, FAILED = JobStatus.PENDING, JobStatus.FAILED
ALL = tuple(JobStatus)


def test_range_between_two_milliseconds_selects_the_same_stored_moments() -> None:
    between = AT + MICROSECOND
    # After the end and not before it: moments that are later than 5.001 ms are those later than 5 ms.
    assert within(above=between) == Within(above=AT)
    assert within(at_most=between) == Within(at_most=AT)
    assert within(below=between) == Within(below=AT + MILLISECOND)
    assert within(at_least=between) == Within(at_least=AT + MILLISECOND)
    assert within(above=AT, below=AT) == Within(above=AT, below=AT)
    assert within(at_least=AT, at_most=AT) == Within(at_least=AT, at_most=AT)


def test_range_may_reach_the_end_of_time() -> None:
    last = datetime.max.replace(tzinfo=UTC)
    stored = last - timedelta(microseconds=999)
    assert JobSelector(older_than=last).guard(ALL) == {"created_at": Within(below=stored)}
    assert JobFilter(created_to=last, run_from=last).conditions() == {
        "created_at": Within(at_most=stored),
        "next_run_at": Within(at_least=stored),
    }
    west = timezone(timedelta(hours=-5))
    with pytest.raises(InvalidOptionError, match="beyond the year 9999"):
        JobSelector(older_than=datetime.max.replace(tzinfo=west))


def test_guard_has_each_option_that_was_given_and_no_other() -> None:
    assert JobSelector().conditions() == {}
    assert JobSelector(older_than=AT).guard(ALL) == {"created_at": Within(below=AT)}
    assert JobSelector(newer_than=AT).guard(ALL) == {"created_at": Within(above=AT)}
    assert JobSelector(fail_reason="x").guard(ALL) == {"fail_reason": Containing("x")}
    prefix = JobSelector(fail_reason_prefix="x").guard(ALL)
    assert prefix == {"fail_reason": Containing("x", at_the_beginning=True)}
    assert prefix != {"fail_reason": Containing("x")}
    assert JobSelector(name="a").guard(ALL) == {"name": "a"}
    assert JobSelector(name=["a", "b", "a"]).guard(ALL) == {"name": OneOf(("a", "b"))}


def test_guard_names_the_statuses_unless_all_are_possible_and_none_was_given() -> None:
    assert JobSelector().guard(ALL) == {}
    assert JobSelector().guard([PENDING]) == {"status": PENDING}
    assert JobSelector().guard([PENDING, FAILED]) == {"status": OneOf((PENDING, FAILED))}
    assert JobSelector(status=ALL).guard(ALL) == {"status": OneOf(ALL)}


def test_statuses_of_an_action_are_those_given_that_it_is_possible_for() -> None:
    assert JobSelector().among([FAILED, PENDING]) == (PENDING, FAILED)
    assert JobSelector(status=["failed", "completed"]).among([FAILED, PENDING]) == (FAILED,)
    assert JobSelector(status="completed").among([FAILED, PENDING]) == ()


def test_name_and_statuses_that_are_left_out_are_all_and_others_are_checked() -> None:
    assert checked_name(None) is None
    assert checked_name("a") == "a"
    assert checked_name("x" * LONGEST_TEXT) == "x" * LONGEST_TEXT
    assert checked_statuses(None) is None
    assert checked_statuses(["failed", PENDING, "failed"]) == (FAILED, PENDING)
    for wrong in ("", 7, "x" * (LONGEST_TEXT + 1), "\ud800"):
        with pytest.raises(InvalidOptionError, match="^name"):
            checked_name(wrong)
    unhashable: Any = [["failed"]]
    with pytest.raises(InvalidOptionError, match="must be one of pending"):
        checked_statuses(unhashable)


def test_name_that_is_too_long_is_shown_by_its_beginning() -> None:
    with pytest.raises(InvalidOptionError) as refused:
        checked_name("x" * 5000)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(("first", "last"), [("created_from", "created_to"), ("run_from", "run_to")])
def test_range_with_its_ends_may_be_one_moment_and_not_less(first: str, last: str) -> None:
    only: dict[str, Any] = {first: AT, last: AT}
    assert len(JobFilter(**only).conditions()) == 1
    backwards: dict[str, Any] = {first: AT + MICROSECOND, last: AT}
    with pytest.raises(InvalidOptionError, match="must not be after"):
        JobFilter(**backwards)


def test_range_without_its_ends_holds_more_than_one_moment() -> None:
    assert JobSelector(newer_than=AT, older_than=AT + MICROSECOND).conditions() != {}
    for end in (AT, AT - MICROSECOND):
        with pytest.raises(InvalidOptionError, match="must be before"):
            JobSelector(newer_than=AT, older_than=end)


def test_moments_are_kept_in_utc_so_that_clock_changes_do_not_matter() -> None:
    east = AT.astimezone(timezone(timedelta(hours=9)))
    selector = JobSelector(newer_than=east)
    assert selector.newer_than is not None
    assert selector.newer_than.tzinfo is UTC
    assert selector.newer_than == AT


def test_one_of_a_single_value_is_the_value_and_of_none_matches_nothing() -> None:
    assert one_of(("a",)) == "a"
    assert one_of(("a", "b")) == OneOf(("a", "b"))
    assert one_of(()) == OneOf(())
