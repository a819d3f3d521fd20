"""What a handler raised, without what is no end of its own. Pure."""

from __future__ import annotations

from contextlib import suppress

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
