"""What works on a document gets: the document, and the lock that it is under."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import trio

from ..call_context import async_calls
from ..checks import check_seconds
from ..engine.run import Run
from ..engine.run_end import CancelReason
from ..errors import ClaimLostError, InvalidUpdateError, MonqueConnectionError, MonqueError
from ..safe_text import shown
from ..store.documents.settling_statements import EncodedUpdate
from .claim_work import ClaimWork
from .locked_document import HeldDocument
from .settlement import DocumentSettlement, Finished, GivenBackError, Outcome, Released

DocT = TypeVar("DocT", bound=Mapping[str, Any])

Update = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class ClaimEnds(Protocol):
    """Writes the end of a claim whose work goes on."""

    def encoded(self, update: Update | None, held: HeldDocument) -> EncodedUpdate | None:
        """The user's update, checked, as it will be sent."""
        ...

    async def settle_early(self, run: Run[HeldDocument], settlement: DocumentSettlement) -> bool | None:
        """See `Control.settle_early`."""
        ...


@async_calls("In a thread of trio's, call trio.from_thread.run(claim.{name}, ...)")
class Claim(Generic[DocT]):
    """A document under a lock that is renewed until it is let go.

    `async with claim:` around the work cancels that when the lock is lost, and raises ClaimLostError then. Left
    normally, the lock is taken away; left by an error, the try has failed, and the next one comes after a backoff; left
    by a cancellation, the document is given back uncounted.

    Attributes:
        document: The document as it was claimed, its lock included.
    """

    document: DocT

    def __init__(self, run: Run[HeldDocument], source: ClaimEnds, work: ClaimWork) -> None:
        self.document = run.claim.document
        self._run = run
        self._source = source
        self._work = work
        self._extension: AbstractContextManager[trio.CancelScope] | None = None
        self._scope: trio.CancelScope | None = None

    @property
    def id(self) -> Any:
        """The document's `_id`."""
        return self._run.claim.id

    @property
    def attempt(self) -> int:
        """Which try this is, from 1: one more than those that failed or died."""
        return self._run.claim.attempt

    @property
    def deadline(self) -> float:
        """When the work will be cancelled for taking too long, on trio's clock; infinity for never."""
        return self._run.deadline

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the work is cancelled; None while it is not."""
        return self._run.reason

    # --- Its end ---

    async def finish(self, update: Update | None = None) -> None:
        """Writes the result and takes the lock away, in one write under the lock, acknowledged by a majority.

        The claim has ended then: its work may go on without a lock, within its timeout, and nothing more is written.
        Cancelled before it was sent, nothing is written; once sent it is awaited.

        Args:
            update: Operators, for example `{"$set": {"status": "done"}}`, or a pipeline; None for no result.

        Raises:
            InvalidOptionError: It is no update of operators, or touches the lock.
            InvalidPayloadError: It cannot be encoded as BSON.
            InvalidUpdateError: The server refuses it for this document, which is held as before.
            ClaimLostError: The lock was not ours any more: nothing was written.
            MonqueConnectionError: Nobody knows whether it was.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_held()
        await self._end(Finished(self._source.encoded(update, self._run.claim)))

    async def release(self, delay: float = 0.0) -> None:
        """Gives the document back uncounted: claimable by anybody, `delay` seconds later.

        Raises:
            ClaimLostError, MonqueConnectionError: As for `finish`.
        """
        check_seconds("delay", delay, zero=True)
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_held()
        await self._end(Released(delay))

    def _check_held(self) -> None:
        if self._run.reason is CancelReason.LOST and not self._run.is_settled:
            raise self._lost()
        if self._work.is_over or self._run.is_settled or self._run.is_settling:
            raise MonqueError(f"the claim on document {self._run.claim} has ended: nothing can be written under it")

    async def _end(self, outcome: Outcome) -> None:
        settlement = DocumentSettlement(self._run.claim, outcome, is_early=True)
        is_held = False
        try:
            written = await self._source.settle_early(self._run, settlement)
            is_held = written is None
        finally:
            if not is_held:
                self._work.end()
        if is_held:
            problem = None if settlement.settled is None else settlement.settled.error
            raise InvalidUpdateError(f"the server refuses to write the end of document {shown(self.id)}: {problem}")
        if not written and settlement.is_unclear:
            raise MonqueConnectionError(
                f"it is not known whether document {shown(self.id)} was finished: the answer was lost, and "
                "its lease is over",
                unknown_outcome=True,
            )
        if not written:
            raise self._lost()

    def _lost(self) -> ClaimLostError:
        return ClaimLostError(f"the lock on document {self._run.claim} is gone, or is no longer sure")

    # --- The work under it ---

    async def __aenter__(self) -> Self:
        if self._scope is not None:
            raise MonqueError(f"the claim on document {self._run.claim} was entered twice")
        self._check_held()
        self._extension = self._run.extended()
        self._scope = self._extension.__enter__()
        self._scope.__enter__()
        self._work.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._scope is not None
        assert self._extension is not None
        left: BaseException | None = error
        try:
            if self._scope.__exit__(kind, error, trace):
                left = None
        except BaseException as rest:  # noqa: BLE001  # What the scope's own cancellation left of a group.
            left = rest
        finally:
            self._extension.__exit__(None, None, None)
        was_cut = self._scope.cancelled_caught
        try:
            if left is None and not was_cut and not (self._run.is_settled or self._work.is_over):
                await self.finish()
        finally:
            self._leave(left)
        if was_cut and left is None:
            raise self._cut_short()
        if left is not None and left is not error:
            raise left
        return False

    def _leave(self, left: BaseException | None) -> None:
        """The work is over; where its claim is not, the error decides."""
        outcome: Exception | None = None
        if left is not None:
            others = left.split(trio.Cancelled)[1] if isinstance(left, BaseExceptionGroup) else left
            # A cancellation, a Ctrl-C or an exit is not a failure of the document, which is released uncounted.
            outcome = others if isinstance(others, Exception) else GivenBackError()
        self._work.end(outcome)

    def _cut_short(self) -> BaseException:
        if self._run.reason is CancelReason.TIMEOUT:
            return TimeoutError(f"the work on document {self._run.claim} took longer than its timeout")
        if self._run.reason is CancelReason.LOST:
            return self._lost()
        return ClaimLostError(f"the claims end: document {self._run.claim} is given back")

    def __repr__(self) -> str:
        return f"<Claim of {self._run.claim}>"
