"""The runtime: a trio run in a thread of its own, for a block of an asyncio program.

    application loop (asyncio)        runtime (trio)                          database threads

    lifetime ── starts, cuts ───────► _live: the host and its engine ───────► DatabaseThreads.call
    call_into_runtime ◄─── call ────► a task of `services`                    (claims, renewals,
    a task ◄───── app_loop_task ────► AppLoop.call, in the task of a run       settlements)
    mirrored_scope ─── post ────────► a scope of the run
    AppLoop's mailbox ◄─── post ────► the runtime's mailbox
                  ◄─── looks ──────── app_loop_watch

`post` has a function called in the other lane, and does not wait; a mailbox gathers posts, in order, for one wake-up.
`call` is two posts: one begins it, one brings the answer. No lane ever blocks for another,
but at the very end: the application joins the thread, in which nothing is left to do then.

Races that this file closes:

- A call is posted while the run ends. Its begin may be dropped with the mailbox; so every caller is listed, and the
  last message of the run answers all that are left. It is repeated until the loop has taken it.
- The run ends while something is posted from another thread: the post raises RuntimeError, or the run takes it, or it
  is dropped with the mailbox, and the last message answers its caller.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

import anyio.lowlevel
import outcome
import trio

from ..error_types import MonqueError, ShortageError, is_shortage
from ..safe_text import text_of
from .app_loop import AppLoop
from .app_loop_watch import LOOK_INTERVAL, AppLoopWatch
from .call_into_runtime import RuntimeCall, wait_although_cancelled
from .mailbox import Function, Mailbox

T = TypeVar("T")
ArgsT = TypeVarTuple("ArgsT")

JOIN_SECONDS: Final = 1.0
"""How long to wait for the end of a thread that has sent its last message."""

make_clock: ContextVar[Callable[[], trio.abc.Clock] | None] = ContextVar("monque_clock_of_runtime", default=None)
"""Makes the clock of each runtime that is opened in this context; None for trio's own.

