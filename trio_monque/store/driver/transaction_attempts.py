"""One transaction in its thread: the writes of a function and the end of a claim, committed together or not at all.

Its run is in `host/transaction_turns.py`, and what it asks of that in `transaction_terms.py`.

The function runs first, the end of the claim is the last write, and the commit follows at once in the same thread. Each
part of that order closes a race:

- Effects first. The end of the claim locks its document until the commit, and others that want to change the document
  wait meanwhile: a caller that requests a cancellation, or replaces the job.
- But after a conflict, the document is locked first (`ClaimSettlement.hold`). Callers that change it steadily, each in
  a moment, would otherwise keep a function of a second from ever committing. Now they wait instead.
- The end of the claim is a write under the fence, not a read of it. Two transactions that read the same document and
  write others do not conflict: a rescue could take the claim between the read and the commit, and both runs would
  commit their effects.
- The timeout goes inside the session, and an abort has its own. The driver does not send a command whose time is over:
  an abort under the timeout of the transaction would stay unsent, and its locks would be held for another minute.
- The function has a limit. What outlives it must not commit: the thread asks for that just before it ends the claim. A
  server that is asked to (`end_on_server`) aborts the transaction at that moment, so that its locks are gone although
  the thread may compute for hours.
- Labels of a failed commit are not relied on (SERVER-37179): after an election a server may answer "no such
  transaction" for one that is committed. Run again, its effects would be written twice. The document is asked
  instead: see `ClaimSettlement.find_out`.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import pymongo
from pymongo import ReadPreference, WriteConcern
from pymongo import errors as driver
from pymongo.read_concern import ReadConcern

from ...error_types import MonqueConnectionError, MonqueError
from ...unfinished_work import unfinished_work
from .commands import causal_session, command, is_standalone
from .driver_errors import is_about_document, translated
from .transaction_terms import ClaimSettlement, CommitFate, EndedTransaction, FoundCommit, TransactionTerms
from .types import ClientSession

R = TypeVar("R")

LONGEST: Final = 60.0
"""Seconds of a transaction. A server aborts those that are older, unless it is configured otherwise."""

ABORT_TIMEOUT: Final = 2.0
"""Seconds of an abort. If it fails, the server aborts the transaction when it is too old."""

LONGEST_PAUSE: Final = 1.0
"""Seconds between two attempts, at most."""

MOST_QUESTIONS: Final = 30
"""How often the database is asked what became of a commit, each time for `operation_timeout` at most."""


class _Again(Exception):  # noqa: N818  # Not an error of the caller: the attempt is made again.
    """Nothing of this attempt is committed, and the next one may succeed."""


def run_transaction(
    end: ClaimSettlement[R],
    function: Callable[[ClientSession], R],
    terms: TransactionTerms,
    *,
    is_repeated: bool = False,
) -> EndedTransaction[R]:
    """Call `function(session)` and end the claim in one transaction. Blocking; after a conflict, all of it again.

    Args:
        is_repeated: The document has changed since an earlier call: it is locked first.

    Raises:
        MonqueError: The server has no transactions, or the function has ended the one that it was given.
        MonqueConnectionError: The time was over before an attempt succeeded, or (`unknown_outcome`) the database did
            not answer what became of the commit.
        BaseException: What the function raised, or `terms.overdue` where the driver stopped it at its limit. Then
            nothing was written.
    """
    if is_standalone(end.collection):
        raise MonqueError(
            "transactions need a replica set, and this server is standalone: start mongod with --replSet and run "
            "rs.initiate() once (one member is enough)"
        )
    with causal_session(end.collection) as session:
        try:
            return _attempts(end, session, function, terms, is_repeated=is_repeated)
        finally:
            terms.leave()


def _attempts(
    end: ClaimSettlement[R],
    session: ClientSession,
    function: Callable[[ClientSession], R],
    terms: TransactionTerms,
    *,
    is_repeated: bool,
) -> EndedTransaction[R]:
    attempts = 0
    while True:
        # Asked before each attempt: a run that was cancelled during the pause begins no further one.
        if not terms.begin(session):
            return EndedTransaction(CommitFate.GIVEN_UP, cast("R", None))
        try:
            return _attempt(end, session, function, terms, holds=is_repeated or attempts > 0)
        except _Again as again:
            cause = again.__cause__
        attempts += 1
        # At random: two transactions that have met would otherwise meet again.
        pause = random.uniform(0.0, min(LONGEST_PAUSE, 0.005 * 2 ** min(attempts, 10)))
        if terms.seconds_left() <= pause:
            raise MonqueConnectionError(
                f"the transaction of {end.item} was not committed in time: {attempts} attempts met conflicts or "
                "outages; nothing was written"
            ) from cause
        terms.pause(pause)


def _attempt(
    end: ClaimSettlement[R],
    session: ClientSession,
    function: Callable[[ClientSession], R],
    terms: TransactionTerms,
    *,
    holds: bool,
) -> EndedTransaction[R]:
    session.start_transaction(ReadConcern("snapshot"), WriteConcern("majority"), ReadPreference.PRIMARY)
    try:
        with pymongo.timeout(_time_of_attempt(terms)):
            if holds:
                end.hold(terms.beat(), session)
            # The effects come first, and the end last: the end locks the document until the commit, and requests to
            # cancel wait for it.
            value = _called(function, session)
            fate = _write_end(end, value, session) if terms.may_end() else CommitFate.GIVEN_UP
    except BaseException as error:
        # First of all: an open transaction keeps its locks on the server, for a minute if nothing ends it.
        _abort(session)
        if isinstance(error, driver.PyMongoError):
            # Before the label: an abort at the limit (`end_on_server`) looks like a conflict.
            if (overdue := terms.overdue()) is not None:
                raise overdue from error
            # Without this, the abort would be a failure of a run that was cancelled, by a shutdown for example.
            if terms.is_given_up:
                return EndedTransaction(CommitFate.GIVEN_UP, cast("R", None))
            if error.has_error_label("TransientTransactionError"):
                raise _Again from error
        raise
    if fate is not CommitFate.COMMITTED:
        _abort(session)
    elif not _commit(session, _time_of_attempt(terms)):
        # No acknowledgement: the commit may have been applied, or be applied later. Neither a success nor a failure may
        # be reported before that is known.
        fate = _settle_doubt(end, session, terms)
    return EndedTransaction(fate, value)


def _time_of_attempt(terms: TransactionTerms) -> float:
    # The driver treats 0 as "no limit".
    return max(0.001, terms.seconds_left())


def _called(function: Callable[[ClientSession], R], session: ClientSession) -> R:
    value = function(session)
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError(
            f"the function of a transaction must be a plain function, and {function!r} is async: it runs in a thread, "
            "where it calls pymongo with the session"
        )
    # A generator, for example: its effects would be missing, and the job would count as completed.
    if (problem := unfinished_work(value)) is not None:
        raise TypeError(f"the function of a transaction, {function!r}, {problem}")
    # The end of the claim would be written alone, outside of any transaction. (Against a mistake: a function that also
    # begins another transaction on this session is not found out.)
    if not session.in_transaction:
        raise MonqueError(
            f"the function {function!r} has committed or aborted the transaction that it was given: return instead to "
            "commit it, raise an exception to abort it"
        )
    return value


def _write_end(end: ClaimSettlement[R], value: R, session: ClientSession) -> CommitFate:
    """Write the end of the claim in the transaction; return COMMITTED if all is ready for the commit."""
    try:
        return CommitFate.COMMITTED if end.write(value, session) else CommitFate.UNMATCHED
    except driver.PyMongoError as error:
        # A conflict is reported as the error of a statement, too: its label comes first.
        if error.has_error_label("TransientTransactionError"):
            raise
        if isinstance(error, driver.WriteError) and is_about_document(error.code):
            return CommitFate.REFUSED
        # Whatever it has done is aborted, so its outcome is known. Also at the limit: the function was in time.
        raise translated(error, "end the claim in its transaction", writes=False) from error


@command("abort a transaction")
def end_on_server(end: ClaimSettlement[Any], session_id: object) -> None:
    """Let the server abort the transaction of a session whose thread does not end, so that it locks nothing any more.

    A session belongs to its thread. So this takes its id, as `ClientSession.session_id` has it.
    """
    with pymongo.timeout(ABORT_TIMEOUT):
        end.collection.database.client.admin.command("killSessions", [session_id])


def _abort(session: ClientSession) -> None:
    """Abort the transaction. The driver swallows the errors of that: the server aborts what is left, by its age."""
    if session.in_transaction:
        with pymongo.timeout(ABORT_TIMEOUT):
            session.abort_transaction()


# --- The commit ---


def _commit(session: ClientSession, seconds: float) -> bool:
    """Commit; return whether that was acknowledged. If not, it is unknown whether the transaction is committed."""
    try:
        with pymongo.timeout(seconds):
            session.commit_transaction()
    except driver.PyMongoError:
        return False
    return True


def _settle_doubt(end: ClaimSettlement[R], session: ClientSession, terms: TransactionTerms) -> CommitFate:
    """Return COMMITTED or UNKNOWN, as the document shows.

    Raises:
        _Again: It was not committed, and never will be.
        MonqueConnectionError: The database did not answer.
    """
    last: MonqueConnectionError | None = None
    for question in range(MOST_QUESTIONS):
        # First: a transaction that is still open on the server locks the document, and the question would wait. Also
        # after the lease: as long as it is open, its end locks the document against every other claim.
        if _commit(session, end.operation_timeout):
            return CommitFate.COMMITTED
        try:
            found = end.find_out(terms.beat())
        except MonqueConnectionError as error:
            # The doubt is not settled by time: as long as the document was not asked, a second attempt could write the
            # effects twice.
            last = error
            terms.pause(min(LONGEST_PAUSE, 0.05 * 2**question))
            continue
        if found is FoundCommit.NOT_COMMITTED:
            # The renewal would have waited for an open transaction. So it has ended without a commit, or was open on a
            # primary that is replaced, where it can no longer be committed. All may be done again.
            raise _Again
        return CommitFate.COMMITTED if found is FoundCommit.COMMITTED else CommitFate.UNKNOWN
    raise MonqueConnectionError(
        f"it is unknown whether the transaction of {end.item} was committed: the database does not answer",
        unknown_outcome=True,
    ) from last
