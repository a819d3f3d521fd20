"""What enqueues: blocking calls, for threads, scripts and the async client behind the door."""

from __future__ import annotations

import threading
from datetime import datetime
from typing import Any

from ..clock import ServerClock
from ..errors import MonqueConnectionError
from ..jobs.job import Job
from ..jobs.new_job import Named, NewJob, check_payload, name_of, pending_job
from ..options import ClientConfig
from ..store import indexes, inserting
from ..store.connection import JobCollection, measure_clock_offset
from ..store.types import ObjectId


class Ground:
    """What every blocking call stands on: the collection, the server's time, and the indexes once they exist."""

    def __init__(self, jobs: JobCollection, config: ClientConfig) -> None:
        self.jobs = jobs
        self.config = config
        self.clock = ServerClock()
        self._indexing = threading.Lock()
        self._indexed = config.skip_index_creation

    def now(self) -> datetime:
        """The server's time; measures the offset to it first where that is unknown or old."""
        if self.clock.is_stale():
            self.measure_clock_offset()
        return self.clock.now()

    def measure_clock_offset(self) -> None:
        offset = measure_clock_offset(self.jobs)
        if offset is not None:
            self.clock.set_offset(offset)

    def ensure_indexes(self) -> None:
        """Creates the indexes before the first write; a failure is tried again at the next."""
        if self._indexed:
            return
        with self._indexing:
            if not self._indexed:
                indexes.ensure(self.jobs)
                self._indexed = True


class Producer:
    """Enqueues jobs; every call blocks until the database has answered."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    def enqueue(
        self,
        worker: str | Named,
        data: Any = None,
        *,
        run_at: datetime | None = None,
        delay: float | None = None,
        unique_key: str | None = None,
        max_retries: int | None = None,
        max_rescues: int | None = None,
        timeout: float | None = None,
    ) -> Job:
        """See `Monque.enqueue`."""
        return self.enqueue_new(
            NewJob(
                name=name_of(worker),
                data=data,
                run_at=run_at,
                delay=delay,
                unique_key=unique_key,
                max_retries=max_retries,
                max_rescues=max_rescues,
                timeout=timeout,
            )
        )

    def enqueue_new(self, new: NewJob) -> Job:
        """Enqueues a job that was described beforehand."""
        ground = self._ground
        # Everything that can be wrong with it is found before the database is asked for anything.
        job_id = ObjectId()
        pending_job(new, job_id, ground.clock.now())
        check_payload(new.data, ground.config.max_payload_size, ground.jobs.codec.callers)
        ground.ensure_indexes()
        job = pending_job(new, job_id, ground.now())
        if job.unique_key is not None:
            return inserting.insert_unless_key_is_in_use(ground.jobs, job)
        try:
            inserting.insert(ground.jobs, job)
        except MonqueConnectionError as error:
            if not error.unknown_outcome:
                raise
            # It may have arrived: the same `_id` again inserts it at most once.
            inserting.insert(ground.jobs, job)
        return job

    def now(self, worker: str | Named, data: Any = None) -> Job:
        """See `Monque.now`."""
        return self.enqueue(worker, data)
