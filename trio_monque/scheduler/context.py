"""SchedulerContext: what the parts of a scheduler that ask the database share."""

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
    """Made once for each scheduler.

    Attributes:
        client: The collection, the server's time, and the indexes.
        door: Takes blocking calls to threads.
        workers: What it can run.
        config: Its options.
        paused: What is paused.
        reporter: Events, log records and counts.
        leased: The collection, for whatever must be answered within a heartbeat: a later answer comes too late for what
            it is asked for.
    """

    client: ClientContext
    door: DatabaseThreads
    workers: Workers
    config: SchedulerConfig
    paused: PausedNames
    reporter: JobReporter
    leased: JobCollection = field(init=False)

    def __post_init__(self) -> None:
        timeout = min(self.config.operation_timeout, self.config.heartbeat_interval)
        object.__setattr__(self, "leased", replace(self.client.jobs, operation_timeout=timeout))
