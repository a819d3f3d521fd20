"""Host: runs an engine once, from the start to the report; written once for every kind of work.

    get ready            retried for start_timeout; no claim is held yet
    └── reachable        others of this trio run reach it (local wakeups of a scheduler)
        └── events       shielded: listeners receive what happens while everything else is cancelled
            └── engine   see engine/nursery.py
    last words           see LAST_WORDS: listeners receive the rest, and `leave` undoes what the start did
    report

How it ends, and what the caller sees:

- *Drain* (graceful shutdown): the body of `async with` has ended, or `drain()` was called. The engine claims nothing
  more; runs may go on for `shutdown_timeout`.
- *Cut*: the body has raised, or was cancelled. Runs are cancelled at once, and the caller gets the error of the body.
- *Crash*: a loop of the host itself has failed. The host cuts, cancels the body as a failed child cancels its nursery,
  and raises a group of the crashes. If the host was cancelled meanwhile, the cancellation is in the group, too. The
  caller gets a group of one error as that error, because the group comes from a nursery of the library.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, TypeVar

import trio

from ..client.event_delivery import STOP_TIMEOUT
from ..engine.exceptions import raise_unwrapped
from ..engine.guard import cause_of
from ..engine.nursery import Engine
from ..engine.pauses import start_within
from ..engine.vitals import Examined
from .log_lines_of_jobs_and_documents import HostEnd, Reporter

ClaimT = TypeVar("ClaimT")
ReportT = TypeVar("ReportT")

LAST_WORDS: Final = 0.5 - STOP_TIMEOUT
"""Seconds for listeners to receive the last events. The engine has ended by then: its hard end comes 1.5 s after the
clean-ups. Cancelled listeners then have STOP_TIMEOUT, so a host ends at the latest two seconds after the clean-ups."""


async def _nothing() -> None:
    pass


async def _nothing_beside(_in_body: trio.CancelScope) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Life:
    """What each kind of work adds to the start and the end of a host.

    Attributes:
        name: The name in error messages: "the scheduler".
        get_ready: Checks that the database can be used, and registers the instance if its kind has a register. Called
            again after an outage, until `start_timeout` is over. If it is cancelled, it leaves nothing behind.
        described: For the log line of the start: the collection, and what is run.
        reachable: A context around the run of the engine: clients of the same trio run can wake the engine inside it.
        leave: Undoes what `get_ready` did and the engine has not undone. Called last, within `LAST_WORDS`.
    """

    name: str
    get_ready: Callable[[], Awaitable[object]]
    described: Callable[[], tuple[str, str]]
    reachable: Callable[[], AbstractContextManager[None]] = nullcontext
    leave: Callable[[], Awaitable[None]] = _nothing


@dataclass(frozen=True, kw_only=True)
class Body:
    """What each kind of work adds to the body of its `async with`.

    Attributes:
        name: The function that opens it, for log lines.
        beside: A task beside the body. It gets a shielded scope that is cancelled when the body has ended.
        at_end: Called when the body has ended without an error, before the drain.
        is_echo: Whether an error of the body only follows from a crash of the host. Then only the crash is raised.
    """

    name: str
    beside: Callable[[trio.CancelScope], Awaitable[None]] = _nothing_beside
    at_end: Callable[[], None] = lambda: None
    is_echo: Callable[[BaseException], bool] = lambda error: False


class Host(Generic[ClaimT, ReportT]):
    """Runs an engine, once.

    Attributes:
        engine: The engine that it runs.
        report: The report; None until the host has ended.
        ended: Set when the host has ended and the report is made.
    """

    def __init__(
        self,
        engine: Engine[ClaimT, Any, Any, Any, Any],
        reporter: Reporter[ClaimT, Any, Any, ReportT],
        life: Life,
        *,
        start_timeout: float,
    ) -> None:
        self.engine = engine
        self.report: ReportT | None = None
        self.ended = trio.Event()
        self._event_delivery = reporter.event_delivery
        self._reporter = reporter
        self._life = life
        self._start_timeout = start_timeout
        self._has_begun = False

    def drain(self) -> None:
        """Begin a graceful shutdown. From any thread; a second call, or one after the end, changes nothing."""
        self.engine.post(self.engine.stop.drain)

    def examine(self) -> Examined:
        """Examine the host at this moment: its engine, what this kind of work adds, and the loop of the handlers.

        From any thread: it only reads memory.
        """
        found = self.engine.vitals.examine(self._life.name)
        handlers = self.engine.handlers
        further = (*self._reporter.complaints(found.now), *handlers.complaints())
        return replace(found, reasons=(*found.reasons, *further), handler_loop_lag=handlers.lag)

    async def run(self, started: Callable[[], None]) -> ReportT:
        """Start, run to the end, and return the report. Calls `started` when the engine works.

        Raises:
            BaseExceptionGroup: Loops of the host crashed.
        """
        stop = self.engine.stop
        try:
            await start_within(self._start_timeout, self._life.get_ready)
            with self._life.reachable():
                await self._run_with_events(started)
        except BaseException as error:
            self._end()
            if crashes := stop.crashes:
                # Both are raised: the cancellation belongs to a scope of the caller, which must receive it.
                raise BaseExceptionGroup(
                    f"{self._life.name} crashed while being cancelled", [*crashes, error]
                ) from None
            raise
        report = self._end()
        if crashes := stop.crashes:
            raise BaseExceptionGroup(f"{self._life.name} crashed", crashes)
        return report

    async def run_unwrapped(self, started: Callable[[], None]) -> ReportT:
        """The same for a call in a task of the caller: a group of one error is raised as that error."""
        try:
            return await self.run(started)
        except BaseExceptionGroup as group:
            raise_unwrapped(group)

    @asynccontextmanager
    async def opened(self, body: Body) -> AsyncIterator[None]:
        """Run while the body runs. If the body ends by an error or a cancellation, cut; otherwise drain."""
        stop, body_error = self.engine.stop, None
        # Shielded: the task beside the body works until the body has ended, also while the body is cancelled.
        in_body = trio.CancelScope(shield=True)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.run_in_nursery)
                with trio.CancelScope() as body_scope:
                    nursery.start_soon(self._end_body_when_crashed, body_scope)
                    nursery.start_soon(body.beside, in_body)
                    try:
                        yield
                        body.at_end()
                        stop.drain(f"the body of {body.name} has ended")
                        # Not shielded: a cancellation of the caller ends this wait, and turns the drain into a cut.
                        await self.ended.wait()
                    except BaseException as error:
                        body_error = error
                        # The nursery waits for the host, which ends its runs and releases their claims.
                        stop.cut(cause_of(error, f" in the body of {body.name}"))
                        # If the body has failed only because the host has crashed, the crash alone is worth raising.
                        if not (stop.crashes and body.is_echo(error)):
                            raise
                    finally:
                        in_body.cancel(reason="the body has ended")
        except BaseExceptionGroup as group:
            raise_unwrapped(group, around_a_group=isinstance(body_error, BaseExceptionGroup))

    async def run_beside(self, body: Body, started: Callable[[], None]) -> None:
        """Run for a body that is on another loop. When it ends, the caller drains the host or cancels this call."""
        in_body = trio.CancelScope(shield=True)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(body.beside, in_body)
                try:
                    await self.run(started)
                finally:
                    in_body.cancel(reason="the host has ended")
        except BaseExceptionGroup as group:
            raise_unwrapped(group)

    async def run_in_nursery(self, *, task_status: trio.TaskStatus[None]) -> None:
        """For `nursery.start`, which returns when the engine works."""
        await self.run(task_status.started)

    async def _end_body_when_crashed(self, body_scope: trio.CancelScope) -> None:
        await self.ended.wait()
        if self.engine.stop.crashes:
            body_scope.cancel(reason=f"{self._life.name} crashed")

    def _begin(self, started: Callable[[], None]) -> None:
        self._reporter.log_started(*self._life.described())
        self._has_begun = True
        started()

    def _end(self) -> ReportT:
        engine = self.engine
        end = HostEnd(
            cause=engine.stop.cause,
            unfinished=tuple(engine.unfinished),
            crashed=tuple(engine.stop.crashes),
            loop_blocked=engine.loop_blocked,
        )
        report = self.report = self._reporter.report(end)
        if self._has_begun:
            self._reporter.log_ended(report, end.cause)
        # After the report is made: a task that waits for the end reads it.
        self.ended.set()
        return report

    async def _run_with_events(self, started: Callable[[], None]) -> None:
        async with trio.open_nursery() as event_nursery:
            # Shielded: `_deliver_events` has a shield, so a start that is cancelled would wait for it in vain.
            # Its scope is shielded: listeners want the events of a cancellation most, and these come while everything
            # else is cancelled.
            delivering = trio.CancelScope(shield=True)
            with trio.CancelScope(shield=True):
                await event_nursery.start(self._deliver_events, delivering)
            try:
                await self.engine.run(started=partial(self._begin, started))
            finally:
                # Shielded: also after a cancellation, listeners receive the last events, and the instance leaves the
                # database. Bounded: a database or a listener that does not answer must not delay the end.
                try:
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_WORDS):
                        async with trio.open_nursery() as last_words:
                            last_words.start_soon(self._life.leave)
                            await self._event_delivery.wait_caught_up()
                finally:
                    # Also if `leave` raises: without this, the end would wait for the delivery, which is shielded.
                    # Cancelled listeners that wait for an answer of the database wait no longer.
                    self._event_delivery.end_grace()
                    delivering.cancel(reason=f"{self._life.name} has ended")

    async def _deliver_events(self, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        with scope:
            task_status.started()
            await self._event_delivery.run()
