"""Threads that take turns, so that a test gets a reproducible order: the event loop stops while one works.

Nothing then depends on which of two threads is faster. It is the same code in the same kind of thread.
"""

from __future__ import annotations

import queue
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import outcome
import trio

from .error_types import MonqueError

T = TypeVar("T")

LONGEST_TURN: Final = 30.0
"""Seconds of real time."""

_takes_turns: trio.lowlevel.RunVar[bool] = trio.lowlevel.RunVar("monque_threads_take_turns")


def take_turns() -> None:
    """From now on, the threads of this run work one at a time, and the event loop waits for each."""
    _takes_turns.set(True)


def do_threads_take_turns() -> bool:
    return _takes_turns.get(False)  # The default of a RunVar.


@dataclass(eq=False)
class Turn(Generic[T]):
    """The turn of one thread: two queues by which it asks the event loop for calls, and reports how it ended."""

    from_thread: queue.SimpleQueue[outcome.Value[T] | outcome.Error | Callable[[], Awaitable[Any]]] = field(
        default_factory=queue.SimpleQueue
    )
    to_thread: queue.SimpleQueue[outcome.Outcome[Any]] = field(default_factory=queue.SimpleQueue)

    def work(self, function: Callable[[], T]) -> None:
        token = turn_of_thread.set(self)
        try:
            result = outcome.capture(function)
        finally:
            turn_of_thread.reset(token)
        self.from_thread.put(result)

    def call(self, function: Callable[[], Awaitable[Any]]) -> Any:
        self.from_thread.put(function)
        return self.to_thread.get().unwrap()


turn_of_thread: ContextVar[Turn[Any]] = ContextVar("turn_of_thread")
"""In a thread that works in its turn: that turn."""


async def in_turn(function: Callable[[], T]) -> T:
    """Call `function` in a thread, while the event loop stands still; return what it returns."""
    await trio.lowlevel.checkpoint()
    turn: Turn[T] = Turn()
    context = copy_context()
    trio.lowlevel.start_thread_soon(lambda: context.run(turn.work, function), _ignore)
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
