"""One call of an async function in the runtime, for a task of an asyncio loop.

If the caller is cancelled, the function is cancelled in the runtime and awaited, also if the caller is cancelled
natively, past every anyio shield. What the function returned all the same goes to `orphan`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import anyio
import outcome
import trio

from ..error_types import MonqueError
from ..foreign_errors import without
from .app_loop import AppLoop
from .mailbox import Function

T = TypeVar("T")


class CalledRuntime(Protocol):
    """What a call needs of the runtime; see `Runtime`."""

    app_loop: AppLoop

    def post(self, function: Function) -> None: ...

    def start_service(self, function: Callable[[], Awaitable[None]]) -> None: ...

    def ended_error(self) -> MonqueError: ...


class RuntimeCall(Generic[T]):
    """One async function of the runtime, called from a task of an asyncio loop."""

    def __init__(
        self, runtime: CalledRuntime, function: Callable[[], Awaitable[T]], orphan: Callable[[T], None] | None
    ) -> None:
        self._runtime = runtime
        self._function = function
        self._orphan = orphan
        self._loop = runtime.app_loop.or_current()
        # Of an outcome: a future refuses a StopIteration as its exception.
        self._answer: asyncio.Future[outcome.Value[T] | outcome.Error] = asyncio.get_running_loop().create_future()
        self._has_completed = False  # And was neither cancelled nor dropped.
        self._context = copy_context()
        self._scope = trio.CancelScope()

    # --- In the loop of the caller ---

    async def wait(self) -> T:
        answer = self._answer
        try:
            await asyncio.wait([answer])
        except asyncio.CancelledError as error:
            cancelled = error
        else:
            return answer.result().unwrap()
        with suppress(RuntimeError):
            self._runtime.post(partial(self._scope.cancel, reason="the caller was cancelled"))
        cancelled = await wait_although_cancelled(answer) or cancelled
        ended = answer.result()
        if self._has_completed and anyio.current_effective_deadline() == -math.inf:
            return ended.unwrap()  # As on trio: the scope cancels again at the next checkpoint.
        # asyncio's own cancellation is raised in any case: who cancelled waits for it. An error beside it is dropped.
        if isinstance(ended, outcome.Value) and self._orphan is not None:
            with suppress(RuntimeError):  # The runtime has ended, and what it returned with it.
                self._runtime.post(partial(self._orphan, ended.unwrap()))
        raise cancelled

    def answer(self, ended: outcome.Value[T] | outcome.Error) -> None:
        """From any thread. A post to an asyncio loop never raises: see `Loop.post`."""
        self._loop.post(partial(self._set_answer, ended))

    def _set_answer(self, ended: outcome.Value[T] | outcome.Error) -> None:
        if not self._answer.done():
            self._answer.set_result(ended)

    # --- In the runtime ---

    def begin(self) -> None:
        try:
            self._context.run(self._runtime.start_service, self._run)
        except RuntimeError:
            self.answer(outcome.Error(self._runtime.ended_error()))

    async def _run(self) -> None:
        ended: outcome.Value[T] | outcome.Error = outcome.Error(self._runtime.ended_error())
        try:
            with self._scope:
                try:
                    ended = outcome.Value(await self._function())
                    self._has_completed = True
                except trio.Cancelled:
                    raise
                except BaseException as error:  # noqa: BLE001  # It is the caller's.
                    rest = without(error, trio.Cancelled)
                    self._has_completed = rest is not None
                    if rest is not None:
                        ended = outcome.Error(rest)
        finally:
            self.answer(ended)


async def wait_although_cancelled(future: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait for a future; a cancellation does not end the wait. Return the last one, which the caller raises."""
    cancelled: asyncio.CancelledError | None = None
    # The shield is against anyio, which cancels again in each turn of the loop. asyncio's own passes any shield.
    with anyio.CancelScope(shield=True):
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
    return cancelled
