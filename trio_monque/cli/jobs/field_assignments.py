"""The fields of a job on the command line: `FIELD=VALUE`, with the value as text of the type that the field has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final

import click

from ...error_types import MonqueError
from ...jobs.cron import normalised, zone_names
from ...jobs.job import JobStatus
from ...jobs.meta import checked_meta
from ...jobs.new_job import check_name, check_on_exhausted, check_unique_key
from ...store.driver.types import ObjectId
from ...store.fields import FIELD, TYPES
from ...store.jobs.job_json import NAMES, value_from_json
from ..parameters import FROM_NOW, moment_in, seconds_in

_NOT_SET: Final = FIELD["id"]
"""MongoDB changes the `_id` of no document."""

_KIND: Final[Mapping[str, str]] = {
    field: TYPES[name].partition(" ")[0] for name, field in FIELD.items() if field != _NOT_SET
}


def _check_zone(name: str) -> None:
    if name != "UTC" and name not in zone_names():
        raise ValueError("this machine does not know this time zone: give an IANA name such as Europe/Berlin")


# Beyond the type: what this library asks of a new job.
_CHECKS: Final[Mapping[str, Callable[[Any], object]]] = {
    FIELD["name"]: check_name,
    FIELD["unique_key"]: check_unique_key,
    FIELD["schedule.cron"]: normalised,
    FIELD["schedule.timezone"]: _check_zone,
    FIELD["schedule.on_exhausted"]: check_on_exhausted,
    FIELD["meta"]: checked_meta,
}


@dataclass(frozen=True, slots=True)
class Assignment:
    """A field of the document, and its new value at a moment of the server's time."""

    field: str
    value: Callable[[datetime], Any]


class _Field(click.ParamType[str]):
    """The name of a field in the document; its name in JSON is accepted, too."""

    name = "FIELD"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        field: str = FIELD[NAMES[value]] if value in NAMES else value
        if field == _NOT_SET:
            self.fail("the _id of a document cannot be changed", param, ctx)
        if field not in _KIND:
            near = get_close_matches(value, [*_KIND, *NAMES], n=1)
            meant = f"did you mean {near[0]}?" if near else f"it has {', '.join(_KIND)}"
            self.fail(f"a job has no field {value!r}: {meant}", param, ctx)
        return field


class _Assignment(click.ParamType[Assignment]):
    name = "FIELD=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Assignment:
        if isinstance(value, Assignment):
            return value
        given, separator, text = value.partition("=")
        if not separator:
            self.fail(f"{value!r} must be FIELD=VALUE, such as nextRunAt=now", param, ctx)
        field = JOB_FIELD.convert(given, param, ctx)
        try:
            return Assignment(field, _value_in(field, text))
        except MonqueError as error:
            self.fail(str(error), param, ctx)  # Which has the value.
        except ValueError as error:
            self.fail(f"{field}={text!r}: {error}", param, ctx)


def _value_in(field: str, text: str) -> Callable[[datetime], Any]:
    """Raises ValueError or MonqueError: the text is not a value of the field. The message says what to give."""
    kind = _KIND[field]
    if kind == "datetime":
        return _moment_in(text)
    if kind == "JobStatus":
        found: Any = _status_in(text)
    elif kind in ("int", "float"):
        found = _number_in(text, is_whole=kind == "int")
    elif kind == "str":
        found = text
    elif kind == "ObjectId":
        if not ObjectId.is_valid(text):
            raise ValueError("give the 24 hexadecimal digits of an id")
        found = ObjectId(text)
    else:
        found = value_from_json(text)
    if (check := _CHECKS.get(field)) is not None:
        check(found)
    return lambda _now: found


def _moment_in(text: str) -> Callable[[datetime], datetime]:
    if text == "now":
        return lambda now: now
    if seconds_in(text) is None and moment_in(text) is None:
        raise ValueError("give now, a length of time from now such as 2h, or a moment such as 2026-01-31T12:00")
    return FROM_NOW.convert(text, None, None)


def _status_in(text: str) -> str:
    if text not in list(JobStatus):
        raise ValueError(f"give one of {', '.join(JobStatus)}")
    if text == JobStatus.PROCESSING:
        raise ValueError("only a claim puts a job into this status: give pending, and a scheduler runs it")
    return text


def _number_in(text: str, *, is_whole: bool) -> int | float:
    try:
        number = float(text)
        is_integer = number.is_integer()
    except ValueError:
        is_integer, number = False, -1.0
    if number < 0 or (is_whole and not is_integer):
        raise ValueError("give a whole number of at least 0" if is_whole else "give a number, such as 30 or 0.5")
    return int(number) if is_integer else number


JOB_FIELD: Final = _Field()
ASSIGNMENT: Final = _Assignment()
