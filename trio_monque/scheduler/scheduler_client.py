"""SchedulerClient: a client of a scheduler that runs. What `job.scheduler` is, and the base of Scheduler.

It stands apart from Scheduler because a handler's type names it: RunningJob knows this class, the workers know
RunningJob, and Scheduler, which registers workers, knows both.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from ..call_context import async_calls
from ..client.monque import Monque
from ..clock import VirtualTime, in_time_of
from ..host.host import Host
from ..jobs.job import Job
from .health import Health, health_of
from .reporting import JobReporter, SchedulerReport
from .statistics import Statistics, statistics_of


@async_calls("In a plain handler, call job.from_thread(job.scheduler.{name})")
class SchedulerClient(Monque):
    """A client of a scheduler that runs: what a handler gets as `job.scheduler`.

    It is the Scheduler itself, typed without `register`.

    Attributes:
        id: This instance's id in the database and in logs.
    """

    id: str

    def _runs_on(
        self, host: Host[Job, SchedulerReport], reporter: JobReporter, virtual: VirtualTime | None, instance_id: str
    ) -> None:
        """Called once, by the constructor of Scheduler, which makes these parts."""
        self.id = instance_id
        self._host = host
        self._engine = host.engine
        self._reporter = reporter
        self._virtual = virtual

    @property
    def report(self) -> SchedulerReport | None:
        """What the scheduler did; None until it has ended."""
        return self._host.report

    def drain(self) -> None:
        """Begin the orderly end: the scheduler claims nothing more, and running jobs get `shutdown_timeout`.

        Calling it again changes nothing. It may be called from any thread, a plain handler's for example.
        """
        self._host.drain()

    async def wait_drained(self) -> None:
        """Return when the scheduler has ended. It does not ask for the end: `drain` does."""
        await self._host.ended.wait()

    def is_healthy(self) -> bool:
        """Whether `health().reasons` is empty. From any thread; it reads memory only, and does not wait."""
        found = self._engine.vitals.examine()
        return not found.reasons and not self._reporter.complaints(found.now)

    def health(self) -> Health:
        """How the scheduler gets on, and why it does not. From any thread; it reads memory only, and does not wait.

        A loop is unhealthy when its `lag` is longer than twice `operation_timeout`, and no shorter than
        `heartbeat_interval`; the heartbeat, when it is longer than `heartbeat_interval`, and as soon as a run was
        stopped because its claim could not be renewed, until renewals succeed. A loop that has crashed stays
        unhealthy, and ends the scheduler. The event loop is unhealthy when it does not answer for a second, and
        leaving, when handlers do not end in all the time that they have. The scheduler is unhealthy, too, while
        another process, such as Monque for Node, uses its instance id.
        """
        found = self._engine.vitals.examine()
        found = replace(found, reasons=(*found.reasons, *self._reporter.complaints(found.now)))
        broken = self._context.jobs.count_skipped()
        return health_of(found, self._server_time(), tuple(self._reporter.ended_schedules), broken)

    def statistics(self) -> Statistics:
        """What the scheduler has done since its start, and does now. From any thread; it reads memory only.

        On the event loop the numbers agree with each other. In another thread they may be of moments that lie
        a little apart.
        """
        return statistics_of(self._engine, self._reporter.tally, self._context.jobs.count_skipped())

    def _server_time(self) -> datetime:
        # The run's time is known: a thread that asked the run for it would wait for a loop that may be blocked.
        with in_time_of(self._virtual):
            return self._context.clock.now()
