"""SchedulerClient: the client of a running scheduler. It is the type of `job.scheduler`, and the base of Scheduler.

It is a class of its own to avoid an import circle: RunningJob names this class, workers name RunningJob, and Scheduler
registers workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ..bridge.handler_loop import HandlerLoop
from ..client.client_parts import ClientParts
from ..client.monque import Monque
from ..client.operation import async_calls
from ..clock import VirtualTime, in_time_of
from ..engine.contention import Contention
from ..engine.nursery import Engine
from ..host.health import Health, health_of
from ..host.host import Host
from ..jobs.job import Job
from ..options_and_defaults import SchedulerConfig
from .events_and_report import JobReporter, SchedulerReport
from .statistics import Statistics, statistics_of

MOST_WARNINGS: Final = 10


@dataclass(frozen=True, eq=False)
class SchedulerParts:
    """What the client of a running scheduler asks.

    Attributes:
        client: What it is made of as a client.
        config: Its options.
        reporter: Makes its events, log lines and counts.
        host: Runs its engine.
        loop: Where its handlers run.
        contention: What it knows of other instances that take the same jobs.
        virtual: The virtual time of its run; None for real time.
    """

    client: ClientParts
    config: SchedulerConfig
    reporter: JobReporter
    host: Host[Job, SchedulerReport]
    loop: HandlerLoop
    contention: Contention
    virtual: VirtualTime | None

    @property
    def engine(self) -> Engine[Job, Any, Any, Any, Any]:
        return self.host.engine


@async_calls("In a plain handler, call job.from_thread(job.scheduler.{name})")
class SchedulerClient(Monque):
    """The client of a running scheduler: what a handler gets as `job.scheduler`.

    The object is the Scheduler itself; this type has no `register`.

    Attributes:
        id: This instance's id in the database and in logs.
    """

    id: str
    _parts: SchedulerParts

    @property
    def report(self) -> SchedulerReport | None:
        """What the scheduler did; None until the scheduler has ended."""
        return self._parts.host.report

    def drain(self) -> None:
        """Begin a graceful shutdown: the scheduler claims no more jobs, and running jobs get `shutdown_timeout`.

        A second call changes nothing. It may be called from any thread, such as the thread of a plain handler.
        """
        self._parts.host.drain()

    async def wait_drained(self) -> None:
        """Return when the scheduler has ended. Call `drain` to end it."""
        await self._parts.loop.engine.wait(self._parts.host.ended)

    def is_healthy(self) -> bool:
        """Whether `health().reasons` is empty. Call it from any thread; it only reads memory, and does not wait."""
        return not self._parts.host.examine().reasons

    def health(self) -> Health:
        """Whether the scheduler works, and why not. Call it from any thread; it only reads memory, and does not wait.

        The scheduler is unhealthy while one of these is true:

        - A loop is late: its `lag` is longer than twice `operation_timeout` and than `heartbeat_interval`. The
          heartbeat is late when its `lag` is longer than `heartbeat_interval`.
        - Runs were cancelled because their claims could not be renewed, and no renewal has succeeded since.
        - A loop has crashed, which ends the scheduler.
        - The event loop has not answered for a second. In a program on asyncio: the thread of the scheduler has not, or
          the event loop of the program has not answered for half a second.
        - The scheduler is shutting down, and handlers go on although their time is over.
        - Another process, such as Monque for Node, uses the instance id of this scheduler.
        """
        return health_of(
            self._parts.host.examine(),
            self._server_time(),
            warnings=(*self._parts.reporter.ended_schedules, *self._left_to_others()),
            broken=self._context.jobs.count_skipped(),
        )

    def statistics(self) -> Statistics:
        """What the scheduler has done since its start, and is doing now. Call it from any thread; it only reads memory.

        On the event loop the numbers agree with each other. In another thread they may be of moments that lie
        a little apart.
        """
        parts = self._parts
        return statistics_of(parts.engine, parts.reporter.tally, parts.contention, self._context.jobs.count_skipped())

    def _left_to_others(self) -> Sequence[str]:
        """What this machine lacks, each lack with the number of the jobs that wait for another machine."""
        counts = Counter(lack for _, lack in self._context.jobs.elsewhere.problems())
        return [
            f"jobs that wait for another machine: {number}, because {lack}"
            for lack, number in counts.most_common(MOST_WARNINGS)
        ]

    def _server_time(self) -> datetime:
        # Use the known time of the run: a thread that asked the run for it would wait for an event loop that may be
        # blocked.
        with in_time_of(self._parts.virtual):
            return self._context.clock.now()
