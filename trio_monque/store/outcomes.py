"""The driver's errors -> ours, by table. The list of what is worth trying again exists here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

import pymongo
from bson.errors import InvalidDocument
from pymongo import errors as driver

from ..errors import InvalidPayloadError, MonqueConnectionError, MonqueError

P = ParamSpec("P")
T = TypeVar("T")

# Codes of the server that say: not now. From the drivers' retryable writes specification, with the
# time limits that are ours.
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
        50,  # MaxTimeMSExpired
        64,  # WriteConcernFailed
        89,  # NetworkTimeout
        91,  # ShutdownInProgress
        112,  # WriteConflict
        189,  # PrimarySteppedDown
        262,  # ExceededTimeLimit
        9001,  # SocketException
        10107,  # NotWritablePrimary
        11600,  # InterruptedAtShutdown
        11602,  # InterruptedDueToReplStateChange
        13435,  # NotPrimaryNoSecondaryOk
        13436,  # NotPrimaryOrSecondary
    }
)

_CREDENTIALS = frozenset({13, 18})  # Unauthorized, AuthenticationFailed


PURPOSES: Final[set[str]] = set()
"""What commands are for, in the words of their error messages: filled as the modules with the commands are loaded."""


class Interference(Protocol):
    """Something that a test puts in the way of commands; `befall` raises an error of the driver's. From any thread."""

    def takes(self, purpose: str) -> bool:
        """Whether the call that begins now is the one to be hit."""
        ...

    def befall(self, call: Callable[[], T]) -> T:
        """In place of that call, which it may make or not."""
        ...


class HasTimeout(Protocol):
    """What a store function works on: it knows how long one call may take, in seconds.

    It may have an attribute `interference`: what a test has put in the way, a sequence of Interference.
    """

    @property
    def operation_timeout(self) -> float: ...


HandleT = TypeVar("HandleT", bound=HasTimeout)


def command(
    purpose: str, *, writes: bool = True, in_parts: bool = False
) -> Callable[[Callable[Concatenate[HandleT, P], T]], Callable[Concatenate[HandleT, P], T]]:
    """Marks a function that talks to the database: bounds its time, and translates what the driver raises.

    `purpose` completes "could not ..." in the message. What only reads has no unknown outcome; a write
    of many documents is made `in_parts`, so that any failure of it may leave some of them written.
    """

    PURPOSES.add(purpose)

    def decorate(function: Callable[Concatenate[HandleT, P], T]) -> Callable[Concatenate[HandleT, P], T]:
        @wraps(function)
        def bounded(handle: HandleT, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                with pymongo.timeout(handle.operation_timeout):
                    if interference := getattr(handle, "interference", None):
                        return _interfered(interference, purpose, partial(function, handle, *args, **kwargs))
                    return function(handle, *args, **kwargs)
            except driver.PyMongoError as error:
                ours = translated(error, purpose, writes=writes)
                if in_parts and isinstance(ours, MonqueConnectionError):
                    ours.unknown_outcome = True
                raise ours from error
            except InvalidDocument as error:
                raise InvalidPayloadError(f"could not {purpose}: {error}") from error

        return bounded

    return decorate


def _interfered(interferences: Sequence[Interference], purpose: str, call: Callable[[], T]) -> T:
    for interference in tuple(interferences):  # One that is used up removes itself, in any thread.
        if interference.takes(purpose):
            return interference.befall(call)
    return call()


def translated(error: driver.PyMongoError, purpose: str, *, writes: bool = True) -> MonqueError:
    """Our error for the driver's."""
    if isinstance(error, driver.OperationFailure) and error.code in _CREDENTIALS:
        advice = "check the user, the password and the rights in the connection string"
    elif isinstance(error, driver.ServerSelectionTimeoutError):
        advice = "check that the server runs and that the connection string names it"
    else:
        advice = ""
    message = f"could not {purpose}: {_first_line(error)}"
    return MonqueConnectionError(
        f"{message} ({advice})" if advice else message,
        transient=is_transient(error),
        unknown_outcome=writes and has_unknown_outcome(error),
    )


def is_transient(error: driver.PyMongoError) -> bool:
    """Whether the same call may succeed later without anybody changing anything."""
    if isinstance(error, driver.ConnectionFailure | driver.WTimeoutError) or error.timeout:
        return True
    if isinstance(error, driver.BulkWriteError):
        return _bulk_is_transient(error)
    return isinstance(error, driver.OperationFailure) and error.code in PASSING_CODES


def _bulk_is_transient(error: driver.BulkWriteError) -> bool:
    details = error.details
    reported = [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]
    return bool(reported) and all(one.get("code") in PASSING_CODES for one in reported)


def _was_never_sent(error: driver.PyMongoError) -> bool:
    return isinstance(error, driver.ServerSelectionTimeoutError)


def has_unknown_outcome(error: driver.PyMongoError) -> bool:
    """Whether a write that ended so may have been applied, or may yet be.

    Write concern errors belong here: the write was seen by the primary, and may still be rolled back.
    """
    if _was_never_sent(error):
        return False
    if isinstance(error, driver.AutoReconnect | driver.WriteConcernError | driver.WTimeoutError) or error.timeout:
        return True
    if isinstance(error, driver.BulkWriteError):
        return bool(error.details.get("writeConcernErrors"))
    return isinstance(error, driver.OperationFailure) and error.code in PASSING_CODES


def _first_line(error: BaseException) -> str:
    # The driver appends its timeouts, and a description of the whole topology.
    text = str(error)
    for appended in (" (configured timeouts:", ", Timeout: ", ", full error:"):
        text = text.split(appended)[0]
    text = text.strip(" ,")
    return text.splitlines()[0] if text else type(error).__name__
