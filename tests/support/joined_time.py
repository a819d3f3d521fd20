"""Virtual time for a program on asyncio: one clock for its event loop and for the trio runs beside it.

It jumps to the next deadline of any of them when all of them wait, and nothing is on its way from one to another: no
message that waits, and no thread that works. The library's hold of virtual time (`trio_monque.autojump`) counts the
threads of a run; the loop counts its own.

uvloop keeps its time in C, so it cannot join.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, TypeVar, TypeVarTuple, Unpack

import anyio.to_thread
import pytest
import trio
import trio.testing

from trio_monque.bridge import runtime
from trio_monque.threads_and_frozen_time import calling_back

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LOOK_INTERVAL: Final = 0.05
"""Real seconds between two looks of a loop that waits: the end of a run's thread wakes nothing."""

ALL_WAIT: Final = 3600.0
"""trio waits for longer than these seconds if it waits for a deadline of this clock, or for a message."""


class _Member(Protocol):
    """A loop or a run.

    Attributes:
        waits_until: Its next deadline while it waits; None while it works.
    """

    waits_until: float | None

    @property
    def is_over(self) -> bool: ...

    @property
    def has_work(self) -> bool:
        """Something is on its way to it."""
        ...

    def wake(self) -> None: ...


class JoinedTime:
    """The time of one asyncio loop, and of the runs that are opened in it.

    Attributes:
        now: Seconds.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self._lock = threading.Lock()
        self._members: list[_Member] = []

    def join(self, member: _Member) -> None:
        with self._lock:
            self._members.append(member)

    def works(self, member: _Member) -> None:
        with self._lock:
            member.waits_until = None

    def waits(self, member: _Member, until: float) -> None:
        with self._lock:
            member.waits_until = until
        self.look()

    def look(self) -> None:
        """Jump, if all wait. A member that is woken here is behind its deadline until it works: none jumps further."""
        with self._lock:
            self._members = [one for one in self._members if not one.is_over]
            deadlines = list[float]()
            for one in self._members:
                # In this order: it works before it takes what is on its way.
                if one.has_work or one.waits_until is None:
                    return
                deadlines.append(one.waits_until)
            if self.now < (first := min(deadlines, default=math.inf)) < math.inf:
                self.now = first
                for one in self._members:
                    one.wake()


class RunClock(trio.abc.Clock, trio.abc.Instrument):
    """The clock of one trio run.

    Attributes:
        autojump_threshold: That of trio's MockClock, by which the library knows virtual time, and holds it.
    """

    def __init__(self, time: JoinedTime) -> None:
        self.autojump_threshold = 0.0
        self.waits_until: float | None = None
        self._time = time
        self._deadline = math.inf
        self._thread: threading.Thread | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        time.join(self)  # Before its thread starts: the loop that has opened it only waits for it.

    @property
    def is_over(self) -> bool:
        # Not at the end of the run: its thread has yet to report it.
        return self._thread is not None and not self._thread.is_alive()

    @property
    def has_work(self) -> bool:
        queue: Any = None if self._token is None else self._token._reentry_queue
        return queue is not None and queue.size() > 0

    def wake(self) -> None:
        assert self._token is not None
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(lambda: None)

    # --- For trio ---

    def start_clock(self) -> None:
        self._thread, self._token = threading.current_thread(), trio.lowlevel.current_trio_token()
        trio.lowlevel.add_instrument(self)

    def current_time(self) -> float:
        return self._time.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        self._deadline = deadline
        return 0.0 if deadline <= self._time.now else math.inf

    def before_io_wait(self, timeout: float) -> None:
        # The hold counts the library's threads. Those of a handler in the runtime are under other limiters.
        threads_at_work = trio.testing.active_thread_count() - calling_back()
        if timeout > ALL_WAIT and self.autojump_threshold < math.inf and threads_at_work <= 0:
            self._time.waits(self, self._deadline)

    def after_io_wait(self, timeout: float) -> None:
        self._time.works(self)


class JoinedLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, except that its time jumps where it would sleep."""

    def __init__(self) -> None:
        self.joined_time = JoinedTime()
        self.waits_until: float | None = None
        self._threads_at_work = 0
        super().__init__(_Selector(self))
        self.joined_time.join(self)

    def time(self) -> float:
        return self.joined_time.now

    @property
    def is_over(self) -> bool:
        return self.is_closed()

    @property
    def has_work(self) -> bool:
        ready: Any = self._ready  # type: ignore[attr-defined]
        return bool(ready) or self._threads_at_work > 0

    @property
    def next_deadline(self) -> float:
        scheduled: Any = self._scheduled  # type: ignore[attr-defined]
        return scheduled[0].when() if scheduled else math.inf

    def wake(self) -> None:
        self._write_to_self()  # type: ignore[attr-defined]

    def close(self) -> None:
        super().close()
        self.joined_time.look()

    @contextmanager
    def awaiting_thread(self) -> Iterator[None]:
        self._threads_at_work += 1
        try:
            yield
        finally:
            self._threads_at_work -= 1

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        call = super().run_in_executor(executor, func, *args)
        waiting = self.awaiting_thread()
        waiting.__enter__()
        call.add_done_callback(lambda _: waiting.__exit__(None, None, None))
        return call

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        # From Python 3.12 on, this waits for threads with a timeout, which would be over at once.
        with self.awaiting_thread():
            await super().shutdown_default_executor(*timeout)


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: JoinedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        time, until = self._loop.joined_time, self._loop.next_deadline
        time.waits(self._loop, until)
        try:
            while not (events := super().select(LOOK_INTERVAL)) and time.now < until:
                time.look()
        finally:
            time.works(self._loop)
        return events


@contextmanager
def joining_runtimes() -> Iterator[None]:
    """Inside, the runtimes that are opened on a JoinedLoop share its time, and threads of anyio hold it."""

    def of_running_loop() -> RunClock:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JoinedLoop)
        return RunClock(loop.joined_time)

    to_thread = anyio.to_thread.run_sync

    async def run_sync(*args: Any, **options: Any) -> Any:
        loop = asyncio._get_running_loop()
        if not isinstance(loop, JoinedLoop):
            return await to_thread(*args, **options)
        with loop.awaiting_thread():
            return await to_thread(*args, **options)

    token = runtime.make_clock.set(of_running_loop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anyio.to_thread, "run_sync", run_sync)
        try:
            yield
        finally:
            runtime.make_clock.reset(token)
