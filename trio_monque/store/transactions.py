"""One transaction: the writes of a function and the end of a claim, committed together or not at all.

The function runs first, the end of the claim is the last write, and the commit follows at once in the same thread. Each
part of that order closes a race:

- Effects first. The end of the claim locks the job's document until the commit. Renewals of one claim cycle are one
  statement for all its jobs: while the lock is held that statement waits, and the neighbours lose their leases.
- The end of the claim is a write under the fence, not a read of it. Two transactions that read the same document and
  write others do not conflict: a rescue could take the claim between the read and the commit, and both runs would
  commit their effects.
- The timeout goes inside the session, and an abort has its own. The driver does not send a command whose time is over:
  an abort under the timeout of the transaction would stay unsent, and its locks would be held for another minute.
- Labels of a failed commit are not relied on (SERVER-37179): after an election a server may answer "no such
  transaction" for one that is committed. Run again, its effects would be written twice. The job's document is asked
  instead: see `_find_out`.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, Protocol, TypeVar

import pymongo
from pymongo import ReadPreference, WriteConcern
from pymongo import errors as driver
from pymongo.read_concern import ReadConcern

from ..errors import MonqueConnectionError, MonqueError
from ..jobs.conditional_write import Transition
from ..jobs.fences import claim_id, fence
from ..jobs.job import Job
from .codec import LENIENT, filter_of, update_of
from .commands import BY_ID, by_majority, causal_session, command, is_standalone
from .driver_errors import is_about_document, translated
from .fields import FIELD
from .job_collection import JobCollection
from .leases import signs_of_life
from .settling import Fate, fate_of
from .settling_statements import Statement
from .types import ClientSession

R = TypeVar("R")

RECEIPT_PREFIX: Final = "tx:"

LONGEST: Final = 60.0
"""Seconds of one attempt. A server aborts transactions that are older, unless it is configured otherwise."""

ABORT_TIMEOUT: Final = 2.0
"""Seconds of an abort. If it fails, the server aborts the transaction when it is too old."""

LONGEST_PAUSE: Final = 1.0
"""Seconds between two attempts, at most."""

MOST_QUESTIONS: Final = 30
"""How often the database is asked what became of a commit, each time for `operation_timeout` at most."""


class TransactionTerms(Protocol):
    """What bounds a transaction. Called in its thread."""

    def seconds_left(self) -> float:
        """Return how long the run surely holds its claim; negative afterwards."""
        ...

    def is_cancelled(self) -> bool:
        """Return whether the run is cancelled. Asked just before the end of the claim is written, and not after it."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait before the next attempt."""
        ...

    def beat(self) -> datetime:
        """Return the date of a renewal: later than that of each renewal of this instance before."""
        ...


@dataclass(frozen=True, slots=True)
class Ended(Generic[R]):
    """How a transaction ended.

    Attributes:
        fate: WRITTEN: all is committed. Any other: nothing is, unless `is_unclear`; None if the run was cancelled.
        value: What the function returned.
        transition: The end of the claim; None if the run was cancelled before it was decided.
        is_unclear: The answer to the commit was lost, and the job has another claim or end since: nothing shows any
            more whether this transaction was committed.
    """

    fate: Fate | None
    value: R
    transition: Transition | None = None
    is_unclear: bool = False


class _Again(Exception):  # noqa: N818  # Not an error of the caller: the attempt is made again.
    """Nothing of this attempt is committed, and the next one may succeed."""


def run_transaction(
    jobs: JobCollection,
    job: Job,
    function: Callable[[ClientSession], R],
    decide: Callable[[R], Transition],
    receipt: str,
    terms: TransactionTerms,
) -> Ended[R]:
    """Call `function(session)` and end the claim in one transaction. Blocking; after a conflict, all of it again.

    Args:
        decide: Returns the end of the claim, by what the function returned.
        receipt: Unique to this call. It begins with `RECEIPT_PREFIX`.

    Raises:
        MonqueError: The server has no transactions, or the function has ended the one that it was given.
        MonqueConnectionError: The time was over before an attempt succeeded, or (`unknown_outcome`) the database did
            not answer what became of the commit.
        BaseException: What the function raised, also if the time was over for a call of its own (a driver's error whose
            `timeout` is true). Nothing was written.
    """
    if is_standalone(jobs.collection):
        raise MonqueError(
            "transactions need a replica set, and this server is standalone: start mongod with --replSet and run "
            "rs.initiate() once (one member is enough)"
        )
    attempts = 0
    with causal_session(jobs.collection) as session:
        while True:
            try:
                return _attempt(jobs, job, session, function, decide, receipt, terms)
            except _Again as again:
                cause = again.__cause__
            attempts += 1
            # At random: two transactions that have met would otherwise meet again.
            pause = random.uniform(0.0, min(LONGEST_PAUSE, 0.005 * 2 ** min(attempts, 10)))
            if terms.seconds_left() <= pause:
                raise MonqueConnectionError(
                    f"the transaction of job {job} was not committed in time: {attempts} attempts met conflicts or "
                    "outages; nothing was written"
                ) from cause
            terms.pause(pause)


