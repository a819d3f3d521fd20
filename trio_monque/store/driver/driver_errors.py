"""Translates pymongo errors by table: which to retry, which need a repair, and which writes may have been applied.

Tables divide the server's codes. `PASSING_CODES` are retried: they pass by themselves. `OUTAGE_CODES` are retried, too,
but pass only after a repair. `PERMANENT_CODES` never pass: only they may end a scheduler, because its own command is
wrong. `REFUSAL_CODES` are about one document.

Every error of a write is asked a second question: may the write have been applied? A process sends an end of a run, the
primary applies it, and the connection breaks before the answer. If that error counted as "not written", the caller
would take a settled job for unsettled, or enqueue a job twice. If every error counted as "unknown", each refusal would
cost a further read. So the answer is "unknown" unless the error proves that nothing was written. Write concern errors
are unknown as well: the primary has applied the write, and an election may still roll it back. A function
beside each write finds out: `claiming.resolve`, the receipts of `settling.py`, `job_changes.apply_again`,
`bulk_changes.find_out`, `inserting.stored`.

A statement of a group is different from a whole command. A code that no table names refuses one document, and must not
keep the statements beside it waiting; as the error of a whole command, it is an outage.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pymongo import errors as driver

from ...error_types import (
    AggregationTimeoutError,
    ClientClosedError,
    DocumentRefusedError,
    MonqueConnectionError,
    MonqueError,
)
from ...safe_text import LONGEST_TEXT, one_line, without_secrets

# The server cannot do it now. From the drivers' retryable writes specification, and the time limits that we set.
PASSING_CODES = frozenset(
    {
        6,  # HostUnreachable
        43,  # CursorNotFound
        134,  # ReadConcernMajorityNotAvailableYet
        175,  # QueryPlanKilled
        202,  # NetworkInterfaceExceededTimeLimit
        237,  # CursorKilled
        365,  # TemporarilyUnavailable
        11601,  # Interrupted: an operator's killOp ends one command, not our scheduler
        7,  # HostNotFound
        24,  # LockTimeout
        50,  # MaxTimeMSExpired
        64,  # WriteConcernFailed
        89,  # NetworkTimeout
        91,  # ShutdownInProgress
        112,  # WriteConflict
        117,  # ConflictingOperationInProgress: an index is being made by another, under the same name
        189,  # PrimarySteppedDown
        215,  # DatabaseDropPending: as soon as it is gone, it can be made again
        262,  # ExceededTimeLimit
        276,  # IndexBuildAborted: the collection was dropped meanwhile
        279,  # ClientDisconnect: it ended the command because the connection was gone
        317,  # PooledConnectionsDropped
        462,  # IngressRequestRateLimitExceeded
        9001,  # SocketException
        10058,  # LegacyNotPrimary
        10107,  # NotWritablePrimary
        11600,  # InterruptedAtShutdown
        11602,  # InterruptedDueToReplStateChange
        13435,  # NotPrimaryNoSecondaryOk
        13436,  # NotPrimaryOrSecondary
    }
)

UNAUTHORIZED: Final = 13

# An operator must repair something. These are not about the document or the command: revoked rights, rotated
# credentials, a full disk, a plan's limit. The list decides about single statements only: as the error of a whole
# command, a code that no table here names is an outage, too.
OUTAGE_CODES = frozenset(
    {
        1,  # InternalError
        8,  # UnknownError
        11,  # UserNotFound
        UNAUTHORIZED,
        18,  # AuthenticationFailed
        20,  # IllegalOperation: a member of a replica set that was started as a standalone server
        33,  # AuthSchemaIncompatible
        79,  # UnknownReplWriteConcern
        96,  # OperationFailed
        100,  # UnsatisfiableWriteConcern
        133,  # FailedToSatisfyReadPreference
        146,  # ExceededMemoryLimit
        292,  # QueryExceededMemoryLimitNoDiskUseAllowed
        391,  # ReauthenticationRequired
        8000,  # AtlasError
        14031,  # OutOfDiskSpace
        17300,  # The limit of connections is reached
    }
)

# A server that fails inside, and a proxy in front of one, may have written before. The other codes mean that nothing
# was written.
_MAY_HAVE_WRITTEN = frozenset({1, 8, 96, 8000})

# The server will never do it: it does not understand the command, or does not support it. None of these may depend on
# what a document holds: with TypeMismatch here, for example, one document would end a scheduler.
PERMANENT_CODES = frozenset(
    {
        2,  # BadValue
        9,  # FailedToParse
        59,  # CommandNotFound
        67,  # CannotCreateIndex
        72,  # InvalidOptions
        73,  # InvalidNamespace
        85,  # IndexOptionsConflict
        86,  # IndexKeySpecsConflict
        115,  # CommandNotSupported
        166,  # CommandNotSupportedOnView
        167,  # OptionNotSupportedOnView
        168,  # InvalidPipelineOperator
        197,  # InvalidIndexSpecificationOption
        40324,  # An unknown stage of a pipeline
        40415,  # An unknown field of a command
    }
)

_TIME_LIMIT_OF_THE_SERVER = 50  # MaxTimeMSExpired

# This document cannot take this write, from any sender. Any other document can.
TOO_LARGE_CODES: Final = frozenset(
    {
        10334,  # BSONObjectTooLarge
        17419,  # The document would be larger than 16 MiB
        17420,  # The same, of a document that is replaced
    }
)
REFUSAL_CODES: Final = TOO_LARGE_CODES | {
    28,  # PathNotViable
    66,  # ImmutableField
    121,  # DocumentValidationFailure
    171,  # CannotIndexParallelArrays
    11000,  # DuplicateKey: a unique index that is not ours
    16755,  # a geo index that is not ours cannot read the value as coordinates
    17280,  # KeyTooLong
}

_ADVICE: Final = {
    11: "check the user in the connection string",
    13: "check the user, the password and the rights in the connection string",
    18: "check the user, the password and the rights in the connection string",
    391: "check that the credentials have not expired",
    8000: "check the limits, the IP access list and the users of the Atlas cluster",
    14031: "free space on the disk of the server",
    17300: "raise the server's limit of connections, or open fewer",
}


_CLOSED: Final = "MongoClient after close"
"""The error of the driver has no class of its own."""


def has_lost_sessions(error: driver.PyMongoError) -> bool:
    """Return whether a connection was made in an election, when its server was neither primary nor secondary.

    The driver then believes for ever that this server does not support sessions. Nothing was sent.
    """
    return isinstance(error, driver.ConfigurationError) and "Sessions are not supported" in str(error)


# A server that refuses a command for want of rights quotes all of it: the data of a job, too.
_QUOTED_COMMAND: Final = re.compile(r'(to execute command \{ \w+: (?:"[^"]*"|[\w.]+)).*', re.DOTALL)


def translated(
    error: driver.PyMongoError, purpose: str, *, writes: bool = True, aggregates: bool = False
) -> MonqueError:
    """Our error for the driver's."""
    if aggregates and _has_run_out_of_time(error):
        return AggregationTimeoutError(
            f"could not {purpose} within operation_timeout: raise it, or ask for less", transient=True
        )
    advice = _advice_for(error)
    message = f"could not {purpose}: {_first_line(error)}"
    if is_refusal(error):
        assert isinstance(error, driver.OperationFailure)
        return DocumentRefusedError(f"{message} ({_advice_on_refusal(error.code)})")
    if isinstance(error, driver.InvalidOperation) and _CLOSED in str(error):
        return ClientClosedError(
            f"could not {purpose}: the program has closed the MongoClient: close it after the scheduler, the claims or "
            "the client that uses it",
            unknown_outcome=writes,
        )
    return MonqueConnectionError(
        f"{message} ({advice})" if advice else message,
        transient=is_transient(error),
        permanent=is_permanent(error),
        unknown_outcome=writes and has_unknown_outcome(error),
    )


