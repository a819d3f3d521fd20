"""The published policy (docs/explanation/schedules.md), by brute force: every minute is walked and asked.

Nothing here knows cronsim or how the library computes. The lines are read by a small parser of this file,
and a clock is watched through zoneinfo as one would watch it on a wall, remembering the latest time shown.
"""

from __future__ import annotations

import calendar
import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from zoneinfo import ZoneInfo

import pytest

from tests.support.thoroughly import one_in
from trio_monque.jobs.cron import next_occurrence, occurrences

MINUTE, QUARTER, HOUR, DAY = timedelta(minutes=1), timedelta(minutes=15), timedelta(hours=1), timedelta(days=1)
TEN_YEARS = (datetime(2020, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC))
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"]

MONTHS = ["", "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


# --- The oracle ---


def numbers(field: str, low: int, high: int, names: list[str]) -> set[int]:
    found: set[int] = set()
    for term in field.split(","):
        body, _, step = term.partition("/")
        first, _, last = body.partition("-")
        ends = [names.index(end) if end in names else int(end) for end in (first, last) if end not in ("", "*")]
        if body == "*":
            ends = [low, high]
        elif len(ends) == 1:
            ends.append(high if step else ends[0])
        found.update(range(ends[0], ends[1] + 1, int(step or 1)))
    return found


def days_of_month(field: str, year: int, month: int) -> set[int]:
    length = calendar.monthrange(year, month)[1]
    found = numbers(",".join(t for t in field.split(",") if t not in ("L", "LW")) or "40", 1, 31, [])
    if "L" in field.split(","):
        found.add(length)
    if "LW" in field.split(","):
        found.add(max(day for day in range(1, length + 1) if date(year, month, day).isoweekday() <= 5))
    return found


def days_by_weekday(field: str, year: int, month: int) -> set[int]:
    found: set[int] = set()
    for term in field.split(","):
        nth = term[-1] if "#" in term else ""
        last = term.endswith("L")
        for weekday in numbers(term[:1] if last else term.split("#")[0], 0, 7, WEEKDAYS):
            weeks = calendar.monthcalendar(year, month)  # Monday first; 0 where the month has no such day.
            days = [week[(weekday - 1) % 7] for week in weeks if week[(weekday - 1) % 7]]
            found.update(days[-1:] if last else days[int(nth) - 1 : int(nth)] if nth else days)
    return found


@dataclass(frozen=True)
class Line:
    text: str

    @cached_property
    def fields(self) -> list[str]:
        return self.text.split()

    @cached_property
    def minutes(self) -> set[int]:
        return numbers(self.fields[0], 0, 59, [])

    @cached_property
    def hours(self) -> set[int]:
        return numbers(self.fields[1], 0, 23, [])

    @cached_property
    def has_fixed_times(self) -> bool:
        return self.fields[0][0] != "*" and self.fields[1][0] != "*"

    @lru_cache(maxsize=10_000)  # noqa: B019  # A few dozen lines live as long as the tests.
    def days(self, year: int, month: int) -> set[int]:
        if month not in numbers(self.fields[3], 1, 12, MONTHS):
            return set()
        by_date, by_weekday = days_of_month(self.fields[2], year, month), days_by_weekday(self.fields[4], year, month)
        both = self.fields[2][0] == "*" or self.fields[4][0] == "*"
        return by_date & by_weekday if both else by_date | by_weekday

    def matches(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours and wall.day in self.days(wall.year, wall.month)


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the clock: what it shows, and which times it shows or has gone past for the first time."""

    moment: datetime
    wall: datetime
    reached: tuple[datetime, ...]


def watch(zone: str, first: datetime, last: datetime, step: timedelta) -> Iterator[Reading]:
    """Looks at the clock every `step` from `first` to `last`."""
    moment, clock = first - DAY, ZoneInfo(zone)  # A day before, for it must not begin in an hour that is shown again.
    latest = (moment - step).astimezone(clock).replace(tzinfo=None)
    while moment <= last:
        wall = moment.astimezone(clock).replace(tzinfo=None)
        reached = []
        while latest < wall:
            latest += step
            reached.append(latest)
        if moment >= first:
            yield Reading(moment, wall, tuple(reached))
        moment += step


def due(line: Line, readings: list[Reading]) -> list[datetime]:
    """The policy, in two lines."""
    if line.has_fixed_times:
        return [reading.moment for reading in readings if any(map(line.matches, reading.reached))]
    return [reading.moment for reading in readings if line.matches(reading.wall)]


@lru_cache
def changes(zone: str, first: datetime, last: datetime) -> list[datetime]:
    """Each day in which the clock is changed, by the quarter of an hour from which it is."""
    clock, found = ZoneInfo(zone), []
    while first < last:
        if first.astimezone(clock).utcoffset() != (first + DAY).astimezone(clock).utcoffset():
            quarters = (first + n * QUARTER for n in range(1, 97))
            found.append(
                next(q for q in quarters if q.astimezone(clock).utcoffset() != first.astimezone(clock).utcoffset())
            )
        first += DAY
    return found


@lru_cache
def hours_around_changes(zone: str, first: datetime, last: datetime) -> list[list[Reading]]:
    return [list(watch(zone, at - 3 * HOUR, at + 4 * HOUR, MINUTE)) for at in changes(zone, first, last)]


# --- Against it ---

AT_FIXED_TIMES = [
    "30 2 * * *",
    "0 2 * * *",
    "0 3 * * *",
    "0,30 2 * * *",
    "30 1,2,3 * * *",
    "5,35 0-4 * * SUN",
    "0-30/15 2 * * *",
    "59 1 * MAR,APR,OCT,NOV SUN#1,7#2,0L",
    "0-59/3 1-3 * * *",
    "45 1 L,LW,1-31/3 * *",
    "7 23 * * *",
    "0 0 * * 1-7/2",
]
BY_THE_CLOCK = [
    "*/7 * * * *",
    "0 * * * *",
    "17 * * * *",
    "45 * * * *",
    "0 */2 * * *",
    "30 1-23/2 * * *",
    "*/10 2 * * *",
    "*/10 3 * * SUN",
    "*/15 0 * * *",
    "*/20 23 */2 * *",
    "1-59/13 * L,1-31/2 3-5,9-11 0-3",
]


@pytest.mark.parametrize(("zone", "text"), one_in(4 * len(ZONES), ZONES, AT_FIXED_TIMES + BY_THE_CLOCK))
def test_hours_around_every_change_of_ten_years_are_as_published(zone: str, text: str) -> None:
    windows = hours_around_changes(zone, *TEN_YEARS)
    assert len(windows) >= 15  # In a database of 2026f or later, Casablanca has 15: its last change is in 2026.
    compare(zone, text, windows)


# Changes at midnight, and by two hours; in Apia, the 30th of December 2011 was left out.
OTHER_ZONES = {
    "Africa/Cairo": (2023, 2026),
    "America/Havana": (2022, 2024),
    "America/Santiago": (2022, 2024),
    "America/Nuuk": (2022, 2025),
    "Antarctica/Troll": (2022, 2024),
    "Pacific/Apia": (2011, 2012),
}
ACROSS_MIDNIGHT = ["0 0 * * *", "30 0,23 * * *", "45 23 * * *", "10 12 29-31 12 *", "0 0 1 * *", "*/15 0 24 4 *"]


@pytest.mark.parametrize(("zone", "text"), one_in(len(OTHER_ZONES), list(OTHER_ZONES), ACROSS_MIDNIGHT + BY_THE_CLOCK))
def test_changes_at_midnight_of_two_hours_and_of_a_day_are_as_published(zone: str, text: str) -> None:
    first, last = (datetime(year, 1, 1, tzinfo=UTC) for year in OTHER_ZONES[zone])
    windows = hours_around_changes(zone, first, last)
    assert len(windows) >= 3
    compare(zone, text, windows)


def compare(zone: str, text: str, windows: list[list[Reading]]) -> None:
    """One run after another through each window, and from moments of chance inside it, seconds and all."""
    chance, line = random.Random(f"{zone} {text}"), Line(text)
    for readings in windows:
        expected = due(line, readings)
        first, last = readings[0].moment, readings[-1].moment
        assert [*runs_until(text, zone, first - MINUTE, last)] == expected
        for _ in range(4):
            after = first + chance.random() * (last - first)
            found, rest = next_occurrence(text, zone, after), expected[bisect_right(expected, after) :]
            assert found == rest[0] if rest else found > last, f"after {after}"


def runs_until(text: str, zone: str, after: datetime, last: datetime) -> Iterator[datetime]:
    while (after := next_occurrence(text, zone, after)) <= last:
        yield after


EVERY_HALF_HOUR = ["30 2 * * *", "0 1,3 * * SAT,SUN", "30 */12 * * MON,7", "*/30 2 1-9,L * *"]


@pytest.mark.full
@pytest.mark.parametrize("zone", ZONES)
def test_ten_years_in_full_are_as_published(zone: str) -> None:
    """Each half hour is looked at: these lines, and all changes of these zones, fall on one."""
    readings = list(watch(zone, *TEN_YEARS, HOUR / 2))
    chance = random.Random(zone)
    for text in EVERY_HALF_HOUR:
        expected = due(Line(text), readings)
        assert [*runs_until(text, zone, TEN_YEARS[0] - MINUTE, TEN_YEARS[1])] == expected
        for _ in range(200):
            at = chance.randrange(1, len(expected))
            between = expected[at - 1] + chance.random() * (expected[at] - expected[at - 1])
            assert next_occurrence(text, zone, between) == expected[at]


def test_every_minute_is_every_minute() -> None:
    for readings in hours_around_changes("Australia/Lord_Howe", *TEN_YEARS)[:4]:
        expected = tuple(reading.moment for reading in readings)
        assert occurrences("* * * * *", "Australia/Lord_Howe", expected[0] - MINUTE, len(expected)) == expected


@pytest.mark.full
@pytest.mark.parametrize(
    "days",
    [
        "* * *",
        "L * *",
        "LW * *",
        "1,L 2,4 *",
        "* * 5L",
        "* * MON#1",
        "* 2 TUE#5",
        "* * 0L,WED#3",
        "13 * FRI",
        "*/2 * MON",
        "1-7 * */3",
        "29 2 *",
        "31 * *",
        "LW 3,6,9,12 5#2",
        "*/10 JAN-MAR,DEC SUN-TUE,6",
        "10-20/5 */5 5-7",
        "25/3 * *",
        "* * 7",
    ],
)
def test_days_of_ten_years_are_as_published(days: str) -> None:
    line = Line(f"0 0 {days}")
    all_days = [TEN_YEARS[0] + n * DAY for n in range(3653)]
    expected = [day for day in all_days if line.matches(day.replace(tzinfo=None))]
    found = occurrences(line.text, None, TEN_YEARS[0] - MINUTE, min(len(expected), 1000))
    assert list(found) == expected[:1000]
    assert expected
