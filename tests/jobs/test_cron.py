from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from trio_monque.errors import InvalidCronError, InvalidOptionError
from trio_monque.jobs.cron import next_occurrence, normalised, occurrences
from trio_monque.jobs.schedule_preview import preview

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


# --- When ---


@pytest.mark.parametrize(
    ("expression", "zone", "following"),
    [
        ("* * * * *", None, datetime(2026, 3, 1, 12, 1, tzinfo=UTC)),
        ("0 12 * * *", None, datetime(2026, 3, 2, 12, tzinfo=UTC)),  # Strictly after.
        ("*/15 * * * *", None, datetime(2026, 3, 1, 12, 15, tzinfo=UTC)),
        ("@hourly", None, datetime(2026, 3, 1, 13, tzinfo=UTC)),
        ("@weekly", None, datetime(2026, 3, 8, tzinfo=UTC)),
        ("@monthly", None, datetime(2026, 4, 1, tzinfo=UTC)),
        ("0 9 * * 1-5", "Europe/Berlin", datetime(2026, 3, 2, 8, tzinfo=UTC)),
        ("0 9 30 3 *", "Europe/Berlin", datetime(2026, 3, 30, 7, tzinfo=UTC)),  # In summer time by then.
        ("0 0 29 2 *", None, datetime(2028, 2, 29, tzinfo=UTC)),
        ("0 0 L * *", None, datetime(2026, 3, 31, tzinfo=UTC)),
        ("0 0 * * fri#3", None, datetime(2026, 3, 20, tzinfo=UTC)),
        ("0 0 13 * 5", None, datetime(2026, 3, 6, tzinfo=UTC)),  # The 13th, and Fridays.
        ("0 0 */13 * 5", None, datetime(2026, 3, 27, tzinfo=UTC)),  # The 1st, 14th or 27th, if it is a Friday.
    ],
)
def test_next_occurrence(expression: str, zone: str | None, following: datetime) -> None:
    assert next_occurrence(expression, zone, NOON) == following


def test_next_occurrence_is_strictly_after_and_in_utc_wherever_the_moment_comes_from() -> None:
    for after in (NOON - timedelta(microseconds=1), NOON, NOON + timedelta(microseconds=1)):
        found = next_occurrence("0 * * * *", None, after.astimezone(timezone(timedelta(hours=5, minutes=30))))
        assert found == (NOON if after < NOON else NOON + timedelta(hours=1))
        assert found.tzinfo is UTC


@pytest.fixture
def _host_in_auckland(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not hasattr(time, "tzset"):
        pytest.skip("the zone of the host cannot be set here")
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Pacific/Auckland")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_host_in_auckland")
def test_without_a_zone_it_is_utc_and_never_the_zone_of_the_host() -> None:
    assert next_occurrence("0 9 * * *", None, NOON) == datetime(2026, 3, 2, 9, tzinfo=UTC)
    assert preview("0 9 * * *", None, 1, NOON).timezone == "UTC"
    with pytest.raises(InvalidCronError, match="localtime"):
        next_occurrence("0 9 * * *", "localtime", NOON)
    with pytest.raises(InvalidOptionError, match="needs a time zone"):
        next_occurrence("0 9 * * *", None, NOON.replace(tzinfo=None))


# --- When clocks are changed: the examples of docs/explanation/schedules.md. All else is in test_cron_oracle.py ---


@pytest.mark.parametrize(
    ("expression", "zone", "after", "runs"),
    [
        # Berlin: no 02:00 to 03:00 on 29 March 2026. It runs when the clock has been put forward, once.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:30"]),
        ("0,15,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:00"]),
        ("0 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-29T01:00", "2026-03-30T00:00"]),
        ("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:00", ["2026-03-29T00:30", "2026-03-29T01:00"]),
        ("*/30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-30T00:00", "2026-03-30T00:30"]),
        # 02:00 to 03:00 twice on 25 October 2026.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        ("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:00", ["2026-10-25T00:30", "2026-10-25T01:00"]),
        ("0 * * * *", "Europe/Berlin", "2026-10-24T23:30", ["2026-10-25T00:00", "2026-10-25T01:00"]),
        ("*/30 2 * * *", "Europe/Berlin", "2026-10-25T00:10", ["2026-10-25T00:30", "2026-10-25T01:00"]),
        # Lord Howe: half an hour, 02:00 to 02:30 on 4 October 2026.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["2026-10-03T15:30", "2026-10-04T15:15"]),
        ("*/15 * * * *", "Australia/Lord_Howe", "2026-10-03T15:15", ["2026-10-03T15:30", "2026-10-03T15:45"]),
        # Cairo: no midnight on 24 April 2026.
        ("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00", ["2026-04-23T22:00", "2026-04-24T21:00"]),
    ],
)
def test_policy_for_the_hour_that_does_not_exist_and_the_hour_that_comes_twice(
    expression: str, zone: str, after: str, runs: list[str]
) -> None:
    assert occurrences(expression, zone, utc(after), 2) == tuple(map(utc, runs))


