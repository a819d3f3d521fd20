"""RunningJobs: what handlers get for their runs, with the scheduler and the resources that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..bridge.handler_loop import ON_TRIO, HandlerLoop
from ..engine.run import Run
from ..jobs.job import Job
from .running_job import JobSurroundings, Reporting, RunningJob
from .scheduler_client import SchedulerClient
from .worker import Worker
from .workers import Workers


class RunningJobs:
    """Makes a RunningJob for each run of one scheduler.

    Args:
        workers: Its workers. Some have resources of their own.
        resources: For all other workers.
        loop: Where its handlers run, except those with runs_on="runtime".
    """

    _on_loop: JobSurroundings
    _in_runtime: JobSurroundings
    _with_own_resources: Mapping[Worker[Any], JobSurroundings]

    def __init__(self, workers: Workers, resources: Any, loop: HandlerLoop) -> None:
        self._workers = workers
        self._resources = resources
        self._loop = loop

    def serve(self, scheduler: SchedulerClient, reporting: Reporting) -> None:
        """Set what handlers get as `job.scheduler`, and what writes for them; called once, before anything runs."""
        self._on_loop = JobSurroundings(scheduler, self._resources, reporting, self._loop)
        # In a program on trio the two are equal.
        self._in_runtime = replace(self._on_loop, loop=ON_TRIO)
        self._with_own_resources = {
            worker: replace(self._shared_by(worker), resources=own)
            for worker, own in self._workers.own_resources.items()
        }

    def of(self, run: Run[Job], worker: Worker[Any]) -> RunningJob[Any]:
        """Return what the handler of the worker gets for this run."""
        return RunningJob(run, self._with_own_resources.get(worker) or self._shared_by(worker))

    def _shared_by(self, worker: Worker[Any]) -> JobSurroundings:
        return self._on_loop if worker.settings.runs_on is None else self._in_runtime
