"""How a run calls functions in threads: they see the time of the run, hold its virtual clock, and may call back.

None of them uses trio's default limiter, which belongs to the host program: its threads may all be busy, and then no
claim would be renewed.

If a test asks for a reproducible order, threads take turns: the event loop stops while one works, so that nothing
depends on which of two threads is faster. It is the same code in the same kind of thread.
"""

from __future__ import annotations

import inspect
import queue
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import outcome
import trio

from .autojump import clock_hold
from .clock import VirtualTime, virtual_time, work_in_time_of
from .error_types import MonqueError, ShortageError, is_shortage
from .log import logger_of
from .safe_text import text_of

logger = logger_of()

T = TypeVar("T")


class HoldingLimiter:
    """A limiter for `trio.to_thread.run_sync` whose threads hold virtual time."""

    def __init__(self, total_tokens: float) -> None:
        self._limiter = trio.CapacityLimiter(total_tokens)
        # Also under a real clock: `quiesce` of the testing kit waits until no thread works.
        self._hold = clock_hold()

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        await self._limiter.acquire_on_behalf_of(borrower)
        self._hold.acquire()

    def release_on_behalf_of(self, borrower: object) -> None:
        # trio calls this on the trio thread, exactly when the thread has ended, abandoned or not. By then the task that
        # waited for it is runnable, and the clock jumps only if no task is: so it cannot jump in between.
        self._hold.release()
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
        return await _in_turn(work)
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
        _holds.set(True)
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


# Whether this thread was started by this file, and so holds the clock.
_holds: ContextVar[bool] = ContextVar("thread_holds_the_clock", default=False)


def work_unawaited(function: Callable[[], object]) -> None:
    """Call it in a thread that holds the clock, without waiting for its end."""
    hold, token = clock_hold(), trio.lowlevel.current_trio_token()

    def has_ended(_outcome: object) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(hold.release)

    hold.acquire()
    try:
        trio.lowlevel.start_thread_soon(partial(copy_context().run, _Work(function, virtual_time())), has_ended)
    except (MemoryError, RuntimeError) as error:
        hold.release()
        if not is_shortage(error):
            raise
        logger.warning("could not start a thread for a clean-up: %s. A lease ends what it would have released", error)


def call_run(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on the trio thread, from a thread that works for its run; await it if it is async.

    While the thread waits, it does not hold virtual time: the function may sleep. A thread that the program started by
    trio.to_thread may call it too.
    """
    turn = _turn_of_thread.get(None)
    if turn is not None:  # The event loop stands still in its turn: trio.from_thread would wait for ever.
        return turn.call(partial(_awaited, function, arguments))
    return trio.from_thread.run(_called_back, function, arguments, _holds.get())


def call_run_sync(function: Callable[..., Any], *arguments: Any) -> Any:
    """Like `call_run`, for a plain function that does not wait: virtual time stays held.

    Raises:
        RuntimeError: This thread does not work for a run, or the run has ended.
    """
    turn = _turn_of_thread.get(None)
    if turn is not None:
        return turn.call(partial(_awaited, function, arguments))
    return trio.from_thread.run_sync(function, *arguments)


async def _awaited(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    result = function(*arguments)
    return await result if inspect.isawaitable(result) else result


async def _called_back(function: Callable[..., Any], arguments: tuple[Any, ...], holds: bool) -> Any:  # noqa: FBT001
    hold = clock_hold()
    # This context is a copy of the thread's. Threads that the function starts copy it again, and do not hold the clock.
    _holds.set(False)
    if holds:
        # The thread only waits now. If it kept the clock held, a function that sleeps would never end.
        hold.release()
    _calling_back.set(calling_back() + 1)
    try:
        return await _awaited(function, arguments)
    finally:
        _calling_back.set(calling_back() - 1)
        if holds:
            hold.acquire()


_calling_back: trio.lowlevel.RunVar[int] = trio.lowlevel.RunVar("monque_threads_calling_back")


def calling_back() -> int:
    """Return how many threads of this run wait in `call_run`."""
    return _calling_back.get(0)


# --- Threads that take turns ---

LONGEST_TURN: Final = 30.0
"""Seconds of real time."""

_takes_turns: trio.lowlevel.RunVar[bool] = trio.lowlevel.RunVar("monque_threads_take_turns")


def take_turns() -> None:
    """From now on, the threads of this run work one at a time, and the event loop waits for each."""
    _takes_turns.set(True)


def do_threads_take_turns() -> bool:
    return _takes_turns.get(False)  # The default of a RunVar.


@dataclass(eq=False)
class _Turn(Generic[T]):
    """The turn of one thread: two queues by which it asks the event loop for calls, and reports how it ended."""

    from_thread: queue.SimpleQueue[outcome.Value[T] | outcome.Error | Callable[[], Awaitable[Any]]] = field(
        default_factory=queue.SimpleQueue
    )
    to_thread: queue.SimpleQueue[outcome.Outcome[Any]] = field(default_factory=queue.SimpleQueue)

    def work(self, function: Callable[[], T]) -> None:
        token = _turn_of_thread.set(self)
        try:
            result = outcome.capture(function)
        finally:
            _turn_of_thread.reset(token)
        self.from_thread.put(result)

    def call(self, function: Callable[[], Awaitable[Any]]) -> Any:
        self.from_thread.put(function)
        return self.to_thread.get().unwrap()


_turn_of_thread: ContextVar[_Turn[Any]] = ContextVar("turn_of_thread")


async def _in_turn(function: Callable[[], T]) -> T:
    await trio.lowlevel.checkpoint()
    turn: _Turn[T] = _Turn()
    trio.lowlevel.start_thread_soon(partial(copy_context().run, turn.work, function), _ignore)
    while True:
        try:
            # Blocks the event loop on purpose: nothing else runs in this turn.
            said = turn.from_thread.get(timeout=LONGEST_TURN)
        except queue.Empty:
            raise MonqueError(
                f"a thread has worked for {LONGEST_TURN:g} s in its turn, in which nothing else goes on: does it wait "
                "for another, or for its time limit? In a deterministic run it waits by job.from_thread only"
            ) from None
        if isinstance(said, outcome.Value):
            return said.value
        if isinstance(said, outcome.Error):
            raise said.error
        turn.to_thread.put(await outcome.acapture(said))


def _ignore(_outcome: object) -> None:
    """Do nothing: the thread has reported its end in its turn."""
