"""The next times of a schedule, in its zone and in UTC, and what changes of the clock do to them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from ...error_types import InvalidCronError
from ...jobs.job_parts import Schedule
from ...jobs.schedule_preview import preview

MOST_TIMES: Final = 5
LOOKED_AHEAD: Final = timedelta(days=200)
"""A zone that changes its clock at all does so within this time."""

_DAY: Final = timedelta(days=1)
_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A change of the clock of a zone.

    Attributes:
        at: The moment.
        begin, end: The readings of the clock, without a zone, between which the hour is skipped or comes twice.
        is_skipped: Whether these readings do not exist; otherwise they come twice.
    """

    at: datetime
    begin: datetime
    end: datetime
    is_skipped: bool

    @property
    def sentence(self) -> str:
        """What happens."""
        span = f"{self.begin:%H:%M} to {self.end:%H:%M}"
        what = "is skipped: the clock is put forward" if self.is_skipped else "comes twice: the clock is put back"
        return f"{self.begin:%b} {self.begin.day}, {span} {what}."


@dataclass(frozen=True, slots=True)
class ScheduleTime:
    """A due date.

    Attributes:
        at: The moment.
        local: What the clock of the zone shows.
        note: What a change of the clock does to it; "" for nothing.
    """

    at: datetime
    local: str
    note: str


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """What is shown of a schedule.

    Attributes:
        expression: As it is stored.
        timezone: The name of its zone.
        words: The schedule in English; "" if it is invalid.
        problem: Why its next times are not known; None if they are.
        warnings: What is probably not meant.
        times: The next due dates.
        changes: The changes of the clock that matter next.
        is_fixed: Whether its times are fixed ones; otherwise it goes by the clock.
    """

    expression: str
    timezone: str
    words: str = ""
    problem: str | None = None
    warnings: Sequence[str] = ()
    times: Sequence[ScheduleTime] = ()
    changes: Sequence[ClockChange] = ()
    is_fixed: bool = False


def schedule_view(schedule: Schedule, now: datetime) -> ScheduleView:
    """Return what is shown of a schedule at this moment."""
    try:
        known = preview(schedule.cron, schedule.timezone, MOST_TIMES, now)
    except InvalidCronError as error:
        return ScheduleView(schedule.cron, schedule.timezone or "UTC", problem=str(error))
    zone: tzinfo = UTC if known.timezone == "UTC" else ZoneInfo(known.timezone)
    changes = () if known.timezone == "UTC" else tuple(_changes(zone, now, max(known.runs[-1], now + LOOKED_AHEAD)))
    minute, hour, *_ = known.expression.split()
    return ScheduleView(
        known.expression,
        known.timezone,
        known.description,
        None,
        known.warnings,
        [ScheduleTime(at, _reading(at, zone), _note(at, zone, changes)) for at in known.runs],
        # Those among its next times; without one, the next of the zone.
        [one for one in changes if one.at <= known.runs[-1]][:2] or changes[:1],
        not minute.startswith("*") and not hour.startswith("*"),
    )


def clock_there(at: datetime, timezone: str | None) -> str | None:
    """Return what the clock of a schedule's zone shows at a moment, such as "Sun Nov 29 06:00"; None without a zone."""
    try:
        return _reading(at, ZoneInfo(timezone or "UTC"))
    except (LookupError, ValueError, OSError):  # Another program may have stored any text.
        return None


def _reading(at: datetime, zone: tzinfo) -> str:
    there = at.astimezone(zone)
    return f"{there:%a %b} {there.day} {there:%H:%M}"


def _note(at: datetime, zone: tzinfo, changes: Sequence[ClockChange]) -> str:
    """Return what a change of the clock does to this due date."""
    there = at.astimezone(zone)
    wall = there.replace(tzinfo=None)
    for change in changes:
        if change.is_skipped and change.at == at:
            return f"{change.begin:%H:%M} to {change.end:%H:%M} is skipped"
        if not change.is_skipped and change.begin <= wall < change.end:
            return "the second of two such hours" if there.fold else "the first of two such hours"
    return ""


def _changes(zone: tzinfo, after: datetime, until: datetime) -> Iterator[ClockChange]:
    """Yield the changes of the zone's clock in this span, to the minute."""
    begin = after.replace(second=0, microsecond=0)
    last = min(until, begin + 3 * LOOKED_AHEAD)  # A rare schedule is due after decades.
    while begin < last:
        end = begin + _DAY
        if _offset(begin, zone) != _offset(end, zone):
            yield _change(begin, end, zone)
        begin = end


def _change(begin: datetime, end: datetime, zone: tzinfo) -> ClockChange:
    before, behind = _offset(begin, zone), _offset(end, zone)
    while end - begin > _MINUTE:
        middle = (begin + (end - begin) / 2).replace(second=0, microsecond=0)
        middle = middle if middle > begin else begin + _MINUTE
        begin, end = (middle, end) if _offset(middle, zone) == before else (begin, middle)
    walls = [(end + offset).replace(tzinfo=None) for offset in (before, behind)]
    return ClockChange(end, min(walls), max(walls), is_skipped=behind > before)


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()
