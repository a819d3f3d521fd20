"""What the engine noticed of documents -> events, logs and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import events
from ..client.event_delivery import EventDelivery
from ..document_lock import NEVER
from ..host.reporting import HostEnd, Reporter, named
from ..jobs.error_history import ErrorText, kept_reason
from ..jobs.verdicts import CutShort, Discarded, Failed, Snoozed
from ..log import logger_of
from .locked_document import HeldDocument
from .settlement import DocumentSettlement, Finished, Released

logger = logger_of("claims")


@dataclass(frozen=True, slots=True)
class RescuedDocument:
    """A document whose holder had died."""

    id: Any
    tries: int
    holder: str
    is_dead_letter: bool
    error: str


@dataclass(frozen=True, kw_only=True)
class ClaimsReport:
    """What the claims of one instance came to, told when they have ended.

    Attributes:
        finished: Documents whose lock was taken away with, or without, a result.
        failed: Tries that failed, with or without tries left.
        released: Documents that were given back uncounted.
        lost: Locks that were taken, or could not be renewed in time.
        rescued: Locks of dead holders that were taken away.
        dead_lettered: Documents that became dead letters: no attempts are left.
        unfinished: The ids of documents whose locks could not be given back; they end with their leases.
        crashed: What crashed of the claims themselves.
        undelivered_events: Events that listeners did not hear, because too many waited or the claims had to end.
    """

    finished: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    rescued: int = 0
    dead_lettered: int = 0
    unfinished: tuple[Any, ...] = ()
    crashed: tuple[BaseException, ...] = ()
    undelivered_events: int = 0


class ClaimsReporter(Reporter[HeldDocument, ClaimsReport]):
    """The observer of the engine: makes events and log records, and counts."""

    def __init__(self, event_delivery: EventDelivery, instance: str, error_text: ErrorText) -> None:
        super().__init__(event_delivery, logger, "claims", instance)
        self._error_text = error_text
        self._finished = self._failed = self._released = self._lost = self._rescued = self._dead_lettered = 0

    def report(self, end: HostEnd[HeldDocument]) -> ClaimsReport:
        return ClaimsReport(
            finished=self._finished,
            failed=self._failed,
            released=self._released,
            lost=self._lost,
            rescued=self._rescued,
            dead_lettered=self._dead_lettered,
            unfinished=tuple(held.id for held in end.unfinished),
            crashed=end.crashed,
            undelivered_events=self._event_delivery.undelivered,
        )

    def counts(self, report: ClaimsReport) -> Mapping[str, int]:
        return {
            "finished": report.finished,
            "failed": report.failed,
            "released": report.released,
            "lost": report.lost,
            "unfinished": len(report.unfinished),
        }

    # --- The observer of the engine ---

    def run_settled(self, settlement: DocumentSettlement) -> None:
        self._tell_settled(settlement)

    def claim_lost(self, claim: HeldDocument) -> None:
        self._lost += 1
        logger.warning("the lock on document %s was taken, or could not be renewed in time", claim)
        self._event_delivery.emit(events.DocumentClaimLost(claim.id, claim.attempt))

    def runs_cut_short(self, claims: Sequence[HeldDocument]) -> None:
        logger.warning("the claims end and cut short the work on documents %s", named(claims))

    def renewal_failed(self, error: Exception) -> None:
        logger.warning("locks could not be renewed, and will be soon: %s", error)

    def claims_rescued(self, rescued: Sequence[RescuedDocument]) -> None:
        self._tell_rescued(rescued)

    def _tell_settled(self, settlement: DocumentSettlement) -> None:
        held = settlement.held
        match settlement.outcome:
            case Finished():
                self._finished += 1
            case Failed(error) | Discarded(error):
                self._failed += 1
                is_last = self._is_dead_letter(settlement)
                reason = kept_reason(error, self._error_text)
                log = logger.error if is_last else logger.warning
                what = "and is now a dead letter" if is_last else "and is claimed again later"
                # With a hook, what the error itself says is not to be kept anywhere.
                log(
                    "document %s failed, %s: %s",
                    held,
                    what,
                    reason,
                    exc_info=error if self._error_text.redact is None else None,
                )
                self._event_delivery.emit(events.DocumentFailed(held.id, held.attempt, error, will_retry=not is_last))
                if is_last:
                    self._tell_dead_letter(held.id, held.attempt, reason)
            case Released() | Snoozed() | CutShort():
                self._released += 1

    def _is_dead_letter(self, settlement: DocumentSettlement) -> bool:
        ending = settlement.ending
        return ending is not None and ending.lock is not None and ending.lock["until"] == NEVER

    def _tell_dead_letter(self, document_id: Any, tries: int, error: str) -> None:
        self._dead_lettered += 1
        self._event_delivery.emit(events.DocumentDeadLettered(document_id, tries, error))

    def _tell_rescued(self, rescued: Sequence[RescuedDocument]) -> None:
        self._rescued += len(rescued)
        for one in rescued:
            if one.is_dead_letter:
                logger.error("document %r is now a dead letter: %s", one.id, one.error)
                self._tell_dead_letter(one.id, one.tries, one.error)
        holders = sorted({one.holder for one in rescued})
        logger.warning("%d locks of dead holders were taken away: %s", len(rescued), ", ".join(holders))
        self._event_delivery.emit(events.DocumentsRescued(len(rescued)))
