"""Runs of one claim whose handlers are called one after the other in one task, until one of them waits.

A task costs as much as all the rest that the engine does for a run, and a handler that never waits has no use for one.
Whether a handler waits shows at its first step: it returns, or it hands trio what it waits for. Then the task is its
own from there on, and the runs behind it go on in others. Handlers of one group are alike in this: runs take turns if
the last handler of their group did not wait, and otherwise one of a thousand is looked at.

What a handler sees is the same in both ways. Each has a scope and a context of its own, and is called in its turn of
the event loop: trio would have called all of them in one turn, too. Its frames show where it waits. A task in which a
handler raised, or waited, is used for no other run: what such a handler left behind would be met by the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextvars import Context, copy_context
from types import CoroutineType, FrameType, coroutine
from typing import Any, Final, Generic, TypeVar

import trio

from .run import Run
from .source import RunSource

ClaimT = TypeVar("ClaimT")

TASKS_BETWEEN_PROBES: Final = 1000
"""The number of runs of a group that get tasks of their own before it is looked again whether its handlers wait."""

_Steps = Generator[Any, Any, object]


class RunTasks(Generic[ClaimT]):
    """Starts runs in tasks: of their own, or in turn.

    Args:
        run_to_end: Calls the handler of a run and concludes it, in a task of its own.
        run_in_turn: The same in a shared task. Returns whether that can be used for another run.
    """

    def __init__(
        self,
        run_to_end: Callable[[Run[ClaimT]], Awaitable[None]],
        run_in_turn: Callable[[Run[ClaimT], SharedTask[ClaimT]], Awaitable[bool]],
    ) -> None:
        self._run_to_end = run_to_end
        self._run_in_turn = run_in_turn
        # Groups whose last handler has returned without waiting.
        self._returning: set[str] = set()
        # Groups that wait, and groups that nothing is known about yet: the number of runs until the next probe.
        self._left: dict[str, int] = {}

    def start(self, runs: Iterable[Run[ClaimT]], nursery: trio.Nursery) -> None:
        """Start these runs, in their order."""
        in_turn = deque[Run[ClaimT]]()
        for run in runs:
            if run.group in self._returning:
                in_turn.append(run)
            elif self._is_probe(run.group):
                nursery.start_soon(self._share, deque((run,)), nursery, name="run")
            else:
                nursery.start_soon(self._run_to_end, run, name="run")
        if in_turn:
            nursery.start_soon(self._share, in_turn, nursery, name="run")

    def _is_probe(self, group: str) -> bool:
        left = self._left.get(group, 0)
        self._left[group] = left - 1 if left else TASKS_BETWEEN_PROBES
        return not left

    @trio.lowlevel.enable_ki_protection
    async def _share(self, runs: deque[Run[ClaimT]], nursery: trio.Nursery) -> None:
        shared = SharedTask(self, runs, nursery)
        try:
            # Taken out, and not only passed over: a run that takes the task must not keep the others in memory.
            while runs:
                run = runs.popleft()
                if not await self._run_in_turn(run, shared) or shared.is_over:
                    break
                if run.has_begun:
                    self._returning.add(run.group)
        finally:
            # Also if the engine is being cancelled: these runs must be concluded, too.
            self.start(runs, nursery)

    def begin_waiting(self, run: Run[ClaimT], rest: deque[Run[ClaimT]], nursery: trio.Nursery) -> None:
        """The handler of this run is about to wait: the runs behind it go on without it."""
        self._returning.discard(run.group)
        self._left[run.group] = TASKS_BETWEEN_PROBES
        self.start(rest, nursery)
        rest.clear()


class SharedTask(Generic[ClaimT]):
    """Runs that take turns in one task, which makes this.

    Attributes:
        task: That task.
        context: The one of the run whose turn it is.
        is_over: A handler has taken the task for itself.
    """

    __slots__ = ("_left", "_nursery", "_tasks", "context", "is_over", "task")

    context: Context

    def __init__(self, tasks: RunTasks[ClaimT], left: deque[Run[ClaimT]], nursery: trio.Nursery) -> None:
        self.task = trio.lowlevel.current_task()
        self._tasks = tasks
        self._left = left
        self._nursery = nursery
        self.is_over = False

    @coroutine
    def call(self, source: RunSource[ClaimT, Any], run: Run[ClaimT]) -> _Steps:
        """Execute the run, in a context of its own."""
        context = self.context = copy_context()
        awaitable = context.run(source.execute, run)
        steps = awaitable if type(awaitable) is CoroutineType else awaitable.__await__()
        try:
            waits_for = context.run(steps.send, None)
        except StopIteration as end:
            return end.value
        self.is_over = True
        self._tasks.begin_waiting(run, self._left, self._nursery)
        return (yield from _Waiting(steps, context, waits_for))


class _Waiting:
    """The rest of a coroutine that has made its first step. Its frames show through, as those of a coroutine do."""

    __slots__ = ("_context", "_first", "_steps")

    def __init__(self, steps: Any, context: Context, first: object) -> None:
        self._steps = steps
        self._context = context
        self._first = first

    def __iter__(self) -> _Waiting:
        return self

    def __next__(self) -> object:
        """Hand out what the first step waits for. Called once, at the beginning of `yield from`: trio sends no None."""
        return self._first

    def send(self, value: object) -> object:
        return self._context.run(self._steps.send, value)

    def throw(self, *raised: Any) -> object:
        return self._context.run(self._steps.throw, *raised)

    def close(self) -> None:
        self._context.run(self._steps.close)

    @property
    def cr_frame(self) -> FrameType | None:
        return getattr(self._steps, "cr_frame", None) or getattr(self._steps, "gi_frame", None)

    @property
    def cr_await(self) -> object:
        return getattr(self._steps, "cr_await", None) or getattr(self._steps, "gi_yieldfrom", None)
