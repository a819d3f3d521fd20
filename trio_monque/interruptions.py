"""What must pass where errors of others are contained: Ctrl-C and cancellations."""

from __future__ import annotations

from functools import cache

from .foreign_errors import is_a, leaves_of


def is_interruption(error: BaseException) -> bool:
    """Whether it is a Ctrl-C or a cancellation, alone or in a group.

    Not SystemExit: `sys.exit()` in an exporter or a log handler is an error of that part alone.
    """
    return any(is_a(leaf, _kinds()) for leaf in leaves_of(error))


@cache
def _kinds() -> tuple[type[BaseException], ...]:
    # Imported at the first error: checks use this file, and commands that need no event loop import them.
    import asyncio

    import trio

    return KeyboardInterrupt, trio.Cancelled, asyncio.CancelledError
