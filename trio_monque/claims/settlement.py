"""Decides what the end of the work on a document writes: the result, or what its lock becomes. Pure.

Each end is decided once. If the answer of a write is lost, the source sends the same ending again: a second decision
would have another date, and could not recognize what the first write left in the document.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from ..engine.run_end import RunEnd
from ..error_types import ClaimLostError, InvalidOptionError, InvalidUpdateError
from ..foreign_errors import is_a
from ..host.run_ends import failure_of
from ..jobs.error_history import kept_reason
from ..jobs.outcomes import CutShort, Discarded, Failed, Snoozed, Succeeded
from ..jobs.retries_and_next_occurrences import RetryPolicy, awake_at, judged
from ..locks_and_dead_letters import NEVER, dead_letter_lock, freed, shortened
from ..safe_text import shown
from ..store.documents import settling_statements
from ..store.documents.locked_collection import LockedCollection
from ..store.documents.settling import DocumentFate, SettledDocument
from ..store.documents.settling_statements import DocumentWrite, EncodedUpdate
from .locked_document import HeldDocument

# A lock that waits for a later date would look like a dead letter, which no instance claims.
LATEST: Final = NEVER - timedelta(seconds=1)
"""The latest date from which a lock may be free."""

_PROBLEM: Final = "must be an update of operators, for example {'$set': {'status': 'done'}}, or a pipeline of them"


@dataclass(frozen=True, slots=True)
class Finished:
    """The work was done: the result is written, and the lock removed, in one write. `update` is None for no result."""

    update: EncodedUpdate | None


@dataclass(frozen=True, slots=True)
class Released:
    """Released without counting the attempt; claimable after `delay` seconds."""

    delay: float


DocumentOutcome = Finished | Released | Failed | Discarded | Snoozed | CutShort


class UncountedReleaseError(Exception):
    """No work began, or it was cancelled: the document is released, and the attempt does not count."""


@dataclass(slots=True, eq=False)
class DocumentSettlement:
    """The end of one claim, from its outcome to the answer of the server.

    Attributes:
        is_early: The handler goes on: it called `finish` or `release`.
        ending: What is written; None until that is decided.
        settled: What the server did with it; None until that is known.
        may_be_written: It was sent, and its answer was lost or does not prove what became of it.
        is_unclear: Nothing can show any more whether it was written.
    """

    held: HeldDocument
    outcome: DocumentOutcome
    is_early: bool = False
    ending: DocumentWrite | None = None
    settled: SettledDocument | None = None
    may_be_written: bool = False
    is_unclear: bool = False


class UnansweredEndError(Exception):
    """The work has ended, and the caller of its `finish` or `release` was cancelled before it had the answer."""

    def __init__(self, settlement: DocumentSettlement) -> None:
        super().__init__(settlement)
        self.settlement = settlement


def refusal_of(settlement: DocumentSettlement) -> InvalidUpdateError:
    """Return the error of an early settlement that the server refused."""
    problem = None if settlement.settled is None else settlement.settled.error
    return InvalidUpdateError(f"the server refused the update of document {shown(settlement.held.id)}: {problem}")


def outcome_of(end: RunEnd, time_limit: float, policy: RetryPolicy) -> DocumentOutcome:
    """Decide what the end of a run means for its document."""
    # The server has refused that settlement: if it were written, or the claim lost, the engine would not conclude the
    # run. The work did not get that error. Without this, the run would count as successful: the lock would be removed,
    # the result lost, and no error reported.
    if type(end.error) is UnansweredEndError:
        end = end._replace(error=refusal_of(end.error.settlement))
    # Also without a cancellation by the engine: the block of `async with claim` may have been cancelled by its own
    # task.
    if type(end.error) is UncountedReleaseError:
        return CutShort()
    if end.has_succeeded:
        return Finished(None)
    full_tracebacks = policy.error_text.full_tracebacks
    error = failure_of(end, f"{time_limit:g} s", _without_claim_lost, full_tracebacks=full_tracebacks)
    if error is None:
        return CutShort()
    outcome = judged(error, policy)
    assert not isinstance(outcome, Succeeded), "it is an error"
    return outcome


def _without_claim_lost(error: BaseException) -> BaseException | None:
    # A cancelled block raises ClaimLostError, and the handler may let it propagate.
    return None if is_a(error, ClaimLostError) else error


def ending_of(held: HeldDocument, outcome: DocumentOutcome, now: datetime, policy: RetryPolicy) -> DocumentWrite:
    """Return what is written for this outcome."""
    if isinstance(outcome, Finished):
        return DocumentWrite(held.id, held.cycle.fence, outcome.update)
    return DocumentWrite(held.id, held.cycle.fence, None, _lock_after(held, outcome, now, policy))


def _lock_after(
    held: HeldDocument, outcome: Released | Failed | Discarded | Snoozed | CutShort, now: datetime, policy: RetryPolicy
) -> dict[str, object]:
    match outcome:
        case CutShort():
            return freed(held.tries, now)
        case Released(delay):
            return freed(held.tries, now + timedelta(seconds=delay))
        case Snoozed(snooze):
            return freed(held.tries, min(awake_at(snooze, now), LATEST))
        case Discarded(error):
            return dead_letter_lock(held.attempt, kept_reason(error, policy.error_text))
        case Failed(error, after):
            return lock_after_failure(held.attempt, error, now, policy, after)


def shorten_refused_error(settlement: DocumentSettlement) -> bool:
    """Shorten the error in a lock that the server refused; return False if there is nothing to shorten."""
    ending, settled = settlement.ending, settlement.settled
    if ending is None or ending.lock is None or settled is None or settled.fate is not DocumentFate.REFUSED:
        return False
    error = ending.lock.get("error")
    if not isinstance(error, str) or shortened(error) == error:
        return False
    # With the short error the lock is smaller than the one in the document, so even a full document has room for it.
    # Otherwise the attempt could not be counted, and the document would be claimed and fail without end.
    settlement.ending = replace(ending, lock={**ending.lock, "error": shortened(error)})
    return True


def lock_after_failure(
    attempts: int, error: BaseException, now: datetime, policy: RetryPolicy, after: float | None = None
) -> dict[str, object]:
    """Return the lock after that number of attempts. The last one failed, or its holder died.

    The lock is free after the backoff, or after `after` seconds; without attempts left it is that of a dead letter.
    """
    if attempts >= policy.max_attempts:
        return dead_letter_lock(attempts, kept_reason(error, policy.error_text))
    delay = policy.delay(attempts, error) if after is None else after
    # At least a millisecond, the resolution of BSON dates: a document that is due at once would be claimed in a loop.
    return freed(attempts, now + timedelta(milliseconds=max(1, round(delay * 1000))))


def encoded_update(locked: LockedCollection, update: object, document: object) -> EncodedUpdate:
    """Check the update that `finish` was given, and encode it.

    Raises:
        InvalidOptionError: The update has no operators, or changes the lock.
        InvalidPayloadError: The update cannot be encoded as BSON, or is too large for a statement.
    """
    is_pipeline = isinstance(update, list | tuple)
    stages: Iterable[object] = update if isinstance(update, list | tuple) else (update,)
    for stage in stages:
        if not isinstance(stage, Mapping):
            raise InvalidOptionError("update", update, _PROBLEM)
        for operator, named in stage.items():
            is_operator = isinstance(operator, str) and operator.startswith("$")
            if not is_operator or not (is_pipeline or isinstance(named, Mapping)):
                raise InvalidOptionError("update", update, _PROBLEM)
            for path in _named(operator, named):
                if path == locked.lock_field or str(path).startswith(f"{locked.lock_field}."):
                    raise InvalidOptionError(
                        "update", update, f"must not change {locked.lock_field!r}: finish() removes the lock"
                    )
    # Encoded now: the caller may change the object while `finish` waits.
    return settling_statements.encoded_update(locked, update, document)


def _named(operator: str, named: Any) -> Iterable[Any]:
    """Return the paths that the operator names.

    Expressions of a pipeline are not searched: the stage that removes the lock is the last one and wins.
    """
    if isinstance(named, Mapping):
        return (*named, *named.values()) if operator == "$rename" else named
    if operator == "$unset":
        return named if isinstance(named, list | tuple) else (named,)
    return ()