Only tests set it. One clock belongs to one run, so it is a function: a program may open several runtimes.
"""


class Runtime:
    """Runs `main` under trio until it returns. Made in a task of the application loop.

    Args:
        main: Called in the runtime, with this object.
        noun: What it runs, for errors: "scheduler", for example.

    Attributes:
        app_loop: The loop in which this was made.
        ended: Set in that loop, at the end of the run, with its outcome. The thread ends right after.
    """

    def __init__(self, main: Callable[[Runtime], Awaitable[None]], noun: str) -> None:
        self._main = main
        self._noun = noun
        self._mailbox = Mailbox()
        self._scope = trio.CancelScope()
        self._services: trio.Nursery | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._waiting: set[RuntimeCall[Any]] = set()
        self._at_end: dict[Callable[[], None], None] = {}
        self._main_has_ended = False
        self._end_is_noted = threading.Event()
        make = make_clock.get()
        self._clock = None if make is None else make()
        self.app_loop = AppLoop(self._answer, self.cut)
        self.ended: asyncio.Future[outcome.Outcome[None]] = self.app_loop.loop.create_future()
        # The thread inherits `daemon` from the opening thread. At the end of the program Python waits for it, if it is
        # not a daemon, and the watch of the application loop ends it then.
        self._thread = threading.Thread(target=partial(copy_context().run, self._run), name="trio_monque runtime")

    def start(self) -> None:
        """Start the thread.

        Raises:
            ShortageError: It could not be started.
        """
        try:
            self._thread.start()
        except RuntimeError as error:
            self.app_loop.end()
            if not is_shortage(error):
                raise
            raise ShortageError(f"could not start a thread: {text_of(error)}") from error

    # --- From any thread ---

    def post(self, function: Function) -> None:
        """Call the function in the runtime, soon; it must not raise. Before the start, it waits.

        Raises:
            RuntimeError: The run has ended, so the function is not called.
        """
        self._mailbox.post(function)

    def cut(self) -> None:
        """Cancel `main`, any number of times."""
        with suppress(RuntimeError):
            self.post(partial(self._scope.cancel, reason="the application left the block"))

    async def call(
        self,
        function: Callable[[Unpack[ArgsT]], Awaitable[T]],
        *args: *ArgsT,
        orphan: Callable[[T], None] | None = None,
    ) -> T:
        """Await an async function in the runtime; return what it returns, raise what it raises.

        It runs there in a copy of the caller's context. If the caller is cancelled already, the function is not called;
        if it is cancelled meanwhile, the function is cancelled too, and awaited. In a task of the runtime itself, it is
        a plain call.

        Args:
            function: Called in the runtime.
            args: Its arguments.
            orphan: Called in the runtime with a result that the caller does not get, because it was cancelled.

        Raises:
            MonqueError: The run has ended.
        """
        if trio.lowlevel.in_trio_task():
            if trio.lowlevel.current_trio_token() is not self._token:
                raise MonqueError(f"this {self._noun} was opened in asyncio: it cannot be used in another trio run")
            return await function(*args)
        await anyio.lowlevel.checkpoint_if_cancelled()
        call = RuntimeCall(self, lambda: function(*args), orphan)
        # Before the post: on another loop, the last message of the run may come between the two.
        self._waiting.add(call)
        try:
            try:
                self.post(call.begin)
            except RuntimeError:
                raise self.ended_error() from None
            return await call.wait()
        finally:
            self._waiting.discard(call)

    def ended_error(self) -> MonqueError:
        """What a call raises that came too late."""
        return MonqueError(f"the {self._noun} has ended")

    # --- In the application loop ---

    async def wait_ended(self) -> None:
        """Return when the run has ended, and its thread. If this is cancelled: cut, wait all the same, then raise."""
        cancelled: asyncio.CancelledError | None = None
        try:
            await asyncio.wait([self.ended])
        except asyncio.CancelledError as error:
            cancelled = error
            self.cut()
        await self.wait_ended_although_cancelled()
        if cancelled is not None:
            raise cancelled

    async def wait_ended_although_cancelled(self) -> None:
        """Wait for the run and its thread. Cancelling this does not shorten the wait: the run is cancelled already."""
        await wait_although_cancelled(self.ended)
        self._thread.join(JOIN_SECONDS)

    def _answer(self, function: Function) -> None:
        """As `post`, but the answers of one turn of the loop share a wake-up at its end.

        In another thread, where Python closes what a loop has left behind, the wake-up may be that of the watch.
        """
        if self._mailbox.gather(function):
            try:
                self.app_loop.loop.call_soon(self._ring_for_answers)
            except RuntimeError:  # The loop is closed. Or it is in debug mode, and this is another thread.
                self._mailbox.ring()

    def _ring_for_answers(self) -> None:
        with suppress(RuntimeError):  # The run has ended.
            self._mailbox.ring_for_gathered()

    def _note_end(self, ended: outcome.Outcome[None]) -> None:
        self.app_loop.end()  # First: an end of all tasks of the loop must not cut what has ended.
        for call in tuple(self._waiting):
            call.answer(outcome.Error(self.ended_error()))
        if not self.ended.done():
            self.ended.set_result(ended)
        self._end_is_noted.set()

    # --- In the runtime ---

    def _run(self) -> None:
        ended = outcome.capture(partial(trio.run, self._live, clock=self._clock))
        self._mailbox.close()
        self.app_loop.post(partial(self._note_end, ended))
        # Nothing else ends the wait for this run. A Ctrl-C may hit the delivery, and the watch rings no more.
        while not self._end_is_noted.wait(LOOK_INTERVAL):
            is_running = self.app_loop.loop.is_running()
            self.app_loop.ring()
            if not is_running:  # It is closed, or the wake-up waits for its next run, if there is one.
                return

    async def _live(self) -> None:
        try:
            await self._run_main()
        finally:
            # `main` may have left system tasks behind: that of a listener that does not obey, for example. trio awaits
            # them next, and the application waits for this run: it could not end a function that such a task awaits.
            self.app_loop.leave_calls_behind()

    async def _run_main(self) -> None:
        token = self._token = trio.lowlevel.current_trio_token()
        crash: BaseException | None = None
        async with trio.open_nursery() as services:
            self._services = services
            watch = AppLoopWatch(self.app_loop, self._post_of_watch, self._mailbox.ring, self._app_loop_is_gone)
            services.start_soon(watch.run)
            services.start_soon(self.app_loop.ring_for_calls)
            self._mailbox.open(token.run_sync_soon)
            try:
                with self._scope:
                    await self._main(self)
            except BaseException as error:  # noqa: BLE001  # Outside of the nursery, which would put it into a group.
                crash = error  # Or Cancelled, if a service has crashed: the nursery raises the error of that.
            finally:
                self._main_has_ended = True
                for function in tuple(self._at_end):
                    function()
            # Those who still wait for an answer get a MonqueError.
            services.cancel_scope.cancel(reason="the run has ended")
        if crash is not None:
            raise_as_it_is(crash)

    def start_service(self, function: Callable[[], Awaitable[None]]) -> None:
        """Start a task of the runtime that is cancelled when `main` has ended.

        Raises:
            RuntimeError: It has ended already.
        """
        assert self._services is not None
        self._services.start_soon(function)

    @contextmanager
    def calling_at_end(self, function: Callable[[], None]) -> Iterator[None]:
        """If `main` ends while inside, call the function: a service with a shield is not cancelled then."""
        if self._main_has_ended:  # The service was started before that, and takes its first step only now.
            function()
        self._at_end[function] = None
        try:
            yield
        finally:
            del self._at_end[function]

    def _post_of_watch(self, function: Function) -> None:
        with suppress(RuntimeError):  # The loop answers after the end of the run.
            self.post(function)

    def _app_loop_is_gone(self) -> None:
        self._scope.cancel(reason="the event loop of the application is closed, or never runs again")
        self.app_loop.lost()


def raise_as_it_is(error: BaseException) -> None:
    """Raise it with the context that it has: `raise` alone would replace that by what is being handled."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context
        del error, context
