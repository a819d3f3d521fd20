"""Computes when a cron expression is due next. Pure: the moment is given.

cronsim parses the fields and knows the calendar. The time zone is ours, with the clock changes of summer and winter:
cronsim walks a plain wall clock that never changes, and this file converts its readings to moments in time. (Given a
zone, cronsim 2.6 to 2.8 runs a fixed-time job a second time if asked during the hour that occurs twice, omits matching
minutes next to a change of half an hour, and returns times in a midnight that does not exist.)

The rules for users are on docs/explanation/schedules.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import Final, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from ..error_types import InvalidCronError, InvalidOptionError, UnknownTimeZoneError
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
"""The values that each field takes, besides `*`, lists, ranges and steps; in cronsim's order, with its names."""

# Characters. A list of all 60 minutes, 24 hours, 31 days, 12 months and 7 weekdays has fewer than 500. Without a limit,
# a number of thousands of digits would reach int(), which refuses it with an error of its own.
LONGEST: Final = 1000

MOST_OCCURRENCES: Final = 1000
"""The most occurrences of one call. Each takes 20 to 50 µs, in the event loop of the caller."""

# Files in the directory of the time zone database that are not zones: the host's own setting, and a placeholder.
NO_ZONES: Final = {"localtime", "Factory"}

# cronsim gives up after 50 years without a match. The rarest valid schedule, 29 February on a given weekday, has gaps
# of 40 years at most. So one search from any fixed moment decides whether an expression ever matches.
SOME_MOMENT: Final = datetime(2000, 1, 1, tzinfo=UTC)


# --- Validation ---


def normalised(expression: str) -> str:
    """The expression as it is stored: five fields, aliases replaced, single spaces, names in capitals.

    Raises:
        InvalidCronError: The expression is invalid, or never due.
    """
    fields = five_fields(expression)
    _first(expression, fields, UTC, SOME_MOMENT)
    return fields


def check_timezone(expression: str, timezone: object) -> str:
    """Returns the name of the time zone of `expression`, if the zone exists; None means UTC.

    It accepts the names of the IANA database, spelled as there: not the host's own zone, and not a name in another case
    that only a case-insensitive file system would find. A ZoneInfo counts as its name.

    Raises:
        InvalidCronError: There is no such zone on this machine.
    """
    if timezone is None or timezone == "UTC":
        return "UTC"  # Known without a database: Windows has none of its own.
    name = timezone.key if isinstance(timezone, ZoneInfo) else timezone
    # By exact type: `Code` of BSON is a `str` that has no hash.
    if type(name) is str and (name == "UTC" or name in zone_names()):
        return name
    kind = UnknownTimeZoneError if _may_exist(name) else InvalidCronError
    raise kind(expression, f"its time zone {shown(timezone)} is unknown; {_advice()}", is_of_fields=False)


def _advice() -> str:
    if not zone_names():
        return "this machine has no time zone database: install the package tzdata ('pip install tzdata')"
    return "an IANA name such as 'Europe/Berlin', or a ZoneInfo that has one, is expected"


# Such as America/Argentina/Buenos_Aires, Etc/GMT+12 and EST5EDT.
_ZONE_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
LONGEST_ZONE_NAME: Final = 100


def _may_exist(timezone: object) -> bool:
    is_name = (
        type(timezone) is str and len(timezone) <= LONGEST_ZONE_NAME and _ZONE_NAME.fullmatch(timezone) is not None
    )
    return is_name and timezone not in NO_ZONES


def lack_of_zone(timezone: object) -> str | None:
    """Why this machine cannot compute in a time zone in which another one may; None if it can, or if none can.

    A job with such a schedule must not run here: its next occurrence could not be computed afterwards.
    """
    if timezone is None or timezone == "UTC" or not _may_exist(timezone):
        return None
    try:
        _zone("", cast("str", timezone))
    except UnknownTimeZoneError as error:
        why = _advice() if error.__cause__ is None else f"it cannot be read ({error.__cause__})"
        return f"this machine does not know its time zone {shown(timezone)}: {why}"
    return None


def look_for_zones_again() -> None:
    """Forget which time zones this machine has: a database may have been installed since."""
    zone_names.cache_clear()


# --- Due dates ---


def next_occurrence(expression: str, timezone: str | None, after: datetime) -> datetime:
    """The first moment strictly after `after` at which the expression is due, in UTC.

    It depends on its arguments alone: from any moment between two occurrences the result is the same, also in the hour
    that occurs twice. It takes 20 to 50 µs.

    Args:
        expression: Five fields, or one of the aliases.
        timezone: The IANA name of the time zone of the expression; None for UTC.
        after: A timezone-aware moment.

    Raises:
        InvalidCronError: The expression or the zone is invalid, or it is never due.
        InvalidOptionError: `after` has no time zone.
    """
    return occurrences(expression, timezone, after, 1)[0]


