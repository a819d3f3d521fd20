"""The application loop: the asyncio loop of the program, whose tasks a trio run in another thread awaits.

Each call (`app_loop_task.py`) is one native task there, and no further task in trio: the trio task that calls
sleeps until the answer comes through the runtime's mailbox.

`asyncio.run` cancels all tasks at its end. A canary task, which does nothing and which only that cancels, tells it from
the cancellation of a single task.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple, Unpack
from weakref import WeakKeyDictionary

import trio

from ..engine.loop_blocks import LoopBlocks
from ..error_types import MonqueError
from ..grace import grace_owner_of_task
from ..loops import AsyncioLoop, Loop
from .app_loop_task import AppCall, call_of
from .mailbox import Function, Mailbox

T = TypeVar("T")
ArgsT = TypeVarTuple("ArgsT")

LONGEST_WAIT_FOR_CUT: Final = 10.0
"""Seconds in which a cut must arrive at a caller whose task the application has cancelled, or left behind."""


class AppLoop:
    """The asyncio loop in which this is made. `call`, `lost` and what is marked so below are for the runtime's thread.

    Args:
        answer_to_runtime: Calls a function in the runtime, for this loop; raises RuntimeError if that has ended.
        cut: Cancels what the runtime runs. From any thread.

    Attributes:
        loop: The loop.
        thread_id: The thread that ran the loop when this was made.
        opener: The task that made this. A strong reference: the loop keeps a weak one only.
        is_gone: The loop is closed, or never runs again: a function that was called there does not go on.
        is_answering: The loop has answered the watch within half a second. If not, nothing new should be started there.
        lag: Seconds that the loop took for its last answer, or has not answered yet; as of the last look.
        blocks: When the loop did not answer for a second.
    """

    def __init__(self, answer_to_runtime: Callable[[Function], None], cut: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread_id = threading.get_ident()
        self.opener = asyncio.current_task()
        self.is_gone = False
        self.is_answering = True
        self.lag = 0.0
        self.blocks = LoopBlocks()
        self.answer_to_runtime = answer_to_runtime
        self.cut = cut
        self.context = copy_context()
        self._recovered: list[Callable[[], None]] = []
        self._mailbox = Mailbox(self.loop.call_soon_threadsafe)
        self._ringer = trio.lowlevel.ParkingLot()
        self._has_ringer = False
        self._calls: dict[trio.lowlevel.Task, AppCall[Any]] = {}
        # Weak: the loop may leave a task behind, which never leaves its block.
        self._labels: WeakKeyDictionary[asyncio.Task[Any], object] = WeakKeyDictionary()
        self._canary = self.loop.create_task(_wait(self.loop.create_future()))
        self._canary.add_done_callback(self._canary_ended)

    @property
    def is_current(self) -> bool:
        """Whether the caller is on this loop; see `Loop`."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def or_current(self) -> Loop:
        """The loop of the calling task: this one, if it is, since its posts share a wake-up."""
        return self if self.is_current else AsyncioLoop()

    def post(self, function: Function) -> None:
        """Call the function in the loop, soon, also from the loop itself; it must not raise. See `Loop.post`."""
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
        """The application has cancelled all tasks of the loop, or nothing is called there any more (`end`)."""
        return self._canary.cancelling() > 0  # Also when it is done.

    def end(self) -> None:
        """Nothing is called in the loop any more. On its thread."""
        self._canary.remove_done_callback(self._canary_ended)
        self._canary.cancel()
        self.opener = None  # The runtime may be kept for its report, and a task keeps all that its frames hold.

    def _canary_ended(self, _: object) -> None:
        self.cut()

    # --- In the runtime ---

    async def ring_for_calls(self) -> NoReturn:
        """Wake the loop for all calls of one turn of the runtime together, until cancelled."""
        self._has_ringer = True
        try:
            while True:
                await self._ringer.park()
                with suppress(RuntimeError):  # The loop is closed. The watch finds that.
                    self._mailbox.ring_for_gathered()
        finally:
            self._has_ringer = False
            self.ring()  # For what was gathered since it rang last.

    def _post_call(self, function: Function) -> None:
        if not self._has_ringer:
            self.post(function)
        elif self._mailbox.gather(function):
            self._ringer.unpark()

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
            StrayCancelledError: The function raised CancelledError, and nothing had cancelled it; or the application
                cancelled the task before it called the function.
            MonqueError: The loop has ended without the function, and the caller was not cancelled because of that.
        """
        waiter = trio.lowlevel.current_task()
        call = AppCall(self, lambda: function(*args), waiter, grace_owner_of_task(), label)
        if self.is_gone:
            await _wait_for_cut()
        self._calls[waiter] = call
        try:
            # A caller that is cancelled already begins nothing: otherwise the faster of the two threads would decide.
            if trio.current_effective_deadline() > -math.inf:
                self._post_call(call.begin)
            await trio.lowlevel.wait_task_rescheduled(call.abort)
        except trio.Cancelled:
            # Not for a call that was lost: its run is cut with all others, and is given back or counts as lost anyway.
            if call.was_withdrawn and never_began is not None:
                never_began()
            raise
        finally:
            del self._calls[waiter]
            call.task = None  # The context of the task holds the call: without this, each call would be a cycle.
        ended = call.take_end()
        if ended is None:
            await _wait_for_cut()
        return ended.unwrap()

    def lost(self) -> None:
        """The loop never goes on: resume the tasks that await a call there."""
        self.is_gone = True
        self.leave_calls_behind()

    def leave_calls_behind(self) -> None:
        """Cancel all calls, and resume the tasks that await them at once. The functions may go on if the loop runs."""
        for call in self._calls.values():  # Those who go on leave the list in a later turn.
            call.lost()

    # --- For log lines ---

    def set_label(self, task: asyncio.Task[Any] | None, label: object | None) -> object | None:
        """Set what a task that is not a call works on, or None for nothing; return what was set before."""
        if task is None:  # It was entered outside of a task.
            return None
        before = self._labels.pop(task, None)
        if label is not None:
            self._labels[task] = label
        return before

    # From any thread:

    def stack_of(self, waiter: trio.lowlevel.Task) -> str | None:
        """Where the task is that this trio task awaits, as lines of a traceback; None if it awaits none."""
        call = self._calls.get(waiter)
        return None if call is None else call.stack()

    def label_of_current(self) -> object | None:
        """The label of the task that runs now, or of the call that it belongs to; None if it has none.

        The tasks that a call has started are recognised from Python 3.12 on.
        """
        try:
            task = asyncio.current_task(self.loop)
        except RuntimeError:
            return None
        if task is None:
            return None
        calls = tuple(self._calls.values())  # A copy: the runtime's thread changes it.
        call = call_of(task) or next((call for call in calls if call.task is task), None)
        return self._labels.get(task) if call is None else call.label


async def _wait(future: asyncio.Future[None]) -> None:
    await future


async def _wait_for_cut() -> NoReturn:
    """The cut is on its way, as a cancellation of the caller. But a caller with a shield would never go on."""
    with trio.move_on_after(LONGEST_WAIT_FOR_CUT):
        await trio.sleep_forever()
    raise MonqueError("the event loop of the application has ended, or has cancelled all its tasks")
