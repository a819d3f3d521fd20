"""Pauses that take real time, also in virtual time: after a fault of the real world."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import trio

from .clock import is_run_virtual
from .threads_and_frozen_time import clock_freeze


@contextmanager
def real_timeout(seconds: float) -> Iterator[None]:
    """End the body after `seconds` real seconds, in which virtual time stands still.

    For pauses after a fault of the real world: otherwise an outage of a third of a second would use up a virtual hour
    of retries.
    """
    if not is_run_virtual():
        with trio.move_on_after(seconds):
            yield
        return
    freeze = clock_freeze()
    token = trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope:

        def ring() -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(partial(scope.cancel, reason="the real time is over"))

        timer = threading.Timer(seconds, ring)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:  # No thread can be started. Virtual time passes instead, so that the pause ends.
            scope.deadline = trio.current_time() + seconds
            yield
            return
        freeze.freeze()  # Only with the timer: without it, the clock could never be released.
        try:
            yield
        finally:
            freeze.thaw()
            timer.cancel()


async def real_pause(seconds: float) -> None:
    """Sleep for `seconds` real seconds; see `real_timeout`."""
    with real_timeout(seconds):
        await trio.Event().wait()
