"""The application loop: the asyncio loop of the program, whose tasks a trio run in another thread awaits.

Each call is one native task there, and no further task in trio: the trio task that calls sleeps until the answer comes
through the runtime's mailbox. Races that this file closes:

- The caller is cancelled while its task has not begun. Whichever side takes the ticket first decides, and taking it is
  atomic: the call runs, or it never begins and the caller can know that.
- The caller is cancelled while its task runs. The task is cancelled by an anyio scope, which cancels again at each
  checkpoint, and the caller waits for its end, whatever that is.
- All tasks of the loop are cancelled, as `asyncio.run` does at its end. That is not an error of the function: a canary
  task that does nothing is cancelled by that alone, and then the runtime is cut.
- The loop is closed, or never runs again. Its tasks never end, so `lost` resumes all callers.

Nothing of asyncio's cancellation reaches trio, and nothing of trio's reaches asyncio.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar, copy_context
from enum import Enum, auto
from types import FrameType
from typing import Any, Final, Generic, NoReturn, TypeVar, TypeVarTuple, Unpack

import anyio
import outcome
import trio

from ..errors import MonqueError
from ..grace import GraceOwner, carry_grace, grace_owner_of_task
from .mailbox import Function, Mailbox

T = TypeVar("T")
ArgsT = TypeVarTuple("ArgsT")

LONGEST_WAIT_FOR_CUT: Final = 10.0
"""Seconds in which a cut must arrive at a caller whose task the application has cancelled, or left behind."""


class StrayCancelledError(RuntimeError):
    """A function on the application loop raised asyncio.CancelledError, and nothing had cancelled it.

    The CancelledError is the `__cause__`.
    """


class _Without(Enum):
    """How a call ended that has neither a result nor an error."""

    CANCELLED = auto()  # By its caller.
    APPLICATION = auto()  # The application cancelled all its tasks, or left its loop for ever.


class AppLoop:
    """The asyncio loop in which this is made. `call` and `lost` are for the runtime's thread, the rest for any thread.

    Args:
        post_to_runtime: Calls a function in the runtime; raises RuntimeError if that has ended.
        cut: Cancels what the runtime runs. From any thread.

    Attributes:
        loop: The loop.
        thread_id: The thread that ran the loop when this was made.
        opener: The task that made this. A strong reference: the loop keeps a weak one only.
        is_gone: The loop is closed, or never runs again: what was called there does not go on.
        is_answering: The loop has answered the watch within half a second. If not, nothing new should be started there.
        lag: Seconds that the loop took for its last answer, or has not answered yet; as of the last look.
        blocked: How many times the loop did not answer for a second.
    """

    def __init__(self, post_to_runtime: Callable[[Function], None], cut: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread_id = threading.get_ident()
        self.opener = asyncio.current_task()
        self.is_gone = False
        self.is_answering = True
        self.lag = 0.0
        self.blocked = 0
        self.post_to_runtime = post_to_runtime
        self.cut = cut
        self.context = copy_context()
        self._recovered: list[Callable[[], None]] = []
        self._mailbox = Mailbox(self.loop.call_soon_threadsafe)
        self._calls: dict[trio.lowlevel.Task, _Call[Any]] = {}
        self._canary = self.loop.create_task(_wait(self.loop.create_future()))
        self._canary.add_done_callback(self._canary_ended)

    def post(self, function: Function) -> None:
        """Call the function in the loop, soon; it must not raise. It is not called if the loop is closed."""
        try:
            self._mailbox.post(function)
        except RuntimeError:
            self.is_gone = True

    def ring(self) -> None:
        """Wake the loop, so that it delivers what was posted."""
        try:
            self._mailbox.ring()
        except RuntimeError:
            self.is_gone = True

    def when_recovered(self, function: Callable[[], None]) -> None:
        """Call the function in the runtime each time the loop answers again, after `is_answering` is true."""
        self._recovered.append(function)

    def recovered(self) -> None:
        """For the watch, in the runtime: the loop answers again."""
        self.is_answering = True
        for function in self._recovered:
            function()

    @property
    def is_leaving(self) -> bool:
        """The application has cancelled all tasks of the loop."""
        return self._canary.done() or self._canary.cancelling() > 0

    def end(self) -> None:
        """Nothing is called in the loop any more. On its thread."""
        self._canary.remove_done_callback(self._canary_ended)
        self._canary.cancel()
        self.opener = None  # The runtime may be kept for its report, and a task keeps all that its frames hold.

    def _canary_ended(self, _: object) -> None:
        self.cut()

    # --- In the runtime ---

    async def call(
        self,
        function: Callable[[Unpack[ArgsT]], Awaitable[T]],
        *args: *ArgsT,
        never_began: Callable[[], None] | None = None,
        label: object = None,
    ) -> T:
        """Await an async function in a task of the application loop; return what it returns, raise what it raises.

        The task has a copy of the context in which the runtime was opened, and the grace of the calling trio task.
        If the caller is cancelled, the function is cancelled too, and awaited.

        Args:
            function: Called in the new task.
            args: Its arguments.
            never_began: Called in the runtime if the caller was cancelled before the function was called. It may raise
                another error in place of the cancellation.
            label: What the call works on, for log lines.

        Raises:
            StrayCancelledError: The function raised CancelledError, and nothing had cancelled it.
            MonqueError: The loop has ended without the function, and the caller was not cancelled because of that.
        """
        waiter = trio.lowlevel.current_task()
        call = _Call(self, lambda: function(*args), waiter, grace_owner_of_task(), label)
        if self.is_gone:
            await _wait_for_cut()
        self._calls[waiter] = call
        try:
            self.post(call.begin)
            await trio.lowlevel.wait_task_rescheduled(call.abort)
        except trio.Cancelled:
            if call.was_withdrawn and never_began is not None:
                never_began()
            raise
        finally:
            del self._calls[waiter]
            call.task = None  # The context of the task holds the call: without this, each call would be a cycle.
        ended = call.take_end()
        if isinstance(ended, _Without):
            await _wait_for_cut()
        return ended.unwrap()

    def lost(self) -> None:
        """The loop never goes on: resume those who wait for it."""
        self.is_gone = True
        for call in tuple(self._calls.values()):
            call.lost()

    # --- For log lines, from any thread ---

    def stack_of(self, waiter: trio.lowlevel.Task) -> str | None:
        """Where the task is that this trio task awaits, as lines of a traceback; None if it awaits none."""
        call = self._calls.get(waiter)
        return None if call is None else call.stack()

    def label_of_current(self) -> object | None:
        """The label of the call whose task runs now; None for other tasks, and for none.

        The tasks that a call has started are recognised from Python 3.12 on.
        """
        try:
            task = asyncio.current_task(self.loop)
        except RuntimeError:
            return None
        if task is None:
            return None
        if hasattr(task, "get_context"):
            call = task.get_context().get(_call_of_context)
            return None if call is None else call.label
        return next((call.label for call in tuple(self._calls.values()) if call.task is task), None)


async def _wait(future: asyncio.Future[None]) -> None:
    await future


async def _wait_for_cut() -> NoReturn:
    """The cut is on its way, as a cancellation of the caller. But a caller with a shield would wait for ever."""
    with trio.move_on_after(LONGEST_WAIT_FOR_CUT):
        await trio.sleep_forever()
    raise MonqueError("the event loop of the application has ended, or has cancelled all its tasks")


_call_of_context: ContextVar[_Call[Any] | None] = ContextVar("monque_bridge_call", default=None)


class _Call(Generic[T]):
    """One function, called in the application loop for a trio task that sleeps.

    Attributes:
        label: What it works on.
        task: The task of the loop. A strong reference: the loop keeps a weak one only.
        was_withdrawn: The caller was cancelled before the function was called, which never happens then.
    """

    __slots__ = (
        "_app_loop",
        "_end",
        "_function",
        "_grace_owner",
        "_is_cancelled",
        "_raise_cancel",
        "_scope",
        "_ticket",
        "_waiter",
        "label",
        "task",
        "was_withdrawn",
    )

    def __init__(
        self,
        app_loop: AppLoop,
        function: Callable[[], Awaitable[T]],
        waiter: trio.lowlevel.Task,
        grace_owner: GraceOwner | None,
        label: object,
    ) -> None:
        self._app_loop = app_loop
        self._function = function
        self._waiter: trio.lowlevel.Task | None = waiter
        self._grace_owner = grace_owner
        self.label = label
        self._ticket = [None]
        self._raise_cancel: Callable[[], Any] | None = None
        self._scope: anyio.CancelScope | None = None
        self._is_cancelled = False
        self._end: outcome.Value[T] | outcome.Error | _Without | None = None
        self.task: asyncio.Task[None] | None = None
        self.was_withdrawn = False

    def _take_ticket(self) -> bool:
        try:
            self._ticket.pop()  # Atomic.
        except IndexError:
            return False
        return True

    # --- In the runtime ---

    def abort(self, raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        if self._take_ticket():
            self.was_withdrawn = True
            self._waiter = None
            return trio.lowlevel.Abort.SUCCEEDED
        self._raise_cancel = raise_cancel
        self._app_loop.post(self._cancel)
        if self._app_loop.is_gone:
            self._waiter = None
            return trio.lowlevel.Abort.SUCCEEDED
        return trio.lowlevel.Abort.FAILED

    def lost(self) -> None:
        self._take_ticket()  # If another thread runs the loop once more, the function is not called.
        self._app_loop.post(self._cancel)
        if self._end is None:
            self._end = _Without.CANCELLED if self._raise_cancel is not None else _Without.APPLICATION
        self._resume()

    def _resume(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            return
        if self._end is _Without.CANCELLED and self._raise_cancel is not None:
            trio.lowlevel.reschedule(waiter, outcome.capture(self._raise_cancel))
        else:
            trio.lowlevel.reschedule(waiter)

    def take_end(self) -> outcome.Value[T] | outcome.Error | _Without:
        """Once: an error has a traceback with this call in its frames, and they would keep each other alive."""
        ended, self._end = self._end, None
        assert ended is not None
        return ended

    # --- In the application loop ---

    def begin(self) -> None:
        if not self._ticket:
            return
        try:
            coroutine = self._run()
            try:
                # A copy for each call, so that nothing leaks from one to the next. Not `create_task(context=...)`: a
                # task factory of the application may not know it.
                self.task = self._app_loop.context.copy().run(self._app_loop.loop.create_task, coroutine)
            except BaseException:
                coroutine.close()
                raise
        except BaseException as error:  # A Ctrl-C too: without an answer, the caller would wait for ever.
            self._take_ticket()
            self._answer(outcome.Error(error))
            if not isinstance(error, Exception):
                raise

    async def _run(self) -> None:
        # In the first step of the task, and not in `begin`: a call that is cancelled between the two never begins.
        if not self._take_ticket():
            return
        _call_of_context.set(self)
        if self._grace_owner is not None:
            carry_grace(self._grace_owner)
        scope = anyio.CancelScope()
        is_left_behind = False
        value: T
        try:
            with scope:
                self._scope = scope
                if self._is_cancelled:
                    scope.cancel()
                try:
                    value = await self._function()
                except GeneratorExit:  # Python closes this coroutine: the loop has left its task behind.
                    is_left_behind = True
                    raise
            self._answer(_Without.CANCELLED if scope.cancelled_caught else outcome.Value(value))
        except BaseException as error:  # noqa: BLE001  # What would end the application loop ends this call only.
            self._answer(self._left_by_application() if is_left_behind else self._end_by(error, scope))

    def _end_by(self, error: BaseException, scope: anyio.CancelScope) -> outcome.Error | _Without:
        rest: BaseException | None = error
        if isinstance(error, asyncio.CancelledError):
            rest = None
        elif isinstance(error, BaseExceptionGroup):
            with suppress(Exception):  # Nested too deep for Python, or a group class of its author: taken as it is.
                rest = error.split(asyncio.CancelledError)[1]
        if rest is not None:
            return outcome.Error(rest)
        if scope.cancel_called:
            return _Without.CANCELLED
        if self._app_loop.is_leaving:
            return self._left_by_application()
        stray = StrayCancelledError("the function ended in asyncio.CancelledError, although nothing had cancelled it")
        stray.__cause__ = error
        return outcome.Error(stray)

    def _left_by_application(self) -> _Without:
        self._app_loop.cut()  # Before the answer, in the same mailbox: the caller is cancelled when it goes on.
        return _Without.APPLICATION

    def _answer(self, ended: outcome.Value[T] | outcome.Error | _Without) -> None:
        if self._end is None:
            self._end = ended
        with suppress(RuntimeError):  # The runtime has ended, and the caller with it.
            self._app_loop.post_to_runtime(self._resume)

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    # --- From any thread ---

    def stack(self) -> str:
        task = self.task
        if task is None or self._ticket:
            return "  (not begun yet: the event loop of the application does not answer)\n"
        frames = ((frame, frame.f_lineno) for frame in _frames_of(task.get_coro()))
        return "".join(traceback.format_list(traceback.StackSummary.extract(frames)))


def _frames_of(awaited: Any) -> list[FrameType]:
    """From the outermost coroutine to what it awaits: the task itself knows its outermost frame only."""
    frames: list[FrameType] = []
    while awaited is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(awaited, f"{kind}_frame")), None)
        if kind is None:
            break
        if (frame := getattr(awaited, f"{kind}_frame")) is not None:
            frames.append(frame)
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
    return frames
