"""DocumentSettling: writes the ends of claims, in batches, until each is known to be written or not.

A renewal of the same document may be in flight, and either answer may be lost: `Cycle` knows which dates a lock may
have then. Decisions are in `settlement.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

import trio

from ..engine.source import Control
from ..error_types import MonqueConnectionError
from ..foreign_errors import safe_error
from ..jobs.outcomes import Discarded
from ..locks_and_dead_letters import NEVER
from ..log import logger_of
from ..store import documents
from ..store.documents.settling import DocumentFate, SettledDocument
from ..store.documents.settling_statements import DocumentWrite
from ..store.driver.database_threads import Channel
from .context import ClaimsContext
from .events_and_report import log_extra
from .locked_document import HeldDocument
from .reclaim_guard import ReclaimGuard
from .settlement import DocumentSettlement, Finished, ending_of, shorten_refused_error

logger = logger_of("claims")

MOST_ROUNDS: Final = 3
"""How often a settlement is sent while the answer is MOVED: this claim holds the lock, with another `until` than those
that the fence has. After that it counts as lost.

The usual cause is a renewal on its way, and the next round has its date. But a program that knows only `by` and
`until`, and uses the name of this instance, may have overwritten the lock and left our token in place: then no round
would ever match. Should three renewals overtake three settlements instead, the claim is reported as lost too, and its
lease ends.
"""


class DocumentSettling:
    """The `SettlementSource` of documents. Used on the thread of the trio run; commands run in database threads."""

    def __init__(
        self,
        shared: ClaimsContext,
        reclaim_guard: ReclaimGuard,
        control: Control[HeldDocument, DocumentSettlement],
    ) -> None:
        self._locked = shared.locked
        self._db_threads = shared.db_threads
        self._time = shared.time
        self._policy = shared.policy
        self._reclaim_guard = reclaim_guard
        self._control = control

    async def prepare(self, settlements: Sequence[DocumentSettlement]) -> Sequence[DocumentSettlement]:
        now = await self._time.refreshed(self._db_threads, Channel.RENEWALS)
        for one in settlements:
            one.ending = self._decided(one, now)
        return settlements

    def _decided(self, settlement: DocumentSettlement, now: datetime) -> DocumentWrite:
        """Return what is written. An error in code of the user (a subclass of Retry) fails its own document alone."""
        held = settlement.held
        try:
            return ending_of(held, settlement.outcome, now, self._policy)
        except MemoryError:
            raise  # The document is not the cause: the settler tries again.
        except BaseException as error:
            extra = log_extra(held.id, held.attempt)
            logger.exception("could not decide the outcome of document %s; it is now a dead letter", held, extra=extra)
            settlement.outcome = Discarded(safe_error(error))
            return ending_of(held, settlement.outcome, now, self._policy)

    async def settle(self, batch: Sequence[DocumentSettlement]) -> Sequence[bool | None]:
        for _ in range(MOST_ROUNDS):
            left = [one for one in batch if _must_be_sent(one)]
            if not left:
                break
            await self._send(left)
        self._reclaim_guard.finished(
            one.held for one in batch if isinstance(one.outcome, Finished) and _was_written(one)
        )
        for one in batch:
            self._expect_claimable(one)
        return [_was_written(one) for one in batch]

    async def _send(self, left: Sequence[DocumentSettlement]) -> None:
        endings = []
        for one in left:
            assert one.ending is not None, "prepare comes before settle"
            if one.ending.fence is not one.held.cycle.fence:
                # A renewal was sent since `prepare`, and may be in flight: the lock may have its date, too. If a
                # renewal overtakes this write all the same, the answer is MOVED, and the next round has its date.
                one.ending = replace(one.ending, fence=one.held.cycle.fence)
            endings.append(one.ending)
        try:
            answers = await self._db_threads.call(
                partial(documents.settling.settle, self._locked, endings),
                channel=Channel.RENEWALS,
                abandon_on_cancel=True,
            )
        except MonqueConnectionError as error:
            for one in left:
                # The next attempt may find no lock, because this one has removed it.
                one.may_be_written |= error.unknown_outcome
            raise
        for one, settled in zip(left, answers, strict=True):
            one.settled = settled
            one.may_be_written |= settled.may_be_written
            if settled.fate is DocumentFate.GONE and one.may_be_written:
                # Either an earlier attempt of ours removed the lock, or the lease ended and another instance has
                # claimed and ended the document. While no other program can have taken the lock, it was ours.
                # Afterwards no read can tell: `finish` raises MonqueConnectionError instead of a result that may be
                # wrong.
                one.is_unclear = not one.held.cycle.is_sure(one.held.key, trio.current_time())
                one.settled = settled if one.is_unclear else SettledDocument(DocumentFate.WRITTEN)

    def _expect_claimable(self, settlement: DocumentSettlement) -> None:
        lock = None if settlement.ending is None else settlement.ending.lock
        if lock is not None and lock["until"] < NEVER and _was_written(settlement):
            self._control.expect(self._time.clock.on_run_clock(lock["until"]))


def _must_be_sent(settlement: DocumentSettlement) -> bool:
    """Whether the settlement must be sent, or sent again. Shortens the error of one that the server refused."""
    if settlement.settled is None or settlement.settled.fate is DocumentFate.MOVED:
        return True
    return settlement.settled.fate is DocumentFate.REFUSED and shorten_refused_error(settlement)


def _was_written(settlement: DocumentSettlement) -> bool | None:
    assert settlement.settled is not None, "settled before it is asked for"
    if settlement.settled.fate is DocumentFate.REFUSED and settlement.is_early:
        return None
    return settlement.settled.fate is DocumentFate.WRITTEN
