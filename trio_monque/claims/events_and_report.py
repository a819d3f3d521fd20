"""ClaimsReporter turns what the engine observes of documents into events, log records and ClaimsReport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .. import events
from ..client.event_delivery import EventDelivery
from ..foreign_errors import is_a
from ..host.log_lines_of_jobs_and_documents import HostEnd, Reporter
from ..jobs.error_history import ErrorText, kept_reason, logged_traceback
from ..jobs.outcomes import CutShort, Discard, Discarded, Failed, Snoozed, error_beside
from ..locks_and_dead_letters import NEVER
from ..log import logger_of
from ..safe_text import shown
from ..store.driver.types import ObjectId
from .locked_document import HeldDocument
from .settlement import DocumentSettlement, Finished, Released

logger = logger_of("claims")


@dataclass(frozen=True, slots=True)
class RescuedDocument:
    """A document that was taken from a dead holder.

    Attributes:
        attempts: How many attempts have failed, this one included.
        holder: The name of the dead instance or program.
        is_dead_letter: No attempts are left.
        error: The error in a dead letter; empty otherwise.
    """

    id: Any
    attempts: int
    holder: str
    is_dead_letter: bool
    error: str


@dataclass(frozen=True, kw_only=True)
class ClaimsReport:
    """What the claims of one instance did. Made when they have ended.

    Attributes:
        finished: Documents whose lock was removed, with or without a result.
        failed: Attempts that failed, with or without attempts left.
        released: Documents that were released without counting the attempt.
        lost: Locks that were not renewed in time, or that another program took.
        rescued: Documents that were taken from dead holders.
        dead_lettered: Documents that became dead letters because no attempts were left.
        unfinished: The ids of documents that could not be released. Others claim them when their leases expire.
        crashed: The errors that ended the claims.
        loop_blocked: How many times something blocked an event loop for longer than a second: that of the claims, which
            renews them, or on asyncio that of the program. Each time is logged with the frames that blocked it. Not
            counted in virtual time.
        undelivered_events: Events that listeners did not receive: too many waited, or the claims had to end.
    """

    finished: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    rescued: int = 0
    dead_lettered: int = 0
    unfinished: tuple[Any, ...] = ()
    crashed: tuple[BaseException, ...] = ()
    loop_blocked: int = 0
    undelivered_events: int = 0


NOT_ENDED: Final[HostEnd[HeldDocument]] = HostEnd(cause="")


class ClaimsReporter(Reporter[HeldDocument, DocumentSettlement, RescuedDocument, ClaimsReport]):
    """Observes the engine of claims on documents."""

    def __init__(self, event_delivery: EventDelivery, instance: str, error_text: ErrorText) -> None:
        super().__init__(event_delivery, logger, "claims", "document", instance)
        self._error_text = error_text
        self._finished = self._failed = self._released = self._lost = self._rescued = self._dead_lettered = 0

    def report(self, end: HostEnd[HeldDocument]) -> ClaimsReport:
        return self.so_far(end)

    def so_far(self, end: HostEnd[HeldDocument] = NOT_ENDED) -> ClaimsReport:
        """Return the report of what the claims have done until now. May be called from any thread."""
        return ClaimsReport(
            finished=self._finished,
            failed=self._failed,
            released=self._released,
            lost=self._lost,
            rescued=self._rescued,
            dead_lettered=self._dead_lettered,
            unfinished=tuple(held.id for held in end.unfinished),
            crashed=end.crashed,
            loop_blocked=end.loop_blocked,
            undelivered_events=self.event_delivery.undelivered,
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

    def extra_of(self, claim: HeldDocument) -> Mapping[str, object]:
        return log_extra(claim.id, claim.attempt)

    def claim_lost(self, claim: HeldDocument) -> None:
        super().claim_lost(claim)
        self._lost += 1
        self.event_delivery.emit(events.DocumentClaimLost(claim.id, claim.attempt))

    def run_settled(self, settlement: DocumentSettlement) -> None:
        held = settlement.held
        match settlement.outcome:
            case Finished():
                self._finished += 1
            case Failed(error) | Discarded(error):
                self._failed += 1
                is_last = self._is_dead_letter(settlement)
                reason = kept_reason(error, self._error_text)
                log = logger.error if is_last and not is_a(error, Discard) else logger.warning
                log(
                    "document %s failed, and %s: %s",
                    held,
                    "is now a dead letter" if is_last else "will be claimed again after its backoff",
                    reason,
                    exc_info=logged_traceback(error, self._error_text),
                    extra=self.extra_of(held),
                )
                if (other := error_beside(settlement.outcome)) is not None:
                    text, trace = kept_reason(other, self._error_text), logged_traceback(other, self._error_text)
                    logger.error(
                        "beside that, document %s raised: %s", held, text, extra=self.extra_of(held), exc_info=trace
                    )
                self.event_delivery.emit(events.DocumentFailed(held.id, held.attempt, error, will_retry=not is_last))
                if is_last:
                    self._report_dead_letter(held.id, held.attempt, reason)
            case Released() | Snoozed() | CutShort():
                self._released += 1

    def _is_dead_letter(self, settlement: DocumentSettlement) -> bool:
        ending = settlement.ending
        return ending is not None and ending.lock is not None and ending.lock["until"] == NEVER

    def _report_dead_letter(self, document_id: Any, attempts: int, error: str) -> None:
        self._dead_lettered += 1
        self.event_delivery.emit(events.DocumentDeadLettered(document_id, attempts, error))

    def claims_rescued(self, rescued: Sequence[RescuedDocument]) -> None:
        self._rescued += len(rescued)
        for one in rescued:
            if one.is_dead_letter:
                logger.error(
                    "document %r is now a dead letter: %s",
                    one.id,
                    one.error,
                    extra=log_extra(one.id, one.attempts),
                )
                self._report_dead_letter(one.id, one.attempts, one.error)
        holders = sorted({one.holder for one in rescued})
        logger.warning(
            "rescued documents from dead holders (%d); each counts as a failed attempt: %s",
            len(rescued),
            ", ".join(holders),
        )
        self.event_delivery.emit(events.DocumentsRescued(len(rescued)))


def log_extra(document_id: Any, attempt: int) -> Mapping[str, object]:
    """Return the `extra` fields of a log record about one document."""
    # An id may be any BSON value of any size, also text with line breaks.
    shown_id = str(document_id) if type(document_id) is ObjectId else shown(document_id)
    return {"document_id": shown_id, "attempt": attempt}
