"""The options of clients and schedulers: meaning, unit, default and check.

All are checked when they are passed, so that a mistake raises there, and not in the first job that meets it.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from .checks import (
    check_collection_name,
    check_count,
    check_flag,
    check_instance_id,
    check_known,
    check_number,
    check_redaction,
    check_write_concern,
)
from .error_types import InvalidOptionError

LEASE_IN_BEATS = 3
"""A lease is three heartbeat intervals long: two renewals may fail before the claim is lost."""

SHORTEST_BEAT = 0.2
LONGEST_BEAT = 300.0
"""Seconds: the range of a heartbeat interval. One outside of it, by another library, counts as the nearest of these."""

# A BSON document has at most 16 MiB. 64 kB are left for the fields beside `data`.
LARGEST_PAYLOAD = 16 * 1024 * 1024 - 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Which ended jobs a scheduler deletes, and how often it looks for them. Times are seconds.

    A job is deleted when it has ended longer ago than its status says, and is not among the newest `keep_last` of
    its name and status. A status without an age is kept for ever, unless `keep_last` is all that is given: then the
    count alone decides, for all three.

    Attributes:
        completed: The age from which a `completed` job may go; 0 means immediately, None to keep them.
        failed: The same for `failed` jobs.
        cancelled: The same for `cancelled` jobs.
        keep_last: How many jobs of each name and status are kept, however old; None for none.
        interval: How often they are looked for, the first time at the start.

    Raises:
        InvalidOptionError: A value is invalid, or no value says what to delete.
    """

    completed: float | None = None
    failed: float | None = None
    cancelled: float | None = None
    keep_last: int | None = None
    interval: float = 3600.0

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in _ENDED}
        for status, age in given.items():
            if age is not None:
                check_number(status, age, at_least=0)
        if self.keep_last is not None:
            check_count("keep_last", self.keep_last, at_least=1)
        elif not any(age is not None for age in given.values()):
            raise InvalidOptionError(
                "completed", None, "needs at least one of completed=, failed=, cancelled= (seconds) or keep_last="
            )
        check_number("interval", self.interval, above=0)

    @property
    def ages(self) -> Mapping[str, float]:
        """The statuses whose jobs are deleted, and from which age on."""
        given = {name: getattr(self, name) for name in _ENDED}
        ages = {status: age for status, age in given.items() if age is not None}
        return ages or dict.fromkeys(_ENDED, 0.0)


_ENDED = ("completed", "failed", "cancelled")


class ClientOptions(TypedDict, total=False):
    """The options of `Monque`."""

    collection_name: str
    max_payload_size: int | None
    operation_timeout: float
    skip_index_creation: bool
    stats_cache_ttl: float
    write_concern: str | int


class SchedulerOptions(ClientOptions, total=False):
    """The options of `open_scheduler` and `run_scheduler`, beside those of the client."""

    instance_id: str | None
    poll_interval: float
    change_stream: bool
    safety_poll_interval: float
    heartbeat_interval: float
    lock_timeout: float | None
    recover_stale_jobs: bool
    start_timeout: float
    shutdown_timeout: float
    cleanup_timeout: float
    concurrency: int | None
    concurrency_per_name: int
    max_attempts: int
    max_rescues: int
    max_parked: int
    base_retry_interval: float
    max_backoff_delay: float
    retry_jitter: float
    store_tracebacks: bool
    minutes: bool
    redact_errors: Callable[[str], str] | None
    full_tracebacks: bool
    retention: Retention | None


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """The options of a client, checked.

    Attributes:
        collection_name: The collection that holds the jobs.
        max_payload_size: The largest data of a job, and the largest result, progress, checkpoint or step, in
            bytes as BSON; None for what a document can hold.
        operation_timeout: How long one database command may take, in seconds.
        skip_index_creation: Do not create the indexes: something else does.
        stats_cache_ttl: For how many seconds an answer of `get_queue_stats` and of `get_queue_depths` is given again;
            0 for never.
        write_concern: "majority". Any other voids guarantees 1 to 4 of the README, and is logged.
    """

    collection_name: str = "monque_jobs"
    max_payload_size: int | None = None
    operation_timeout: float = 10.0
    skip_index_creation: bool = False
    stats_cache_ttl: float = 5.0
    write_concern: str | int = "majority"

    def __post_init__(self) -> None:
        check_collection_name(self.collection_name)
        if self.max_payload_size is not None:
            check_count("max_payload_size", self.max_payload_size, at_least=1, at_most=LARGEST_PAYLOAD)
        check_number("operation_timeout", self.operation_timeout, above=0, at_most=86400)
        check_flag("skip_index_creation", self.skip_index_creation)
        check_number("stats_cache_ttl", self.stats_cache_ttl, at_least=0)
        check_write_concern(self.write_concern)

    @property
    def deletes(self) -> Retention | None:
        """Which ended jobs are deleted here: none by a client that runs no jobs."""
        return None


