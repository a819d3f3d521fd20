"""A program on an asyncio loop, and something that a runtime runs for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pytest
import trio

from trio_monque.bridge.app_loop import AppLoop
from trio_monque.bridge.lifetime import open_in_runtime
from trio_monque.bridge.runtime import Runtime

T = TypeVar("T")


@dataclass(frozen=True)
class AppRunner:
    """Runs the program, on asyncio's own loop or uvloop's, or in virtual time that runtimes share ("joined")."""

    name: str

    def run(self, main: Callable[[], Coroutine[Any, Any, T]], *, debug: bool = False) -> T:
        with self._joining(), asyncio.Runner(loop_factory=self.new_loop, debug=debug) as runner:
            return runner.run(main())

    def _joining(self) -> AbstractContextManager[None]:
        if self.name != "joined":
            return nullcontext()
        from tests.support.joined_time import joining_runtimes

        return joining_runtimes()

    def new_loop(self) -> asyncio.AbstractEventLoop:
        if self.name == "asyncio":
            return asyncio.new_event_loop()
        if self.name == "joined":
            from tests.support.joined_time import JoinedLoop

            return JoinedLoop()
        import uvloop

        return uvloop.new_event_loop()


@dataclass
class Engine:
    """What lives in the runtime: it waits until it is drained, and starts what a test asks for.

    Attributes:
        log: What happened to it.
    """

    runtime: Runtime
    draining: trio.Event
    nursery: trio.Nursery
    log: list[str] = field(default_factory=list)

    @property
    def app_loop(self) -> AppLoop:
        return self.runtime.app_loop

    def drain(self) -> None:
        self.runtime.post(self.draining.set)

    def crash(self, error: BaseException) -> None:
        self.runtime.post(lambda: self.nursery.start_soon(_raise, error))

    async def in_runtime(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        return await self.runtime.call(function, *args)

    async def call(self, function: Callable[..., Awaitable[T]], *args: Any, timeout: float = 20.0, **options: Any) -> T:
        """Call a function of the application from the runtime, as an engine calls a handler."""

        async def call() -> T:
            with trio.fail_after(timeout):
                return await self.app_loop.call(function, *args, **options)

        return await self.runtime.call(call)

    async def call_until(
        self, cancel: trio.Event, function: Callable[..., Awaitable[T]], *args: Any, **options: Any
    ) -> T | None:
        """The same, and cancel it when that event is set in the runtime; None if that ended it."""

        async def call() -> T | None:
            results: list[T] = []
            async with trio.open_nursery() as nursery:

                async def cancel_then() -> None:
                    await cancel.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(cancel_then)
                with trio.fail_after(20):
                    results.append(await self.app_loop.call(function, *args, **options))
                nursery.cancel_scope.cancel()
            return results[0] if results else None

        return await self.runtime.call(call)


async def _raise(error: BaseException) -> None:
    raise error


@asynccontextmanager
async def open_engine(*, cleanup: Callable[[], Awaitable[None]] | None = None) -> AsyncIterator[Engine]:
    """An engine; `cleanup` is awaited, shielded, when it is cut."""
    engines: list[Engine] = []

    async def main(runtime: Runtime, task_status: trio.TaskStatus[Engine]) -> None:
        engine: Engine | None = None
        try:
            async with trio.open_nursery() as nursery:
                engine = Engine(runtime, trio.Event(), nursery)
                engines.append(engine)
                task_status.started(engine)
                await engine.draining.wait()
                engine.log.append("drained")
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            errors = group.split(trio.Cancelled)[1]
            if errors is not None:
                raise errors.exceptions[0] from errors.exceptions[0].__cause__
            assert engine is not None
            engine.log.append("cut")
            if cleanup is not None:
                with trio.CancelScope(shield=True):
                    await cleanup()
            raise

    async with open_in_runtime(main, Engine.drain, "engine") as engine:
        yield engine


def move_clock(runtime: Runtime, seconds: float) -> None:
    """Move the MockClock of a runtime, and return when all that this causes there has happened. From another thread."""
    import trio.testing  # Not above: programs of these tests import this file, and that takes long on a busy machine.

    has_settled = threading.Event()

    async def move() -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        await trio.testing.wait_all_tasks_blocked()  # Tasks that are new have begun to sleep.
        clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked()
        has_settled.set()

    runtime.post(partial(runtime.start_service, move))
    assert has_settled.wait(20)


async def until(condition: Callable[[], object]) -> None:
    """Wait in the application loop; the test's own time limit ends what never comes."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


@contextmanager
def starting_nothing_more() -> Iterator[None]:
    """As if the runtime ended between a post and its delivery: its nursery takes no more services."""

    def has_ended(self: Runtime, function: Callable[[], Any]) -> None:
        raise RuntimeError("Nursery is closed to new arrivals")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runtime, "start_service", has_ended)
        yield
