"""What time it is: the server's, or the run's virtual one. And how database calls hold virtual time still.

`now` decides when a job is due and nothing else; no guarantee rests on it. In production it is this
machine's clock plus the offset to the server's. In a run under trio's MockClock it follows the run's
clock, so that hours of schedule pass in milliseconds.

A thread is invisible to trio's autojump: while one waits for the database, the clock would jump over
every deadline (python-trio/trio#456). So the limiter that every such thread passes through holds the
clock from the moment a thread starts until it has really ended, also where nobody waits for it any
more. (A larger autojump threshold only hides the fault: it still fires on a slow call.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Protocol, cast

import trio

OFFSET_GOOD_FOR = 60.0
"""Seconds after which the offset to the server's clock is measured again before it is used."""


class VirtualTime:
    """The wall clock of a run under a virtual clock: a start moment that moves with the run's own time."""

    def __init__(self, start: datetime, clock: trio.abc.Clock) -> None:
        self._start = start
        self._clock = clock
        self._origin = clock.current_time()

    def now(self) -> datetime:
        """Safe from any thread: it only reads the clock."""
        elapsed = self._clock.current_time() - self._origin
        return self._start + timedelta(milliseconds=round(elapsed * 1000))


class _Autojumper(Protocol):
    """What this module needs of trio.testing.MockClock, which production code does not import."""

    autojump_threshold: float


# Set inside threads that work for a run in virtual time; the run itself is found through its RunVar.
_virtual_time_of_thread: ContextVar[VirtualTime | None] = ContextVar("virtual_time_of_thread", default=None)
# One per run, so that all clients and schedulers of a run share one timeline.
_virtual_time_of_run: trio.lowlevel.RunVar[VirtualTime] = trio.lowlevel.RunVar("monque_virtual_time")


def _is_virtual(clock: trio.abc.Clock) -> bool:
    return hasattr(clock, "autojump_threshold")


def virtual_time() -> VirtualTime | None:
    """The virtual time of the current run, or of the run that this thread works for; None under a real clock."""
    # Not in_trio_run(): with trio as a guest of another loop, that is true for the host's tasks, too.
    if not trio.lowlevel.in_trio_task():
        return _virtual_time_of_thread.get()
    clock = trio.lowlevel.current_clock()
    if not _is_virtual(clock):
        return None
    try:
        return _virtual_time_of_run.get()
    except LookupError:
        started = VirtualTime(_wall_clock(), clock)
        _virtual_time_of_run.set(started)
        return started


def is_on_run(token: trio.lowlevel.TrioToken) -> bool:
    """Whether this is the thread of that run, so that its objects may be touched directly."""
    return trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is token


@contextmanager
def in_time_of(virtual: VirtualTime | None) -> Iterator[None]:
    """Inside a thread: `now` is that of the run that the thread works for."""
    token = _virtual_time_of_thread.set(virtual)
    try:
        yield
    finally:
        _virtual_time_of_thread.reset(token)


def _wall_clock() -> datetime:
    return to_milliseconds(datetime.now(UTC))


def to_milliseconds(moment: datetime) -> datetime:
    """What MongoDB keeps of a moment: its milliseconds."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


class ServerClock:
    """`now` as the server sees it, in UTC with millisecond precision.

    Shared by threads: `set_offset` writes, `now` and `is_stale` read, each one attribute at a time.
    """

    def __init__(self) -> None:
        self._offset = timedelta(0)
        self._measured = -math.inf

    def now(self) -> datetime:
        virtual = virtual_time()
        if virtual is not None:
            return virtual.now()
        return to_milliseconds(datetime.now(UTC) + self._offset)

    def is_stale(self) -> bool:
        """Whether the offset should be measured before `now` is used. Never in virtual time."""
        return virtual_time() is None and time.monotonic() - self._measured > OFFSET_GOOD_FOR

    def set_offset(self, seconds: float) -> None:
        """`seconds` is what must be added to this machine's clock to have the server's."""
        self._offset = timedelta(seconds=seconds)
        self._measured = time.monotonic()


class ClockHold:
    """Holds the autojump clock of a run while at least one thread works for it.

    Only touched on the run's own thread: trio's setter for the threshold looks the run up there.
    """

    def __init__(self, clock: _Autojumper | None) -> None:
        self._clock = clock
        self._holders = 0
        self._threshold = math.inf

    @property
    def holders(self) -> int:
        return self._holders

    def acquire(self) -> None:
        self._holders += 1
        if self._holders == 1 and self._clock is not None:
            self._threshold = self._clock.autojump_threshold
            self._clock.autojump_threshold = math.inf

    def release(self) -> None:
        self._holders -= 1
        if self._holders == 0 and self._clock is not None:
            self._clock.autojump_threshold = self._threshold


_hold_of_run: trio.lowlevel.RunVar[ClockHold] = trio.lowlevel.RunVar("monque_clock_hold")


def clock_hold() -> ClockHold:
    """The hold of the current run; one that does nothing under a real clock."""
    try:
        return _hold_of_run.get()
    except LookupError:
        clock = trio.lowlevel.current_clock()
        hold = ClockHold(cast("_Autojumper", clock) if _is_virtual(clock) else None)
        _hold_of_run.set(hold)
        return hold


class HoldingLimiter:
    """A limiter for `trio.to_thread.run_sync` whose threads hold virtual time.

    trio releases on behalf of a thread exactly when the thread has ended, abandoned or not, and on
    the run's own thread. The task that waited is in the run queue by then, and the clock only jumps
    when that is empty: so nothing slips in between.
    """

    def __init__(self, total_tokens: float) -> None:
        self._limiter = trio.CapacityLimiter(total_tokens)
        self._hold = clock_hold()

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        await self._limiter.acquire_on_behalf_of(borrower)
        self._hold.acquire()

    def release_on_behalf_of(self, borrower: object) -> None:
        self._hold.release()
        self._limiter.release_on_behalf_of(borrower)

    @property
    def borrowed_tokens(self) -> int:
        return self._limiter.borrowed_tokens
