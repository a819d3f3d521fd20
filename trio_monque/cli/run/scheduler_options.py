"""The options of a scheduler as options of a command.

Names, defaults, checks and help are those of SchedulerConfig; with the prefix `--retention-`, those of Retention.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import Field, fields
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast, get_args, get_type_hints

import click
from click.core import ParameterSource

from ...error_types import InvalidOptionError
from ...options_and_defaults import ClientConfig, Retention, SchedulerConfig, SchedulerOptions, scheduler_config
from ..parameters import LENGTH

P = ParamSpec("P")
R = TypeVar("R")

OFFERED: Final = (
    "collection_name",
    "instance_id",
    "concurrency",
    "concurrency_per_name",
    "shutdown_timeout",
    "cleanup_timeout",
    "start_timeout",
    "operation_timeout",
    "change_stream",
    "poll_interval",
    "safety_poll_interval",
    "heartbeat_interval",
    "lock_timeout",
    "recover_stale_jobs",
    "max_attempts",
    "max_rescues",
    "max_parked",
    "base_retry_interval",
    "max_backoff_delay",
    "retry_jitter",
    "store_tracebacks",
    "minutes",
    "full_tracebacks",
    "skip_index_creation",
)
"""In the order of the help. The others are for programs, not for operators, or are not plain values."""

_RETENTION: Final = "retention_"

_SPELLED: Final = {"collection_name": "collection"}
_METAVARS: Final = {"collection_name": "NAME", "instance_id": "NAME", "retry_jitter": "SHARE"}


def scheduler_options(function: Callable[Concatenate[SchedulerOptions, P], R]) -> Callable[P, R]:
    """Add the options to a command, which gets those that were given as its first argument, checked."""

    @wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        source = click.get_current_context().get_parameter_source
        values = {name: options.pop(name) for name in OFFERED}
        given = {name: value for name, value in values.items() if source(name) is ParameterSource.COMMANDLINE}
        chosen = cast("SchedulerOptions", given)
        retention = {
            name.removeprefix(_RETENTION): value
            for name in [one for one in options if one.startswith(_RETENTION)]
            if (value := options.pop(name)) is not None
        }
        if retention:
            chosen["retention"] = _retention(retention)
        try:
            scheduler_config(chosen)
        except InvalidOptionError as error:
            raise click.UsageError(f"{spelled(error.option)}{str(error).removeprefix(error.option)}") from None
        return function(chosen, *args, **options)

    hints, explained = get_type_hints(SchedulerConfig), _explanations()
    of_config = {field.name: field for field in fields(SchedulerConfig)}
    command: Callable[P, R] = _retention_options(checked)
    for name in reversed(OFFERED):
        command = _option(of_config[name], hints[name], explained.get(name, ""))(command)
    return command


def spelled(name: str) -> str:
    """An option of a scheduler as the command line spells it."""
    return f"--{_SPELLED.get(name, name).replace('_', '-')}"


def _option(field: Field[Any], hint: Any, explained: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    flag, kinds = spelled(field.name), {hint, *get_args(hint)}
    if bool in kinds:
        default = "on" if field.default else "off"
        names = f"{flag}/--no-{flag.removeprefix('--')}"
        return click.option(names, field.name, default=None, help=f"{explained} (default: {default})")
    kind = next(one for one in (float, int, str) if one in kinds)
    metavar = _METAVARS.get(field.name) or ("SECONDS" if kind is float else "N")
    default = f" (default: {field.default:g})" if isinstance(field.default, int | float) else ""
    if isinstance(field.default, str):
        default = f" (default: {field.default})"
    wanted: click.ParamType[Any] | type[Any] = kind
    if type(None) in kinds and kind is not str:
        wanted = OrNone(click.FLOAT if kind is float else click.INT)
    return click.option(flag, field.name, type=wanted, metavar=metavar, help=explained + default)


class OrNone(click.ParamType[float | None]):
    """A number, or the word "none"."""

    name = "number"

    def __init__(self, number: click.ParamType[float] | click.ParamType[int]) -> None:
        self._number = number

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        return None if value == "none" else self._number.convert(value, param, ctx)


# --- Retention ---

_EXPLAINED: Final = {
    "completed": "Delete completed jobs that ended longer ago than this, such as 12h or 30d; 0 means immediately.",
    "failed": "The same for failed jobs.",
    "cancelled": "The same for cancelled jobs.",
    "keep_last": "How many jobs of each name and status to keep, however old.",
    "interval": "How often to look for ended jobs. (default: 1h)",
}


def _retention_options(command: Callable[P, R]) -> Callable[P, R]:
    for field in reversed(fields(Retention)):
        is_count = field.name == "keep_last"
        command = click.option(
            spelled(_RETENTION + field.name),
            type=click.INT if is_count else LENGTH,
            metavar="N" if is_count else "LENGTH",
            help=_EXPLAINED[field.name],
        )(command)
    return command


def _retention(given: dict[str, Any]) -> Retention:
    if given.keys() == {"interval"}:
        others = ", ".join(spelled(_RETENTION + name) for name in _EXPLAINED if name != "interval")
        raise click.UsageError(f"--retention-interval alone deletes nothing: give one of {others} too")
    try:
        return Retention(**given)
    except InvalidOptionError as error:
        raise click.UsageError(f"{spelled(_RETENTION + error.option)}{str(error).removeprefix(error.option)}") from None


def _explanations() -> dict[str, str]:
    """What the docstrings of the options say of each, on one line."""
    found: dict[str, str] = {}
    for of in (ClientConfig, SchedulerConfig):
        attributes = inspect.cleandoc(of.__doc__ or "").partition("Attributes:\n")[2]
        for name, text in re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", attributes, re.MULTILINE):
            found[name] = re.sub(r"\s+", " ", text).replace("None", "none")
    return found
