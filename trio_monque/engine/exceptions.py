"""Exceptions on their way out of a run, or of the engine. Pure.

A handler may leak the `trio.Cancelled` of one of its own scopes, alone or in a group, or raise a Ctrl-C inside a group:
neither is the end that its author meant. And nested nurseries wrap one error in several groups, which callers do not
expect.
"""

from __future__ import annotations

from types import FrameType, TracebackType
from typing import Any, Final, NoReturn

import trio

from ..foreign_errors import is_a, is_safe, leaves_of, unwrapped, without


class LeakedCancellationError(RuntimeError):
    """A handler raised the Cancelled of one of its own scopes outside of that scope."""


def without_cancellations(error: BaseException) -> BaseException:
    """What a handler raised, without each `trio.Cancelled` of its own scopes: these are not a cancellation by us."""
    rest = without(error, trio.Cancelled)
    if rest is None:
        leaked = LeakedCancellationError("the handler raised trio.Cancelled outside of the scope that it belongs to")
        leaked.__cause__ = error
        return leaked
    return rest


def interrupt_in(error: BaseException | None) -> BaseException | None:
    """The Ctrl-C that interrupted a handler, or a task of its own nursery."""
    leaves = () if error is None else leaves_of(error)
    return next((leaf for leaf in leaves if is_a(leaf, KeyboardInterrupt)), None)


def as_raised(error: BaseException) -> BaseException:
    """The StopIteration that a handler raised: Python makes a RuntimeError of it where it leaves a coroutine."""
    if type(error) is RuntimeError and type(error.__cause__) is StopIteration and str(error) == _OF_COROUTINE:
        return error.__cause__
    return error


_OF_COROUTINE: Final = "coroutine raised StopIteration"

_BENEATH: Final = ("trio_monque", "trio", "outcome", "anyio", "asyncio", "threading", "concurrent")
"""Packages whose frames stand between the event loop and a handler."""


def begin_at_handler(error: BaseException) -> BaseException:
    """Let the traceback of what a handler raised begin at its own first frame, and return the error.

    The frames of the engine, of trio and of the bridge before it are the same for every job. The errors in a group,
    causes and contexts are cut too. A traceback without a frame of the user's code stays whole: it shows a fault of
    ours, or of a value that was read before the handler was called.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    try:
        while left:
            one = left.pop()
            if one is None or id(one) in seen or not is_safe(one):
                continue
            seen.add(id(one))
            if (first := _first_of_user(one.__traceback__)) is not None:
                one.__traceback__ = first
            left += [one.__cause__, one.__context__]
            if isinstance(one, BaseExceptionGroup):
                left += one.exceptions
    except BaseException:  # noqa: BLE001  # A property of the author's class may raise anything: it is only less readable.
        return error
    return error


def _first_of_user(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and is_beneath(frames.tb_frame):
        frames = frames.tb_next
    return frames


def is_beneath(frame: FrameType) -> bool:
    """Whether a frame is not one of the user's code, but stands between the event loop and a handler."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _BENEATH


def raise_unwrapped(group: BaseExceptionGroup[Any], *, around_a_group: bool = False) -> NoReturn:
    """Raises the error with its own cause and context: `from None` would erase the cause that its author gave it."""
    error = unwrapped(group, around_a_group=around_a_group)
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context
