"""EarlySettling: ends claims while their work goes on: by `finish`, `release` or a transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ..engine.run import Run
from ..engine.source import Control
from ..host.transaction_turns import Transactions
from ..store.documents.settling_statements import EncodedUpdate
from ..store.driver.types import ClientSession
from .context import ClaimsContext
from .locked_document import HeldDocument
from .reclaim_guard import ReclaimGuard
from .settlement import DocumentSettlement, encoded_update
from .transactions import DocumentTransaction

R = TypeVar("R")

Update = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""What `finish` writes: operators, or a pipeline of them."""


class EarlySettling:
    """Writes the end of a claim while its work goes on. Used on the thread of the trio run, but for `encoded`.

    Attributes:
        settle_early: Settles a claim while its work goes on; see `Control.settle_early`.
    """

    def __init__(
        self,
        shared: ClaimsContext,
        reclaim_guard: ReclaimGuard,
        transactions: Transactions[HeldDocument, DocumentSettlement],
        control: Control[HeldDocument, DocumentSettlement],
    ) -> None:
        self._locked = shared.locked
        self._heartbeat_interval = shared.config.heartbeat_interval
        self._reclaim_guard = reclaim_guard
        self._transactions = transactions
        self.settle_early = control.settle_early

    async def transaction(
        self, run: Run[HeldDocument], function: Callable[[ClientSession], R], update: EncodedUpdate | None
    ) -> R:
        """Commit the writes of the function and the end of the claim together; see `Claim.transaction`."""
        # The update is encoded before the function runs: an update that cannot be written must not cost its work.
        transaction = DocumentTransaction(run, update, self._locked, self._heartbeat_interval)
        value = await transaction.commit(self._transactions, function)
        # Only after the commit: a document that the filter still matches would otherwise be given out again beside its
        # own transaction.
        self._reclaim_guard.finished([run.claim])
        return value

    def encoded(self, update: Update | None, held: HeldDocument) -> EncodedUpdate | None:
        """Check the update that `finish` was given, and encode it."""
        return None if update is None else encoded_update(self._locked, update, held.document)
