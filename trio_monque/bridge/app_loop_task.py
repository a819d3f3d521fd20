"""The task that runs an async function in the application loop, such as a handler on asyncio, for a waiting trio task.

Races that this file closes:

- The caller is cancelled while its task has not begun. Whichever side takes the ticket first decides, and taking it is
  atomic: the call runs, or it never begins and the caller can know that.
- The caller is cancelled while its task runs. The task is cancelled by an anyio scope, which cancels again at each
  checkpoint, and the caller waits for its end, whatever that is.
- All tasks of the loop are cancelled, as `asyncio.run` does at its end. That is not an error of the function, so the
  runtime is cut. So it is if Python closes the coroutine of a task that the loop has left behind. A GeneratorExit that
  the function raises by itself is an error of the function: otherwise one job could end each scheduler that runs it.
- The application cancels the task before its first step, as a task factory or a sweep over all tasks may do. Nothing of
  the task has run then, so the end of the task answers. Without that, the caller would wait until the runtime ends.
- A Ctrl-C interrupts the task outside of the function, before it can answer. Its done-callback answers instead.
- The loop is closed, or never runs again. Its tasks never end, so `lost` resumes the caller.

Nothing of asyncio's cancellation reaches trio, and nothing of trio's reaches asyncio.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, ContextVar
from enum import Enum, auto
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

import anyio
import outcome
import trio

from ..foreign_errors import safe_error, without
from ..grace import GraceOwner, carry_grace
from .mailbox import Function

T = TypeVar("T")


class StrayCancelledError(RuntimeError):
    """A function on the application loop raised asyncio.CancelledError, and nothing had cancelled it.

    Or the application cancelled the task before it called the function. The CancelledError is the `__cause__`.
    """


class CallingLoop(Protocol):
    """What a call needs of the application loop; see `AppLoop`."""

    loop: asyncio.AbstractEventLoop
    thread_id: int
    context: Context
    is_gone: bool
    answer_to_runtime: Callable[[Function], None]
    cut: Callable[[], None]

    @property
    def is_leaving(self) -> bool: ...

    def post(self, function: Function) -> None: ...


class _Without(Enum):
    """Why a call has neither a result nor an error."""

    CANCELLED = auto()  # By its caller.
    APPLICATION = auto()  # The application cancelled all its tasks, or will never run its loop again.


_call_of_context: ContextVar[AppCall[Any] | None] = ContextVar("monque_bridge_call", default=None)


class AppCall(Generic[T]):
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
        app_loop: CallingLoop,
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
        # The post has found that the loop is closed: nothing there answers any more.
        if self._app_loop.is_gone:
            self._waiter = None
            return trio.lowlevel.Abort.SUCCEEDED
        return trio.lowlevel.Abort.FAILED

    def lost(self) -> None:
        self._take_ticket()  # If another thread runs the loop once more, the function is not called.
        self._app_loop.post(self._cancel)
        # The other thread may answer at this moment, and either end may stay: the answer might as well have come later.
        if self._end is None:
            self._end = _Without.APPLICATION  # A caller that is cancelled meets that where it goes on.
        self._resume()

    def _resume(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None:
            return
        # Without `_raise_cancel`, the caller is not cancelled: `lost` has cancelled the function, which answered first.
        if self._end is _Without.CANCELLED and self._raise_cancel is not None:
            trio.lowlevel.reschedule(waiter, outcome.capture(self._raise_cancel))
        else:
            trio.lowlevel.reschedule(waiter)

    def take_end(self) -> outcome.Value[T] | outcome.Error | None:
        """The outcome; None if the application has cancelled the task, or left it behind.

        Once: an error has a traceback with this call in its frames, and they would keep each other alive.
        """
        ended, self._end = self._end, None
        return None if isinstance(ended, _Without) else ended

    # --- In the application loop ---

    def begin(self) -> None:
        if not self._ticket or self.task is not None:
            return  # Called a second time, after a Ctrl-C, this begins no second task.
        try:
            coroutine = self._run()
            try:
                # A copy for each call, so that nothing leaks from one to the next. Not `create_task(context=...)`: a
                # task factory of the application may not know it.
                self.task = self._app_loop.context.copy().run(self._app_loop.loop.create_task, coroutine)
                self.task.add_done_callback(self._task_ended)
            except BaseException:
                # If a Ctrl-C came right after the task was made, that finds its coroutine closed, and no ticket.
                coroutine.close()
                raise
        except BaseException as error:  # A Ctrl-C too: without an answer, the caller would never go on.
            self._take_ticket()
            self._answer(outcome.Error(error))
            if not isinstance(error, Exception):
                raise  # A Ctrl-C is the program's, too.

    async def _run(self) -> None:
        # In the first step of the task, and not in `begin`: a call that is cancelled between the two never begins.
        if not self._take_ticket():
            return
        _call_of_context.set(self)
        if self._grace_owner is not None:
            carry_grace(self._grace_owner)
        scope = anyio.CancelScope()
        returned: outcome.Value[T] | None = None
        unsafe: BaseException | None = None
        ended: outcome.Value[T] | _Without | None = None
        try:
            with scope:
                self._scope = scope
                try:
                    returned = outcome.Value(await self._function())
                except BaseException as raised:
                    # Before the scope, and all others, look at it: see `foreign_errors`.
                    if (unsafe := safe_error(raised)) is raised:
                        raise
                if unsafe is not None:
                    raise unsafe
            ended = _Without.CANCELLED if scope.cancelled_caught or returned is None else returned
            self._answer(ended)
        except BaseException as error:
            if ended is not None:  # A Ctrl-C, and not in the function.
                self._answer(ended)
                raise
            # What would end the application loop ends this call only. Python closes a coroutine with a GeneratorExit,
            # and the scope raises a RuntimeError in its place: it is left outside of its task.
            self._answer(self._end_by(error, scope) if self._is_running else self._left_by_application())

    @property
    def _is_running(self) -> bool:
        """Whether the task itself runs this. If not, Python closes its coroutine: the loop has left it behind."""
        task = self.task  # None in the first step of an eager task, before `create_task` has returned it.
        return task is None or asyncio.current_task(self._app_loop.loop) is task

    def _end_by(self, error: BaseException, scope: anyio.CancelScope) -> outcome.Error | _Without:
        if (rest := without(error, asyncio.CancelledError)) is not None:
            return outcome.Error(rest)
        if scope.cancel_called:
            return _Without.CANCELLED
        if self._app_loop.is_leaving:
            return self._left_by_application()
        return _stray("the function ended in asyncio.CancelledError, although nothing had cancelled it", error)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not self._take_ticket():
            # Then the caller was cancelled before the task began, or `_run` has answered, unless a Ctrl-C hit it.
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self._answer(outcome.Error(error))
            return
        # The task has ended before the first line of `_run`, which takes the ticket: by a cancellation, or a Ctrl-C.
        if self._app_loop.is_leaving:
            self._answer(self._left_by_application())
            return
        try:
            task.result()
        except BaseException as error:  # noqa: BLE001  # A CancelledError, with the message of who cancelled.
            self._answer(_stray("the application cancelled the task before it called the function", error))

    def _left_by_application(self) -> _Without:
        self._app_loop.cut()  # Before the answer, in the same mailbox: the caller is cancelled when it goes on.
        return _Without.APPLICATION

    def _answer(self, ended: outcome.Value[T] | outcome.Error | _Without) -> None:
        if self._end is None:
            self._end = ended
        with suppress(RuntimeError):  # The runtime has ended, and the caller with it.
            self._app_loop.answer_to_runtime(self._resume)

    def _cancel(self) -> None:
        # None only if `lost` took the ticket: then the function is never called. A caller that is cancelled posts this
        # after `_run` took it, and both run on this thread, so the scope is there.
        if self._scope is not None:
            self._scope.cancel()

    # --- From any thread ---

    def stack(self) -> str:
        task = self.task
        if task is None or self._ticket:
            return "  (not begun yet: the event loop of the application does not answer)\n"
        frames = _frames_of(task.get_coro())
        # Documented for debuggers; this is one.
        running = sys._current_frames().get(self._app_loop.thread_id)  # noqa: SLF001
        frames += _frames_inside(frames[-1] if frames else None, running)
        return "".join(
            traceback.format_list(traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames))
        )


def call_of(task: asyncio.Task[Any]) -> AppCall[Any] | None:
    """The call that the task works for. From Python 3.12 on; on 3.11 the context of a task cannot be read."""
    context_of = getattr(task, "get_context", None)
    return None if context_of is None else context_of().get(_call_of_context)


def _stray(message: str, cause: BaseException) -> outcome.Error:
    stray = StrayCancelledError(message)
    stray.__cause__ = cause
    return outcome.Error(stray)


def _frames_of(awaited: Any) -> list[FrameType]:
    """From the outermost coroutine to what it awaits: the task itself knows its outermost frame only."""
    frames: list[FrameType] = []
    while awaited is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(awaited, f"{kind}_frame")), None)
        if kind is None:
            break
        frame = getattr(awaited, f"{kind}_frame")
        if not isinstance(frame, FrameType):  # It has ended, or is compiled and only looks like a coroutine.
            break
        frames.append(frame)
        awaited = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
    return frames


def _frames_inside(frame: FrameType | None, running: FrameType | None) -> list[FrameType]:
    """What the frame calls at this moment, outermost first; nothing if it waits.

    A coroutine that runs does not say what it awaits: the stack of its thread has that.
    """
    inside: list[FrameType] = []
    while running is not None and running is not frame:
        inside.append(running)
        running = running.f_back
    return inside[::-1] if running is not None else []
