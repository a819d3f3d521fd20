"""The text of an exception, whatever the author of its class did.

`str(error)` runs code of that author. It may raise anything, return no string, return a subclass of `str` whose own
methods raise, or return 100 MB. The loops that write the ends of jobs ask for that text, and must survive it.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Final

from .safe_text import without_secrets

_LOOKED_AT: Final = 4
"""Secrets are looked for in a text of this many times the length that is kept."""

NO_MESSAGE: Final = "(its message cannot be shown)"


def name_of(error: BaseException) -> str:
    """The name of its class."""
    try:
        return plain(type(error).__name__, 200)
    except BaseException:  # noqa: BLE001  # A metaclass may do whatever it likes, too.
        return "an exception"


def message_of(error: BaseException, longest: int) -> str:
    """Its message, cut to `longest` characters, as BSON can hold it."""
    try:
        return plain(without_secrets(plain(str(error), _LOOKED_AT * longest)), longest)
    except BaseException:  # noqa: BLE001  # Not an interrupt of ours: Ctrl-C is held back wherever this is called.
        return NO_MESSAGE


def text_of(error: BaseException, longest: int = 2000) -> str:
    """Its name and its message."""
    message = message_of(error, longest)
    return f"{name_of(error)}: {message}" if message else name_of(error)


def traceback_of(error: BaseException, longest: int) -> str:
    """Its traceback with its causes, as BSON can hold it.

    Each line is cut before they are joined: a long message must not push the frames out. Of what is too long then, the
    end is kept: it says where the error happened.
    """
    try:
        lines = traceback.TracebackException.from_exception(error).format()
        # Secrets first: of a connection string that was cut, no password would be known as one.
        text = "".join(_cut(without_secrets(_cut(line, _LOOKED_AT * longest)), longest // 2) for line in lines)
    except BaseException:  # noqa: BLE001  # The same.
        return ""
    return plain(text[-longest:], longest)


def _cut(line: str, longest: int) -> str:
    exact = str.__getitem__(line, slice(0, longest + 1))
    return exact if len(exact) <= longest else exact[: longest - 2] + "…\n"


def plain(text: str, longest: int) -> str:
    """As BSON can hold it: an exact string, no longer than that, without lone surrogates.

    Cut first: encoding 100 MB would block the event loop. One surrogate would spoil the batch that it is written in.
    """
    exact = str.__getitem__(text, slice(0, longest + 1))  # Never a subclass, whose methods are not to be called.
    exact = exact.encode("utf-8", "backslashreplace").decode()
    return exact if len(exact) <= longest else exact[: longest - 1] + "…"


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
