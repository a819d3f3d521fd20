"""Claim: a document under a lock, as the code that works on it sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

import anyio
import trio

from ..bridge.handler_loop import CleanupScope, HandlerLoop
from ..checks import checked_seconds
from ..client.operation import async_calls
from ..engine.run import Run
from ..engine.run_end import CancelReason
from ..error_types import ClaimLostError, InvalidUpdateError, MonqueConnectionError, MonqueError
from ..foreign_errors import is_a, safe_error, without
from ..safe_text import shown
from ..store.documents.settling_statements import EncodedUpdate
from ..store.driver.types import ClientSession
from .claim_work import ClaimWork
from .early_settling import EarlySettling, Update
from .locked_document import HeldDocument
from .settlement import DocumentOutcome, DocumentSettlement, Finished, Released, UncountedReleaseError, refusal_of

R = TypeVar("R")
DocT = TypeVar("DocT", bound=Mapping[str, Any])


@async_calls("In a thread of trio's, call trio.from_thread.run(claim.{name}, ...); on asyncio anyio.from_thread.run")
class Claim(Generic[DocT]):
    """A document under a lock, which is renewed until the claim ends.

    `async with claim:` surrounds the work. If the lock is lost, it cancels the work and raises ClaimLostError. How the
    block ends decides what happens to the document:

    - Normally: the lock is removed, as by `finish()`.
    - By an error: the attempt has failed. The next attempt follows after a backoff.
    - By a cancellation: the document is released, and the attempt does not count.

    Attributes:
        document: The document as it was claimed, its lock included.
    """

    document: DocT

    def __init__(self, run: Run[HeldDocument], ends: EarlySettling, work: ClaimWork, loop: HandlerLoop) -> None:
        self.document = run.claim.document
        self._run = run
        self._ends = ends
        self._work = work
        self._loop = loop
        self._block: AbstractContextManager[CleanupScope] | None = None
        self._scope: CleanupScope | None = None
        self._cancelled: type[BaseException] | None = None
        """What a cancellation is on the loop of the block. Read at its start: Python may close it outside of a loop."""

    @property
    def id(self) -> Any:
        """The document's `_id`."""
        return self._run.claim.id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1: one more than the attempts that failed or whose holder died."""
        return self._run.claim.attempt

    @property
    def deadline(self) -> float:
        """When `timeout` cancels the work, on the clock of the event loop; infinity for never.

        Compare it with `anyio.current_time()`, `trio.current_time()`, or the `time()` of an asyncio loop.
        """
        return self._loop.moment(self._run.deadline)

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the work is cancelled; None while it is not."""
        return self._loop.cancel_reason(self._run)

    # --- Its end ---

    async def finish(self, update: Update | None = None) -> None:
        """Write the result and remove the lock, in one write under the lock, acknowledged by a majority.

        Then the claim has ended. The work may go on without a lock, within its timeout, but cannot write anything under
        the claim. A cancellation before the write is sent prevents it; once sent, the write is awaited for at most
        `cleanup_timeout`, and goes on after that. If the server refuses it and the caller was cancelled before it got
        that error, the attempt fails with InvalidUpdateError when the work ends.

        Args:
            update: Operators, for example `{"$set": {"status": "done"}}`, or a pipeline; None for no result.

        Raises:
            InvalidOptionError: `update` has no operators, or changes the lock.
            InvalidPayloadError: `update` cannot be encoded as BSON.
            InvalidUpdateError: The server refuses the update for this document. The claim is still held.
            ClaimLostError: This instance no longer holds the lock. Nothing was written.
            MonqueConnectionError: The result may or may not be written (`unknown_outcome`).
        """
        # Encoded here and now: the caller may change the object afterwards.
        outcome = Finished(self._ends.encoded(update, self._run.claim))
        try:
            await self._loop.engine.call_for(self._run, self._end, outcome)
        except InvalidUpdateError:
            self._work.unanswered = None  # The caller has the answer now; see `_end`.
            raise

    async def transaction(self, function: Callable[[ClientSession], R], update: Update | None = None) -> R:
        """Commit the writes of `function`, the update and the end of this claim together, or none of them.

        `function(session)` is called in a thread, and again after a conflict: see `RunningJob.transaction`, whose rules
        hold here, too. Then the claim has ended, as after `finish(update)`.

        Returns:
            What `function` returned.

        Raises:
            BaseException: What `function` raised. Nothing was committed, and the claim is still held.
            InvalidOptionError, InvalidPayloadError: As for `finish`.
            InvalidUpdateError: The server refuses the update. Nothing was committed, and the claim is still held.
            ClaimLostError: This instance no longer holds the lock. Nothing was committed.
            TransactionTimeoutError: `function` took too long. Nothing was committed, and the claim is still held.
            MonqueConnectionError: No attempt was committed in time; or, with `unknown_outcome`, nothing shows whether
                it was.
            MonqueError: The claim has ended, its work is cancelled, or the server is standalone.
        """
        encoded = self._ends.encoded(update, self._run.claim)
        return await self._loop.engine.call_for(self._run, self._commit, function, encoded)

    async def _commit(self, function: Callable[[ClientSession], R], update: EncodedUpdate | None) -> R:
        """In the run of the engine."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_held()
        try:
            value = await self._ends.transaction(self._run, function, update)
        except MonqueError as error:
            # Settled, although it raises: nothing shows whether it was committed, and the lock is gone.
            if self._run.is_settled_early or isinstance(error, ClaimLostError):
                self._work.end()
            raise
        self._work.end()
        return value

    async def release(self, delay: float | timedelta = 0.0) -> None:
        """Release the document without counting the attempt. Any instance may claim it after `delay`: seconds, or a
        timedelta.

        Raises:
            ClaimLostError, InvalidUpdateError, MonqueConnectionError: As for `finish`.
        """
        released = Released(checked_seconds("delay", delay))
        try:
            await self._loop.engine.call_for(self._run, self._end, released)
        except InvalidUpdateError:
            self._work.unanswered = None
            raise

    def _check_held(self) -> None:
        if self._run.reason is CancelReason.LOST and not self._run.is_settled_early:
            raise self._lost()
        # An end is being written (`is_settling_early`) or was written (`is_settled_early`), or the work has ended
        # (`is_over`). A second end would find the lock gone, and look like a lost lock.
        if self._work.is_over or self._run.is_settled_early or self._run.is_settling_early:
            raise self._ended()

    def _ended(self) -> MonqueError:
        return MonqueError(f"the claim on document {self._run.claim} has ended: it can be finished or released once")

    async def _end(self, outcome: DocumentOutcome) -> None:
        """In the run of the engine."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_held()
        settlement = DocumentSettlement(self._run.claim, outcome, is_early=True)
        try:
            written = await self._ends.settle_early(self._run, settlement)
        except BaseException:
            # Cancelled, and there was no answer within the clean-up: the settlement is on its way, and is written when
            # that is possible. The caller may catch the cancellation by a scope of its own and end normally, before or
            # after the server refuses the settlement. So the work remembers it: otherwise it would count as done.
            self._work.unanswered = settlement
            self._work.end()
            raise
        if written is None:
            # The server refused the update, by a validator for example: the handler may finish with another one. On
            # asyncio, a caller that is cancelled meanwhile gets CancelledError instead of this error, and may end
            # normally, too. So this is forgotten when the caller has the error, and not before.
            self._work.unanswered = settlement
            raise refusal_of(settlement)
        self._work.end()
        if not written and settlement.is_unclear:
            # The answer was lost, and the lease ended while the settlement was sent again. Another instance may have
            # claimed and finished the document: no read can tell whose write removed the lock.
            raise MonqueConnectionError(
                f"the outcome of finishing document {shown(self.id)} is unknown: its lock is gone, and the lease had "
                "expired, so that another instance may have finished it",
                unknown_outcome=True,
            )
        if not written:
            raise self._lost()

    def _lost(self) -> ClaimLostError:
        return ClaimLostError(
            f"lost the lock on document {self._run.claim}: it was not renewed in time, or another program took it"
        )

    # --- The work under it ---

    async def __aenter__(self) -> Self:
        if self._scope is not None:
            raise MonqueError(f"the claim on document {self._run.claim} was entered twice")
        self._check_held()
        if not self._work.enter():
            raise self._ended()
        self._block = self._loop.extended(self._run)
        self._scope = self._block.__enter__()
        self._cancelled = anyio.get_cancelled_exc_class()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._block is not None
        assert self._scope is not None
        # The scope of the block looks at the error: see `foreign_errors`. What the block raised itself leaves it.
        raised = error
        if error is not None and (error := safe_error(error, for_generators=True)) is not raised:
            kind = type(error)
        left: BaseException | None = error  # What leaves the block.
        try:
            if self._block.__exit__(kind, error, trace):
                left = None
        except BaseException as rest:  # noqa: BLE001  # The scope takes its own cancellation out of a group.
            # Python closes a block that its loop has left behind. Its scope cannot be left any more.
            left = error if is_a(error, GeneratorExit) else rest
        was_cut = self._scope.cancelled_caught
        try:
            # `unanswered`: the server refused an end, and its cancelled caller does not know that (see `_end`).
            # A second end would remove the lock without that result.
            has_ended = self._run.is_settled_early or self._work.is_over or self._work.unanswered is not None
            if left is None and not was_cut and not has_ended:
                await self.finish()
        finally:
            self._leave(left)
        if was_cut and left is None:
            raise self._cut_short()
        if left is not None and left is not error:
            raise left
        return False

    def _leave(self, left: BaseException | None) -> None:
        """End the work. Unless the claim has ended before, the error decides what happens to the document."""
        assert self._cancelled is not None
        outcome: Exception | None = None
        if left is not None:
            # The block may be left by an error and by a cancellation at once. Then the error decides: a failure must
            # not count as a release.
            others = without(left, self._cancelled)
            # A cancellation, a Ctrl-C or an exit is not a failure of the document, which is released uncounted.
            outcome = cast("Exception", others) if is_a(others, Exception) else UncountedReleaseError()
        self._loop.engine.post(partial(self._work.end, outcome))

    def _cut_short(self) -> BaseException:
        if self._run.reason is CancelReason.TIMEOUT:
            return TimeoutError(f"the work on document {self._run.claim} took longer than its timeout")
        if self._run.reason is CancelReason.LOST:
            return self._lost()
        return ClaimLostError(f"the claims are shutting down: document {self._run.claim} is released")

    def __repr__(self) -> str:
        return f"<Claim of {self._run.claim}>"
