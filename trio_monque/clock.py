"""The current time: the server's time, or the virtual time of a run.

`now` decides when a job is due and nothing else; no guarantee rests on it. In production it is the server's time
at the last measurement plus the time that has passed since, by a clock that cannot be set. This machine's wall clock
plays no part: NTP, an administrator or a hypervisor may step it by days. In a run under trio's MockClock `now` follows
the run's clock, so that hours of schedule pass in milliseconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, NamedTuple

import trio

from .error_types import MonqueError

OFFSET_GOOD_FOR = 60.0
"""Seconds after which the offset to the server's clock is measured again before it is used."""

MOST_DISAGREEMENT = 0.1
"""Seconds by which two clocks of this machine may differ in what they measured since.

NTP slews all of them together, so they differ by far less. A thread that loses the processor between two readings can
exceed it: that costs one measurement too many.
"""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


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
        """Return the current virtual time. Any thread may call it: it only reads the clock."""
        elapsed = self._clock.current_time() - self._origin
        return self._start + timedelta(milliseconds=round(elapsed * 1000))

    def on_run_clock(self, moment: datetime) -> float:
        """Return the moment on trio's clock, exactly: a timer that is set for it ends when `now` is that moment."""
        return self._origin + (moment - self._start) / timedelta(seconds=1)


class _Unknown:
    """Marks a thread that is not known to work for a run."""


_UNKNOWN: Final = _Unknown()

# Set in threads that work for a run. On the trio thread itself, the RunVar below has the time.
_virtual_time_of_thread: ContextVar[VirtualTime | _Unknown | None] = ContextVar(
    "virtual_time_of_thread", default=_UNKNOWN
)
# One per run, so that all clients and schedulers of a run share one timeline.
_virtual_time_of_run: trio.lowlevel.RunVar[VirtualTime] = trio.lowlevel.RunVar("monque_virtual_time")


def is_virtual(clock: trio.abc.Clock) -> bool:
    """Return whether a clock is virtual, by an attribute of MockClock: production code must not import trio.testing."""
    return hasattr(clock, "autojump_threshold")


def virtual_time() -> VirtualTime | None:
    """Return the virtual time of this run, or of the run that this thread works for; None under a real clock."""
    # Not in_trio_run(): if trio is a guest of another event loop, that is also true in tasks of the host.
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
    """Return whether the current run has a virtual clock; False outside of trio.

    Unlike `virtual_time`, this does not begin its time.
    """
    return trio.lowlevel.in_trio_task() and is_virtual(trio.lowlevel.current_clock())


def has_virtual_time_begun() -> bool:
    try:
        _virtual_time_of_run.get()
    except LookupError:
        return False
    return True


def begin_virtual_time(start: datetime) -> VirtualTime:
    """Set what `now` is at this moment of the run. It can be set once, before anything asks for the time.

    Raises:
        MonqueError: The run's clock is not virtual, or its time has begun with another moment.
    """
    if not is_run_virtual():
        raise MonqueError("a start moment needs a virtual clock: trio.run(..., clock=MockClock(autojump_threshold=0))")
    chosen = to_milliseconds(start.astimezone(UTC))
    try:
        begun = _virtual_time_of_run.get()
    except LookupError:
        return _begin(chosen, trio.lowlevel.current_clock())
    if begun.start != chosen:
        raise MonqueError(
            f"the virtual time of this run has already begun, with {begun.start}: all clients of a run share one "
            "timeline. Choose its start before the first client or scheduler asks for the time"
        )
    return begun


def _virtual_time_of_worker_thread() -> VirtualTime | None:
    """Ask the run that a thread of trio.to_thread came from. Any other thread has real time."""
    with suppress(RuntimeError):
        return trio.from_thread.run_sync(virtual_time)
    return None


@contextmanager
def in_time_of(virtual: VirtualTime | None) -> Iterator[None]:
    """Inside, `now` in this thread is the time of the run that the thread works for."""
    token = _virtual_time_of_thread.set(virtual)
    try:
        yield
    finally:
        _virtual_time_of_thread.reset(token)


def work_in_time_of(virtual: VirtualTime | None) -> None:
    """From now on in this context, that of a call in a thread, `now` is the time of the run it works for."""
    _virtual_time_of_thread.set(virtual)


def wall_clock() -> datetime:
    """Return the time of day on this machine, which may be wrong and may jump. `now` does not use it."""
    return datetime.now(UTC)


def _steady_clock() -> Callable[[], float]:
    """Return the clock of this system that cannot be set, and that continues while the machine is suspended."""
    # With time.monotonic, which stops on Linux and macOS, all jobs would be late by the time of the suspension until
    # the next measurement.
    name = {"linux": "CLOCK_BOOTTIME", "darwin": "CLOCK_MONOTONIC_RAW"}.get(sys.platform)
    if name is None:
        return time.perf_counter  # On Windows it continues, and is far more precise than time.monotonic.
    clock_id = getattr(time, name)
    try:
        time.clock_gettime(clock_id)
    except OSError:
        return time.monotonic
    return partial(time.clock_gettime, clock_id)


