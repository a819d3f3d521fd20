"""SchedulerContext: what the parts of a scheduler share that use the database."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..client.context import ClientContext
from ..options import SchedulerConfig
from ..store.database_threads import DatabaseThreads
from ..store.job_collection import JobCollection
from .paused_names import PausedNames
from .reporting import JobReporter
from .workers import Workers


@dataclass(frozen=True, eq=False)
class SchedulerContext:
    """The shared parts of one scheduler.

    Attributes:
        client: The collection, the server's time, and its indexes.
        db_threads: Runs blocking calls in database threads.
        workers: The workers of the scheduler.
        config: Its options.
        paused: The names that are paused.
        reporter: Makes events, log records and counts.
        leased: The collection, with a timeout of at most one heartbeat interval: for claims and renewals, which are of
            no use when they are answered later.
    """

    client: ClientContext
    db_threads: DatabaseThreads
    workers: Workers
    config: SchedulerConfig
    paused: PausedNames
    reporter: JobReporter
    leased: JobCollection = field(init=False)

    def __post_init__(self) -> None:
        timeout = min(self.config.operation_timeout, self.config.heartbeat_interval)
        object.__setattr__(self, "leased", replace(self.client.jobs, operation_timeout=timeout))
