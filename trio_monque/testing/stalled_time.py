"""Raises an error instead of letting a test hang when its virtual time stands still."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import trio

from ..clock import is_run_virtual
from ..thread_turns import do_threads_take_turns

STALLED_AFTER: Final = 30.0
"""Real seconds. All that happens at one instant is normally over by then."""

LOOK_INTERVAL: Final = 0.5


@contextmanager
def raising_on_stall(purpose: str) -> Iterator[None]:
    """Raise AssertionError if no virtual time passes for `STALLED_AFTER` real seconds inside."""
    if not is_run_virtual():
        yield
        return
    clock = trio.lowlevel.current_clock()
    moment, since = clock.current_time(), time.monotonic()
    with trio.CancelScope() as scope:

        def look() -> None:
            nonlocal moment, since
            if clock.current_time() != moment:
                moment, since = clock.current_time(), time.monotonic()
            elif time.monotonic() - since > STALLED_AFTER:
                scope.cancel(reason="virtual time stands still")

        with _calling(look):
            yield
    if scope.cancelled_caught:
        raise AssertionError(
            f"virtual time has stood still for {STALLED_AFTER:g} s while it was to {purpose}. Usual causes: handlers "
            "that enqueue due jobs without end, a database that fails or does not answer, or a thread that waits "
            "for the test or for its own time limit"
        )


@contextmanager
def _calling(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` in the loop every half second, also while nothing happens there.

    If threads take turns, it is called after each step of a task instead: a call from outside would disturb
    the order, and only steps take time there.
    """
    if do_threads_take_turns():
        instrument = _AfterEachStep(look)
        trio.lowlevel.add_instrument(instrument)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(instrument)
        return
    token, ended = trio.lowlevel.current_trio_token(), threading.Event()

    def watch() -> None:
        with suppress(trio.RunFinishedError):
            while not ended.wait(LOOK_INTERVAL):
                token.run_sync_soon(look, idempotent=True)

    threading.Thread(target=watch, name="trio_monque stalls", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


class _AfterEachStep(trio.abc.Instrument):
    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._function()
