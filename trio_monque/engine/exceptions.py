"""Exceptions on their way out of a run, or of the engine. Pure.

A handler may let out the Cancelled of a scope of its own, alone or in a group, and a Ctrl-C inside a group: neither is
the end that its author meant. And nested nurseries wrap one error in several groups, which no caller expects.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NoReturn

import trio


class LeakedCancellationError(RuntimeError):
    """A handler raised the Cancelled of one of its own scopes outside of that scope."""


def without_cancellations(error: BaseException) -> BaseException:
    """What a handler raised, without the cancellations of its own that it let out: those end nothing of ours."""
    rest: BaseException | None = error
    if isinstance(error, BaseExceptionGroup):
        with suppress(Exception):  # Nested too deep for Python, or a group of its author's own: taken as it is.
            rest = error.split(trio.Cancelled)[1]
    if rest is None or isinstance(rest, trio.Cancelled):
        leaked = LeakedCancellationError("the handler raised trio.Cancelled outside of the scope that it belongs to")
        leaked.__cause__ = error
        return leaked
    return rest


def interrupt_in(error: BaseException | None) -> BaseException | None:
    """The Ctrl-C that a handler, or a task of its own nursery, was hit by."""
    found = error
    if isinstance(error, BaseExceptionGroup):
        with suppress(Exception):
            found = error.subgroup(KeyboardInterrupt)
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
    return found if isinstance(found, KeyboardInterrupt) else None


def unwrapped(group: BaseExceptionGroup[Any], *, around_a_group: bool = False) -> BaseException:
    """A group of one is that one: nested nurseries wrap a single error in several groups.

    With `around_a_group` the error is a group itself: only the outermost layer is taken off.
    """
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
        if around_a_group:
            break
    return error


def raise_unwrapped(group: BaseExceptionGroup[Any], *, around_a_group: bool = False) -> NoReturn:
    """Raises it with the cause and context that it has: `from None` would erase the cause that its author gave it."""
    error = unwrapped(group, around_a_group=around_a_group)
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context
