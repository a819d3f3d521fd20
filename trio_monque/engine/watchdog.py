"""Logs what blocks the event loop, threads that outlast their runs, and runs that outlast the hard end.

Nothing here renews a claim. While a handler blocks the event loop, no heartbeat is sent, and after the lease another
instance takes its job. A thread that renewed claims meanwhile would keep jobs whose handlers nothing can stop.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

import trio

from ..clock import MOST_DISAGREEMENT, seconds_suspended
from ..error_types import is_shortage
from ..log import OwnLines, logger_of
from ..loop_time import loop_time
from ..loops import TrioLoop
from .loop_blocks import BLOCKED_AFTER, LoopBlocks, formatted, outwards
from .run import BlockName, Run

logger = logger_of("engine")

LOOK_INTERVAL: Final = 0.25


class Watchdog:
    """A thread that asks the event loop for a sign of life, and logs what blocks the loop if none comes.

    It also notices that the machine was suspended: trio's timers stand still meanwhile.

    Args:
        running: The runs whose handlers have not ended.
        is_leaving: Whether the end was asked for.
        resumed: Called on the event loop after a suspension.

    Attributes:
        blocks: When the loop was blocked for longer than a second.
    """

    def __init__(
        self,
        running: Callable[[], Sequence[Run[Any]]],
        is_leaving: Callable[[], bool],
        resumed: Callable[[], None] = lambda: None,
    ) -> None:
        self.blocks = LoopBlocks()
        self._resumed = resumed
        self._running = running
        self._is_leaving = is_leaving
        self._ended = threading.Event()
        self._asked_at = self._answered_at = 0.0
        self._logged_threads: set[Run[Any]] = set()
        self._looked_at_threads = 0.0

    @property
    def lag(self) -> float | None:
        """Seconds for which the loop has not answered, or took to answer last; None without a watchdog."""
        # Read before the answer: a question that is asked between the two reads would look unanswered.
        asked_at = self._asked_at
        if asked_at == 0.0 or self._ended.is_set():
            return None
        answered_at = self._answered_at
        return answered_at - asked_at if answered_at >= asked_at else time.monotonic() - asked_at

    async def run(self) -> None:
        """Watches the loop that it is called in, until cancelled."""
        loop = TrioLoop()
        try:
            while not self._has_started(loop):  # noqa: ASYNC110  # There is no event for it.
                await trio.sleep(BLOCKED_AFTER)
            await trio.sleep_forever()
        finally:
            # Not joined: a log handler that waits for this loop would deadlock. Without one, the thread ends at once.
            self._ended.set()

    def _has_started(self, loop: TrioLoop) -> bool:
        thread = threading.Thread(
            target=self._watch, args=(loop, threading.get_ident()), name="trio_monque watchdog", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            if not is_shortage(error):
                raise
            logger.warning("could not start the watchdog of the event loop: %s; retrying", error)
            return False
        return True

    def _answer(self) -> None:
        self._answered_at = time.monotonic()

    def _watch(self, loop: TrioLoop, ident: int) -> None:
        looked_at = time.monotonic()
        asked_at = logged_at = self._answered_at = 0.0
        slept = seconds_suspended()
        while not self._ended.wait(LOOK_INTERVAL):
            now = time.monotonic()
            self._log_overdue_threads(now)
            before, slept = slept, seconds_suspended()
            if slept - before > MOST_DISAGREEMENT:
                self._log_resumed(loop, slept - before)
            stood_still = now - looked_at > LOOK_INTERVAL + BLOCKED_AFTER / 2
            looked_at = now
            if self._answered_at >= asked_at:
                self._log_answer(self._answered_at - asked_at, was_logged=logged_at > 0.0)
                logged_at, asked_at = 0.0, now
                self._asked_at = asked_at
                # Idempotent: on a loop that does not answer, such calls would pile up.
                loop.post(self._answer, idempotent=True)
            elif stood_still:
                continue  # This thread stood still too: the answer may be on its way.
            elif now - asked_at >= BLOCKED_AFTER and self._is_worth_logging(now, asked_at, logged_at):
                is_new, logged_at = logged_at == 0.0, now
                # Documented for debuggers; this is one.
                self._note_block(sys._current_frames().get(ident), now - asked_at, is_new=is_new)  # noqa: SLF001

    def _log_overdue_threads(self, now: float) -> None:
        """Log once each plain handler that goes on after its run was cancelled. Only it knows what it waits for."""
        if now - self._looked_at_threads < 1.0:  # There may be thousands of runs.
            return
        self._looked_at_threads = now
        overdue = {run for run in self._running() if run.is_overdue_in_thread}
        # As above.
        frames = sys._current_frames() if overdue - self._logged_threads else {}  # noqa: SLF001
        for run in overdue - self._logged_threads:
            frame = None if run.thread is None else frames.get(run.thread)
            logger.warning(
                "the thread of %s is still running although its run was cancelled (%s), and occupies a slot:\n%s",
                run.claim,
                run.reason,
                formatted(tuple(outwards(frame))),
            )
        self._logged_threads = overdue

    def _log_resumed(self, loop: TrioLoop, seconds: float) -> None:
        logger.warning(
            "the machine was suspended for %.1f s; no claim was renewed meanwhile, and overdue jobs start now",
            seconds,
        )
        loop.post(self._resumed)

    def _log_answer(self, seconds: float, *, was_logged: bool) -> None:
        if was_logged:
            self.blocks.goes_on(None, seconds)
            logger.warning("the event loop was blocked for %.1f s", seconds)
        elif seconds >= BLOCKED_AFTER:
            self.blocks.begun(None, seconds)
            logger.error(
                "the event loop stood still for %.1f s, and no claim was renewed meanwhile: something held the whole "
                "interpreter, or the process was frozen",
                seconds,
            )

    def _is_worth_logging(self, now: float, asked_at: float, logged_at: float) -> bool:
        """After one second, two, four and so on; during the shutdown, each second."""
        if logged_at == 0.0:
            return True
        if self._is_leaving():
            return now - logged_at >= BLOCKED_AFTER
        return now - asked_at >= 2 * (logged_at - asked_at)

    def _note_block(self, frame: FrameType | None, seconds: float, *, is_new: bool) -> None:
        stack = tuple(outwards(frame))
        culprit = _culprit_in(stack, self._running())
        (self.blocks.begun if is_new else self.blocks.goes_on)(None if culprit is None else culprit.group, seconds)
        logger.error(
            "the event loop is blocked for %.1f s, and no claim is renewed meanwhile, by %s:\n%s",
            seconds,
            "something outside of the handlers" if culprit is None else culprit,
            formatted(stack),
        )


def _culprit_in(stack: Sequence[FrameType], running: Sequence[Run[Any]]) -> Run[Any] | BlockName | None:
    """The run whose handler is on this stack, or the block. Below it is trio's loop, whose frame has the current task.

    A task that has entered a block may have other children, in nurseries around the block: they are not the block's.
    """
    tasks = {run.task: run for run in running}
    blocks = [(block, run.group) for run in running for block in run.blocks]
    for frame in stack:
        task = frame.f_locals.get("task") if frame.f_code.co_name == "unrolled_run" else None
        nursery: trio.Nursery | None = None
        while isinstance(task, trio.lowlevel.Task):
            if task in tasks:
                return tasks[task]
            for block, group in blocks:
                if block.task is task and block.includes(nursery):
                    return BlockName(block.claim, group)
            nursery = task.parent_nursery
            task = None if nursery is None else nursery.parent_task
    return None


async def log_unending_runs(
    running: Callable[[], Sequence[Run[Any]]], frames_of: Callable[[trio.lowlevel.Task], str]
) -> None:
    """Logs each second the runs that have not ended, until cancelled.

    Such a handler swallows its cancellation. trio cannot leave a task behind, so the shutdown waits for it, and only
    the end of the process ends it. In virtual time the pauses grow, as seconds may pass there without an end.
    """
    pause = 1.0
    while True:
        for run in running():
            if run.task is not None:
                logger.error(
                    "shutdown is waiting for the handler of %s, which swallows its cancellation:\n%s",
                    run.claim,
                    OwnLines(frames_of(run.task)),
                )
        await trio.sleep(pause)
        if loop_time().is_event_driven:
            pause *= 2
