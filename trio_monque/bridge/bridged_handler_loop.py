"""BridgedHandlerLoop: handlers and listeners run on the asyncio loop of the program, their engine in another thread.

Races that this file closes:

- A run is cancelled before its handler has begun, because the loop did not answer. The bridge decides in one step
  whether a call begins or never will. If it never will, the time limit did not end the run: it is released.
- A handler begins late. Its time limit counts from there. If its claim was lost meanwhile, or its start limit is over,
  it does not begin: this thread looks once more when it calls the handler.
- A call of the handler is carried out in the engine's run, where no scope of the handler is. Its cancellation and its
  grace are those of the task that awaits it: so a clean-up may still save, and no longer than its lease.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, Final, TypeVar

import trio

from ..engine.handler_tasks import TRIO_TASKS
from ..engine.loop_blocks import LoopBlocks
from ..engine.run import BlockName, Run
from ..engine.run_end import CancelReason, NotBegun
from ..engine.runner import LATE
from ..error_types import MonqueError
from ..events import Event
from ..grace import carry_grace, using_grace
from ..loops import TrioLoop
from ..store.driver.database_threads import Channel
from ..unfinished_work import unfinished_work
from .handler_loop import CleanupScope
from .mirrored_scope import mirrored_scope
from .runtime import Runtime

T = TypeVar("T")

CALLED_TRIO: Final = ("must be called from async context", "Task got bad yield: <class 'trio.")
"""How the errors begin that a call of trio raises on an asyncio loop."""


class BridgedHandlerLoop:
    """Made in the runtime. Unless a method says otherwise, it is called there."""

    # Its limiters are those of the application loop, which know nothing of those of the runtime.
    further_connections = Channel.COMMANDS.value

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._app_loop = runtime.app_loop
        self._loop = TrioLoop()
        self.engine = _RunBehindBridge(runtime, self._loop)
        self._clock = trio.lowlevel.current_clock()

    @property
    def is_answering(self) -> bool:
        return self._app_loop.is_answering

    @property
    def lag(self) -> float:
        return self._app_loop.lag

    @property
    def blocks(self) -> LoopBlocks:
        return self._app_loop.blocks

    def complaints(self) -> Sequence[str]:
        app_loop = self._app_loop
        if app_loop.is_gone:
            return ("the application's event loop is closed",)
        if app_loop.is_answering:
            return ()
        problem = f"the application's event loop has not answered for {app_loop.lag:.1f} s"
        return (f"{problem}: no handler continues meanwhile, and nothing is claimed",)

    def frames_of(self, task: trio.lowlevel.Task) -> str:
        return self._app_loop.stack_of(task) or TRIO_TASKS.frames_of(task)

    async def call_handler(self, handler: Callable[[Any], Awaitable[Any]], argument: Any, run: Run[Any]) -> object:
        called_at = self._clock.current_time()
        try:
            returned = await self._app_loop.call(
                self._begin, handler, argument, run, called_at, never_began=run.never_began, label=run
            )
        except RuntimeError as error:
            if type(error) is RuntimeError and str(error).startswith(CALLED_TRIO):
                error.add_note(
                    "This handler runs on asyncio, not on trio: use asyncio or anyio, or register it with "
                    'runs_on="runtime".'
                )
            raise
        if (problem := unfinished_work(returned)) is not None:
            raise TypeError(f"the handler {problem}")
        return returned

    def _begin(
        self, handler: Callable[[Any], Awaitable[Any]], argument: Any, run: Run[Any], called_at: float
    ) -> Awaitable[Any]:
        """On the application loop. Not a coroutine: each takes a quarter of a kilobyte while the handler waits."""
        now = self._clock.current_time()
        # Before `may_begin`, which asks whether the start is late by this moment. A start on time needs no post.
        if now - called_at > LATE:
            run.begins_at(now)  # The handler may ask for its deadline before the run has taken the post.
            with suppress(RuntimeError):  # The runtime has ended, and the run with it.
                self._runtime.post(partial(run.begin, now))
        if not run.may_begin():
            raise NotBegun
        return handler(argument)

    async def call_listener(self, listener: Callable[[Event], Awaitable[object]], event: Event) -> object:
        return await self._app_loop.call(_heard, listener, event)

    async def call_back(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        return await self._app_loop.call(_called_back, function, args)

    # --- For the program, on its loop; or for a handler in the runtime ---

    def begin(self, run: Run[Any]) -> None:
        now = self._clock.current_time()
        run.begins_at(now)  # The task may ask for its deadline before the run has taken the post.
        self.engine.post(partial(run.begin, now))

    def cleaning_up(self, run: Run[Any], seconds: float) -> AbstractContextManager[CleanupScope]:
        make = partial(run.cleaning_up, seconds)
        return make() if self._loop.is_current else mirrored_scope(self._runtime, make, shield=True, seconds=seconds)

    def extended(self, run: Run[Any]) -> AbstractContextManager[CleanupScope]:
        if self._loop.is_current:
            return run.extended()
        return mirrored_scope(self._runtime, run.extended, label=BlockName(run.claim, run.group))

    def cancel_reason(self, run: Run[Any]) -> CancelReason | None:
        # The end of `asyncio.run` cancels the handler itself, before the cut reaches its run.
        if run.reason is None and self._app_loop.is_leaving and not run.has_ended:
            return CancelReason.SHUTDOWN
        return run.reason

    def moment(self, trio_moment: float) -> float:
        return self._app_loop.loop.time() + (trio_moment - self._clock.current_time())


class _RunBehindBridge:
    """The trio run of the engine, in another thread than the loop of the program."""

    def __init__(self, runtime: Runtime, loop: TrioLoop) -> None:
        self._runtime = runtime
        self._loop = loop

    def post(self, function: Callable[[], object]) -> None:
        if self._loop.is_current:
            function()
        else:
            with suppress(RuntimeError):  # The run has ended.
                self._runtime.post(function)

    async def call_for(self, run: Run[Any], function: Callable[..., Awaitable[T]], *args: Any) -> T:
        if self._loop.is_current:
            return await function(*args)
        return await self._runtime.call(_with_grace, run, function, args)

    async def wait(self, event: trio.Event) -> None:
        if self._loop.is_current:
            await event.wait()
        elif not event.is_set():
            try:
                await self._runtime.call(event.wait)
            except MonqueError:
                if not event.is_set():
                    raise

    def call(
        self, function: Callable[..., Awaitable[T]], *args: Any, orphan: Callable[[T], None] | None = None
    ) -> Awaitable[T]:
        return self._runtime.call(function, *args, orphan=orphan)


async def _heard(listener: Callable[[Event], Awaitable[object]], event: Event) -> object:
    carry_grace(None)  # The scheduler may have been opened in a handler, whose run it outlives.
    return await listener(event)


async def _called_back(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    result = function(*args)
    return await result if inspect.isawaitable(result) else result


async def _with_grace(run: Run[Any], function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
    with using_grace(run):
        return await function(*args)
