"""EarlyEnds: ends claims while their work goes on: by `finish`, `release` or a transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import trio

from ..document_lock import renewed_until
from ..engine.run import Run
from ..engine.source import Control
from ..error_types import InvalidUpdateError
from ..host.transactions import Transactions
from ..safe_text import shown
from ..store.documents.settling import Fate, Settled
from ..store.documents.settling_statements import EncodedUpdate
from ..store.documents.transactions import DocumentEnd
from ..store.transactions import CommitOutcome, Ended
from ..store.types import ClientSession
from ..threads import call_run
from .context import ClaimsContext
from .locked_document import Cycle, HeldDocument
from .reclaim_guard import ReclaimGuard
from .settlement import DocumentSettlement, Finished, encoded_update

R = TypeVar("R")

Update = Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""What `finish` writes: operators, or a pipeline of them."""


class EarlyEnds:
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
    ) -> Ended[R]:
        """Commit the writes of the function and the end of the claim together; see `Claim.transaction`."""
        held, clock = run.claim, trio.lowlevel.current_clock()
        end = DocumentEnd(
            self._locked,
            held.id,
            update,
            fence=lambda: held.cycle.fence,
            renewing=partial(self._renewing, held.cycle),
            is_sure=lambda: held.cycle.is_sure(held.key, clock.current_time()),
        )
        settlement = DocumentSettlement(held, Finished(update), is_early=True)
        with held.cycle.leaving_one_out():
            ended = await self._transactions.commit(run, function, end, partial(self._concluded, settlement))
        if ended.outcome is CommitOutcome.COMMITTED:
            self._reclaim_guard.finished([held])
        return ended

    def _renewing(self, cycle: Cycle, beat: datetime) -> datetime:
        """In the thread of a transaction: its claim has no other renewal meanwhile, but its neighbours may."""
        until = renewed_until(beat, self._heartbeat_interval)
        call_run(cycle.renewing, until)
        return until

    async def _concluded(
        self, settlement: DocumentSettlement, ended: Ended[Any]
    ) -> tuple[DocumentSettlement, bool] | None:
        if ended.outcome is CommitOutcome.REFUSED:
            raise InvalidUpdateError(
                f"the server refused the update of document {shown(settlement.held.id)}: nothing was committed"
            )
        is_written = ended.outcome is CommitOutcome.COMMITTED
        settlement.settled = Settled(Fate.WRITTEN if is_written else Fate.GONE)
        return settlement, is_written

    def encoded(self, update: Update | None, held: HeldDocument) -> EncodedUpdate | None:
        """Check the update that `finish` was given, and encode it."""
        return None if update is None else encoded_update(self._locked, update, held.document)
