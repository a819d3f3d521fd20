"""Types of parameters that several commands share: lengths of time, moments, JSON, pairs."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from ..error_types import InvalidOptionError
from ..store.jobs.job_json import value_from_json

_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])", re.IGNORECASE)
_LENGTH: Final = re.compile(rf"(?:{_PART.pattern}\s*)+", re.IGNORECASE)
_AGO_AT_THE_END: Final = re.compile(r"\s+ago\s*$", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")

When = Callable[[datetime], datetime]
"""A moment that may depend on the server's time, which it is called with."""


def seconds_in(text: str) -> float | None:
    """Return the seconds of a text such as "90", "90s", "1h30m" or "2d"; None if it is not a length of time."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _LENGTH.fullmatch(text):
        return None
    return math.fsum(float(number) * _SECONDS[unit.lower()] for number, unit in _PART.findall(text))


def moment_in(text: str) -> datetime | None:
    """Return the moment of an ISO 8601 text, in UTC if it names no time zone; None if it is not a moment."""
    try:
        found = datetime.fromisoformat(text.strip())
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


class _Length(click.ParamType[float]):
    name = "LENGTH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = value if isinstance(value, float) else seconds_in(value)
        if seconds is None:
            self.fail(f"{value!r} is not a length of time: give seconds, or for example 90s, 5m, 1h30m, 2d", param, ctx)
        return seconds


class _Moment(click.ParamType[When]):
    """A moment as ISO 8601, or as the length of time from the server's time to it."""

    example: str

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> When:
        if callable(value):
            return value  # type: ignore[no-any-return]
        if value == "now":
            return lambda now: now
        if (seconds := self.seconds_in(value)) is not None:
            try:
                length = timedelta(seconds=seconds)
            except OverflowError:
                self.fail(f"{value!r} is too long", param, ctx)
            return lambda now: self.at(now, length)
        moment = moment_in(value)
        if moment is None:
            example = "such as 2026-01-31T12:00 (UTC unless it says otherwise)"
            self.fail(f"{value!r} is neither {self.example} nor a moment {example}", param, ctx)
        return lambda now: moment

    def seconds_in(self, text: str) -> float | None:
        """Return the seconds of a length of time; None if the text is not one."""
        return seconds_in(text)

    @abstractmethod
    def at(self, now: datetime, length: timedelta) -> datetime: ...

    def _shifted(self, now: datetime, length: timedelta) -> datetime:
        try:
            return now + length
        except OverflowError:
            raise click.UsageError(f"a moment {length.days:,} days from now does not exist") from None


class _Ago(_Moment):
    name = "WHEN"
    example = "a length of time before now, such as 2h,"

    def seconds_in(self, text: str) -> float | None:
        return seconds_in(_AGO_AT_THE_END.sub("", text))

    def at(self, now: datetime, length: timedelta) -> datetime:
        return self._shifted(now, -length)


class _FromNow(_Moment):
    name = "WHEN"
    example = "a length of time from now, such as 2h,"

    def at(self, now: datetime, length: timedelta) -> datetime:
        return self._shifted(now, length)


class _Json(click.ParamType[Any]):
    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return value_from_json(value)
        except InvalidOptionError as error:
            self.fail(f"{error}", param, ctx)


class _Pair(click.ParamType[tuple[str, str]]):
    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, separator, text = value.partition("=")
        if not separator or not key:
            self.fail(f"{value!r} must be KEY=VALUE, such as tenant=acme", param, ctx)
        return key, text


LENGTH: Final = _Length()
AGO: Final = _Ago()
FROM_NOW: Final = _FromNow()
JSON: Final = _Json()
PAIR: Final = _Pair()

operation_timeout_option: Final = click.option(
    "--operation-timeout",
    type=LENGTH,
    default="30s",
    metavar="LENGTH",
    help="How long the database may take to answer one command. (default: 30s)",
)
