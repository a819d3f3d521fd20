"""The loggers of the library, and a filter that makes foreign text in their records safe."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Final, cast

from .foreign_errors import is_group, is_safe, traceback_within
from .interruptions import is_interruption
from .safe_text import LONGEST_TEXT, name_of, one_line, shown, text_of, without_secrets

_LOOKED_AT: Final = 4 * LONGEST_TEXT
"""Characters of a text that are searched for secrets: more than are shown, so that no secret is cut in two."""


def logger_of(part: str = "") -> logging.Logger:
    """The logger of a part of the library: `trio_monque.<part>`, or `trio_monque`."""
    logger = logging.getLogger(f"trio_monque.{part}" if part else "trio_monque")
    logger.addFilter(_make_fit)  # A second addition has no effect.
    # For this instance, and not by a class: the program may have made the logger before this import.
    vars(logger)["handle"] = partial(_handle, logger)
    return logger


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    """Handle a record; contain errors of filters and handlers. Such an error would end the loop that writes the line.

    `logging` leaves it to each handler to contain its errors, and those of filters reach the caller.
    """
    try:
        logging.Logger.handle(logger, record)
    except BaseException as error:
        if is_interruption(error):
            raise
        _LAST_RESORT.handleError(record)


_LAST_RESORT: Final = logging.Handler()
"""Prints an error of logging to standard error, if `logging.raiseExceptions` is set."""


class OwnLines(str):
    """Several lines that this library made itself, such as stack frames: records keep their line breaks."""

    __slots__ = ()


def fit(text: str) -> str:
    """A foreign text, made safe for a log record."""
    return one_line(without_secrets(text[:_LOOKED_AT]))


def _make_fit(record: logging.LogRecord) -> bool:
    """A filter of the loggers, so that no call can forget it. The template stays, because services group by it."""
    arguments = record.args
    if issubclass(type(arguments), Mapping):  # `logging` unpacks a single mapping.
        arguments = (arguments,)
    record.args = tuple(one if issubclass(type(one), int | float | OwnLines) else _Fit(one) for one in arguments or ())
    if record.exc_info and record.exc_info[1] is not None:
        error = loggable(record.exc_info[1])
        record.exc_info = exc_info_of(error)
    return True


class _Fit:
    """An argument of a record, for `%s` and for `%r`."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        try:
            return fit(str(self._value))
        except BaseException:  # noqa: BLE001  # An error whose message raises, for example. Logging must not raise too.
            return f"<{name_of(self._value)} that cannot be shown>"

    def __repr__(self) -> str:
        return shown(self._value, LONGEST_TEXT)


ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def exc_info_of(error: BaseException) -> ExcInfo:
    """The `exc_info` of a log record for an error of a user: `logging` asks an error itself for its truth value."""
    return type(error), error, traceback_within(error)


class UnprintableError(Exception):
    """Replaces an exception in a log record if its own text cannot be shown, or is too long. Keeps its traceback."""


def loggable(error: BaseException, longest: int = 10_000) -> BaseException:
    """The error for `exc_info` of a log record, or an UnprintableError with its traceback.

    `logging` formats the error, its causes and its group. If that raises, `logging` prints the new error, whose context
    is the first error again. Then the call of the logger itself raises, and would end the loop that made it.
    """
    if all(is_safe(one) and _is_printable(one, longest) for one in _with_causes(error)):
        return error
    stand_in = UnprintableError(text_of(error, longest))
    return stand_in.with_traceback(traceback_within(error))


def _is_printable(error: BaseException, longest: int) -> bool:
    try:
        bool(error)  # As `traceback` does.
        notes = getattr(error, "__notes__", None) or []
        if type(notes) is not list:
            return False
        texts = [str(error), *notes]
        if not (all(type(text) is str for text in texts) and sum(map(len, texts)) <= longest):
            return False
        for text in texts:
            text.encode()  # With a lone surrogate, a handler that writes to a file would raise.
        return True
    except BaseException:  # noqa: BLE001  # The class of the error may raise anything.
        return False


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        # Read after the caller has found that its class is safe.
        left += [one.__cause__, one.__context__]
        if is_group(one):
            left += cast("BaseExceptionGroup[BaseException]", one).exceptions