def _attempt(
    jobs: JobCollection,
    job: Job,
    session: ClientSession,
    function: Callable[[ClientSession], R],
    decide: Callable[[R], Transition],
    receipt: str,
    terms: TransactionTerms,
) -> Ended[R]:
    session.start_transaction(ReadConcern("snapshot"), WriteConcern("majority"), ReadPreference.PRIMARY)
    try:
        with pymongo.timeout(_time_of_attempt(terms)):
            value = _called(function, session)
            if terms.is_cancelled():
                _abort(session)
                return Ended(None, value)
            transition = decide(value)
            refused, matched = _write_end(jobs, transition, receipt, session)
    except BaseException as error:
        _abort(session)
        if isinstance(error, driver.PyMongoError) and error.has_error_label("TransientTransactionError"):
            raise _Again from error
        raise
    if not matched:
        _abort(session)
        fate = Fate.REFUSED if refused else _read_fate(jobs, job, Statement(transition, receipt, [claim_id(job)]))
        return Ended(fate, value, transition)
    if _commit(session, _time_of_attempt(terms)):
        return Ended(Fate.WRITTEN, value, transition)
    is_committed = _settle_doubt(jobs, job, session, receipt, terms)
    return Ended(Fate.WRITTEN if is_committed else Fate.LOST, value, transition, is_unclear=not is_committed)


def _time_of_attempt(terms: TransactionTerms) -> float:
    # Not 0, which means no limit to the driver.
    return max(0.001, min(LONGEST, terms.seconds_left()))


def _called(function: Callable[[ClientSession], R], session: ClientSession) -> R:
    value = function(session)
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError(
            f"the function of a transaction must be a plain function, and {function!r} is async: it runs in a thread, "
            "where it calls pymongo with the session"
        )
    # The end of the claim would be written alone, outside of any transaction.
    if not session.in_transaction:
        raise MonqueError(
            f"the function {function!r} has committed or aborted the transaction that it was given: return instead to "
            "commit it, raise an exception to abort it"
        )
    return value


def _write_end(jobs: JobCollection, transition: Transition, receipt: str, session: ClientSession) -> tuple[bool, bool]:
    """Write the end of the claim in the transaction; return whether the server refused it, and whether it matched."""
    guard, update = filter_of(transition.guard), update_of(transition, receipt)
    try:
        result = jobs.collection.update_one(guard, update, hint=BY_ID, session=session)
    except driver.PyMongoError as error:
        # A conflict is reported as the error of a statement, too: its label comes first.
        if error.has_error_label("TransientTransactionError"):
            raise
        if isinstance(error, driver.WriteError) and is_about_document(error.code):
            return True, False
        # Whatever it has done is aborted, so its outcome is known.
        raise translated(error, "end the job in its transaction", writes=False) from error
    return False, bool(result.matched_count)


def _abort(session: ClientSession) -> None:
    """Abort the transaction. The driver swallows the errors of that: the server aborts what is left, by its age."""
    if session.in_transaction:
        with pymongo.timeout(ABORT_TIMEOUT):
            session.abort_transaction()


@command("read what became of a claim", writes=False)
def _read_fate(jobs: JobCollection, job: Job, statement: Statement) -> Fate:
    with causal_session(jobs.collection) as session:
        document = by_majority(jobs.collection, LENIENT).find_one({"_id": job.id}, hint=BY_ID, session=session)
    return Fate.LOST if document is None else fate_of(statement, document)


# --- The commit ---


def _commit(session: ClientSession, seconds: float) -> bool:
    """Commit; return whether that was acknowledged. If not, it is unknown whether the transaction is committed."""
    try:
        with pymongo.timeout(seconds):
            session.commit_transaction()
    except driver.PyMongoError:
        return False
    return True


def _settle_doubt(jobs: JobCollection, job: Job, session: ClientSession, receipt: str, terms: TransactionTerms) -> bool:
    """Return whether the transaction was committed, as the job's document shows; False if nothing shows it any more.

    Raises:
        _Again: It was not committed, and never will be.
        MonqueConnectionError: The database did not answer.
    """
    last: MonqueConnectionError | None = None
    for question in range(MOST_QUESTIONS):
        # First: a transaction that is still open on the server locks the job's document, and the question would wait.
        if _commit(session, jobs.operation_timeout):
            return True
        try:
            is_held, found = _find_out(jobs, job, terms.beat())
        except MonqueConnectionError as error:
            last = error
            terms.pause(min(LONGEST_PAUSE, 0.05 * 2**question))
            continue
        if is_held:
            raise _Again
        return found == receipt
    raise MonqueConnectionError(
        f"it is unknown whether the transaction of job {job} was committed: the database does not answer",
        unknown_outcome=True,
    ) from last


@command("find out about a transaction")
def _find_out(jobs: JobCollection, job: Job, beat: datetime) -> tuple[bool, str | None]:
    """Renew the claim; return whether it is held, and otherwise the receipt in the document.

    A renewal that matches conflicts with the end of the claim in the transaction: that was not applied, and its commit
    must fail from now on. A read alone would not stop a commit that is still on its way.
    """
    renewal = {"$max": signs_of_life(beat), "$set": {FIELD["updated_at"]: beat}}
    # By a majority, whatever the writes of this collection ask for: an election must not undo this one.
    writer = jobs.collection.with_options(write_concern=WriteConcern("majority"))
    with causal_session(jobs.collection) as session:
        if writer.update_one(filter_of(fence(job)), renewal, hint=BY_ID, session=session).matched_count:
            return True, None
        # In the session: a primary that was replaced meanwhile cannot answer this one.
        reader = by_majority(jobs.collection, LENIENT)
        document = reader.find_one({"_id": job.id}, [FIELD["receipt"]], hint=BY_ID, session=session)
    return False, None if document is None else document.get(FIELD["receipt"])
