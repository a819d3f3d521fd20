"""What time it is: the server's, or the run's virtual one.

`now` decides when a job is due and nothing else; no guarantee rests on it. In production it is this
machine's clock plus the offset to the server's. In a run under trio's MockClock it follows the run's
clock, so that hours of schedule pass in milliseconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Final

import trio

from .errors import MonqueError

OFFSET_GOOD_FOR = 60.0
"""Seconds after which the offset to the server's clock is measured again before it is used."""


class VirtualTime:
    """The wall clock of a run under a virtual clock: a start moment that moves with the run's own time."""

    def __init__(self, start: datetime, clock: trio.abc.Clock) -> None:
        self._start = start
        self._clock = clock
        self._origin = clock.current_time()

    @property
    def start(self) -> datetime:
        return self._start

    def now(self) -> datetime:
        """Safe from any thread: it only reads the clock."""
        elapsed = self._clock.current_time() - self._origin
        return self._start + timedelta(milliseconds=round(elapsed * 1000))

    def on_run_clock(self, moment: datetime) -> float:
        """The moment on trio's clock, exactly: a timer set for it ends when `now` is that moment."""
        return self._origin + (moment - self._start) / timedelta(seconds=1)


class _Unknown:
    """A thread of which nobody has said for whom it works."""


_UNKNOWN: Final = _Unknown()

# Set inside threads that work for a run; the run itself is found through its RunVar.
_virtual_time_of_thread: ContextVar[VirtualTime | _Unknown | None] = ContextVar(
    "virtual_time_of_thread", default=_UNKNOWN
)
# One per run, so that all clients and schedulers of a run share one timeline.
_virtual_time_of_run: trio.lowlevel.RunVar[VirtualTime] = trio.lowlevel.RunVar("monque_virtual_time")


def is_virtual(clock: trio.abc.Clock) -> bool:
    """Whether it is one that jumps, as trio.testing.MockClock does, which production code does not import."""
    return hasattr(clock, "autojump_threshold")


def virtual_time() -> VirtualTime | None:
    """The virtual time of the current run, or of the run that this thread works for; None under a real clock."""
    # Not in_trio_run(): with trio as a guest of another loop, that is true for the host's tasks, too.
    if not trio.lowlevel.in_trio_task():
        known = _virtual_time_of_thread.get()
        return _virtual_time_of_worker_thread() if isinstance(known, _Unknown) else known
    clock = trio.lowlevel.current_clock()
    if not is_virtual(clock):
        return None
    try:
        return _virtual_time_of_run.get()
    except LookupError:
        return _begin(to_milliseconds(wall_clock()), clock)


def _begin(start: datetime, clock: trio.abc.Clock) -> VirtualTime:
    begun = VirtualTime(start, clock)
    _virtual_time_of_run.set(begun)
    return begun


def is_run_virtual() -> bool:
    """Whether the current run has a virtual clock; asking does not begin its time."""
    return is_virtual(trio.lowlevel.current_clock())


def has_virtual_time_begun() -> bool:
    try:
        _virtual_time_of_run.get()
    except LookupError:
        return False
    return True


def begin_virtual_time(start: datetime) -> VirtualTime:
    """Chooses what `now` is at this instant of the run, once, before anybody has asked for it.

    Raises:
        MonqueError: The run's clock is no virtual one, or its time has begun with another moment.
    """
    clock = trio.lowlevel.current_clock()
    if not is_virtual(clock):
        raise MonqueError("a start moment needs a virtual clock: trio.run(..., clock=MockClock(autojump_threshold=0))")
    chosen = to_milliseconds(start.astimezone(UTC))
    try:
        begun = _virtual_time_of_run.get()
    except LookupError:
        return _begin(chosen, clock)
    if begun.start != chosen:
        raise MonqueError(
            f"the virtual time of this run has begun already, with {begun.start}: all clients of a run share one "
            "timeline. Choose its start before the first client or scheduler asks for the time"
        )
    return begun


def _virtual_time_of_worker_thread() -> VirtualTime | None:
    """A thread of the program's own, by trio.to_thread, asks the run that it came from; any other has real time."""
    with suppress(RuntimeError):
        return trio.from_thread.run_sync(virtual_time)
    return None


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


def wall_clock() -> datetime:
    """This machine's, which may be wrong or step; whoever asks for it adds the offset to the server's."""
    return datetime.now(UTC)


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
        return to_milliseconds(wall_clock() + self._offset)

    def on_run_clock(self, moment: datetime) -> float:
        """The moment on trio's clock, which may be in the past. On the run's own thread."""
        virtual = virtual_time()
        if virtual is not None:
            return virtual.on_run_clock(moment)
        return trio.current_time() + self.seconds_until(moment)

    def seconds_until(self, moment: datetime) -> float:
        """Negative where it has passed. Exact: `now` has lost its fraction of a millisecond."""
        virtual = virtual_time()
        now = wall_clock() + self._offset if virtual is None else virtual.now()
        return (moment - now) / timedelta(seconds=1)

    def is_stale(self) -> bool:
        """Whether the offset should be measured before `now` is used. Never in virtual time."""
        return virtual_time() is None and time.monotonic() - self._measured > OFFSET_GOOD_FOR

    def set_offset(self, seconds: float) -> float:
        """`seconds` is what must be added to this machine's clock to have the server's. Returns how far it moved."""
        before = self._offset / timedelta(seconds=1)
        self._offset = timedelta(seconds=seconds)
        self._measured = time.monotonic()
        return abs(seconds - before)
