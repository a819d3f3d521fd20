"""A scope of a task of the application that ends with a scope of the runtime.

The deadlines of a run live in the runtime, because the lease moves them. The task that they end is in the application
loop. So a task of the runtime stays in the real scope for as long as the block lasts.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import anyio
import trio

from .runtime import Runtime


@contextmanager
def mirrored_scope(
    runtime: Runtime,
    enter: Callable[[], AbstractContextManager[object]],
    *,
    shield: bool = False,
    seconds: float = math.inf,
    label: object = None,
) -> Iterator[anyio.CancelScope]:
    """Cancel the block if the runtime leaves the scope that `enter` returns before the block has ended.

    Args:
        runtime: Where that scope is entered, soon after the block has begun. `enter` must not raise.
        enter: Called in the runtime.
        shield: Whether the block is shielded from cancellations around it.
        seconds: How long the block may last; the runtime may end it earlier.
        label: What the block works on, for log lines about the application loop.
    """
    with anyio.CancelScope(shield=shield, deadline=anyio.current_time() + seconds) as scope:
        mirrored = _Mirrored(runtime, enter, scope)
        task = asyncio.current_task()
        outer = None if label is None else runtime.app_loop.set_label(task, label)
        with suppress(RuntimeError):  # The run has ended: `seconds` is the limit that is left.
            runtime.post(mirrored.begin)
        try:
            yield scope
        finally:
            mirrored.leave()
            if label is not None:
                runtime.app_loop.set_label(task, outer)


class _Mirrored:
    def __init__(
        self, runtime: Runtime, enter: Callable[[], AbstractContextManager[object]], scope: anyio.CancelScope
    ) -> None:
        self._runtime = runtime
        self._enter = enter
        self._scope = scope
        self._is_over = trio.Event()
        self._has_left = False
        self._loop = runtime.app_loop.or_current()

    # --- In the loop of the block ---

    def leave(self) -> None:
        self._has_left = True
        with suppress(RuntimeError):  # The run has ended, and the task that waits for this with it.
            self._runtime.post(self._is_over.set)

    def _cancel(self) -> None:
        if not self._has_left:
            self._scope.cancel()

    # --- In the runtime ---

    def begin(self) -> None:
        try:
            self._runtime.start_service(self._run)
        except RuntimeError:  # It is ending and starts nothing more: as if it had left the scope at once.
            self._cancel_soon()

    async def _run(self) -> None:
        try:
            with self._runtime.calling_at_end(self._is_over.set), self._enter():
                await self._is_over.wait()
        finally:
            self._cancel_soon()  # Also where the block has ended: then it does nothing.

    def _cancel_soon(self) -> None:
        self._loop.post(self._cancel)
