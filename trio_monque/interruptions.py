"""What must pass where errors of others are contained: Ctrl-C and cancellations."""

from __future__ import annotations

from functools import cache


def is_interruption(error: BaseException) -> bool:
    """Whether it is a Ctrl-C or a cancellation, alone or in a group.

    Not SystemExit: `sys.exit()` in an exporter or a log handler is an error of that part alone.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_interruption, error.exceptions))
    return isinstance(error, _kinds())


@cache
def _kinds() -> tuple[type[BaseException], ...]:
    # Imported at the first error: checks use this file, and commands that need no event loop import them.
    import asyncio

    import trio

    return KeyboardInterrupt, trio.Cancelled, asyncio.CancelledError
