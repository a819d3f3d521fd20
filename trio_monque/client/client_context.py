"""ClientContext: what the operations of one client share."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Self, TypeVar

from ..diagnosis.findings import Diagnosis
from ..diagnosis.overview import Overview
from ..error_types import MonqueConnectionError
from ..jobs.minutes import MINUTE, LastHour, Minute
from ..jobs.stored_value_limits import WorkerHere
from ..jobs.views import NO_WORKERS, QueueDepth, QueueStats, WorkerView
from ..log import logger_of
from ..options_and_defaults import ClientConfig
from ..store.driver.connection import check_database
from ..store.driver.types import Database, IndexModel
from ..store.job_collection import JobCollection
from ..store.jobs import indexes
from ..store.jobs.collection_options import check_options
from ..store.jobs.indexes import IndexesGoneError
from .server_time import ServerTime
from .stats_cache import StatsCache
from .unserved_names import UnservedNames

logger = logger_of()

T = TypeVar("T")

# The indexes may be dropped again between their creation and the call. More than three times is not a coincidence.
MOST_LOSSES: Final = 3


DIAGNOSIS_KEPT_FOR: Final = 30.0
"""Seconds for which a diagnosis is returned again: it asks the server some forty questions."""


class ClientContext(ServerTime):
    """What the operations of one client share: the collection, the server's time, the indexes once they exist.

    Attributes:
        jobs: The collection of the jobs.
        config: The client's options.
        stats: Cached counts of one name each; `stats_by_name` has those of all names at once, and `depths` those for
            monitors; `minutes`, `hour` and `last_hour` have what was done, `overviews` how the jobs are, and
            `diagnosis` what is wrong.
        examining: Held while this client examines the database, by the thread that does.
        workers_here: Returns the workers of the scheduler that this client is, by name.
        worker_here: Returns the worker of a name of that scheduler, or None if it has none; None without a scheduler.
        instance_id: That of the scheduler that this client is; None without a scheduler.
        are_indexes_there: No index need be created before the next write, as far as is known.
        unserved: Warns about names that no live instance runs.
    """

    def __init__(
        self,
        jobs: JobCollection,
        config: ClientConfig,
        workers_here: Callable[[], Mapping[str, WorkerView]] = lambda: NO_WORKERS,
        worker_here: Callable[[str], WorkerHere | None] | None = None,
        instance_id: str | None = None,
    ) -> None:
        super().__init__(jobs)
        self.jobs = replace(jobs, has_indexes=not config.skip_index_creation)
        self.config = config
        self.stats: StatsCache[QueueStats] = StatsCache(config.stats_cache_ttl)
        self.stats_by_name: StatsCache[Mapping[str, QueueStats]] = StatsCache(config.stats_cache_ttl)
        self.depths: StatsCache[Mapping[str, QueueDepth]] = StatsCache(config.stats_cache_ttl)
        self.minutes: StatsCache[Sequence[Minute]] = StatsCache(config.stats_cache_ttl)
        # Minutes are written once a minute.
        minute = MINUTE.total_seconds() if config.stats_cache_ttl else 0.0
        self.hour: StatsCache[Sequence[Minute]] = StatsCache(minute)
        self.last_hour: StatsCache[LastHour] = StatsCache(minute)
        self.overviews: StatsCache[Overview] = StatsCache(config.stats_cache_ttl)
        self.diagnosis: StatsCache[Diagnosis] = StatsCache(DIAGNOSIS_KEPT_FOR if config.stats_cache_ttl else 0.0)
        self.examining = threading.Lock()
        self.workers_here = workers_here
        self.worker_here = worker_here
        self.instance_id = instance_id
        self.unserved = UnservedNames(lambda name: worker_here is not None and worker_here(name) is not None)
        # Any thread may call. What follows is written under this lock. It is held while indexes are created: the other
        # threads need these indexes, and wait.
        self._indexing = threading.Lock()
        self.are_indexes_there = config.skip_index_creation
        self._were_indexed = False  # At some time; the collection may have been dropped since.
        self._also: tuple[IndexModel, ...] = ()

    @property
    def who(self) -> str:
        """Who this client is, for those who look at what it has changed: its instance, or else its process."""
        return self.instance_id or f"process {os.getpid()} on {socket.gethostname()}"

    @classmethod
    def of(
        cls,
        db: Database,
        config: ClientConfig,
        workers_here: Callable[[], Mapping[str, WorkerView]] = lambda: NO_WORKERS,
        worker_here: Callable[[str], WorkerHere | None] | None = None,
        instance_id: str | None = None,
    ) -> Self:
        """Make the context of a client. Nothing is sent. Raise InvalidDatabaseError if `db` is not a database."""
        if config.write_concern != "majority":
            logger.warning(
                "write_concern=%r: a failover may undo claims, settlements and new jobs. "
                "Guarantees 1 to 4 hold only with 'majority'",
                config.write_concern,
            )
        jobs = JobCollection.of(
            check_database(db),
            config.collection_name,
            write_concern=config.write_concern,
            operation_timeout=config.operation_timeout,
        )
        return cls(jobs, config, workers_here, worker_here, instance_id)

    def forget_statistics(self) -> None:
        """Let the next call count again: after the end of a scheduler, the counts of its time would be wrong."""
        self.stats.clear()
        self.stats_by_name.clear()
        self.depths.clear()
        self.minutes.clear()
        self.hour.clear()
        self.last_hour.clear()
        self.overviews.clear()
        self.diagnosis.clear()

    def forget_indexes(self) -> None:
        """Create the indexes again before the next write: they may have been dropped."""
        with self._indexing:
            self.are_indexes_there = self.config.skip_index_creation

    def ensure_indexes(self, *also: IndexModel) -> None:
        """Create the indexes before the first write; after a failure, try again before the next.

        Args:
            also: From now on also these, of `indexes.IF_NEEDED`.
        """
        # In this order: another thread that adds one says first that it is not created yet.
        if all(one in self._also for one in also) and self.are_indexes_there:
            return
        with self._indexing:
            if new := tuple(one for one in dict.fromkeys(also) if one not in self._also):
                self.are_indexes_there = self.config.skip_index_creation
                self._also += new
            # Checked again: of many threads that arrive together, one creates the indexes, and the others wait here.
            if not self.are_indexes_there:
                try:
                    indexes.ensure(self.jobs, self.config.deletes, also=self._also)
                    check_options(self.jobs)
                except MonqueConnectionError as error:
                    # If they could be created before, the cause will pass (two live jobs with one unique key, for
                    # example, that were inserted while the index was missing), so it must not end a scheduler.
                    error.transient = error.transient or self._were_indexed
                    error.permanent = error.permanent and not self._were_indexed
                    raise
                self.are_indexes_there = self._were_indexed = True

    def with_indexes(self, call: Callable[[], T]) -> T:
        """Return what `call` returns, with the indexes in place. Create them again if it finds that they are gone."""
        for _ in range(MOST_LOSSES):
            self.ensure_indexes()
            try:
                return call()
            except IndexesGoneError:
                self.forget_indexes()
        self.ensure_indexes()
        return call()
