"""The log of a command on standard error: its options, and its two formats."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Final, ParamSpec, TypeVar

import click

from ..safe_text import shown, without_secrets

P = ParamSpec("P")
R = TypeVar("R")

_LEVELS: Final = ("debug", "info", "warning", "error")

# The attributes of every record. A caller has passed all others by `extra`.
_OF_EVERY_RECORD: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


def log_options(function: Callable[P, R]) -> Callable[P, R]:
    """Add the options to a command. They take effect before it runs."""

    @click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        help="The format of the log on standard error.",
    )
    @click.option("--log-level", type=click.Choice(_LEVELS), default="info", help="Log this level and above.")
    @wraps(function)
    def command(*args: P.args, **options: P.kwargs) -> R:
        chosen, level = options.pop("log_format"), str(options.pop("log_level")).upper()
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter() if chosen == "json" else TextFormatter())
        logging.basicConfig(handlers=[handler], level=level, force=True)
        # Otherwise Python prints them, as lines that are not JSON.
        logging.captureWarnings(chosen == "json")
        # The driver logs whole commands at DEBUG, with the payloads of jobs.
        logging.getLogger("pymongo").setLevel(logging.INFO)
        # watchfiles logs how many files have changed; `run --reload` names one.
        logging.getLogger("watchfiles").setLevel(logging.WARNING)
        return function(*args, **options)

    return command


class TextFormatter(logging.Formatter):
    """Lines for people. Passwords of connection strings are hidden, also in records of other libraries."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the fields of `extra`, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(_message(record)),
        }
        for name, value in vars(record).items():
            if name not in _OF_EVERY_RECORD:
                line.setdefault(name, _plain(value))
        if record.exc_info:
            line["traceback"] = without_secrets(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = without_secrets(record.stack_info)
        return json.dumps(line, allow_nan=False)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001  # Arguments that do not fit, or whose `__str__` raises.
        # logging itself would print a traceback of many lines, which are not JSON.
        return f"{record.msg} (its arguments cannot be shown: {shown(record.args)})"


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    try:
        return without_secrets(str(value))
    except Exception:  # noqa: BLE001  # The code of another library.
        return shown(value)
