"""When a cron expression falls due next. Parsing is cronsim's; what is let in is decided here."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from ..errors import InvalidCronError

ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


def next_occurrence(expression: str, timezone: str | None, after: datetime) -> datetime:
    """The first moment strictly after `after` (UTC-aware) that matches, in UTC.

    Args:
        expression: Five fields, or one of the aliases.
        timezone: The IANA name of the zone that the expression speaks of; None for UTC.

    Raises:
        InvalidCronError: The expression or the zone cannot be understood, or never comes to pass.
    """
    fields = ALIASES.get(expression.strip(), expression)
    if len(fields.split()) != 5:
        raise InvalidCronError(expression, f"it has {len(fields.split())} fields")
    try:
        following = next(CronSim(fields, after.astimezone(_zone(expression, timezone))))
    except CronSimError as error:
        raise InvalidCronError(expression, str(error)) from error
    except StopIteration as error:
        raise InvalidCronError(expression, "it never comes to pass") from error
    return following.astimezone(UTC)


def _zone(expression: str, timezone: str | None) -> ZoneInfo:
    try:
        return ZoneInfo(timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidCronError(expression, f"its time zone {timezone!r} is unknown") from error