def occurrences(expression: str, timezone: str | None, after: datetime, count: int) -> tuple[datetime, ...]:
    """The first `count` moments strictly after `after` at which the expression is due, in UTC.

    Args:
        expression: Five fields, or one of the aliases.
        timezone: The IANA name of the time zone of the expression; None for UTC.
        after: A timezone-aware moment.
        count: 1 to 1000.

    Raises:
        InvalidCronError: The expression or the zone is invalid, or it is never due.
        InvalidOptionError: `after` has no time zone, or `count` is out of range.
    """
    if after.utcoffset() is None:  # Python would assume the host's time zone.
        raise InvalidOptionError("after", after, "needs a time zone, such as that of datetime.now(UTC)")
    if type(count) is not int or not 1 <= count <= MOST_OCCURRENCES:
        raise InvalidOptionError("count", count, f"a whole number from 1 to {MOST_OCCURRENCES} is expected")
    fields = five_fields(expression)
    zone = _zone(expression, timezone)
    found: list[datetime] = []
    for _ in range(count):
        after = _first(expression, fields, zone, after)
        found.append(after)
    return tuple(found)


# --- From the fields to a wall clock, and from there to moments ---


def five_fields(expression: object) -> str:
    if not isinstance(expression, str):  # A stored expression may have any type.
        raise InvalidCronError(expression, "it is not a string")
    if len(expression) > LONGEST or not expression.isascii():
        # Some letters beyond ASCII have capitals that cronsim would accept, such as the dotless i in FRI.
        raise InvalidCronError(expression, f"it is longer than {LONGEST} characters, or not in ASCII")
    stripped = expression.strip()
    if stripped.startswith("@") and stripped.lower() not in ALIASES:
        raise InvalidCronError(expression, f"unknown alias; the known aliases are {', '.join(ALIASES)}")
    fields = ALIASES.get(stripped.lower(), stripped).split()
    if len(fields) != 5:
        known = "; seconds and years cannot be given" if len(fields) > 5 else ""
        raise InvalidCronError(expression, f"it has {len(fields)} {'field' if len(fields) == 1 else 'fields'}{known}")
    return " ".join(fields).upper()


def _first(expression: str, fields: str, zone: tzinfo, after: datetime) -> datetime:
    """The first moment strictly after `after`. All errors of cronsim are translated here."""
    try:
        after = after.astimezone(UTC)
        start = _start(after, zone)
        if _has_fixed_times(fields):
            first = _first_of((_reached(wall, zone) for wall in CronSim(fields, start)), after)
        else:
            # In the hour that occurs twice, the clock shows each reading two times. The first times of all readings
            # rise, and so do the last times. Each due moment is in one of these two sequences, so the earlier one of
            # their first moments is the next due date.
            firsts = [
                _first_of((_shown(wall, zone, fold) for wall in CronSim(fields, start)), after) for fold in (0, 1)
            ]
            first = min((moment for moment in firsts if moment is not None), default=None)
    except CronSimError as error:
        raise InvalidCronError(expression, _problem(fields, error)) from error
    except OverflowError as error:
        problem = f"its next due date after {after:%Y-%m-%d} is not within the years 1 to 9999"
        raise InvalidCronError(expression, problem) from error
    if first is None:
        raise InvalidCronError(expression, "it is never due")
    return first


def _start(after: datetime, zone: tzinfo) -> datetime:
    """The reading of the zone's clock at `after`, from which the search starts.

    If `after` is in the first pass of an hour that occurs twice, earlier readings of that hour will come once more. So
    the offset of the second pass is used, which is lower. Moments before `after` are skipped later.
    """
    local = after.astimezone(zone).replace(fold=1)
    return (local.utcoffset() or timedelta()) + after.replace(tzinfo=None)


def _first_of(moments: Iterable[datetime | None], after: datetime) -> datetime | None:
    return next((moment for moment in moments if moment is not None and moment > after), None)


def _has_fixed_times(fields: str) -> bool:
    """Whether the expression has fixed times. The author chooses by the spelling, as with cron on Debian and cronsim:

    an hour or minute that begins with `*` means an interval. It runs in both passes of an hour that occurs twice, and
    not in an hour that is skipped. A fixed time runs exactly once in either case.
    """
    minute, hour, *_ = fields.split()
    return not minute.startswith("*") and not hour.startswith("*")


def _shown(wall: datetime, zone: tzinfo, fold: int) -> datetime | None:
    """When the zone's clock shows `wall`: the first time (fold 0) or the last time; None if it never does."""
    moment = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
    return moment if moment.astimezone(zone).replace(tzinfo=None) == wall else None


def _reached(wall: datetime, zone: tzinfo) -> datetime:
    """When the zone's clock first shows `wall`, or the first whole minute after it if the clock skips `wall`."""
    while (moment := _shown(wall, zone, fold=0)) is None:
        wall += timedelta(minutes=1)
    return moment


@cache  # It reads about 600 small files: 7 ms if they are in the file cache.
def zone_names() -> frozenset[str]:
    return frozenset(available_timezones() - NO_ZONES)


def _zone(expression: str, timezone: str | None) -> tzinfo:
    name = check_timezone(expression, timezone)
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:  # The file existed when the names were read.
        problem = f"its time zone {shown(timezone)} cannot be read: {error}"
        raise UnknownTimeZoneError(expression, problem, is_of_fields=False) from error


# --- Texts ---


def _problem(fields: str, error: CronSimError) -> str:
    name = str(error).removeprefix("Bad ")
    if name not in TAKEN:
        return str(error)
    given = fields.split()[list(TAKEN).index(name)]
    return f"its {name} {shown(given)} is not understood; it takes {TAKEN[name]}, with lists, ranges and steps"