@pytest.mark.parametrize(
    ("expression", "in_march", "in_october"),
    [
        ("30 2 * * *", 1, 1),
        ("0,15,30 2 * * *", 1, 3),
        ("0 2,3 * * *", 1, 2),
        ("*/15 * * * *", 23 * 4, 25 * 4),
        ("0 * * * *", 23, 25),
        ("*/30 2 * * *", 0, 4),
        ("0 */2 * * *", 11, 13),
        ("0 0-23 * * *", 23, 24),
    ],
)
def test_number_of_runs_on_the_days_of_change_in_berlin(expression: str, in_march: int, in_october: int) -> None:
    for first, last, number in [
        ("2026-03-28T23:00", "2026-03-29T22:00", in_march),
        ("2026-10-24T22:00", "2026-10-25T23:00", in_october),
    ]:
        runs = occurrences(expression, "Europe/Berlin", utc(first) - timedelta(minutes=1), 101)
        assert sum(run < utc(last) for run in runs) == number


def test_fixed_time_that_ran_does_not_come_again_when_asked_during_the_second_pass_of_its_hour() -> None:
    # 02:10 in Berlin for the second time; 02:30 was twenty minutes after 02:10 for the first time.
    assert next_occurrence("30 2 * * *", "Europe/Berlin", utc("2026-10-25T01:10")) == utc("2026-10-26T01:30")


def test_minutes_beside_a_change_of_half_an_hour_are_not_left_out() -> None:
    spring = occurrences("*/10 3 * * *", "Australia/Lord_Howe", utc("2026-10-03T13:00"), 2)
    assert spring == (utc("2026-10-03T16:00"), utc("2026-10-03T16:10"))
    autumn = occurrences("*/10 2 * * *", "Australia/Lord_Howe", utc("2026-04-04T13:00"), 2)
    assert autumn == (utc("2026-04-04T15:30"), utc("2026-04-04T15:40"))


def test_quarter_hours_of_a_midnight_that_does_not_exist_are_skipped() -> None:
    # The next year without a clock change on 24 April.
    assert next_occurrence("*/15 0 24 4 *", "Africa/Cairo", utc("2026-04-20T00:00")) == utc("2027-04-23T22:00")


# --- What is stored ---


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("0 9 * * 1-5", "0 9 * * 1-5"),
        ("  0\t9 *  * mon-Fri\n", "0 9 * * MON-FRI"),
        ("0 0 lw jan *", "0 0 LW JAN *"),
        ("0 0 * * 5l,mon#1", "0 0 * * 5L,MON#1"),
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        (" @Weekly ", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
    ],
)
def test_five_fields_are_what_is_stored(given: str, stored: str) -> None:
    assert normalised(given) == stored
    assert normalised(stored) == stored
    assert next_occurrence(given, None, NOON) == next_occurrence(stored, None, NOON)


def test_rarest_date_of_all_is_let_in() -> None:
    assert normalised("0 0 29 2 */8") == "0 0 29 2 */8"  # If it is a Sunday; and 2100 is not a leap year.
    assert next_occurrence("0 0 29 2 */8", None, utc("2088-03-01T00:00")) == utc("2128-02-29T00:00")


# --- Preview ---


def test_preview_tells_what_is_stored_the_next_runs_and_what_they_are_in_english() -> None:
    seen = preview(" 0 9 * * mon-fri", "Europe/Berlin", 3, datetime(2026, 3, 26, 12, tzinfo=UTC))
    assert seen.expression == "0 9 * * MON-FRI"
    assert seen.timezone == "Europe/Berlin"
    assert seen.description == "At 09:00 on Monday through Friday, Europe/Berlin time."
    assert seen.runs == (utc("2026-03-27T08:00"), utc("2026-03-30T07:00"), utc("2026-03-31T07:00"))


