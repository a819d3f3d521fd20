"""ClaimWork: the state of the work under one claim. The claim, the delivery and the run of the engine share it.

A claim has two sides, which may be in two tasks. The engine's task runs from the claim to its settlement. The user's
task works on the document: the handler of `run_claims` in the engine's task, a block of `async with claim` in its own.
"""

from __future__ import annotations

import threading
from typing import Final

import trio

from ..engine.run import Run
from ..engine.source import Control
from .locked_document import HeldDocument
from .settlement import DocumentSettlement, UnansweredEndError, UncountedReleaseError

_ENTERING: Final = threading.Lock()
"""Held for the moment in which a block is entered, or a claim is released because no block was. See `enter`."""


class ClaimWork:
    """Whether the work has begun, whether it is over, and with which error.

    Used on the thread of the engine. Any thread may call `enter` and read the attributes.

    Attributes:
        run: The run of the engine.
        order: See `HeldDocument.order`.
        is_over: The claim was finished, released or lost, or its work has ended. A later error changes nothing.
        unanswered: A `finish` or `release` that the server refused or may refuse, while its caller was cancelled and
            does not get that error.
    """

    __slots__ = ("_control", "_error", "_is_entered", "_over", "is_over", "order", "run", "unanswered")

    def __init__(self, run: Run[HeldDocument], control: Control[HeldDocument, DocumentSettlement]) -> None:
        self.order = run.claim.order
        self.is_over = False
        self.unanswered: DocumentSettlement | None = None
        self.run = run
        self._control = control
        self._is_entered = False
        self._error: Exception | None = None
        # Made by the task that waits: the handlers of `run_claims` need none.
        self._over: trio.Event | None = None

    @property
    def is_draining(self) -> bool:
        """Whether the claims are ending: no work begins any more."""
        return self._control.is_draining()

    @property
    def is_entered(self) -> bool:
        """Whether a task is inside `async with claim` now."""
        return self._is_entered and not self.is_over

    def wait_to_begin(self) -> None:
        """Stop the clock of `timeout`: the claim waits until a task can work on it."""
        self.run.wait_to_begin()

    def begin(self) -> None:
        """Start the clock of `timeout`."""
        self.run.begin()

    def enter(self) -> bool:
        """A task enters `async with claim`. Return False if the work is over."""
        # On asyncio the task is in another thread than `release_unless_entered`. Without the lock, the block could be
        # entered between the look and the release there: another instance would work on the document beside it.
        with _ENTERING:
            self._is_entered = not self.is_over
            return self._is_entered

    def end(self, error: Exception | None = None) -> None:
        """The work is over. The error decides what the document's lock becomes, unless the work was over before."""
        if not self.is_over:
            # Only the first end counts. If the block fails after `finish` has succeeded, the result is written, the
            # lock is gone, and the error changes nothing.
            self._error = error
        self.is_over = True
        if self._over is not None:
            self._over.set()

    def release_unless_entered(self) -> None:
        """Release the document uncounted, unless a task works on it or has done so."""
        # Otherwise another instance could claim the document while a block still works on it.
        with _ENTERING:
            if not (self.is_entered or self.is_over):
                self.end(UncountedReleaseError())

    async def wait_over(self) -> None:
        """Wait until the work is over; raise its error.

        If the waiting task is cancelled, it still waits for the clean-up of a block that was entered, until the
        engine's hard end.
        """
        try:
            await self._wait()
        except trio.Cancelled:
            if self.is_entered:
                # The engine releases the document when this call ends. The block may be in another task, and still
                # clean up: a second instance would work on the document beside it. If the block has not left at the
                # engine's hard end, the run counts as abandoned: the lock stays until its lease ends.
                with self.run.shielded_wait():
                    await self._wait()
                self.run.abandoned |= self.is_entered
            raise
        # An error of the block decides. Its cancellation does not: on asyncio it may have taken the place of the error
        # of a refused `finish`, which on trio is a failure.
        if self._error is None or type(self._error) is UncountedReleaseError:
            self.check_answered()
        if self._error is not None:
            raise self._error

    def check_answered(self) -> None:
        """Raise UnansweredEndError if the caller of a `finish` or `release` was cancelled before it had the answer."""
        if self.unanswered is not None:
            raise UnansweredEndError(self.unanswered)

    async def _wait(self) -> None:
        if not self.is_over:
            self._over = trio.Event()
            await self._over.wait()
