"""A runtime that lives for as long as a block of the application.

- The end of the block drains; a block that raises or is cancelled cuts, and so does a cancellation while draining.
- A crash of the runtime cancels the body, as a crashed child of a nursery does, and is raised at the end of the block:
  by `Task.cancel`, which is taken back by `Task.uncancel`, so that scopes around the block do not count it.
- The crash comes while the body ends by itself: the cancellation arrives too late for the body, and is awaited here.
- The block is closed by GeneratorExit, from another task or by a loop that ends, while it starts, runs or drains:
  nothing can be awaited any more, so the runtime is cut and ends by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

import outcome
import trio

from ..error_types import MonqueError
from .runtime import Runtime, raise_as_it_is

T = TypeVar("T")
StartedT = TypeVar("StartedT")


@asynccontextmanager
async def open_in_runtime(
    main: Callable[[Runtime, trio.TaskStatus[T]], Awaitable[None]], drain: Callable[[T], None], noun: str
) -> AsyncIterator[T]:
    """Run `main` in a runtime for as long as the block.

    Args:
        main: Called in the runtime, with that and a task status. The block begins when it has called `started`, and
            gets the value.
        drain: Asks `main` to end in order, when the block has ended without an error. In the application loop.
            It may raise the RuntimeError of `Runtime.post`.
        noun: What `main` runs, for errors: "scheduler", for example.

    Raises:
        BaseException: What `main` raised; if the body raised an error too, a group of both.
        ShortageError: The thread could not be started.
    """
    lifetime = _Lifetime(main, noun)
    started = await lifetime.start()
    try:
        yield started
    except BaseException as error:
        await lifetime.leave(partial(drain, started), error)
        raise
    else:
        await lifetime.leave(partial(drain, started), None)


class _TaskStatus(trio.TaskStatus[StartedT], Generic[StartedT]):
    def __init__(self, started: Callable[[StartedT], None]) -> None:
        self._started = started

    def started(self, value: StartedT = None) -> None:  # type: ignore[assignment]  # As trio's.
        self._started(value)


class _Lifetime(Generic[T]):
    def __init__(self, main: Callable[[Runtime, trio.TaskStatus[T]], Awaitable[None]], noun: str) -> None:
        self._noun = noun
        self._runtime = Runtime(lambda runtime: main(runtime, _TaskStatus(self._post_started)), noun)
        self._started: asyncio.Future[T] = self._runtime.app_loop.loop.create_future()
        # The task whose body is running. It may be left in another task, which is not cancelled by a crash.
        self._body: asyncio.Task[object] | None = None
        self._cancelled: asyncio.Task[object] | None = None

    def _post_started(self, value: T) -> None:
        self._runtime.app_loop.post(partial(self._set_started, value))

    def _set_started(self, value: T) -> None:
        if not self._started.done():  # It is, if a Ctrl-C has hit this call, which the mailbox repeats then.
            self._started.set_result(value)

    async def start(self) -> T:
        runtime = self._runtime
        self._body = runtime.app_loop.opener
        runtime.start()
        try:
            first: list[asyncio.Future[Any]] = [self._started, runtime.ended]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        except BaseException as error:  # Cancelled, or closed.
            runtime.cut()
            if not isinstance(error, GeneratorExit):
                await runtime.wait_ended_although_cancelled()
            raise
        if self._started.done():
            runtime.ended.add_done_callback(self._cancel_body)
            return self._started.result()
        await runtime.wait_ended()
        self._raise_crash(None)
        raise MonqueError(f"the {self._noun} ended before it had started")

    def _cancel_body(self, ended: asyncio.Future[outcome.Outcome[None]]) -> None:
        if self._body is not None and isinstance(ended.result(), outcome.Error):
            self._cancelled = self._body
            self._body.cancel(f"the {self._noun} crashed")

    async def leave(self, drain: Callable[[], None], error: BaseException | None) -> None:
        self._body = None
        runtime = self._runtime
        if isinstance(error, GeneratorExit):
            runtime.cut()
            return
        if error is None:
            with suppress(RuntimeError):  # The run has ended by itself.
                drain()
        else:
            runtime.cut()
        cancelled: asyncio.CancelledError | None = None
        if self._cancelled is not None:
            self._cancelled.uncancel()
        try:
            await runtime.wait_ended()
        except asyncio.CancelledError as again:
            cancelled = again  # Or ours: it came too late for the body, or the body requested it again.
        except GeneratorExit:
            runtime.cut()
            raise
        # A crash is raised in place of a cancellation, which may be ours: the cause must not be lost.
        self._raise_crash(error)
        if cancelled is not None:
            raise cancelled

    def _raise_crash(self, beside: BaseException | None) -> None:
        ended = self._runtime.ended.result()
        if not isinstance(ended, outcome.Error):
            return
        crash = ended.error
        if beside is None or isinstance(beside, asyncio.CancelledError):
            raise_as_it_is(crash)
        else:
            raise BaseExceptionGroup(f"the {self._noun} crashed, and the block raised", [crash, beside]) from None
