"""Groups of one: nested nurseries make them, and nobody who uses trio expects them."""

from __future__ import annotations

from typing import Any, NoReturn


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
