"""When a cron expression falls due next, and in which words. Pure: the moment is given.

The fields, and the calendar, are cronsim's. The time zone is ours: cronsim walks a plain wall clock that
is never changed, and here each reading of it becomes moments in time. (Given a zone, cronsim itself runs
a fixed-time job a second time when asked during the hour that comes twice, leaves out matching minutes
beside a change of half an hour, and finds times in a midnight that does not exist; 2.6 to 2.8.)

What is published about this is docs/explanation/schedules.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from ..errors import InvalidCronError, InvalidOptionError
from ..safe_text import shown

ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

TAKEN: Final = {
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31 where its months have them, L or LW",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT, the last such as 5L, or the n-th such as MON#1",
}
"""What each field takes, beside `*`, lists, ranges and steps; in the order and by the names of cronsim."""

# All 60 minutes, 24 hours, 31 days, 12 months and 7 weekdays, listed, are below 500. Without a limit a
# number of thousands of digits would reach int(), which refuses it with an error of its own.
LONGEST: Final = 1000

MOST_OCCURRENCES: Final = 1000
"""How many occurrences can be asked for at once: some 20 to 50 µs each, in the caller's loop."""

ENDINGS: Final = {"1": "st", "2": "nd", "3": "rd"}
"""Where cronsim says "the 21th day"."""

# In the time zone database's directory, but no zone of the world: the host's own, and a placeholder.
NO_ZONES: Final = {"localtime", "Factory"}

# No schedule that ever comes to pass leaves out 50 years, which is where cronsim gives up: 29 February on
# a given weekday, the rarest, leaves out 40 at most. So one look from any fixed moment decides it.
SOME_MOMENT: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePreview:
    """What a schedule means.

    Attributes:
        expression: The five fields, as they are stored.
        timezone: The IANA name of the zone that they speak of.
        description: The same in English.
        runs: The next moments, in UTC.
    """

    expression: str
    timezone: str
    description: str
    runs: tuple[datetime, ...]


# --- What is let in ---


def normalised(expression: str) -> str:
    """The five fields that are stored: aliases translated, single spaces, names in capitals.

    Raises:
        InvalidCronError: The expression cannot be understood, or never comes to pass.
    """
    fields = _five_fields(expression)
    _first(expression, fields, UTC, SOME_MOMENT)
    return fields


def check_timezone(expression: str, timezone: object) -> str:
    """The name of the zone that `expression` is to speak of, once it is known to exist; None means UTC.

    Only names of the IANA database, spelled as there: never the host's own zone, whatever it calls it,
    and no name that only a file system without upper and lower case would find.

    Raises:
        InvalidCronError: There is no such zone on this machine.
    """
    if timezone is None or timezone == "UTC":
        return "UTC"  # Known without a database: Windows has none of its own.
    if isinstance(timezone, str) and timezone in _zone_names():
        return timezone
    if not _zone_names():
        advice = "this machine has no time zone database: install the package tzdata ('pip install tzdata')"
    else:
        advice = "an IANA name such as 'Europe/Berlin' is expected"
    raise InvalidCronError(expression, f"its time zone {shown(timezone)} is unknown; {advice}")


# --- When it falls due ---


def next_occurrence(expression: str, timezone: str | None, after: datetime) -> datetime:
    """The first moment strictly after `after` at which the expression falls due, in UTC.

    A function of its arguments alone: asked from any moment between two occurrences it gives the same,
    also in the hour that comes twice. Some 20 to 50 µs.

    Args:
        expression: Five fields, or one of the aliases.
        timezone: The IANA name of the zone that the expression speaks of; None for UTC.
        after: A timezone-aware moment.

    Raises:
        InvalidCronError: The expression or the zone cannot be understood, or it never comes to pass.
        InvalidOptionError: `after` has no time zone.
    """
    return occurrences(expression, timezone, after, 1)[0]


def occurrences(expression: str, timezone: str | None, after: datetime, count: int) -> tuple[datetime, ...]:
    """The first `count` moments strictly after `after` at which the expression falls due, in UTC.

    Args:
        expression: Five fields, or one of the aliases.
        timezone: The IANA name of the zone that the expression speaks of; None for UTC.
        after: A timezone-aware moment.
        count: 1 to 1000.

    Raises:
        InvalidCronError: The expression or the zone cannot be understood, or it never comes to pass.
        InvalidOptionError: `after` has no time zone, or `count` is out of range.
    """
    if after.utcoffset() is None:  # Python would take it to be in the host's zone.
        raise InvalidOptionError("after", after, "needs a time zone, such as that of datetime.now(UTC)")
    if type(count) is not int or not 1 <= count <= MOST_OCCURRENCES:
        raise InvalidOptionError("count", count, f"a whole number from 1 to {MOST_OCCURRENCES} is expected")
    fields = _five_fields(expression)
    zone = _zone(expression, timezone)
    found: list[datetime] = []
    for _ in range(count):
        after = _first(expression, fields, zone, after)
        found.append(after)
    return tuple(found)


