"""Progress: the state of the demo for its view, with counts from the database and activity from events."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Final

import trio

from ...client.monque import Monque
from ...events import Event, JobClaimLost, JobCompleted, JobFailed, JobStarted, ShutdownTimedOut
from ...jobs.views import QueueStats
from ...store.types import ObjectId

POLL_INTERVAL: Final = 0.25
"""Seconds between two counts. Each reads all jobs of the demo, which costs little at this size."""
RATE_WINDOW: Final = 2.0
"""Seconds over which the rate is averaged: with fewer it jumps, with more it lags."""
RECENT_FILES: Final = 3


class InstanceActivity:
    """What one scheduler is doing, by its events.

    Attributes:
        name: Its instance id.
        running: The paths of the files that it works on, by job.
        recent: The paths that it began last, the latest first.
        completed, retried: Runs that succeeded, and runs that failed and are tried again.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.running: dict[ObjectId, str] = {}
        self.recent: deque[str] = deque(maxlen=RECENT_FILES)
        self.completed = self.retried = 0

    async def hear(self, event: Event) -> None:
        """The listener for all events of the scheduler.

        One for all, as two listeners may receive a run's start and end in the wrong order; and async, to be
        called in the loop, where the view reads.
        """
        match event:
            case JobStarted(job) | JobCompleted(job) | JobFailed(job) if job.data is None:
                pass  # The schedule's: not one of the files.
            case JobStarted(job):
                self.running[job.id] = job.data["path"]
                self.recent.appendleft(job.data["path"])
            case JobCompleted(job):
                self.running.pop(job.id, None)
                self.completed += 1
            case JobFailed(job, will_retry=will_retry):
                self.running.pop(job.id, None)
                self.retried += will_retry
            case JobClaimLost(job):
                self.running.pop(job.id, None)
            case ShutdownTimedOut(jobs):
                for job in jobs:
                    self.running.pop(job.id, None)


class Progress:
    """The state of the whole demo. Only touched on the run's own thread.

    Attributes:
        folder, files: What is worked on, and how many files. Only jobs of the name `jobs` are counted.
        instances: The schedulers.
        enqueued, all_enqueued: Written by the enqueuers.
        counts: How many jobs are in which status, as of the last poll.
        all_settled: Set when everything was enqueued and nothing is left to run.
        draining: Running jobs finish, and nothing else begins.
    """

    def __init__(self, folder: Path, files: int, jobs: str, instances: tuple[InstanceActivity, ...]) -> None:
        self._jobs = jobs
        self.folder = folder
        self.files = files
        self.instances = instances
        self.enqueued = 0
        self.all_enqueued = False
        self.counts = QueueStats()
        self.all_settled = trio.Event()
        self.draining = False
        self._began = trio.current_time()
        self._samples: deque[tuple[float, int]] = deque([(self._began, 0)])

    @property
    def settled(self) -> int:
        """Jobs that have ended."""
        return self.counts.completed + self.counts.failed

    @property
    def retried(self) -> int:
        return sum(instance.retried for instance in self.instances)

    @property
    def elapsed(self) -> float:
        return trio.current_time() - self._began

    @property
    def state(self) -> str:
        """The state of the demo in one word."""
        if self.all_settled.is_set():
            return "settled"
        return "draining" if self.draining else "working"

    @property
    def jobs_per_second(self) -> float:
        """The rate of the last two seconds."""
        (earlier, before), (later, after) = self._samples[0], self._samples[-1]
        return (after - before) / (later - earlier) if later > earlier else 0.0

    def shown(self, path: str) -> str:
        """Return a path for display, relative to the folder."""
        return os.path.relpath(path, self.folder) if os.path.isabs(path) else path  # noqa: PTH117  # Text, and shown as such.

    async def follow(self, monque: Monque) -> None:
        """Count the jobs again and again, until cancelled."""
        while True:
            await self.count(monque)
            await trio.sleep(POLL_INTERVAL)

    async def count(self, monque: Monque) -> None:
        """Count the jobs once."""
        complete = self.all_enqueued
        self.counts = await monque.get_queue_stats(name=self._jobs)
        now = trio.current_time()
        self._samples.append((now, self.settled))
        while len(self._samples) > 2 and self._samples[1][0] <= now - RATE_WINDOW:
            self._samples.popleft()
        if complete and self.counts.pending == self.counts.processing == 0:
            self.all_settled.set()
