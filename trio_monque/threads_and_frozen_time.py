"""How a run calls functions in threads: they see the time of the run, freeze its virtual clock, and may call back.

None of them uses trio's default limiter, which belongs to the host program: its threads may all be busy, and then no
claim would be renewed.

trio's autojump does not see a thread (python-trio/trio#456), or a pause in real time after a fault. It only sees that
all tasks wait, and would jump to the next deadline: a call to the database that takes a millisecond would meet every
timeout. So each freezes the virtual clock of its run while it works (`ClockFreeze`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

import trio

from .clock import VirtualTime, is_virtual, virtual_time, work_in_time_of
from .error_types import ShortageError, is_shortage
from .log import logger_of
from .safe_text import text_of
from .thread_turns import do_threads_take_turns, in_turn, turn_of_thread

logger = logger_of()

T = TypeVar("T")


class _Autojumper(Protocol):
    autojump_threshold: float


class ClockFreeze:
    """Counts what takes real time in a run, and keeps its virtual clock from jumping meanwhile.

    A larger autojump threshold would not do: a slow call would still exceed it. Touch it only on the trio thread,
    because trio's setter for the threshold needs the current run.

    Attributes:
        freezing: How many threads and pauses freeze the clock now.
    """

    def __init__(self, clock: _Autojumper | None) -> None:
        self._clock = clock
        self.freezing = 0
        self._threshold = math.inf
        self._jumpers = 0
        self._before = math.inf
        self._thawed = trio.Event()
        self._thawed.set()

    def freeze(self) -> None:
        self.freezing += 1
        if self.freezing == 1:
            self._thawed = trio.Event()
            if self._clock is not None:
                # Infinity switches the autojump off. The test's own threshold comes back when it thaws.
                self._threshold = self._clock.autojump_threshold
                self._clock.autojump_threshold = math.inf

    def thaw(self) -> None:
        assert self.freezing > 0, "thawed without having been frozen"
        self.freezing -= 1
        if self.freezing == 0:
            self._thawed.set()
            if self._clock is not None:
                self._clock.autojump_threshold = self._threshold

    async def wait_thawed(self) -> None:
        """Return when the clock is no longer frozen, before it can jump."""
        await self._thawed.wait()

    @contextmanager
    def jumping(self) -> Iterator[None]:
        """Inside, the clock jumps as soon as all tasks wait, also a clock that the test moves by hand."""
        # Several tasks may be inside at once: the first changes the threshold, and the last restores it.
        self._jumpers += 1
        if self._jumpers == 1:
            self._before = self._set_threshold(0)
        try:
            yield
        finally:
            self._jumpers -= 1
            if self._jumpers == 0:
                self._set_threshold(self._before)

    def _set_threshold(self, threshold: float) -> float:
        if self._clock is None:
            return math.inf
        if self.freezing:
            # While the clock is frozen, only note the threshold: the last `thaw` sets it.
            before, self._threshold = self._threshold, threshold
        else:
            before, self._clock.autojump_threshold = self._clock.autojump_threshold, threshold
        return before


_freeze_of_run: trio.lowlevel.RunVar[ClockFreeze] = trio.lowlevel.RunVar("monque_clock_freeze")


def clock_freeze() -> ClockFreeze:
    """Return the freeze of the current run. Under a real clock it counts, and freezes nothing."""
    try:
        return _freeze_of_run.get()
    except LookupError:
        clock = trio.lowlevel.current_clock()
        freeze = ClockFreeze(cast("_Autojumper", clock) if is_virtual(clock) else None)
        _freeze_of_run.set(freeze)
        return freeze


class FreezingLimiter:
    """A limiter for `trio.to_thread.run_sync` whose threads freeze virtual time."""

    def __init__(self, total_tokens: float) -> None:
        self._limiter = trio.CapacityLimiter(total_tokens)
        # Also under a real clock: `quiesce` of the testing kit waits until no thread works.
        self._freeze = clock_freeze()

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        await self._limiter.acquire_on_behalf_of(borrower)
        self._freeze.freeze()

    def release_on_behalf_of(self, borrower: object) -> None:
        # trio calls this on the trio thread, exactly when the thread has ended, abandoned or not. By then the task that
        # waited for it is runnable, and the clock jumps only if no task is: so it cannot jump in between.
        self._freeze.thaw()
        self._limiter.release_on_behalf_of(borrower)

    @property
    def borrowed_tokens(self) -> int:
        return self._limiter.borrowed_tokens


class Limiter(Protocol):
    """The methods of a limiter that trio.to_thread.run_sync calls."""

    async def acquire_on_behalf_of(self, borrower: object) -> None: ...

    def release_on_behalf_of(self, borrower: object) -> None: ...


async def call_in_thread(function: Callable[[], T], *, limiter: Limiter, abandon_on_cancel: bool = False) -> T:
    """Call `function` in a thread that works for this run; return what it returns.

    Raises:
        ShortageError: No thread could be started; `function` was not called.
    """
    virtual = virtual_time()
    work = _Work(function, virtual)
    if virtual is not None and do_threads_take_turns():
        return await in_turn(work)
    try:
        return await trio.to_thread.run_sync(
            work, limiter=cast("trio.CapacityLimiter", limiter), abandon_on_cancel=abandon_on_cancel
        )
    except (MemoryError, RuntimeError) as error:
        if work.has_begun or not is_shortage(error):
            raise
        raise _shortage(error) from error


class _Work(Generic[T]):
    """What a thread calls that works for a run: the function, in the time of the run.

    Attributes:
        has_begun: If so, an error is that of the function: a handler may run out of memory too, and that is not our
            shortage of threads.
    """

    __slots__ = ("_function", "_virtual", "has_begun")

    def __init__(self, function: Callable[[], T], virtual: VirtualTime | None) -> None:
        self._function = function
        self._virtual = virtual
        self.has_begun = False

    def __call__(self) -> T:
        self.has_begun = True
        # In a copy of the caller's context, which ends with the call.
        _freezes.set(True)
        work_in_time_of(self._virtual)
        return self._function()


@contextmanager
def starting_thread(call: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Put it around the start of a thread that works for no run, and let it call the function that this yields.

    If the process is short of threads or memory, so that the thread cannot start, it raises ShortageError.
    """
    has_begun = False  # See `_Work.has_begun`.

    def begun() -> T:
        nonlocal has_begun
        has_begun = True
        return call()

    try:
        yield begun
    except (MemoryError, RuntimeError) as error:
        if has_begun or not is_shortage(error):
            raise
        raise _shortage(error) from error


