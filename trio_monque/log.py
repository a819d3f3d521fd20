"""The library's loggers. Text of others in their records is on one line, bounded, and without secrets."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from .safe_text import LONGEST_TEXT, one_line, shown, text_of, without_secrets

_LOOKED_AT: Final = 4 * LONGEST_TEXT
"""Characters of a text in which secrets are looked for: more than is shown, so that none is cut in two."""


def logger_of(part: str = "") -> logging.Logger:
    """The logger of a part of the library: `trio_monque.<part>`, or `trio_monque`."""
    logger = logging.getLogger(f"trio_monque.{part}" if part else "trio_monque")
    logger.addFilter(_make_fit)  # Adding it twice adds it once.
    return logger


class OwnLines(str):
    """Several lines that this library made itself, such as frames: a record may have them as they are."""

    __slots__ = ()


def fit(text: str) -> str:
    """A text of others as a record may have it."""
    return one_line(without_secrets(text[:_LOOKED_AT]))


def _make_fit(record: logging.LogRecord) -> bool:
    """A filter of the loggers, so that no call can forget it. The template stays: services group records by it."""
    arguments = record.args
    if isinstance(arguments, Mapping):  # A lone one, which `logging` unpacks.
        arguments = (arguments,)
    record.args = tuple(one if isinstance(one, int | float | OwnLines) else _Fit(one) for one in arguments or ())
    if record.exc_info and record.exc_info[1] is not None:
        error = loggable(record.exc_info[1])
        record.exc_info = (type(error), error, error.__traceback__)
    return True


class _Fit:
    """An argument of a record, for `%s` and for `%r`."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        try:
            return fit(str(self._value))
        except BaseException:  # noqa: BLE001  # An error whose message raises, say: its record must not raise as well.
            return f"<{type(self._value).__name__} that cannot be shown>"

    def __repr__(self) -> str:
        return shown(self._value, LONGEST_TEXT)


class UnprintableError(Exception):
    """Stands in a log record for an exception whose own text cannot be shown, or is too long. Has its traceback."""


def loggable(error: BaseException, longest: int = 10_000) -> BaseException:
    """The error, for `exc_info` of a log record; or a stand-in with its traceback.

    `logging` asks for the text of the error, its causes and its group. Where that raises, `logging` prints what was
    raised, and its context is the same error again: then the call of the logger raises, in whichever loop it is.
    """
    if all(_is_printable(one, longest) for one in _with_causes(error)):
        return error
    stand_in = UnprintableError(text_of(error, longest))
    return stand_in.with_traceback(error.__traceback__)


def _is_printable(error: BaseException, longest: int) -> bool:
    try:
        notes = getattr(error, "__notes__", None) or []
        if type(notes) is not list:
            return False
        texts = [str(error), *notes]
        if not (all(type(text) is str for text in texts) and sum(map(len, texts)) <= longest):
            return False
        for text in texts:
            text.encode()  # A lone surrogate would make the handler raise that writes the record to a file.
        return True
    except BaseException:  # noqa: BLE001  # The same.
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
        left += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions
