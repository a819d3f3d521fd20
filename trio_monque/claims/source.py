"""DocumentSource: the port of the engine (see `engine/source.py`) for the documents of any collection.

Claiming is in `claiming.py`, rescuing in `rescues.py`, decisions in `settlement.py`. This file settles and renews. It
may do both at once for one document, and either answer may be lost: `Cycle` knows which dates a lock may have then.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable, Sequence, Set
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

import trio

from ..document_lock import NEVER, renewed_until
from ..engine.contention import Contention
from ..engine.demand import ClaimState, Demand, Due, Granted
from ..engine.lease import Beats
from ..engine.nursery import Engine
from ..engine.run import Run
from ..engine.run_end import RunEnd
from ..engine.source import Control
from ..error_types import MonqueConnectionError
from ..foreign_errors import safe_error
from ..host.missed_leases import MissedLeases
from ..host.one_group import OneGroupSource
from ..host.transactions import Transactions
from ..jobs.verdicts import Discarded, Failed
from ..log import logger_of
from ..observations import Sighting
from ..store import documents
from ..store.database_threads import Channel
from ..store.documents.rescuing import SeenLock
from ..store.documents.settling import Fate, Settled
from ..store.documents.settling_statements import EncodedUpdate, Ending
from ..store.types import ClientSession
from .claim import Claim, Update
from .claim_work import ClaimWork
from .claiming import DocumentClaims
from .context import ClaimsContext
from .events_and_report import RescuedDocument, log_extra
from .locked_document import Cycle, HeldDocument
from .reclaim_guard import ReclaimGuard
from .rescues import Rescues
from .settlement import DocumentSettlement, Finished, encoded_update, ending_of, outcome_of, shorten_refused_error
from .transactions import DocumentTransaction

R = TypeVar("R")

logger = logger_of("claims")

Work = Callable[[Claim[Any], ClaimWork], Awaitable[object]]
"""Works on the document of a claim: hands the claim to a task, or calls the handler. Returns when the work is over."""

MOST_ROUNDS: Final = 3
"""How often a settlement is sent while the answer is MOVED: this claim holds the lock, with another `until` than those
that the fence has. After that it counts as lost.

