"""Checks of options and of the arguments of calls, and of functions that users pass as handlers. Pure.

Each `check_...` raises InvalidOptionError with the name of the option or argument and what it must be.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import partial
from typing import Any, Final

from .error_types import InvalidOptionError

if sys.version_info >= (3, 14):
    from annotationlib import Format

LARGEST_NUMBER = 3.2e9
"""The upper limit of every option: a hundred years in seconds, so that no sum of dates overflows."""

# MongoDB allows 255 bytes for database and collection together.
LONGEST_COLLECTION_NAME = 180


def check_number(
    option: str,
    value: object,
    *,
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    infinite: bool = False,
) -> None:
    """Checks that `value` is a number within these bounds; `infinite` allows infinity in spite of `LARGEST_NUMBER`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # NaN
        instead = " of seconds: write .total_seconds()" if isinstance(value, timedelta) else ""
        raise InvalidOptionError(option, value, f"must be a number{instead}")
    if abs(value) > LARGEST_NUMBER and not (infinite and value == math.inf):
        raise InvalidOptionError(option, value, f"must be finite, and at most {LARGEST_NUMBER:g}")
    if above is not None and value <= above:
        raise InvalidOptionError(option, value, f"must be greater than {above:g}")
    if at_least is not None and value < at_least:
        raise InvalidOptionError(option, value, f"must be at least {at_least:g}")
    if at_most is not None and value > at_most:
        raise InvalidOptionError(option, value, f"must be at most {at_most:g}")


def check_count(option: str, value: object, *, at_least: int, at_most: int | None = None) -> None:
    """Checks that `value` is a whole number within these bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOptionError(option, value, "must be a whole number")
    check_number(option, value, at_least=at_least, at_most=at_most)


def check_whole(option: str, value: object, *, least: int, most: int) -> None:
    """Checks that `value` is a whole number in this range, both ends included."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidOptionError(option, value, f"must be a whole number from {least} to {most}")


def check_seconds(option: str, value: object, *, zero: bool = False) -> None:
    """Checks that a duration in seconds is finite and positive; `zero` allows 0."""
    if zero:
        check_number(option, value, at_least=0)
    else:
        check_number(option, value, above=0)