@pytest.mark.parametrize(
    ("expression", "description"),
    [
        ("@daily", "At 00:00 every day, UTC."),
        ("*/5 * * * *", "Every fifth minute of every hour, UTC."),
        ("30 6 21,22 * *", "At 06:30 on the 21st and the 22nd day of month, UTC."),
        (
            "11-50/23 * 12 * *",
            "Every 23rd minute from 11 through 50 of every hour on the 12th day of every month, UTC.",
        ),
        # Days that match one of the two fields, unless one of them begins with a star.
        ("0 0 13 * 5", "At 00:00 on the 13th day of month or on Friday, UTC."),
        ("0 0 L * 5L", "At 00:00 on the last day of the month or on the last Friday of the month, UTC."),
        ("0 0 */2 * 1", "At 00:00 on every second day of month if it's on Monday, UTC."),
        # Steps that do not reach the end of their field are worded as what they match.
        ("*/45 * * * *", "At minutes 0 and 45 of every hour, UTC."),
        ("*/30 * * * *", "Every 30th minute of every hour, UTC."),
        ("0 0 1 */5 *", "At 00:00 on the first day of January, June, and November, UTC."),
        ("0 0 L/3 * *", "At 00:00 on the last day of every month, UTC."),
    ],
)
def test_description_is_a_sentence(expression: str, description: str) -> None:
    shown = preview(expression, None, 1, NOON)
    assert (shown.description, shown.warnings) == (description, ())


@pytest.mark.parametrize(
    ("expression", "description", "value"),
    [
        ("*/90 * * * *", "At the start of every hour, UTC.", "0"),
        ("5-10/20 * * * *", "At minute 5 of every hour, UTC.", "5"),
        ("10/70 * * * *", "At minute 10 of every hour, UTC.", "10"),
        ("0 */30 * * *", "At 00:00 every day, UTC.", "0"),
        ("0 0 */40 * *", "At 00:00 on the first day of every month, UTC.", "1"),
        ("0 0 * JAN-JUN/7 *", "At 00:00 every day in January, UTC.", "1"),
        ("0 0 * * */7", "At 00:00 on Sunday, UTC.", "0"),  # 0 and 7 are one day.
        ("0 0 */40 * 5", "At 00:00 on the first day of month if it's on Friday, UTC.", "1"),
        ("0 0 13 * */8", "At 00:00 on the 13th day of month if it's on Sunday, UTC.", "0"),
    ],
)
def test_step_that_is_larger_than_its_field_is_described_as_it_runs_with_a_warning(
    expression: str, description: str, value: str
) -> None:
    shown = preview(expression, None, 3, NOON)
    assert shown.description == description
    [warning] = shown.warnings
    assert warning.endswith(f"so it matches only {value}: write {value} if you mean that")
    # The same line without a step has the same runs.
    term = next(term for term in expression.split() if "/" in term)
    without = preview(expression.replace(term, value), None, 3, NOON)
    if "if it's" not in description:  # There, the star means that both fields of days must match.
        assert without.runs == shown.runs


def test_zone_info_is_accepted_as_its_name() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert preview("0 9 * * *", berlin, 1, NOON) == preview("0 9 * * *", "Europe/Berlin", 1, NOON)


def test_unknown_zone_is_explained_without_the_fields_of_a_line() -> None:
    with pytest.raises(InvalidCronError, match="time zone 'Mars' is unknown; an IANA name") as caught:
        preview("0 9 * * *", "Mars", 1, NOON)
    assert "fields" not in str(caught.value)


@pytest.mark.parametrize("count", [0, -1, 1001, True, 2.0, "3", None])
def test_number_of_occurrences_is_checked(count: Any) -> None:
    for ask in (preview, lambda text, zone, count, after: occurrences(text, zone, after, count)):
        with pytest.raises(InvalidOptionError, match="count=.*1 to 1000"):
            ask("@daily", "UTC", count, NOON)


def test_occurrences_are_the_next_of_the_next() -> None:
    runs = occurrences("*/7 1-3 * * *", "America/New_York", utc("2026-11-01T04:00"), 40)
    after = utc("2026-11-01T04:00")
    for run in runs:
        assert run == (after := next_occurrence("*/7 1-3 * * *", "America/New_York", after))
