"""The options of `open_claims` and `run_claims`, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from ..checks import (
    check_count,
    check_flag,
    check_known,
    check_number,
    check_seconds,
)
from ..error_types import InvalidOptionError
from ..options_and_defaults import HostOptions

Sort = Sequence[tuple[str, int]]


class ClaimOptions(TypedDict, total=False):
    """The options of `open_claims` and `run_claims`."""

    lock_field: str
    sort: Sort | None
    concurrency: int
    wait: bool
    rate_limit: float | None
    timeout: float | None
    max_attempts: int
    backoff: float | Callable[[int, BaseException], float] | None
    base_retry_interval: float
    max_backoff_delay: float
    retry_jitter: float
    redact_errors: Callable[[str], str] | None
    full_tracebacks: bool
    heartbeat_interval: float
    clock_skew: float
    poll_interval: float
    start_timeout: float
    shutdown_timeout: float
    cleanup_timeout: float
    operation_timeout: float
    instance_id: str | None
    allow_scan: bool


@dataclass(frozen=True, kw_only=True)
class ClaimConfig(HostOptions):
    """The options, checked. Times are seconds.

    Attributes:
        lock_field: The top-level field that holds the lock. Apart from it, only `finish` changes a document.
        sort: The order in which documents are claimed, as pairs of field and direction; None for any order.
        concurrency: How many documents this instance works on at once. While it writes results, it claims up to this
            many more.
        wait: Wait for further documents, without end; False ends when no document is left.
        rate_limit: How many runs this instance starts a second at most; None for no limit.
        timeout: How long the work on one document may take; None for no limit.
        max_attempts: How many attempts may fail before a document becomes a dead letter. The death of a holder counts.
        backoff: The pause before the next attempt, instead of the exponential backoff: seconds, or a function of the
            number of failures and the error.
        base_retry_interval: The backoff before attempt n + 1 is `2 ** n` times this.
        max_backoff_delay: The longest backoff.
        retry_jitter: The share of a backoff by which it is varied at random, up and down. 0 to 1.
        redact_errors: Called with the reason of each failure before it is stored in a lock or logged. Its return value
            replaces the reason.
        full_tracebacks: Tracebacks in logs and events begin at the event loop, not at the handler.
        heartbeat_interval: How often locks are renewed; a lease is three of them. 0.2 to 300.
        clock_skew: How far the clock of a program that knows only `by` and `until` may be off. Its lock is taken this
            long after its `until`.
        poll_interval: The pause between two looks that find no document.
        start_timeout: How long the start retries while the database cannot be reached or used; 0 for a single attempt.
        shutdown_timeout: How long work may go on after a drain has begun.
        cleanup_timeout: How long cancelled work may clean up.
        operation_timeout: How long one database command may take.
        instance_id: The name of this instance in locks and logs; the default is readable and unique.
        allow_scan: Start also if no index serves the filter and the collection is large.
    """

    lock_field: str = "lock"
    sort: Sort | None = None
    concurrency: int = 5
    wait: bool = True
    rate_limit: float | None = None
    timeout: float | None = None
    max_attempts: int = 10
    backoff: float | Callable[[int, BaseException], float] | None = None
    heartbeat_interval: float = 20.0
    clock_skew: float = 1.0
    allow_scan: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_lock_field(self.lock_field)
        checked_sort(self.sort)
        check_count("concurrency", self.concurrency, at_least=1)
        check_flag("wait", self.wait)
        if self.rate_limit is not None:
            check_number("rate_limit", self.rate_limit, above=0)
        if self.timeout is not None:
            check_seconds("timeout", self.timeout)
        check_count("max_attempts", self.max_attempts, at_least=1)
        if self.backoff is not None and not callable(self.backoff):
            check_seconds("backoff", self.backoff, zero=True)
        check_number("clock_skew", self.clock_skew, at_least=0)
        check_flag("allow_scan", self.allow_scan)


def claim_config(given: Mapping[str, Any]) -> ClaimConfig:
    """Check the options. Raises InvalidOptionError, which names the wrong one."""
    # None asks for the default.
    values = {name: value for name, value in given.items() if not (name == "instance_id" and value is None)}
    check_known(values, ClaimOptions.__annotations__, "claims")
    return ClaimConfig(**values)


def check_lock_field(value: object) -> None:
    """Raise InvalidOptionError unless the value names a top-level field that can hold a lock."""
    if not isinstance(value, str) or not value or value == "_id" or "." in value or "$" in value or "\0" in value:
        raise InvalidOptionError(
            "lock_field", value, "must be the name of a top-level field: no dots, no '$', and not '_id'"
        )


def check_filter(value: object, lock_field: str) -> Mapping[str, Any]:
    """Return the filter. Raises InvalidOptionError if it is not a mapping, or names the lock field."""
    if not isinstance(value, Mapping):
        raise InvalidOptionError("filter", value, "must be a MongoDB filter, for example {'status': 'new'}")
    for name in value:
        if name == lock_field or str(name).startswith(f"{lock_field}."):
            raise InvalidOptionError(
                "filter", value, f"must not name {lock_field!r}: locked documents are skipped anyway"
            )
    return value


def checked_sort(value: object) -> tuple[tuple[str, int], ...]:
    """Return the order as pairs; no pairs for None."""
    if value is None:
        return ()
    problem = "must be pairs of a field and 1 or -1, for example [('created_at', 1)]"
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise InvalidOptionError("sort", value, problem)
    pairs = []
    for one in value:
        if isinstance(one, str) or not isinstance(one, Sequence) or len(one) != 2:  # A pair.
            raise InvalidOptionError("sort", value, problem)
        name, direction = one
        if not isinstance(name, str) or not name or isinstance(direction, bool) or direction not in (1, -1):
            raise InvalidOptionError("sort", value, problem)
        pairs.append((name, int(direction)))
    return tuple(pairs)
