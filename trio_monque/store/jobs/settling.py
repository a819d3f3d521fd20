"""The ends of claims (settlements), written in groups, each exactly once.

`settling_statements.py` puts many ends into few statements; this file sends these and finds out what became of each
claim. Instance A ends a run; meanwhile its lease may have expired, B may have claimed the job, and an operator may have
cancelled it. What each condition closes:

- The fence (see `jobs/claim_stamps_and_fences.py`) is in every statement. If B holds the job, A's late end does not
  match. Without the fence, A would end B's run in the database, and the job's result would be A's.
- The receipt is written with the end. If the answer is lost, A sends the same statement again: the statement matches
  nothing now, because the claim has ended, and the receipt in the document proves that the first sending was applied.
  Without the receipt, A could not distinguish its own end from a lost claim, and would report a finished job as lost.
- What the end was computed from is in the guard: no cancel request, the same schedule. If an operator cancels while
  the result travels, the cancellation is written instead (`otherwise`, under a receipt of its own). If the schedule
  changed, nothing is written, and the caller decides again: the next due date would be that of the old schedule.
- The fates are read as a majority has them, in the session of the writes. A local read on a primary that is cut off
  could show a receipt that is rolled back: the job would count as settled, and B would run it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from enum import Enum, auto
from typing import Any, Final

from pymongo import errors as driver
from pymongo.client_session import ClientSession

from ...jobs.claim_stamps_and_fences import ClaimId
from ...log import logger_of
from ..codec import LENIENT, filter_of
from ..driver.commands import BY_ID, bulk_write, by_majority, causal_session, command, of_ids
from ..fields import FIELD
from ..job_collection import JobCollection
from .settling_statements import Statement, grouped, requests_of, statements_for

__all__ = ["Fate", "Statement", "grouped", "settle", "statements_for"]

logger = logger_of("store")

# Overflow: a document that is nested too deeply for the server to read. It refuses the whole command with it.
_NESTED_TOO_DEEPLY: Final = 15


class Fate(Enum):
    """What became of one settlement."""

    WRITTEN = auto()
    CANCELLED = auto()  # A cancellation was requested before: the store has written that instead.
    JOB_CHANGED = auto()  # Nothing was written: the claim holds, another condition does not. Decide again.
    REFUSED = auto()  # The server will never accept this one.
    LOST = auto()  # Another claim holds the job, or none; or nothing shows any more how this claim ended.


@command("settle jobs")
def settle(jobs: JobCollection, statements: Sequence[Statement]) -> Mapping[ClaimId, Fate]:
    """Write the statements; return what became of each claim.

    May be called again with the same statements after any transient error.
    """
    with causal_session(jobs.collection) as session:
        refused = _write_alone_if_refused(jobs, statements, session)
        # As many documents matched as there are claims, each by its fence: all ends are written, and no read is needed.
        if refused is None:
            return {claim: Fate.WRITTEN for statement in statements for claim in statement.claims}
        fates = _read_fates(jobs, statements, session)
        fates.update(_write_otherwise(jobs, statements, fates, session))
    # A refused end was not written either, and its claim holds: so far, its fate is JOB_CHANGED. With any other
    # fate, the claim is lost or was cancelled since: as REFUSED, it would be decided again, and its cancellation, which
    # is written, would be reported as a lost claim.
    fates.update({claim: Fate.REFUSED for claim in refused if fates[claim] is Fate.JOB_CHANGED})
    return fates


def _write_alone_if_refused(
    jobs: JobCollection, statements: Sequence[Statement], session: ClientSession
) -> Set[ClaimId] | None:
    """Write the statements; return None if everything matched, otherwise the claims whose ends the server refused."""
    refused = _write(jobs, statements, session)
    if refused is None:
        return None
    # A statement stops at the first document that the server refuses. Its claims go again, each alone: otherwise one
    # full document would keep its neighbours from their ends, and their jobs would run again.
    alone = [part for one in refused for part in one.apart()]
    if len(alone) > len(refused):  # Otherwise each of them was alone already.
        refused = _write(jobs, alone, session) or {}
    for statement, reason in refused.items():
        job_id, _ = statement.claims[0]
        if jobs.report_refused(job_id):
            logger.error("the server refused to end the claim on job %s: %s", job_id, reason)
    return {claim for statement in refused for claim in statement.claims}


def _write(
    jobs: JobCollection, statements: Sequence[Statement], session: ClientSession
) -> Mapping[Statement, str] | None:
    """Return None if everything matched; otherwise the statements that the server refused (maybe none), and why."""
    encoding = jobs.collection.codec_options
    sent = [each for statement in statements for each in requests_of(statement, encoding)]
    requests = [request for _, request in sent]
    # Where this raises, the caller sends all again, and the receipts show which had been written.
    result = bulk_write(jobs.collection, requests, "settle jobs", session, is_refusal=_is_nested_too_deeply)
    count = sum(len(statement.claims) for statement in statements)
    # No statement matches more than its own claims. So with this count, each of them matched, and none was refused. A
    # lower count proves nothing: if the server refused a whole command, it may have executed some of the statements
    # before, and not have counted them.
    if result.matched == count:
        return None
    return {statement: refusal.message for (statement, _), refusal in result.refused_among(sent)}


def _is_nested_too_deeply(error: driver.OperationFailure) -> bool:
    return error.code == _NESTED_TOO_DEEPLY


# What a fence compares. A rescue also compares the signs of life: a claim that was renewed since is alive.
# The token alone would show most losses. Monque for Node does not change it when it claims, so the others count, too.
_FENCED: Final = ("status", "claim.by", "claim.since", "claim.token", "claim.last_heartbeat", "claim.renewed_at")


def _read_fates(jobs: JobCollection, statements: Sequence[Statement], session: ClientSession) -> dict[ClaimId, Fate]:
    # Lenient: a document that was damaged since its claim must not keep the other jobs from their ends.
    ids = of_ids(job_id for statement in statements for job_id in statement.ids)
    wanted = [FIELD[name] for name in ("internals.receipt", "claim.cancel_requested_at", *_FENCED)]
    reader = by_majority(jobs.collection, LENIENT)
    found = {document["_id"]: document for document in reader.find(ids, wanted, hint=BY_ID, session=session)}
    fates = {}
    for statement in statements:
        for claim in statement.claims:
            document = found.get(claim[0])
            fates[claim] = Fate.LOST if document is None else fate_of(statement, document)
    return fates


def fate_of(statement: Statement, document: Mapping[str, Any]) -> Fate:
    """Return what became of a claim in this statement, by the document as it is after the write."""
    # The receipt comes first: an end that was written clears the fields of the claim, so its fence no longer holds.
    receipt = document.get(FIELD["internals.receipt"])
    if receipt == statement.receipt:
        return Fate.WRITTEN
    if receipt == statement.receipt_otherwise:
        return Fate.CANCELLED
    guard = filter_of(statement.transition.guard)
    if any(document.get(name) != guard[name] for name in (FIELD[name] for name in _FENCED) if name in guard):
        return Fate.LOST
    # The fence holds, and yet the statement did not match: another condition of its guard did not hold.
    if document.get(FIELD["claim.cancel_requested_at"]) is not None and statement.transition.otherwise is not None:
        return Fate.CANCELLED  # Not written yet: see `_write_otherwise`.
    return Fate.JOB_CHANGED


def _write_otherwise(
    jobs: JobCollection,
    statements: Sequence[Statement],
    fates: Mapping[ClaimId, Fate],
    session: ClientSession,
) -> Mapping[ClaimId, Fate]:
    """Write the cancellations that were requested; return the fates that this changes."""
    # Every end clears the request together with the claim. If the retry were written all the same, nothing would show
    # the request any more, and the job would run again.
    instead = []
    for statement in statements:
        claims = [claim for claim in statement.claims if fates[claim] is Fate.CANCELLED]
        if claims and statement.transition.otherwise is not None:
            instead.append(Statement(statement.transition.otherwise, statement.receipt_otherwise, claims))
    if not instead or (refused := _write_alone_if_refused(jobs, instead, session)) is None:
        return {}
    # If this is a repetition, the first sending wrote some of the cancellations: those jobs bear the receipt, and the
    # fence no longer holds there.
    after = _read_fates(jobs, instead, session)
    return {
        claim: Fate.CANCELLED if fate is Fate.WRITTEN else Fate.REFUSED if claim in refused else Fate.LOST
        for claim, fate in after.items()
    }