def new_instance_id() -> str:
    """Return an id that is readable in logs, and different for each start of a process."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """The options that every kind of work has, checked. SchedulerConfig and ClaimConfig describe them."""

    instance_id: str = field(default_factory=new_instance_id)
    poll_interval: float = 1.0
    heartbeat_interval: float = 30.0
    start_timeout: float = 30.0
    shutdown_timeout: float = 30.0
    cleanup_timeout: float = 5.0
    operation_timeout: float = 10.0
    base_retry_interval: float = 1.0
    max_backoff_delay: float = 86400.0
    retry_jitter: float = 0.25
    redact_errors: Callable[[str], str] | None = None
    full_tracebacks: bool = False

    def __post_init__(self) -> None:
        check_instance_id(self.instance_id)
        check_number("poll_interval", self.poll_interval, above=0)
        check_number("heartbeat_interval", self.heartbeat_interval, at_least=SHORTEST_BEAT, at_most=LONGEST_BEAT)
        check_number("start_timeout", self.start_timeout, at_least=0, infinite=True)
        check_number("shutdown_timeout", self.shutdown_timeout, at_least=0, infinite=True)
        check_number("cleanup_timeout", self.cleanup_timeout, at_least=0)
        check_number("operation_timeout", self.operation_timeout, above=0, at_most=86400)
        check_number("base_retry_interval", self.base_retry_interval, at_least=0)
        check_number("max_backoff_delay", self.max_backoff_delay, above=0)
        check_number("retry_jitter", self.retry_jitter, at_least=0, at_most=1)
        check_redaction(self.redact_errors)
        check_flag("full_tracebacks", self.full_tracebacks)


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(ClientConfig, HostOptions):
    """The options of a scheduler, checked. Times are seconds.

    Attributes:
        instance_id: The name of this instance in the database and in logs. The default is
            readable and unique per incarnation; one of your own must be unique in the fleet.
        poll_interval: How long an idle instance waits before it looks again, while no change stream is up.
        change_stream: Follow jobs by a change stream. Never in virtual time.
        safety_poll_interval: The same as poll_interval, while the change stream is up.
        heartbeat_interval: How often claims are renewed; a lease is three of them. 0.2 to 300.
        lock_timeout: The absolute limit on one run, and the age from which a claim of another library may be
            rescued; None for no limit, and for no such rescue: for fleets without Node only.
        recover_stale_jobs: Rescue the jobs of dead instances, at the start and from then on.
        start_timeout: How long the start retries while the database cannot be reached or used; 0 for a single attempt.
        shutdown_timeout: How long running jobs may continue after the scheduler begins to shut down.
        cleanup_timeout: How long a cancelled handler may clean up.
        concurrency: How many jobs run at once in this instance; None for no limit but those by name.
        concurrency_per_name: How many jobs of one name run at once in this instance, where `register` sets no
            `concurrency`.
        max_attempts: After how many failed attempts a job is `failed`; 0 and 1 both mean a single attempt.
        max_rescues: How many deaths in a row a job may survive; with the next one it is `failed`.
        max_parked: How many runs may wait for the children of their job nurseries, without a slot. A further one is
            put back for half a minute, uncounted.
        base_retry_interval: The backoff before failure n + 1 is `2 ** n` times this.
        max_backoff_delay: The longest backoff.
        retry_jitter: By which share of itself a backoff is varied, up and down. 0 to 1.
        store_tracebacks: Whether the history of errors in a job (`errors`) has tracebacks.
        minutes: Whether it stores what it did in each minute, for `get_minutes`: one document a minute with jobs,
            deleted after 26 hours.
        redact_errors: Called with each text of a handler's error before it is stored or logged: the reason, and the
            traceback if it is stored. What it returns is kept instead.
        full_tracebacks: Tracebacks in logs, events and the history begin at the event loop, not at the handler.
        retention: Which ended jobs are deleted, see Retention; None keeps all.
    """

    change_stream: bool = True
    safety_poll_interval: float = 30.0
    lock_timeout: float | None = 1800.0
    recover_stale_jobs: bool = True
    concurrency: int | None = None
    concurrency_per_name: int = 5
    max_attempts: int = 10
    max_rescues: int = 3
    max_parked: int = 10_000
    store_tracebacks: bool = True
    minutes: bool = True
    retention: Retention | None = None

    @property
    def deletes(self) -> Retention | None:
        return self.retention

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        HostOptions.__post_init__(self)
        check_flag("change_stream", self.change_stream)
        check_number("safety_poll_interval", self.safety_poll_interval, above=0)
        check_count("concurrency_per_name", self.concurrency_per_name, at_least=1)
        if self.concurrency is not None:
            check_count("concurrency", self.concurrency, at_least=1)
        check_flag("recover_stale_jobs", self.recover_stale_jobs)
        check_count("max_attempts", self.max_attempts, at_least=0)
        check_count("max_rescues", self.max_rescues, at_least=0)
        check_count("max_parked", self.max_parked, at_least=1)
        check_flag("store_tracebacks", self.store_tracebacks)
        check_flag("minutes", self.minutes)
        if not isinstance(self.retention, Retention | None):
            raise InvalidOptionError(
                "retention",
                self.retention,
                "must be a Retention, for example Retention(completed=86400), or None to keep all",
            )
        self._check_lock_timeout()

    def _check_lock_timeout(self) -> None:
        if self.lock_timeout is None:
            return
        check_number("lock_timeout", self.lock_timeout, above=0)
        lease = LEASE_IN_BEATS * self.heartbeat_interval
        if lease > self.lock_timeout:
            raise InvalidOptionError(
                "lock_timeout",
                self.lock_timeout,
                f"is shorter than a lease ({lease:g} s, three times heartbeat_interval="
                f"{self.heartbeat_interval:g}): a peer could take a job whose holder is alive. "
                "Raise lock_timeout or lower heartbeat_interval",
            )
        if self.cleanup_timeout >= 0.9 * self.lock_timeout:
            raise InvalidOptionError(
                "cleanup_timeout",
                self.cleanup_timeout,
                f"leaves no time for a run: its clean-up must end by nine tenths of lock_timeout={self.lock_timeout:g}",
            )


def client_config(given: ClientOptions) -> ClientConfig:
    """Check the options of a client; raise InvalidOptionError for an invalid one."""
    check_known(given, ClientOptions.__annotations__, "a client")
    return ClientConfig(**given)


def scheduler_config(given: SchedulerOptions) -> SchedulerConfig:
    """Check the options of a scheduler; raise InvalidOptionError for an invalid one."""
    values: Mapping[str, object] = {
        name: value
        for name, value in given.items()
        if not (name == "instance_id" and value is None)  # None asks for the default.
    }
    # The last three are arguments of open_scheduler itself: a misspelled one arrives here.
    check_known(values, {*SchedulerOptions.__annotations__, "workers", "resources", "listeners"}, "a scheduler")
    return SchedulerConfig(**values)  # type: ignore[arg-type]  # The TypedDict and the class agree: a test holds them together.
