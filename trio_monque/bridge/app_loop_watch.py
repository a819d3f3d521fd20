"""Whether the application loop goes on. The runtime asks it, from another thread, so that it can name what blocks it.

A blocked application loop loses no lease by itself: the runtime renews. But a handler that would be started meanwhile
only waits, so nothing more should be claimed for it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Final, NoReturn

import trio

from ..engine.loop_blocks import BLOCKED_AFTER, formatted, outwards
from ..engine.run import BlockName, Run
from ..log import logger_of
from .app_loop import AppLoop

logger = logger_of("bridge")

LOOK_INTERVAL: Final = 0.25
PAUSED_AFTER: Final = 0.5
"""Seconds without an answer after which nothing more should be started in the loop."""


class AppLoopWatch:
    """Looks at the application loop four times a second, by the clock of the runtime. Made in the runtime.

    Args:
        app_loop: The loop.
        post: Calls a function in the runtime, if that has not ended.
        ring: Wakes the runtime. Messages may wait for a wake-up that does not come: the loop is blocked in the turn
            that gave them, or a Ctrl-C hit that turn.
        lost: Called once in the runtime if the loop is closed or never runs again.
    """

    def __init__(
        self,
        app_loop: AppLoop,
        post: Callable[[Callable[[], None]], None],
        ring: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self._app_loop = app_loop
        self._post = post
        self._ring = ring
        self._lost = lost
        # Not trio.current_time(), which refuses to answer on the thread of the application loop.
        self._now = trio.lowlevel.current_clock().current_time
        self._asked_at = self._answered_at = 0.0
        self._logged_at = 0.0

    async def run(self) -> NoReturn:
        """Watch until cancelled."""
        looked_at = self._now()
        while True:
            await trio.sleep(LOOK_INTERVAL)
            before, looked_at = looked_at, self._now()
            self._ring()
            if self._never_goes_on():
                self._lost()
                await trio.sleep_forever()
            if self._answered_at >= self._asked_at:
                self._note_answer()
                self._asked_at = looked_at
                self._app_loop.post(self._answer)
            elif looked_at - before < LOOK_INTERVAL + PAUSED_AFTER / 2:  # Else this thread stood still too.
                self._note_silence(looked_at - self._asked_at)
            # At each look: a Ctrl-C may take the delivery with the question, too, and then nothing would be answered.
            self._app_loop.ring()

    def _never_goes_on(self) -> bool:
        loop = self._app_loop.loop
        if loop.is_closed():
            return True
        # At the end of the program, Python waits for this thread. A stopped loop can go on until then, not after.
        return not threading.main_thread().is_alive() and not loop.is_running()

    def _answer(self) -> None:
        """In the application loop."""
        self._answered_at = self._now()
        if not self._app_loop.is_answering:
            self._post(self._note_answer)  # Not only at the next look: handlers wait.

    def _note_answer(self) -> None:
        app_loop = self._app_loop
        app_loop.lag = max(0.0, self._answered_at - self._asked_at)
        logged_at, self._logged_at = self._logged_at, 0.0
        if logged_at > 0.0:
            app_loop.blocks.goes_on(None, app_loop.lag)
            logger.warning("the event loop of the application was blocked for %.1f s", app_loop.lag)
        if not app_loop.is_answering:
            app_loop.recovered()

    def _note_silence(self, lag: float) -> None:
        self._app_loop.lag = lag
        if lag >= PAUSED_AFTER:
            self._app_loop.is_answering = False
        if lag < BLOCKED_AFTER:
            return
        logged_lag = self._logged_at - self._asked_at if self._logged_at > 0.0 else 0.0
        if lag < 2 * logged_lag:
            return  # It is logged after one second, two, four and so on.
        is_new = self._logged_at == 0.0
        self._logged_at = self._now()
        label = self._app_loop.label_of_current()
        blocks = self._app_loop.blocks
        (blocks.begun if is_new else blocks.goes_on)(label.group if isinstance(label, Run | BlockName) else None, lag)
        self._log(lag, label)

    def _log(self, lag: float, label: object | None) -> None:
        # Documented for debuggers; this is one.
        frame = sys._current_frames().get(self._app_loop.thread_id)  # noqa: SLF001
        logger.error(
            "the event loop of the application is blocked for %.1f s by %s. Claims are renewed meanwhile, and nothing "
            "more is claimed for it:\n%s",
            lag,
            "something outside of the handlers" if label is None else label,
            formatted(tuple(outwards(frame))),
        )
