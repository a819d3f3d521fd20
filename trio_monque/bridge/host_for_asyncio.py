"""Opens a host for a program whose event loop is asyncio: the host runs on trio in a thread, for as long as a block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import trio

from ..client.operation import is_in_event_loop
from ..error_types import MonqueError
from ..grace import carry_grace
from ..host.host import Body, Host
from ..loops import serving_other_loops
from .bridged_handler_loop import BridgedHandlerLoop
from .handler_loop import ON_TRIO, HandlerLoop
from .lifetime import open_in_runtime
from .runtime import Runtime

T = TypeVar("T")
PublicT = TypeVar("PublicT")
ReportT = TypeVar("ReportT")


@dataclass(frozen=True)
class Opened(Generic[PublicT, ReportT]):
    """What a kind of work makes when it is opened.

    Attributes:
        public: What the program gets: a Scheduler, for example.
        host: What runs it.
        body: What is done beside and at the end of the body.
        loop: Where its handlers run.
    """

    public: PublicT
    host: Host[Any, ReportT]
    body: Body
    loop: HandlerLoop


def is_on_trio(name: str) -> bool:
    """Return whether the caller is in a trio task; False in a task of an asyncio loop.

    Raises:
        MonqueError: Neither of the two runs here. `name` is the function that was called.
    """
    if trio.lowlevel.in_trio_task():
        return True
    if not is_in_event_loop():
        raise MonqueError(
            f"{name} needs an event loop: call it in an async function, run by trio.run, asyncio.run or anyio.run"
        )
    return False


@asynccontextmanager
async def opened(
    name: str, noun: str, make: Callable[[HandlerLoop], Opened[PublicT, ReportT]]
) -> AsyncIterator[PublicT]:
    """Run what `make` makes while the body runs, on the loop of the caller or beside it. See `Host.opened`."""
    if is_on_trio(name):
        made = make(ON_TRIO)
        async with made.host.opened(made.body):
            yield made.public
    else:
        async with open_in_runtime(partial(_live, make), _drain, noun) as bridged:
            try:
                yield bridged.public
            except BaseException as error:
                # As in `Host.opened`: the crash alone is worth raising.
                if not (bridged.host.engine.stop.crashes and bridged.body.is_echo(error)):
                    raise


async def run(
    name: str,
    noun: str,
    make: Callable[[HandlerLoop], Opened[PublicT, ReportT]],
    task_status: trio.TaskStatus[PublicT],
) -> ReportT:
    """Run what `make` makes until it was drained, on the loop of the caller or beside it; return its report."""
    if is_on_trio(name):
        made = make(ON_TRIO)
        return await made.host.run_unwrapped(partial(task_status.started, made.public))
    async with open_in_runtime(partial(_live, make), _drain, noun) as bridged:
        task_status.started(bridged.public)
        await bridged.loop.engine.wait(bridged.host.ended)
    report: ReportT | None = bridged.host.report
    assert report is not None, "it has ended, and a crash was raised"
    return report


async def call_on_trio(name: str, noun: str, function: Callable[[HandlerLoop], Awaitable[T]]) -> T:
    """Await a function in the trio run of the caller or, on asyncio, in one beside its loop; return what it returns.

    It gets the loop of the caller, for handlers. If the caller is cancelled, the function is cancelled and awaited.

    Raises:
        MonqueError: The caller is in neither. `name` is the function that was called. Or the application has cancelled
            all tasks of its loop except the caller.
    """
    if is_on_trio(name):
        return await function(ON_TRIO)
    results: list[T] = []

    async def main(runtime: Runtime, task_status: trio.TaskStatus[None]) -> None:
        carry_grace(None)
        task_status.started()
        results.append(await function(BridgedHandlerLoop(runtime)))

    async with open_in_runtime(main, lambda _: None, noun):
        pass
    if not results:  # Cut, and the caller was not cancelled, which would have been raised.
        raise MonqueError(f"the {noun} was cut: the application has cancelled other tasks of its event loop")
    return results[0]


async def _live(
    make: Callable[[HandlerLoop], Opened[PublicT, ReportT]],
    runtime: Runtime,
    task_status: trio.TaskStatus[Opened[PublicT, ReportT]],
) -> None:
    """In the runtime, from the start to the end."""
    carry_grace(None)  # It may have been opened in a handler. This is another run.
    made = make(BridgedHandlerLoop(runtime))
    runtime.app_loop.when_recovered(made.host.engine.waker.look)
    # The program enqueues from its own loop, which is not this run. Without this, its local wake-ups would not reach
    # the engine, and each new job would wait for the change stream or a poll. On trio, both are one run.
    with serving_other_loops():
        await made.host.run_beside(made.body, partial(task_status.started, made))


def _drain(made: Opened[Any, Any]) -> None:
    """On the application loop, when the body has ended without an error."""
    engine = made.host.engine

    def drain() -> None:
        made.body.at_end()
        engine.stop.drain(f"the body of {made.body.name} has ended")

    engine.post(drain)