The usual cause is a renewal on its way, and the next round has its date. But a program that knows only `by` and
`until`, and uses the name of this instance, may have overwritten the lock and left our token in place: then no round
would ever match. Should three renewals overtake three settlements instead, the claim is reported as lost too, and its
lease ends.
"""


MOST_MISSED_LEASES: Final = 3
"""Runs in a row that may miss their lease without a failed attempt. As many deaths as a job survives by default."""


class DocumentSource(OneGroupSource[HeldDocument, DocumentSettlement]):
    """Claims, runs, settles, renews and rescues documents. On the thread of the trio run; commands in database threads.

    Attributes:
        reclaim_guard: Detects documents that are claimed without end. The engine runs its loop.
    """

    _rescues: Rescues
    _claims: DocumentClaims
    _transactions: Transactions[HeldDocument, DocumentSettlement]

    def __init__(self, shared: ClaimsContext, work: Work) -> None:
        self._shared = shared
        self._locked = shared.locked
        self._leased = shared.leased
        self._db_threads = shared.db_threads
        self._time = shared.time
        self._config = shared.config
        self._policy = shared.policy
        self._work = work
        self._beats = Beats()
        self._missed_leases = MissedLeases()
        self.reclaim_guard = ReclaimGuard(shared.locked, shared.db_threads, shared.config.instance_id)

    def attach(self, control: Control[HeldDocument, DocumentSettlement]) -> None:
        super().attach(control)
        self._rescues = Rescues(self._shared, control)
        self._transactions = Transactions(self._db_threads, self._time, control, self._beats)
        self._claims = DocumentClaims(self._shared, self._beats, self.reclaim_guard, control)
        self.taking = self._claims.claiming
        # If a new measurement of the server's clock differs from the last, all timers are wrong: look at once.
        self._time.when_clock_moves(partial(control.post, control.look))

    @property
    def contention(self) -> Contention:
        """How many of the documents that this instance saw it did not get."""
        return self._claims.claiming.candidates.contention

    # --- What a claim is ---

    def key_of(self, claim: HeldDocument) -> Hashable:
        return self._claims.key_of(claim.id)

    def time_limit(self, claim: HeldDocument) -> float:
        return math.inf if self._config.timeout is None else self._config.timeout

    # --- Claiming ---

    async def claim(self, demand: Demand) -> Granted[HeldDocument]:
        return await self._claims.claim(demand)

    async def next_due(self, groups: Set[str]) -> Due | None:
        return await self._claims.next_due(groups)

    async def is_anything_left(self) -> bool:
        """Whether a document can be claimed now, or later without a repair. Dead letters do not count."""
        return await self._claims.is_anything_left()

    # --- Running ---

    def execute(self, run: Run[HeldDocument]) -> Awaitable[object]:
        work = ClaimWork(run, self._control)
        return self._work(Claim(run, self, work, self._shared.loop), work)

    async def settle_early(self, run: Run[HeldDocument], settlement: DocumentSettlement) -> bool | None:
        """Settle a claim while its work goes on; see `Control.settle_early`."""
        return await self._control.settle_early(run, settlement)

    async def transaction(
        self, run: Run[HeldDocument], function: Callable[[ClientSession], R], update: EncodedUpdate | None
    ) -> R:
        """Commit the writes of the function and the end of the claim together; see `Claim.transaction`."""
        transaction = DocumentTransaction(run, update, self._locked, self._config.heartbeat_interval)
        value = await transaction.commit(self._transactions, function)
        self.reclaim_guard.finished([run.claim])
        return value

    def encoded(self, update: Update | None, held: HeldDocument) -> EncodedUpdate | None:
        """Check the update that `finish` was given, and encode it."""
        return None if update is None else encoded_update(self._locked, update, held.document)

    # --- Settling ---

    def conclude(self, claim: HeldDocument, end: RunEnd) -> DocumentSettlement:
        end = self._missed_leases.counted(claim.key, end, MOST_MISSED_LEASES)
        try:
            outcome = outcome_of(end, self.time_limit(claim), self._policy)
        except BaseException as error:  # noqa: BLE001  # A property of a subclass of Retry: it fails its document only.
            outcome = Failed(safe_error(error))
        return DocumentSettlement(claim, outcome)

    async def prepare(self, settlements: Sequence[DocumentSettlement]) -> Sequence[DocumentSettlement]:
        now = await self._time.refreshed(self._db_threads, Channel.RENEWALS)
        for one in settlements:
            one.ending = self._decided(one, now)
        return settlements

    def _decided(self, settlement: DocumentSettlement, now: datetime) -> Ending:
        """Return what is written. An error in code of the user (a subclass of Retry) fails its own document alone."""
        held = settlement.held
        try:
            return ending_of(held, settlement.outcome, now, self._policy)
        except MemoryError:
            raise  # The document is not the cause: the settler tries again.
        except BaseException as error:
            extra = log_extra(held.id, held.attempt)
            logger.exception("could not decide the end of document %s; it is now a dead letter", held, extra=extra)
            settlement.outcome = Discarded(safe_error(error))
            return ending_of(held, settlement.outcome, now, self._policy)

    async def settle(self, batch: Sequence[DocumentSettlement]) -> Sequence[bool | None]:
        for _ in range(MOST_ROUNDS):
            left = [one for one in batch if _must_be_sent(one)]
            if not left:
                break
            await self._settle(left)
        self.reclaim_guard.finished(
            one.held for one in batch if isinstance(one.outcome, Finished) and _was_written(one)
        )
        for one in batch:
            self._expect_claimable(one)
        return [_was_written(one) for one in batch]

    async def _settle(self, left: Sequence[DocumentSettlement]) -> None:
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
            if settled.fate is Fate.GONE and one.may_be_written:
                # Either an earlier attempt of ours removed the lock, or the lease ended and another instance has
                # claimed and ended the document. While no other program can have taken the lock, it was ours.
                # Afterwards no read can tell: `finish` raises MonqueConnectionError instead of a result that may be
                # wrong.
                one.is_unclear = not one.held.cycle.is_sure(one.held.key, trio.current_time())
                one.settled = settled if one.is_unclear else Settled(Fate.WRITTEN)

    def _expect_claimable(self, settlement: DocumentSettlement) -> None:
        lock = None if settlement.ending is None else settlement.ending.lock
        if lock is not None and lock["until"] < NEVER and _was_written(settlement):
            self._control.expect(self._time.clock.on_run_clock(lock["until"]))

    # --- Renewing ---

    async def renew(self, claims: Sequence[HeldDocument]) -> Sequence[ClaimState]:
        every = self._config.heartbeat_interval
        # Programs that know only `by` and `until` take a lock when its date has passed by their clock. So the date
        # comes from the server's time, measured again if it is stale.
        now = await self._time.refreshed(self._db_threads, Channel.RENEWALS)
        until = renewed_until(self._beats.next(now), every)
        sent = trio.current_time()
        cycles: dict[Cycle, list[HeldDocument]] = {}
        for claim in claims:
            cycles.setdefault(claim.cycle, []).append(claim)
        fences = [(cycle.fence, [one.id for one in of_cycle]) for cycle, of_cycle in cycles.items()]
        for cycle in cycles:
            # Before the command is sent: if its answer is lost, the locks have the old date or the new one.
            cycle.renewing(until)
        lost = await self._db_threads.call(
            partial(documents.leases.renew, self._leased, fences, until),
            channel=Channel.RENEWALS,
            abandon_on_cancel=True,
        )
        for cycle, of_cycle in cycles.items():
            # One lock of a claim may be gone and others held. Only those that were found held are safe for longer.
            cycle.renewed(until, sent, [one.key for one in of_cycle if one.key not in lost])
        return [ClaimState.LOST if claim.key in lost else ClaimState.HELD for claim in claims]

    # --- Rescuing ---

    async def observe(self, held: Sequence[HeldDocument]) -> Sequence[Sighting[SeenLock]]:
        return await self._rescues.observe({(one.key, one.cycle.stamp.token) for one in held})

    async def rescue(self, claims: Sequence[SeenLock]) -> Sequence[RescuedDocument]:
        return await self._rescues.rescue(claims)


def _must_be_sent(settlement: DocumentSettlement) -> bool:
    """Whether the settlement must be sent, or sent again. Shortens the error of one that the server refused."""
    if settlement.settled is None or settlement.settled.fate is Fate.MOVED:
        return True
    return settlement.settled.fate is Fate.REFUSED and shorten_refused_error(settlement)


def _was_written(settlement: DocumentSettlement) -> bool | None:
    assert settlement.settled is not None, "settled before it is asked for"
    if settlement.settled.fate is Fate.REFUSED and settlement.is_early:
        return None
    return settlement.settled.fate is Fate.WRITTEN


DocumentEngine = Engine[HeldDocument, DocumentSettlement, Sequence[DocumentSettlement], SeenLock, RescuedDocument]
"""The engine, with the types of documents."""
