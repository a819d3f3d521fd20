"""Tracebacks for standard error: of the user's code, without the frames of this command, and without secrets."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Final

from ..safe_text import without_secrets

# Their frames stand between the shell and the user's code.
_BENEATH: Final = ("importlib", "contextlib", "click", "anyio", "trio", "asyncio", "uvloop", "trio_monque.cli")


class UserCodeError(Exception):
    """Raised from an error of the user's code: what the command imports or calls for the user."""


def traceback_for_user(error: BaseException) -> str:
    """Return the traceback from the first frame of the user's code on; the whole one if there is none."""
    if isinstance(error, UserCodeError) and error.__cause__ is not None:
        error = error.__cause__
        first = _first_of_user(error.__traceback__)
    else:
        first = _first_of_user(error.__traceback__) or error.__traceback__
    return without_secrets("".join(traceback.format_exception(type(error), error, first)))


def _first_of_user(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and _is_beneath(frames):
        frames = frames.tb_next
    return frames


def _is_beneath(frame: TracebackType) -> bool:
    module = str(frame.tb_frame.f_globals.get("__name__", ""))
    return any(module == one or module.startswith(f"{one}.") for one in _BENEATH)
