"""Virtual time that stands still for ever is a test that hangs: it is told instead."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import trio

from ..clock import is_run_virtual

STALLED_AFTER: Final = 30.0
"""Real seconds. Whatever happens at one instant is over by then, unless it never is."""

_LOOK_INTERVAL: Final = 0.5


@contextmanager
def telling_stalls(purpose: str) -> Iterator[None]:
    """Raises AssertionError where no virtual time passes for `STALLED_AFTER` real seconds inside."""
    if not is_run_virtual():
        yield
        return
    clock, token = trio.lowlevel.current_clock(), trio.lowlevel.current_trio_token()
    ended = threading.Event()
    moment, since = clock.current_time(), time.monotonic()
    with trio.CancelScope() as scope:

        def look() -> None:
            nonlocal moment, since
            if clock.current_time() != moment:
                moment, since = clock.current_time(), time.monotonic()
            elif time.monotonic() - since > STALLED_AFTER:
                scope.cancel(reason="virtual time stands still")

        def watch() -> None:
            with suppress(trio.RunFinishedError):
                while not ended.wait(_LOOK_INTERVAL):
                    token.run_sync_soon(look, idempotent=True)

        threading.Thread(target=watch, name="trio_monque stalls", daemon=True).start()
        try:
            yield
        finally:
            ended.set()
    if scope.cancelled_caught:
        raise AssertionError(
            f"virtual time has stood still for {STALLED_AFTER:g} s while it was to {purpose}. Handlers that enqueue "
            "at once and for ever do that, a database that fails or does not answer, and a thread that waits for "
            "the test, or for a time limit of its own"
        )
