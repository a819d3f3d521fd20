"""Virtual time that stands still for ever is a test that hangs: this raises instead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import trio

from ..clock import is_run_virtual
from ..threads import do_threads_take_turns

STALLED_AFTER: Final = 30.0
"""Real seconds. Whatever happens at one instant is over by then, unless it never is."""

LOOK_INTERVAL: Final = 0.5


@contextmanager
def telling_stalls(purpose: str) -> Iterator[None]:
    """Raises AssertionError where no virtual time passes for `STALLED_AFTER` real seconds inside."""
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
            f"virtual time has stood still for {STALLED_AFTER:g} s while it was to {purpose}. Handlers that enqueue "
            "at once and for ever do that, a database that fails or does not answer, and a thread that waits for "
            "the test, or for a time limit of its own"
        )


@contextmanager
def _calling(look: Callable[[], None]) -> Iterator[None]:
    """Calls it in the loop every half second, also while nothing happens there.

    Where threads take turns, after each step of a task instead: a call from outside would disturb the order,
    and nothing takes long there that is no step.
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