def preview(expression: str, timezone: str | None, count: int, after: datetime) -> SchedulePreview:
    """What a schedule means, in words and in its next `count` runs after `after`.

    Args:
        expression: Five fields, or one of the aliases.
        timezone: The IANA name of the zone that the expression speaks of; None for UTC.
        count: 1 to 1000.
        after: A timezone-aware moment.

    Raises:
        InvalidCronError: The expression or the zone cannot be understood, or it never comes to pass.
        InvalidOptionError: `after` has no time zone, or `count` is out of range.
    """
    runs = occurrences(expression, timezone, after, count)
    fields = _five_fields(expression)
    name = check_timezone(expression, timezone)
    return SchedulePreview(expression=fields, timezone=name, description=_described(fields, name), runs=runs)


# --- From the fields to a wall clock, and from there to moments ---


def _five_fields(expression: object) -> str:
    if not isinstance(expression, str):  # A stored line may be anything.
        raise InvalidCronError(expression, "it is not text")
    if len(expression) > LONGEST or not expression.isascii():
        # Beyond ASCII there are letters whose capitals would be understood, such as the dotless i of FRI.
        raise InvalidCronError(expression, f"it is longer than {LONGEST} characters, or not in ASCII")
    stripped = expression.strip()
    if stripped.startswith("@") and stripped.lower() not in ALIASES:
        raise InvalidCronError(expression, f"of aliases, only {', '.join(ALIASES)} are known")
    fields = ALIASES.get(stripped.lower(), stripped).split()
    if len(fields) != 5:
        known = "; seconds and years cannot be given" if len(fields) > 5 else ""
        raise InvalidCronError(expression, f"it has {len(fields)} {'field' if len(fields) == 1 else 'fields'}{known}")
    return " ".join(fields).upper()


def _first(expression: str, fields: str, zone: tzinfo, after: datetime) -> datetime:
    """The first moment strictly after `after`. The errors of cronsim are translated here and nowhere else."""
    try:
        after = after.astimezone(UTC)
        start = _start(after, zone)
        if _has_fixed_times(fields):
            first = _first_of((_reached(wall, zone) for wall in CronSim(fields, start)), after)
        else:
            # Taking the first time that each reading is shown, moments only rise, and so they do taking the
            # last time. Every moment is on one of these two paths: the earlier of their firsts is the first.
            firsts = [
                _first_of((_shown(wall, zone, fold) for wall in CronSim(fields, start)), after) for fold in (0, 1)
            ]
            first = min((moment for moment in firsts if moment is not None), default=None)
    except CronSimError as error:
        raise InvalidCronError(expression, _problem(fields, error)) from error
    except OverflowError:  # Beyond the year 9999.
        first = None
    if first is None:
        raise InvalidCronError(expression, "it never comes to pass")
    return first


def _start(after: datetime, zone: tzinfo) -> datetime:
    """What the zone's clock shows at `after`: every reading up to there is over.

    While a reading is shown for the first of two times, those before it are still to come once more. So
    it is read by the second time's offset, which is the lower one; what is looked at too early is passed by.
    """
    local = after.astimezone(zone).replace(fold=1)
    return (local.utcoffset() or timedelta()) + after.replace(tzinfo=None)


def _first_of(moments: Iterable[datetime | None], after: datetime) -> datetime | None:
    return next((moment for moment in moments if moment is not None and moment > after), None)


def _has_fixed_times(fields: str) -> bool:
    """Debian's rule, and cronsim's: the spelling tells, so that whoever writes the line can choose."""
    minute, hour, *_ = fields.split()
    return not minute.startswith("*") and not hour.startswith("*")


def _shown(wall: datetime, zone: tzinfo, fold: int) -> datetime | None:
    """When the zone's clock shows `wall`, the first time (fold 0) or the last; None where it never does."""
    moment = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
    return moment if moment.astimezone(zone).replace(tzinfo=None) == wall else None


def _reached(wall: datetime, zone: tzinfo) -> datetime:
    """When the zone's clock first shows `wall`, or the first whole minute after it where it is put forward past it."""
    while (moment := _shown(wall, zone, fold=0)) is None:
        wall += timedelta(minutes=1)
    return moment


@cache  # Some 600 small files are looked at: 7 ms where they are at hand, once.
def _zone_names() -> frozenset[str]:
    return frozenset(available_timezones() - NO_ZONES)


def _zone(expression: str, timezone: str | None) -> tzinfo:
    name = check_timezone(expression, timezone)
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # It was there when the names were read.
        raise InvalidCronError(expression, f"its time zone {shown(timezone)} cannot be read: {error}") from error


# --- In words ---


def _problem(fields: str, error: CronSimError) -> str:
    name = str(error).removeprefix("Bad ")
    if name not in TAKEN:
        return str(error)
    given = fields.split()[list(TAKEN).index(name)]
    return f"its {name} {shown(given)} is not understood; it takes {TAKEN[name]}, with lists, ranges and steps"


def _described(fields: str, zone: str) -> str:
    words = CronSim(fields, SOME_MOMENT).explain()
    words = re.sub(r"(?<=[02-9])([123])th\b", lambda found: found[1] + ENDINGS[found[1]], words)
    return f"{words}, {zone if zone == 'UTC' else f'{zone} time'}."
