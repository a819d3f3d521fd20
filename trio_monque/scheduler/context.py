"""SchedulerContext: the collection, the database threads, the workers and the options, shared by the parts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..client.client_context import ClientContext
from ..host.limits import leased_timeout
from ..options_and_defaults import SchedulerConfig
from ..store.driver.database_threads import DatabaseThreads
from ..store.job_collection import JobCollection
from .events_and_report import JobReporter
from .paused_names import PausedNames
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
        leased: The collection for claims and renewals, with a shorter timeout; see `leased_timeout`.
    """

    client: ClientContext
    db_threads: DatabaseThreads
    workers: Workers
    config: SchedulerConfig
    paused: PausedNames
    reporter: JobReporter
    leased: JobCollection = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "leased", replace(self.client.jobs, operation_timeout=leased_timeout(self.config)))
