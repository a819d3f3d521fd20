"""Whether an engine makes progress, and if not, why.

Each loop writes its own `Progress`; this file only reads them, from any thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import trio

from ..safe_text import text_of
from .guard import Stop
from .loop_blocks import BLOCKED_AFTER
from .progress import NEVER, LoopFault, Progress
from .run import Run
from .runner import Runner
from .watchdog import Watchdog

MOST_CRASHES: Final = 3
"""In one list of reasons."""


@dataclass(frozen=True, slots=True)
class LoopExamined:
    """One loop at the moment of the examination. Moments are on trio's clock; minus infinity for never."""

    name: str
    complaint: str | None
    progressed_at: float
    fault: LoopFault | None
    lag: float


@dataclass(frozen=True, slots=True)
class Examined:
    """An engine at one moment.

    Attributes:
        now: That moment, on trio's clock.
        reasons: Why it is unhealthy; none where it is healthy.
        loops: Those that have begun, in the order of their beginning.
        event_loop_lag: Seconds; None without a watchdog.
        answered_at: When the source last answered any of the loops.
        overdue_threads: How many cancelled runs hold their slots because their threads go on.
        handler_loop_lag: The same as `event_loop_lag` for the loop of the handlers; None if that is the engine's.
    """

    now: float
    reasons: tuple[str, ...]
    loops: tuple[LoopExamined, ...]
    is_draining: bool
    event_loop_lag: float | None
    answered_at: float
    handler_loop_lag: float | None = None
    overdue_threads: int = 0


@dataclass(frozen=True, slots=True)
class _Watched:
    progress: Progress
    stuck_after: float
    other_complaint: Callable[[float], str | None] | None


class Vitals:
    """Examines an engine. The engine writes it on the thread of its run; any thread may read it.

    Args:
        stuck_after: Seconds that a loop may be late; see `Progress`.

    Attributes:
        hard_end: The hard end, on trio's clock; infinity before a cut.
    """

    def __init__(self, stop: Stop, runner: Runner[Any, Any], watchdog: Watchdog, stuck_after: float) -> None:
        self.hard_end = math.inf
        self._stop = stop
        self._runner = runner
        self._watchdog = watchdog
        self._stuck_after = stuck_after
        self._watched: dict[str, _Watched] = {}
        self._clock: trio.abc.Clock | None = None
        self._began_at = NEVER
        self._ended_at = math.inf

    def watch(
        self,
        progress: Progress,
        *,
        stuck_after: float | None = None,
        other_complaint: Callable[[float], str | None] | None = None,
    ) -> Progress:
        """The loop begins, and is examined from now on. `other_complaint` finds what is wrong beside lateness."""
        seconds = self._stuck_after if stuck_after is None else stuck_after
        progress.begin()
        self._watched[progress.name] = _Watched(progress, seconds, other_complaint)
        return progress

    def begin(self) -> None:
        """The engine works, and its source has just answered: otherwise it could not have begun."""
        self._began_at = trio.current_time()
        # Last: threads that examine the engine take a clock as the sign that it has begun.
        self._clock = trio.lowlevel.current_clock()

    def end(self) -> None:
        self._ended_at = trio.current_time()

    @property
    def uptime(self) -> float:
        """Seconds from the start until now, or until the end; 0 before."""
        return 0.0 if self._clock is None else min(self._clock.current_time(), self._ended_at) - self._began_at

    @property
    def _has_ended(self) -> bool:
        return self._ended_at < math.inf

    def progress_of(self, name: str) -> Progress:
        """The progress of the loop of that name; an empty one if it has not begun."""
        watched = self._watched.get(name)
        return Progress(name) if watched is None else watched.progress

    def unrenewed(self, heartbeat: Progress, now: float) -> str | None:
        """The complaint about runs that were cancelled because the heartbeat has not renewed their claims."""
        late = [run for run in tuple(self._runner.held) if _missed_its_renewal(run, heartbeat.progressed_at, now)]
        if not late:
            return None
        why = f": {heartbeat.fault.text}" if heartbeat.is_failing and heartbeat.fault is not None else ""
        claims = _counted(len(late), "claim")
        return f"the heartbeat could not renew {claims} in time; the runs were stopped{why}"

    def examine(self, name: str = "the engine") -> Examined:
        """Examine all loops. `name` is what reasons call the whole: "the scheduler", for example."""
        clock = self._clock
        if clock is None:
            return Examined(NEVER, (f"{name} has not started",), (), self._stop.draining.is_set(), None, NEVER)
        now = clock.current_time()
        # A copy, for everything below: other threads ask while the engine starts, and then loops are added.
        watched = list(self._watched.values())
        loops = tuple(self._examined(one, now, name) for one in watched)
        lag = self._watchdog.lag
        return Examined(
            now,
            tuple(self._reasons(watched, loops, now, lag, name)),
            loops,
            self._stop.draining.is_set(),
            lag,
            max([self._began_at, *(one.progress.answered_at for one in watched)]),
            overdue_threads=self._runner.overdue_threads,
        )

    def _examined(self, watched: _Watched, now: float, name: str) -> LoopExamined:
        progress = watched.progress
        is_running = progress.crashed is None and not self._has_ended
        complaint = watched.other_complaint(now) if watched.other_complaint is not None and is_running else None
        if complaint is None:
            complaint = progress.complaint(now, watched.stuck_after, name)
        return LoopExamined(progress.name, complaint, progress.progressed_at, progress.fault, progress.lag(now))

    def _reasons(
        self, watched: Sequence[_Watched], loops: Sequence[LoopExamined], now: float, lag: float | None, name: str
    ) -> list[str]:
        reasons = [loop.complaint for loop in loops if loop.complaint is not None]
        crashed = {one.progress.crashed for one in watched}
        others = [text for text in map(text_of, tuple(self._stop.crashes)) if text not in crashed]
        reasons += [f"{name} crashed: {text}" for text in others[:MOST_CRASHES]]
        if self._has_ended:
            return [*reasons, f"{name} has ended"]
        if lag is not None and lag >= BLOCKED_AFTER:
            reasons.append(f"the event loop did not answer for {lag:.1f} s, and no claim was renewed meanwhile")
        if now > self.hard_end and (left := len(self._runner.running)):
            reasons.append(f"shutdown is overdue: it is waiting for {_counted(left, 'handler')}")
        return reasons


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _missed_its_renewal(run: Run[Any], since: float, now: float) -> bool:
    # Until the heartbeat works again: then the run's end is under way, and no complaint is left.
    return since < run.lease_deadline <= now and run.is_renewable and not run.is_gone