def is_refusal(error: driver.PyMongoError) -> bool:
    """Return whether the server refused to write one document, and wrote nothing."""
    if isinstance(error, driver.DuplicateKeyError):  # A lost race for a key: the document itself is not at fault.
        return False
    is_refused = isinstance(error, driver.OperationFailure) and error.code in REFUSAL_CODES
    return is_refused and not has_unknown_outcome(error)


def _advice_on_refusal(code: int | None) -> str:
    if code in TOO_LARGE_CODES:
        return "the document is full: remove what it does not need, or delete the job"
    return "check the validator and the indexes of the collection"


def _advice_for(error: driver.PyMongoError) -> str:
    if isinstance(error, driver.ServerSelectionTimeoutError):
        return "check that the server runs and that the connection string names it"
    if isinstance(error, driver.OperationFailure) and "Transaction numbers are only allowed" in str(error):
        return (
            "a standalone server has no transactions, and one server can be a replica set: start it with --replSet rs0 "
            "and run rs.initiate() once, or use trio_monque.embedded"
        )
    if isinstance(error, driver.BulkWriteError):
        codes = _reported(error, "writeErrors")
    else:
        codes = [error.code] if isinstance(error, driver.OperationFailure) else []
    return next((_ADVICE[code] for code in codes if code in _ADVICE), "")


def _has_run_out_of_time(error: driver.PyMongoError) -> bool:
    """Whether the time is over. The server has the same limit as the wait for its answer: either may notice first."""
    if isinstance(error, driver.OperationFailure):
        return error.code == _TIME_LIMIT_OF_THE_SERVER
    return isinstance(error, driver.NetworkTimeout)


def is_timeout(error: MonqueConnectionError) -> bool:
    """Whether a command was sent, and not answered in time."""
    cause = error.__cause__
    if isinstance(cause, driver.BulkWriteError):
        return cause.timeout
    return isinstance(cause, driver.PyMongoError) and _has_run_out_of_time(cause)


