"""HandlerLoop: where handlers and async listeners run. EngineRun: where calls of the program are carried out.

An engine always runs on trio. The program that opened it may be on trio too: then its handlers are called in the tasks
of their runs (`TrioHandlerLoop`), and nothing here costs a task, a command or a coroutine. Or it is on an asyncio loop:
then the engine has a thread of its own, and handlers are tasks of that loop (`bridged_handler_loop.py`).

A scheduler, its running jobs and its events get one HandlerLoop and ask it, and so do claims. They have no other
difference.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

import trio

from ..client.subscription import CallListener
from ..engine.handler_tasks import HandlerTasks, TrioTasks
from ..engine.run import Run
from ..engine.run_end import CancelReason, NotBegun
from ..unfinished_work import unfinished_work

T = TypeVar("T")


CALLED_ASYNCIO: Final = (
    "no running event loop",
    "There is no current event loop",
    "trio.run received unrecognized yield message",
)
"""How the errors begin that a call of asyncio raises in a trio task; the last one is trio's, for a bare await."""


class CleanupScope(Protocol):
    """The scope of a clean-up, or of a block under a claim: a `trio.CancelScope`; on asyncio an `anyio.CancelScope`.

    Attributes:
        cancel_called: Whether it was cancelled, by its deadline or by a call.
        cancelled_caught: After its end: whether the cancellation ended the body.
    """

    @property
    def cancel_called(self) -> bool: ...

    @property
    def cancelled_caught(self) -> bool: ...

    def cancel(self) -> object:
        """End the body at its next checkpoint."""
        ...


class EngineRun(Protocol):
    """The trio run of an engine, for tasks on the loop of the program: on that loop, or across the bridge."""

    def post(self, function: Callable[[], object]) -> None:
        """Call a function in the run; see `Loop.post`."""
        ...

    def call(
        self, function: Callable[..., Awaitable[T]], *args: Any, orphan: Callable[[T], None] | None = None
    ) -> Awaitable[T]:
        """Call an async function in the run; await the result.

        If the caller is cancelled and does not get what the function returned, `orphan` is called with it, in the run.
        """
        ...

    def call_for(self, run: Run[Any], function: Callable[..., Awaitable[T]], *args: Any) -> Awaitable[T]:
        """Like `call`, for a handler, and with the grace of its run. Also from a task of the engine's run."""
        ...

    def wait(self, event: trio.Event) -> Awaitable[None]:
        """Wait for an event of the run; await the result. Also from a task of the engine's run."""
        ...


class HandlerLoop(HandlerTasks, Protocol):
    """The loop on which handlers run. See the top of this file.

    Attributes:
        engine: Where calls of the program are carried out.
        call_listener: Calls an async listener there, from a task of the engine's run; None where that is its loop.
        further_connections: How many connections calls of the program may use beside those of the engine's run.
    """

    @property
    def engine(self) -> EngineRun: ...

    @property
    def further_connections(self) -> int: ...

    @property
    def call_listener(self) -> CallListener | None: ...

    def call_handler(self, handler: Callable[[Any], Awaitable[Any]], argument: Any, run: Run[Any]) -> Awaitable[object]:
        """Call an async handler, from the task of its run; await the result for what the handler returns or raises.

        Raises:
            NotBegun: It must not begin any more, and was not called.
            TypeError: It returned work that it has not done; see `unfinished_work.py`.
        """
        ...

    def call_back(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call a function for the thread of a plain handler, from a task of the engine's run.

        Returns what it returned, which is to be awaited if it is awaitable.
        """
        ...

    def begin(self, run: Run[Any]) -> None:
        """A task of the program begins to work in the run: the time limit of the run counts from now on."""
        ...

    def cleaning_up(self, run: Run[Any], seconds: float) -> AbstractContextManager[CleanupScope]:
        """Return the shielded scope of `Run.cleaning_up`, for the task of the handler."""
        ...

    def extended(self, run: Run[Any]) -> AbstractContextManager[CleanupScope]:
        """Return the scope of `Run.extended`, for a task of the program: it is cancelled with the run."""
        ...

    def cancel_reason(self, run: Run[Any]) -> CancelReason | None:
        """Return why the run is cancelled; None while it is not. In any thread."""
        ...

    def moment(self, trio_moment: float) -> float:
        """Return a moment of trio's clock as one of the clock of the loop on which handlers run."""
        ...


class _ThisRun:
    """The engine runs in the trio run of the caller."""

    def post(self, function: Callable[[], object]) -> None:
        function()

    def call(
        self, function: Callable[..., Awaitable[T]], *args: Any, orphan: Callable[[T], None] | None = None
    ) -> Awaitable[T]:
        return function(*args)

    def call_for(self, run: Run[Any], function: Callable[..., Awaitable[T]], *args: Any) -> Awaitable[T]:
        return function(*args)

    def wait(self, event: trio.Event) -> Awaitable[None]:
        return event.wait()


class TrioHandlerLoop(TrioTasks):
    """The trio run of the engine itself."""

    engine = _ThisRun()
    call_listener = None
    further_connections = 0

    # The loops of the engine are protected from Ctrl-C, and handlers would inherit that protection.
    @staticmethod
    @trio.lowlevel.disable_ki_protection
    async def call_handler(handler: Callable[[Any], Awaitable[Any]], argument: Any, run: Run[Any]) -> object:
        if not run.may_begin():
            raise NotBegun
        try:
            returned = await handler(argument)
        except (RuntimeError, TypeError) as error:
            if type(error) in (RuntimeError, TypeError) and str(error).startswith(CALLED_ASYNCIO):
                error.add_note(
                    "Handlers run on trio, not on asyncio: use trio.sleep, a trio nursery, and so on, or anyio. For "
                    "handlers that need asyncio, run `trio-monque run --loop asyncio`, or open the scheduler in a "
                    'program on asyncio; Workers(loop="asyncio") declares it.'
                )
            raise
        if returned is not None and (problem := unfinished_work(returned)) is not None:
            raise TypeError(f"the handler {problem}")
        return returned

    def call_back(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        return function(*args)

    def begin(self, run: Run[Any]) -> None:
        run.begin()

    def cleaning_up(self, run: Run[Any], seconds: float) -> AbstractContextManager[trio.CancelScope]:
        return run.cleaning_up(seconds)

    def extended(self, run: Run[Any]) -> AbstractContextManager[trio.CancelScope]:
        return run.extended()

    def cancel_reason(self, run: Run[Any]) -> CancelReason | None:
        return run.reason

    def moment(self, trio_moment: float) -> float:
        return trio_moment


ON_TRIO: Final = TrioHandlerLoop()
