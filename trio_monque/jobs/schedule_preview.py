"""Says what a schedule means: a sentence in English, its next runs, and warnings of what is easily misread. Pure.

cronsim words the sentence, from the spelling of the fields. This file first replaces steps whose spelling misleads: the
only minute of `*/90` is 0, so it is worded as the 0 that it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim

from .cron import SOME_MOMENT, TAKEN, check_timezone, five_fields, occurrences

ENDINGS: Final = {"1": "st", "2": "nd", "3": "rd"}
"""cronsim writes "the 21th day": these are the correct endings."""

_FEW: Final = 3
"""An uneven step with this number of values or fewer is worded as these values: `*/45` runs at minutes 0 and 45, and
"every 45th minute" would promise the same distance between all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePreview:
    """The meaning of a schedule, to check it before it is declared.

    Attributes:
        expression: The five fields, as they are stored.
        timezone: The IANA name of the schedule's time zone.
        description: The schedule in English.
        runs: The next due dates, in UTC.
        warnings: What is valid and probably not what was meant, such as a step that is larger than its field.
    """

    expression: str
    timezone: str
    description: str
    runs: tuple[datetime, ...]
    warnings: tuple[str, ...] = ()


def preview(expression: str, timezone: str | ZoneInfo | None, count: int, after: datetime) -> SchedulePreview:
    """Describes a schedule in English, and lists its next `count` runs after `after`.

    Args:
        expression: Five fields, or one of the aliases.
        timezone: The time zone of the expression, or its IANA name; None for UTC.
        count: 1 to 1000.
        after: A timezone-aware moment.

    Raises:
        InvalidCronError: The expression or the zone is invalid, or it is never due.
        InvalidOptionError: `after` has no time zone, or `count` is out of range.
    """
    name = check_timezone(expression, timezone)
    runs = occurrences(expression, name, after, count)
    fields = five_fields(expression)
    return SchedulePreview(
        expression=fields,
        timezone=name,
        description=_described(fields, name),
        runs=runs,
        warnings=warnings_of(expression),
    )


def warnings_of(expression: str) -> tuple[str, ...]:
    """What is probably not meant in a valid expression: for each step that never steps, what it means."""
    return tuple(
        f"the step of {term} in the {name} field is larger than its range, so it matches only {values[0]}: "
        f"write {values[0]} if you mean that"
        for name, field in zip(TAKEN, five_fields(expression).split(), strict=True)
        for term in field.split(",")
        if (values := _stepped(name, term)) is not None and len(values) == 1
    )


def _described(fields: str, zone: str) -> str:
    worded = [
        ",".join(_worded(name, term) for term in field.split(","))
        for name, field in zip(TAKEN, fields.split(), strict=True)
    ]
    words = CronSim(" ".join(worded), SOME_MOMENT).explain()
    # cronsim says "and" for days that match one field or the other. And where a field of days begins with a star, both
    # must match, also if it is worded as a number here.
    day, _, weekday = fields.split()[2:]
    must_match_both = day.startswith("*") or weekday.startswith("*")
    words = words.replace(" and on ", " if it's on " if must_match_both else " or on ")
    words = re.sub(r"(?<=[02-9])([123])th\b", lambda found: found[1] + ENDINGS[found[1]], words)
    return f"{words}, {zone if zone == 'UTC' else f'{zone} time'}."


def _worded(name: str, term: str) -> str:
    """The term, or the values that it has if its step would mislead."""
    values = _stepped(name, term)
    if values is None:
        return term
    steps_evenly = len(values) > 1 and (
        not term.startswith("*") or len(_values(name, "*")) % (values[1] - values[0]) == 0
    )
    return term if steps_evenly or len(values) > _FEW else ",".join(map(str, values))


def _stepped(name: str, term: str) -> list[int] | None:
    """The values of a term with a step greater than one; None for any other term."""
    base, slash, step = term.partition("/")
    return None if not slash or base in ("L", "LW") or int(step) == 1 else _values(name, term)


def _values(name: str, term: str) -> list[int]:
    fields = [term if name == one else "*" for one in TAKEN]
    line = CronSim(" ".join(fields), SOME_MOMENT)
    found = (line.minutes, line.hours, line.days, line.months, line.weekdays)[list(TAKEN).index(name)]
    # Both 0 and 7 are Sunday.
    return sorted({value % 7 if name == "day-of-week" else value for value in found if isinstance(value, int)})
