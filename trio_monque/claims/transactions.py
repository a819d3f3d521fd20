"""`claim.transaction`: the writes of a function, the update and the end of the claim, committed together or not at all.

The claim has no renewals of its own meanwhile, but the other locks of its cycle do: see `Cycle.leaving_one_out`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from ..engine.run import Run
from ..error_types import InvalidUpdateError, MonqueConnectionError
from ..host.transaction_turns import Transactions
from ..locks_and_dead_letters import renewed_until
from ..safe_text import shown
from ..store.documents import transactions as document_transactions
from ..store.documents.locked_collection import LockedCollection
from ..store.documents.settling_statements import DocumentWrite, EncodedUpdate
from ..store.driver.transaction_terms import CommitFate, FoundCommit
from ..store.driver.types import ClientSession, Collection
from ..threads_and_frozen_time import call_run
from .locked_document import HeldDocument
from .settlement import DocumentSettlement, Finished

R = TypeVar("R")


class DocumentTransaction:
    """The transaction of one claim: a `Transactional`, which decides how its claim ends and what its fate means."""

    def __init__(
        self,
        run: Run[HeldDocument],
        update: EncodedUpdate | None,
        locked: LockedCollection,
        heartbeat_interval: float,
    ) -> None:
        self._run = run
        self._held = run.claim
        self._update = update
        self._locked = locked
        self._heartbeat_interval = heartbeat_interval

    async def commit(
        self,
        transactions: Transactions[HeldDocument, DocumentSettlement],
        function: Callable[[ClientSession], R],
    ) -> R:
        """Return what the function returned. See `Claim.transaction`."""
        # The other locks of its cycle are renewed meanwhile, so from now on this one may have another date than theirs.
        with self._held.cycle.leaving_one_out():
            return await transactions.commit(self._run, self, function)

    @property
    def item(self) -> str:
        return f"document {shown(self._held.id)}"

    @property
    def collection(self) -> Collection:
        return self._locked.locks

    @property
    def operation_timeout(self) -> float:
        return self._locked.operation_timeout

    # --- In the thread of the transaction ---

    def hold(self, beat: datetime, session: ClientSession) -> None:
        # The moment that is written must be known on the run before it is written: a fence accepts each moment that the
        # lock may have. If the transaction is aborted, the lock has the one before.
        until = self._renewing(beat)
        document_transactions.hold(self._locked, self._held.id, until, self._held.cycle.fence, session)

    def write(self, _value: Any, session: ClientSession) -> bool:
        ending = DocumentWrite(self._held.id, self._held.cycle.fence, self._update)
        return document_transactions.write_end(self._locked, ending, session)

    def find_out(self, beat: datetime) -> FoundCommit:
        # `is_sure` goes by the renewals that were acknowledged, and not by this one.
        until, held = self._renewing(beat), self._held
        return document_transactions.find_out(self._locked, held.id, until, held.cycle.fence, self._is_sure)

    def _renewing(self, beat: datetime) -> datetime:
        until = renewed_until(beat, self._heartbeat_interval)
        # On the run, where its neighbours may have a renewal meanwhile.
        call_run(self._held.cycle.renewing, until)
        return until

    def _is_sure(self) -> bool:
        """Whether no other program can have taken the lock yet."""
        return self._held.cycle.is_sure(self._held.key, self._run.now)

    # --- On the run ---

    async def conclude(self, fate: CommitFate) -> tuple[DocumentSettlement, bool]:
        if fate is CommitFate.REFUSED:
            raise InvalidUpdateError(f"the server refused the update of {self.item}: nothing was committed")
        settlement = DocumentSettlement(self._held, Finished(self._update), is_early=True)
        return settlement, fate is CommitFate.COMMITTED

    def unknown(self) -> MonqueConnectionError:
        return MonqueConnectionError(
            f"it is unknown whether the transaction of {self.item} was committed: its lock is gone, and the lease had "
            "expired, so that another instance may have finished it",
            unknown_outcome=True,
        )