def _shortage(error: BaseException) -> ShortageError:
    return ShortageError(f"could not start a thread: {text_of(error)}")


# Whether this thread was started by this file, and so freezes the clock.
_freezes: ContextVar[bool] = ContextVar("thread_freezes_the_clock", default=False)


def work_unawaited(function: Callable[[], object]) -> None:
    """Call it in a thread that freezes the clock, without waiting for its end."""
    freeze, token = clock_freeze(), trio.lowlevel.current_trio_token()

    def has_ended(_outcome: object) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(freeze.thaw)

    freeze.freeze()
    try:
        trio.lowlevel.start_thread_soon(partial(copy_context().run, _Work(function, virtual_time())), has_ended)
    except (MemoryError, RuntimeError) as error:
        freeze.thaw()
        if not is_shortage(error):
            raise
        logger.warning(
            "could not start a thread for a cleanup: %s; what it would have released expires with its lease", error
        )


def call_run(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on the trio thread, from a thread that works for its run; await it if it is async.

    While the thread waits, it does not freeze virtual time: the function may sleep. A thread that the program started
    by trio.to_thread may call it too.
    """
    turn = turn_of_thread.get(None)
    if turn is not None:  # The event loop stands still in its turn: trio.from_thread would wait for ever.
        return turn.call(partial(_awaited, function, arguments))
    return trio.from_thread.run(_called_back, function, arguments, _freezes.get())


def call_run_sync(function: Callable[..., Any], *arguments: Any) -> Any:
    """Like `call_run`, for a plain function that does not wait: virtual time stays frozen.

    Raises:
        RuntimeError: This thread does not work for a run, or the run has ended.
    """
    turn = turn_of_thread.get(None)
    if turn is not None:
        return turn.call(partial(_awaited, function, arguments))
    return trio.from_thread.run_sync(function, *arguments)


async def _awaited(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    result = function(*arguments)
    return await result if inspect.isawaitable(result) else result


async def _called_back(function: Callable[..., Any], arguments: tuple[Any, ...], freezes: bool) -> Any:  # noqa: FBT001
    freeze = clock_freeze()
    # This context is a copy of the thread's. Threads that the function starts copy it again, and freeze nothing.
    _freezes.set(False)
    if freezes:
        # The thread only waits now. If it kept the clock frozen, a function that sleeps would never end.
        freeze.thaw()
    _calling_back.set(calling_back() + 1)
    try:
        return await _awaited(function, arguments)
    finally:
        _calling_back.set(calling_back() - 1)
        if freezes:
            freeze.freeze()


_calling_back: trio.lowlevel.RunVar[int] = trio.lowlevel.RunVar("monque_threads_calling_back")


def calling_back() -> int:
    """Return how many threads of this run wait in `call_run`."""
    return _calling_back.get(0)
