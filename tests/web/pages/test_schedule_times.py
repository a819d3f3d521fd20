"""The next times of a schedule, and the hours that a change of the clock skips or doubles."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from trio_monque.jobs.job_parts import Schedule
from trio_monque.web.pages.schedule_times import schedule_view


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_skipped_hour_is_named_at_the_time_that_it_moves() -> None:
    view = schedule_view(Schedule(cron="30 2 * * *", timezone="Europe/Berlin"), at("2026-03-27T12:00"))
    assert [(one.local, one.note) for one in view.times[:3]] == [
        ("Sat Mar 28 02:30", ""),
        ("Sun Mar 29 03:00", "02:00 to 03:00 is skipped"),
        ("Mon Mar 30 02:30", ""),
    ]
    assert [one.sentence for one in view.changes] == ["Mar 29, 02:00 to 03:00 is skipped: the clock is put forward."]
    assert view.is_fixed
    assert "02:30 every day" in view.words


def test_both_passes_of_a_doubled_hour_are_named() -> None:
    view = schedule_view(Schedule(cron="30 * * * *", timezone="Europe/Berlin"), at("2026-10-24T23:00"))
    assert [(one.local, one.note) for one in view.times[:4]] == [
        ("Sun Oct 25 01:30", ""),
        ("Sun Oct 25 02:30", "the first of two such hours"),
        ("Sun Oct 25 02:30", "the second of two such hours"),
        ("Sun Oct 25 03:30", ""),
    ]
    assert [one.sentence for one in view.changes] == ["Oct 25, 02:00 to 03:00 comes twice: the clock is put back."]
    assert not view.is_fixed


@pytest.mark.parametrize(
    ("zone", "now", "sentences"),
    [
        (None, "2026-01-01T00:00", []),
        ("Asia/Tokyo", "2026-01-01T00:00", []),
        ("Australia/Lord_Howe", "2026-01-01T00:00", ["Apr 5, 01:30 to 02:00 comes twice: the clock is put back."]),
        ("America/New_York", "2026-07-01T00:00", ["Nov 1, 01:00 to 02:00 comes twice: the clock is put back."]),
    ],
)
def test_the_next_change_of_the_zone_is_named_before_it_matters(zone: str, now: str, sentences: list[str]) -> None:
    view = schedule_view(Schedule(cron="0 12 * * *", timezone=zone), at(now))
    assert [one.sentence for one in view.changes] == sentences


def test_a_rare_schedule_is_shown_for_decades() -> None:
    view = schedule_view(Schedule(cron="0 2 29 2 *", timezone="Europe/Berlin"), at("2026-01-01T00:00"))
    assert [one.at.year for one in view.times] == [2028, 2032, 2036, 2040, 2044]
    assert len(view.changes) == 2


@pytest.mark.parametrize(
    ("cron", "zone"), [("bogus", None), ("0 0 30 2 *", None), ("0 0 * * *", "Mars/Base"), ("x" * 5000, "<b>")]
)
def test_a_schedule_that_is_none_says_why(cron: str, zone: str | None) -> None:
    view = schedule_view(Schedule(cron=cron, timezone=zone), at("2026-01-01T00:00"))
    assert view.problem
    assert not view.times
