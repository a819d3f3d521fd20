"""The options `--data` and `--meta` of `trio-monque jobs`: conditions on fields of the data and of the meta."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import click

from ...jobs.field_conditions import FieldValue, is_field_path, is_field_value
from ...jobs.field_readings import readings_of

P = ParamSpec("P")
R = TypeVar("R")

GivenFields = Mapping[str, tuple[FieldValue, ...]]
"""Paths with the values that a field may have, as `fields` of a JobFilter; empty if no option was given."""


class _Condition(click.ParamType[tuple[str, str]]):
    """A field of the data or of the meta, and the text that it is compared with."""

    name = "KEY=VALUE"

    def __init__(self, part: str) -> None:
        self._part = part

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, separator, text = value.partition("=")
        path = f"{self._part}.{key}"
        if not separator:
            self.fail(f"{value!r} must be KEY=VALUE, such as tenant=acme", param, ctx)
        if not is_field_path(path):
            dots = ", with dots between them for a field inside another one" if self._part == "data" else ""
            self.fail(f"{key!r} is not a key of letters, digits and '_'{dots}", param, ctx)
        if not is_field_value(text):
            self.fail(f"the value of {key} is too long, or is not valid text", param, ctx)
        return path, text


Command = Callable[Concatenate[GivenFields, P], R]


def field_options(function: Command[P, R]) -> Callable[P, R]:
    """Add the options to a command, which gets the conditions as its first argument."""

    @click.option("--data", "data", type=_Condition("data"), multiple=True, metavar="KEY=VALUE", help=_DATA_HELP)
    @click.option("--meta", "meta", type=_Condition("meta"), multiple=True, metavar="KEY=VALUE", help=_META_HELP)
    @wraps(function)
    def command(*args: Any, **options: Any) -> R:
        data, meta = options.pop("data"), options.pop("meta")
        found: dict[str, tuple[FieldValue, ...]] = {}
        for path, text in dict.fromkeys((*data, *meta)):  # Texts: among the values, 1 and True would be one key.
            found[path] = (*found.get(path, ()), *readings_of(path, text))
        return function(found, *args, **options)

    return command


_DATA_HELP: Final = (
    "Only jobs with this value in a field of their data, such as order.id=17: text, a number, true, false, null or an "
    "ObjectId. May be repeated; for one field, any of the values will do."
)
_META_HELP: Final = "Only jobs with this text in their meta. May be repeated, as --data."
