"""fail_next: the next database call fails with a chosen error, before it is sent or after it was applied."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Literal, TypeVar

from ..checks import check_count
from ..client.monque import Monque
from ..client.sync_monque import SyncMonque
from ..error_types import InvalidOptionError
from ..store.driver.commands import PURPOSES
from ..store.driver.types import BulkWriteError, DriverError
from ..store.job_collection import JobCollection

T = TypeVar("T")

WHEN: Final = ("before", "after")

# A client's background commands: whether one comes next depends on what the client did before.
_BACKGROUND: Final = frozenset(
    {
        "create the indexes",
        "read the options of the collection",
        "reach the database",
        "enter the fleet",
        "send the instance's heartbeat",
        "leave the fleet",
        "look for claims under the instance's id",
        "read which names are paused",
        "take the lock",
        "renew the lock",
        "release the lock",
        "read how long the lock is held",
        "find the names that have ended jobs",
        "find ended jobs beyond keep_last",
        "find ended jobs to delete",
        "delete ended jobs",
    }
)


class Fault:
    """A fault made by `fail_next`. As a context manager, it ends with its block.

    A block that ends without an error raises AssertionError if not all expected calls came: such a test
    would prove nothing.
    """

    def __init__(
        self,
        jobs: JobCollection,
        error: DriverError | type[DriverError],
        when: str,
        command: re.Pattern[str] | None,
        times: int | None,
    ) -> None:
        self._jobs = jobs
        self._error = error
        self._when = when
        self._command = command
        self._times = times
        self._lock = threading.Lock()
        self._hits: list[str] = []

    @property
    def hits(self) -> tuple[str, ...]:
        """The purposes of the calls that failed ("enqueue the job"), in order."""
        return tuple(self._hits)

    @property
    def happened(self) -> bool:
        """Whether all expected calls failed; with `times=None`, whether any did."""
        return len(self._hits) >= (self._times or 1)

    def remove(self) -> None:
        """Let no further call fail. Calling it again changes nothing."""
        with self._lock:
            if self in self._jobs.interference:
                self._jobs.interference.remove(self)

    # --- Called by the commands, in their threads ---

    def takes(self, purpose: str) -> bool:
        if not (purpose not in _BACKGROUND if self._command is None else self._command.search(purpose)):
            return False
        with self._lock:
            if self not in self._jobs.interference:
                return False  # Another thread took the last one, or it was removed.
            self._hits.append(purpose)
            if len(self._hits) == self._times:
                self._jobs.interference.remove(self)
            return True

    def inject(self, call: Callable[[], T]) -> T:
        if self._when == "after":
            call()
        raise self._error if isinstance(self._error, DriverError) else self._error("raised by fail_next")

    # --- As a context manager ---

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()
        if error is None and not self.happened:
            raise AssertionError(f"{self} did not happen: {len(self._hits)} calls failed")

    def __repr__(self) -> str:
        calls = "any call" if self._command is None else f"calls that match {self._command.pattern!r}"
        return f"<Fault {self._error!r} {self._when} {calls}, times={self._times}>"


def fail_next(
    client: Monque | SyncMonque,
    error: DriverError | type[DriverError],
    *,
    when: Literal["before", "after"] = "before",
    command: str | None = None,
    times: int | None = 1,
) -> Fault:
    """Make the next database call of a client or scheduler fail, as if the driver had raised `error`.

    The library handles it as a real error: it translates it, looks up an answer that was lost, and retries
    transient failures. Retries by the driver are over by then: a network error means that the driver's own
    second attempt failed, too. Calls inside your own transactions do not fail.

    `with fail_next(...) as fault:` ends the fault with the block and asserts that it happened.

    Args:
        client: A Monque, a scheduler, or the `sync` of one. Calls of other clients do not fail.
        error: An error of pymongo, for example `AutoReconnect("gone")`, or a class of them.
        when: "before" the call is sent, so that nothing is applied; or "after" it was applied, so that the
            caller does not know it.
        command: A regular expression for the purpose of the call, as the error message has it: "enqueue the
            job", "claim jobs", "renew claims", "settle jobs". By default any call except background commands
            (indexes, the server's time, the entry in the fleet, paused names, retention).
        times: How many calls fail; None for all until `remove` or the end of the block.

    Raises:
        InvalidOptionError: No call of the library matches `command`, or a value is invalid.
    """
    if when not in WHEN:
        raise InvalidOptionError("when", when, f"must be one of {', '.join(WHEN)}")
    if times is not None:
        check_count("times", times, at_least=1)
    fault = Fault(_jobs_of(client), _checked(error), when, _pattern(command), times)
    fault._jobs.interference.append(fault)
    return fault


def _jobs_of(client: object) -> JobCollection:
    if not isinstance(client, Monque | SyncMonque):
        raise InvalidOptionError("client", client, "must be a Monque, a scheduler, or the sync of one")
    return client._context.jobs


def _checked(error: object) -> DriverError | type[DriverError]:
    if isinstance(error, DriverError):
        return error
    if isinstance(error, type) and issubclass(error, DriverError):
        if issubclass(error, BulkWriteError):
            raise InvalidOptionError("error", error, "needs its details: give an instance")
        return error
    raise InvalidOptionError("error", error, "must be an error of pymongo, such as AutoReconnect('gone')")


def _pattern(command: str | None) -> re.Pattern[str] | None:
    if command is None:
        return None
    try:
        pattern = re.compile(command)
    except re.error as error:
        raise InvalidOptionError("command", command, f"is not a regular expression: {error}") from error
    if not any(pattern.search(purpose) for purpose in PURPOSES):
        raise InvalidOptionError("command", command, f"matches none of: {', '.join(sorted(PURPOSES))}")
    return pattern