steady_clock: Final = _steady_clock()
"""Seconds from an arbitrary origin."""

awake_clock: Final = time.monotonic
"""Like `steady_clock`, but on Linux and macOS it stops while the machine is suspended."""


def seconds_suspended() -> float:
    """Return a number that grows by the seconds of each suspension of the machine, on systems that show them."""
    return steady_clock() - awake_clock()


class ClockReadings(NamedTuple):
    """The readings of this machine's clocks at one moment, in seconds. Each clock has an origin of its own.

    Attributes:
        steady: Cannot be set, and goes on while the machine is suspended.
        awake: Cannot be set, and may stop while the machine is suspended.
        wall: The time of day.
    """

    steady: float
    awake: float
    wall: float

    @classmethod
    def now(cls) -> ClockReadings:
        return cls(steady_clock(), awake_clock(), wall_clock().timestamp())


def do_clocks_agree(before: ClockReadings, now: ClockReadings) -> bool:
    """Return whether all clocks measured the same time between two readings.

    They differ if the wall clock was set, or the machine was suspended. A virtual machine that was paused, or moved to
    another host, shows itself in the same way: all its clocks stopped, and then the wall clock was set right. After any
    of these, the offset to the server's clock may be wrong, and must be measured again.
    """
    steady, awake, wall = (after - earlier for after, earlier in zip(now, before, strict=True))
    return max(steady, awake, wall) - min(steady, awake, wall) <= MOST_DISAGREEMENT


def to_milliseconds(moment: datetime) -> datetime:
    """Cut a moment to whole milliseconds, as MongoDB stores it."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


class _Offset(NamedTuple):
    """What must be added to the steady clock to get the server's time, and when it was measured; None for not yet."""

    seconds: float
    measured_at: ClockReadings | None


class SkippedTime:
    """How far tests under a real clock have moved the server's time forward, for all clients of the process.

    Only due dates follow it. Leases, heartbeats and timeouts go by clocks that nothing moves.

    Attributes:
        seconds: 0 in production. Any thread may read it; only the testing kit writes it.
    """

    def __init__(self) -> None:
        self.seconds = 0.0


skipped_time: Final = SkippedTime()


class ServerClock:
    """The server's time, in UTC with millisecond precision; in virtual time, the time of the run."""

    def __init__(self) -> None:
        # Until the first measurement, the time of day of this moment stands in, and the steady clock counts on from it.
        unmeasured = ClockReadings.now()
        self._offset = _Offset(unmeasured.wall - unmeasured.steady, None)

    def now(self) -> datetime:
        virtual = virtual_time()
        if virtual is not None:
            return virtual.now()
        return _EPOCH + timedelta(milliseconds=int(self._seconds() * 1000))

    def _seconds(self) -> float:
        """Return the seconds since 1970 by the server's clock."""
        return steady_clock() + self._offset.seconds + skipped_time.seconds

    def on_run_clock(self, moment: datetime) -> float:
        """Return the moment on trio's clock; it may be in the past. Call it on the trio thread."""
        virtual = virtual_time()
        if virtual is not None:
            return virtual.on_run_clock(moment)
        return trio.current_time() + self.seconds_until(moment)

    def seconds_until(self, moment: datetime) -> float:
        """Return the seconds until a moment, negative if it has passed. Exact, while `now` is cut to milliseconds."""
        virtual = virtual_time()
        if virtual is not None:
            return (moment - virtual.now()) / timedelta(seconds=1)
        return (moment - _EPOCH) / timedelta(seconds=1) - self._seconds()

    def is_stale(self) -> bool:
        """Return whether the offset must be measured before `now` is used. Never in virtual time.

        It must if it is old, or if this machine's clocks disagree since the last measurement: see `do_clocks_agree`.
        """
        if virtual_time() is not None:
            return False
        measured_at = self._offset.measured_at
        if measured_at is None:
            return True
        readings = ClockReadings.now()
        is_old = readings.steady - measured_at.steady > OFFSET_GOOD_FOR
        return is_old or not do_clocks_agree(measured_at, readings)

    def set_offset(self, seconds: float, measured_at: ClockReadings) -> float:
        """Set the offset. Return by how many seconds it moved.

        Args:
            seconds: What must be added to the steady clock to get the server's time.
            measured_at: Readings from before the measurement, so that a change of the clocks during it shows too.
        """
        before = self._offset.seconds
        # One attribute, written at once and read once by each method: so threads share it without a lock.
        self._offset = _Offset(seconds, measured_at)
        return abs(seconds - before)
