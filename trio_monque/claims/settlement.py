"""How the work on a document ended -> what its lock becomes. Pure: the moment and the policy are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from ..document_lock import NEVER, freed, laid_aside, shortened
from ..engine.run_end import CancelReason, RunEnd
from ..errors import ClaimLostError, InvalidOptionError
from ..jobs.error_history import kept_reason
from ..jobs.retry_policy import RetryPolicy, awake_at, judged
from ..jobs.verdicts import CutShort, Discarded, Failed, Snoozed, Succeeded
from ..store import documents
from ..store.documents.locked_collection import LockedCollection
from ..store.documents.settling import Fate, Settled
from ..store.documents.settling_statements import EncodedUpdate, Ending
from .locked_document import HeldDocument

LATEST: Final = NEVER - timedelta(seconds=1)
"""A lock that is free from later on would be that of a dead letter."""


_PROBLEM: Final = "must be an update of operators, for example {'$set': {'status': 'done'}}, or a pipeline of them"


@dataclass(frozen=True, slots=True)
class Finished:
    """The result is written with the end of the lock. `update` is None for no result."""

    update: EncodedUpdate | None


@dataclass(frozen=True, slots=True)
class Released:
    """Given back uncounted, to be claimed from so many seconds later on."""

    delay: float


Outcome = Finished | Released | Failed | Discarded | Snoozed | CutShort


class GivenBackError(Exception):
    """Nobody works on it: it is given back as if it had never been claimed."""


@dataclass(slots=True, eq=False)
class DocumentSettlement:
    """The end of one claim: what it means, what was sent of that, and what became of it.

    Attributes:
        is_early: Its handler goes on.
        ending: What is written, once that is decided.
        settled: What became of it; None while nobody knows.
        may_be_written: It was sent, and the answer was lost.
        is_unclear: It may have been written; nobody can tell any more.
    """

    held: HeldDocument
    outcome: Outcome
    is_early: bool = False
    ending: Ending | None = None
    settled: Settled | None = None
    may_be_written: bool = False
    is_unclear: bool = False


def outcome_of(end: RunEnd, time_limit: float, policy: RetryPolicy) -> Outcome:
    """What the end of a run means for its document."""
    if isinstance(end.error, GivenBackError):
        return CutShort()
    if end.error is None and not end.cancelled:
        return Finished(None)
    if end.reason is CancelReason.LOST:
        return CutShort()
    # What was cancelled is told so where it works on the document, and may pass that on.
    error = None if end.reason is not None and isinstance(end.error, ClaimLostError) else end.error
    if error is not None:
        verdict = judged(error, policy)
        assert not isinstance(verdict, Succeeded), "it is an error"
        return verdict
    if end.reason is CancelReason.TIMEOUT:
        return Failed(TimeoutError(f"the work took longer than timeout={time_limit:g}"))
    return CutShort()


def ending_of(held: HeldDocument, outcome: Outcome, now: datetime, policy: RetryPolicy) -> Ending:
    """What is written."""
    if isinstance(outcome, Finished):
        return Ending(held.id, held.cycle.fence, outcome.update)
    return Ending(held.id, held.cycle.fence, None, _lock_after(held, outcome, now, policy))


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
            return laid_aside(held.attempt, kept_reason(error, policy.error_text))
        case Failed(error, after):
            return lock_after_try(held.attempt, error, now, policy, after)


def made_lighter(settlement: DocumentSettlement) -> bool:
    """Shortens the error in a lock that the server refused; whether it did, and the lock is to be written once more.

    With so short an error the lock is smaller than the one that is held: a full document has room for it.
    """
    ending, settled = settlement.ending, settlement.settled
    if ending is None or ending.lock is None or settled is None or settled.fate is not Fate.REFUSED:
        return False
    error = ending.lock.get("error")
    if not isinstance(error, str) or shortened(error) == error:
        return False
    settlement.ending = replace(ending, lock={**ending.lock, "error": shortened(error)})
    return True


def lock_after_try(
    tries: int, error: BaseException, now: datetime, policy: RetryPolicy, after: float | None = None
) -> dict[str, object]:
    """The lock after so many tries, of which the last one failed or died: free later, or that of a dead letter."""
    if tries >= policy.max_attempts:
        return laid_aside(tries, kept_reason(error, policy.error_text))
    delay = policy.delay(tries, error) if after is None else after
    return freed(tries, now + timedelta(milliseconds=max(1, round(delay * 1000))))


def encoded_update(locked: LockedCollection, update: object, document: object) -> EncodedUpdate:
    """The update of a document as it will be sent, whatever becomes of the caller's object until then.

    Raises:
        InvalidOptionError: It is none, or touches the lock.
        InvalidPayloadError: It cannot be encoded as BSON, or is larger than a statement may be.
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
                        "update", update, f"must not touch {locked.lock_field!r}: the lock is taken away by itself"
                    )
    return documents.settling_statements.encoded_update(locked, update, document)


def _named(operator: str, named: Any) -> Iterable[Any]:
    """The paths that it names. What a stage of a pipeline computes is not looked through: the lock goes last."""
    if isinstance(named, Mapping):
        return (*named, *named.values()) if operator == "$rename" else named
    if operator == "$unset":
        return named if isinstance(named, list | tuple) else (named,)
    return ()