def is_transient(error: driver.PyMongoError) -> bool:
    """Return whether the same call may succeed later without a repair."""
    if isinstance(error, driver.ConnectionFailure | driver.ProtocolError) or error.timeout or _may_be_retried(error):
        return True
    if has_lost_sessions(error):
        return True
    if isinstance(error, driver.BulkWriteError):
        codes = _reported(error, "writeErrors") + _reported(error, "writeConcernErrors")
        return bool(codes) and all(code in PASSING_CODES for code in codes)
    return isinstance(error, driver.OperationFailure) and error.code in PASSING_CODES


def is_permanent(error: driver.PyMongoError) -> bool:
    """Whether the same call can never succeed: the server does not understand it, or the client was closed.

    Everything else may succeed later: by itself (see `is_transient`), or after a repair.
    """
    if is_transient(error) or isinstance(error, driver.WriteError | driver.BulkWriteError):
        return False  # The errors of single statements are about their documents.
    if isinstance(error, driver.OperationFailure):
        return error.code in PERMANENT_CODES
    return isinstance(error, driver.InvalidOperation | driver.InvalidName)


def is_about_document(code: int | None) -> bool:
    """Whether a statement that failed with this code failed because of its document, or of what it writes there.

    All codes but the passing ones and those of outages. A code that no table names is among them: it must not keep the
    statements beside it waiting.
    """
    return code not in PASSING_CODES and code not in OUTAGE_CODES


def refused_because_of_documents(error: driver.BulkWriteError, purpose: str) -> Sequence[Mapping[str, Any]]:
    """The statements of a group that the server refused because of their documents: their `writeErrors`.

    Raises:
        MonqueConnectionError: One of them failed for another reason: the caller sends all of them again.
    """
    refused: Sequence[Mapping[str, Any]] = error.details["writeErrors"]
    codes = [one.get("code") for one in refused]
    may_be_rolled_back = bool(error.details.get("writeConcernErrors"))
    # All of them: if one failed because of an outage, all are sent again, and those that are refused are refused again.
    if not may_be_rolled_back and all(map(is_about_document, codes)):
        return refused
    transient = may_be_rolled_back or any(code in PASSING_CODES for code in codes)
    message = f"could not {purpose}: {_first_line(error)}"
    if advice := _advice_for(error):
        message += f" ({advice})"
    raise MonqueConnectionError(message, transient=transient, unknown_outcome=True) from error


def has_unknown_outcome(error: driver.PyMongoError) -> bool:
    """Whether a write that ended so may have been applied, or may yet be: it may, unless it is known that it was not.

    Write concern errors belong here: the write was seen by the primary, and may still be rolled back.
    """
    # No server was found, so the write was not sent. If the driver had sent it before and tried again, it raises the
    # error of that sending.
    if isinstance(error, driver.ServerSelectionTimeoutError | driver.ConfigurationError | driver.InvalidName):
        return False
    if isinstance(error, driver.WriteConcernError) or error.timeout or _may_be_retried(error):
        return True
    if isinstance(error, driver.BulkWriteError):
        # The statements that the error does not list were applied: that is known. An interrupted statement may have
        # been applied to some of its documents.
        interrupted = any(_may_be_written(code) for code in _reported(error, "writeErrors"))
        return interrupted or bool(_reported(error, "writeConcernErrors"))
    if isinstance(error, driver.OperationFailure):
        return error.code is None or _may_be_written(error.code)
    # A connection that broke, an answer that cannot be read, a client that was closed while it waited.
    return True


def _may_be_written(code: int | None) -> bool:
    return code in PASSING_CODES or code in _MAY_HAVE_WRITTEN  # With any other code, the server refused the write.


def _may_be_retried(error: driver.PyMongoError) -> bool:
    return error.has_error_label("RetryableWriteError") or error.has_error_label("RetryableError")


def _reported(error: driver.BulkWriteError, kind: str) -> list[int | None]:
    return [one.get("code") for one in error.details.get(kind, ())]


def _first_line(error: BaseException) -> str:
    # The driver appends its timeouts and a description of the whole topology; for a group, also all that was sent.
    text = str(error)
    if isinstance(error, driver.BulkWriteError):
        reported = [*error.details.get("writeErrors", ()), *error.details.get("writeConcernErrors", ())]
        reported.sort(key=lambda one: is_about_document(one.get("code")))  # An outage explains more than a refusal.
        text = next((str(one["errmsg"]) for one in reported if one.get("errmsg")), text)
    for appended in (" (configured timeouts:", ", Timeout: ", ", full error:"):
        text = text.split(appended)[0]
    text = _QUOTED_COMMAND.sub(r"\1, … }", text).strip(" ,")
    # The text repeats what was stored (the keys of a duplicate, say), and whatever a server or a proxy answers.
    return one_line(without_secrets(text.splitlines()[0][: 4 * LONGEST_TEXT])) if text else type(error).__name__