def checked_seconds(option: str, value: float | timedelta) -> float:
    """Returns a duration of zero or more in seconds; a timedelta is accepted, too."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    check_seconds(option, value, zero=True)
    return value


# BSON dates reach further, Python's datetimes do not. What is stored leaves room for the sums that are made of it.
_LATEST: Final = datetime(9999, 1, 1, tzinfo=UTC)
LAST_MOMENT: Final = datetime.max.replace(tzinfo=UTC)


def checked_moment(option: str, moment: object, latest: datetime = _LATEST) -> datetime:
    """Returns the moment as it can be stored: UTC, in whole milliseconds. A naive datetime is refused."""
    if not isinstance(moment, datetime):
        problem = "must be a datetime with a time zone, for example datetime.now(UTC) + timedelta(hours=1)"
        raise InvalidOptionError(option, moment, problem)
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidOptionError(option, moment, "must be timezone-aware, for example datetime.now(UTC)")
    if moment > latest:
        raise InvalidOptionError(option, moment, f"lies beyond the year {9998 if latest == _LATEST else 9999}")
    try:
        moment = moment.astimezone(UTC)
    except OverflowError as error:
        raise InvalidOptionError(option, moment, "lies before the year 1") from error
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


# What other libraries call an option, where the closest name of ours by spelling is missing or is a different option.
_ALSO_CALLED = {
    "attempts": "max_attempts",
    "countdown": "delay",
    "eta": "run_at",
    "instance_concurrency": "concurrency",
    "job_retention": "retention",
    "max_retries": "max_attempts",
    "pace": "rate_limit",
    "retries": "max_attempts",
    "run_in": "delay",
    "scheduler_instance_id": "instance_id",
    "throttle": "rate_limit",
    "when": "run_at",
    "worker_concurrency": "concurrency_per_name",
}


def check_known(given: Mapping[str, object], known: Collection[str], whose: str) -> None:
    """Checks that every option is known. `whose` names the owner of the options in the message."""
    for name in given:
        if name not in known:
            near = [_ALSO_CALLED[name]] if _ALSO_CALLED.get(name) in known else get_close_matches(name, known, 1)
            meant = f": did you mean {near[0]!r}?" if near else "."
            raise InvalidOptionError(
                name, given[name], f"is not an option of {whose}{meant} Options: {', '.join(sorted(known))}"
            )


def check_flag(option: str, value: object) -> None:
    """Checks that `value` is a bool."""
    if not isinstance(value, bool):
        raise InvalidOptionError(option, value, "must be True or False")


def check_redaction(value: object) -> None:
    """Checks that `value` is a plain function or None: it is called where no await is possible."""
    if value is not None and (not callable(value) or is_async(value)):
        raise InvalidOptionError("redact_errors", value, "must be None, or a plain function from str to str")


_COLLECTION_NAME = re.compile(r"(?!system\.)[^.$\0\ud800-\udfff]+(\.[^.$\0\ud800-\udfff]+)*")


def check_collection_name(value: object) -> None:
    """Checks that MongoDB allows the name, and that names derived from it fit too."""
    if not isinstance(value, str) or not _COLLECTION_NAME.fullmatch(value):
        raise InvalidOptionError(
            "collection_name",
            value,
            "must be a name that MongoDB allows: not empty, without '$', not under 'system.', with dots only inside",
        )
    if len(value.encode()) > LONGEST_COLLECTION_NAME:
        raise InvalidOptionError("collection_name", value, f"must have at most {LONGEST_COLLECTION_NAME} bytes")


# Ids of other documents in the collection that has the entries of instances.
_RESERVED_IDS = ("pause:", "leaving:", "lock:")


def check_instance_id(value: object) -> None:
    """Checks that an instance id is readable in logs, and not the id of another document in the same collection."""
    if not isinstance(value, str) or not 1 <= len(value) <= 255 or not value.isprintable() or value != value.strip():
        raise InvalidOptionError(
            "instance_id", value, "must be 1 to 255 printable characters without leading or trailing spaces"
        )
    if value.startswith(_RESERVED_IDS):
        raise InvalidOptionError("instance_id", value, f"must not begin with {' or '.join(_RESERVED_IDS)}")


def check_write_concern(value: object) -> None:
    """Checks for the name of a write concern ("majority" or a tag set), or a number of members from 1."""
    if isinstance(value, str) and value and value == value.strip():
        return
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return
    raise InvalidOptionError(
        "write_concern",
        value,
        'must be "majority" (or a number of members from 1, which voids guarantees 1 to 4)',
    )


# --- What can be called ---


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call returns an awaitable. Looks through partials, methods and callable objects."""
    while isinstance(function, partial):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return True
    return inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # Not whether it is callable, but how.


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function of the user, for a look at its parameters.

    From Python 3.14 on, annotations are evaluated when they are read. One may use a name that is imported for type
    checkers only, or defined further down. Such a function can be called, so it has a signature here.

    Raises:
        TypeError, ValueError: It has none, as some functions that are written in C.
    """
    if sys.version_info >= (3, 14):
        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def problem_of_handler(handler: Any, argument: str) -> str | None:
    """Why a handler cannot be called with one argument, the job or the claim; None if it can, or if that is unknown."""
    if inspect.iscoroutine(handler):
        handler.close()  # Otherwise Python would also warn that it was never awaited.
        name = handler.__name__
        return f"its handler was already called: register the function itself, {name} and not {name}()"
    if not callable(handler):
        return f"its handler {handler!r} is not callable"
    if inspect.isclass(handler):
        return f"its handler is the class {handler.__name__}: register a function, or a method of an instance"
    if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
        return "its handler is a generator: a handler must return, not yield"
    try:
        signature = signature_of(handler)
    except (TypeError, ValueError):  # Some functions that are written in C have no signature.
        return None
    try:
        signature.bind(None)
    except TypeError:
        needs, advice = _needs(signature), _advice(signature)
        return f"its handler takes {needs}, but is called with one argument, the {argument}: {advice}"
    return None


def _needs(signature: inspect.Signature) -> str:
    needed = [name for name, one in signature.parameters.items() if one.default is one.empty and one.kind not in _REST]
    return f"{len(needed)} argument{'s' * (len(needed) > 1)} ({', '.join(needed)})" if needed else "no argument"


def _advice(signature: inspect.Signature) -> str:
    first = next(iter(signature.parameters), "")
    if first in ("self", "cls"):
        return "register the method of an instance"
    return "bind the others with functools.partial, or use resources=" if first else "add it, even if it is unused"


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
