"""Schedulers of a test: one opens over the database of the test, and one crashes as a killed process does."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import datetime
from typing import Final, TypeVar, Unpack

import trio

from ..clock import has_virtual_time_begun, is_run_virtual, skipped_time
from ..error_types import MonqueError
from ..options_and_defaults import SchedulerOptions
from ..scheduler.assembly import Listeners
from ..scheduler.running_job import Resources
from ..scheduler.scheduler import Scheduler, open_scheduler
from ..scheduler.scheduler_client import SchedulerClient
from ..scheduler.workers import Workers
from ..store.driver.types import ConnectionFailure, Database
from .virtual_run import FIRST_MOMENT, hold_for_own_threads, new_seed, reproducible_order
from .virtual_time import seconds_until, start_virtual_time

T = TypeVar("T")


class _Dead:
    """Fails every command of a scheduler that has crashed."""

    def takes(self, purpose: str) -> bool:
        return True

    def inject(self, call: Callable[[], T]) -> T:
        raise ConnectionFailure("the test has crashed this scheduler")


async def crash(scheduler: SchedulerClient) -> None:
    """End a scheduler as a kill would: it settles and releases nothing. Returns when it has ended.

    Its jobs stay `processing` under its claims. Commands that it had sent may still be applied. Handlers are
    cancelled, because a task cannot vanish: their clean-ups run unshielded, and their calls to the database
    through this scheduler fail. A plain handler goes on in its thread.

    Raises:
        MonqueError: The test does not run on trio.
    """
    if not trio.lowlevel.in_trio_task():
        raise MonqueError(
            "crash needs a test on trio; on asyncio, open the scheduler with shutdown_timeout=0, and leave its block "
            "while the job runs: the run is cut short, and the next scheduler goes on"
        )
    scheduler._context.jobs.interference.append(_Dead())
    scheduler._parts.engine.die()
    await scheduler.wait_drained()


_in_real_time: Final[list[object]] = []
"""One entry for each open test scheduler under a real clock."""


@contextmanager
def _skips_end_with_the_last() -> Iterator[None]:
    """What `drain(until=...)` has skipped is for all test schedulers that are open together, and for no later ones."""
    _in_real_time.append(None)
    try:
        yield
    finally:
        _in_real_time.pop()
        if not _in_real_time:
            skipped_time.seconds = 0.0


class SchedulerOpener:
    """`async with open_test_scheduler(workers) as scheduler:` is `open_scheduler` over the database of the test.

    Open several for a fleet. A virtual clock also waits for threads that handlers start themselves.

    Attributes:
        db: The database.
        seeds: The seeds of the deterministic schedulers that were opened, in order.
        first_seed: The seed that decides all seeds that the test does not choose; None until one is needed.
    """

    def __init__(self, db: Database, seed: int | None = None) -> None:
        self.db = db
        self.seeds: list[int] = []
        self.first_seed = seed

    @asynccontextmanager
    async def __call__(
        self,
        workers: Workers[Resources] | None = None,
        *,
        resources: Resources | None = None,
        listeners: Listeners | None = None,
        starts_at: datetime | None = None,
        deterministic: bool = False,
        seed: int | None = None,
        **options: Unpack[SchedulerOptions],
    ) -> AsyncIterator[Scheduler]:
        """Arguments and errors are those of `open_scheduler`; the database is the test's.

        Args:
            workers, resources, listeners, options: See `open_scheduler`. `stats_cache_ttl` is 0 unless it is given.
            starts_at: Timezone-aware: what `now()` is when the scheduler opens. Virtual time begins there, as with
                `start_virtual_time`. Under a real clock, also on asyncio, all that is due goes by it, as after
                `drain(until=...)`; it must not have passed.
            deterministic: From here on, the seed decides the order of everything in the run. If virtual time has
                not begun, it begins at 2030-01-01 UTC. Open this scheduler first, and the others inside.
            seed: Decides the order. Default: the one of `pytest --monque-seed`, or a random one. The report
                of a failed test shows it.

        Raises:
            MonqueError: `deterministic` under a real clock, or virtual time has begun already with another moment.
            InvalidOptionError: `starts_at` is naive, or has passed under a real clock.
        """
        options.setdefault("stats_cache_ttl", 0)  # A test counts what is there now.
        virtual = is_run_virtual()
        async with AsyncExitStack() as stack:
            if starts_at is not None and virtual:
                start_virtual_time(starts_at)
            if deterministic:
                if not virtual:
                    raise MonqueError("a deterministic order needs a virtual clock, for example autojump_clock")
                if not has_virtual_time_begun():
                    start_virtual_time(FIRST_MOMENT)
                stack.enter_context(reproducible_order(self._next_seed(seed)))
            if virtual:
                hold_for_own_threads()
            else:
                stack.enter_context(_skips_end_with_the_last())
                if starts_at is not None:
                    skipped_time.seconds += seconds_until("starts_at", starts_at)
            yield await stack.enter_async_context(
                open_scheduler(self.db, workers, resources=resources, listeners=listeners, **options)
            )

    def _next_seed(self, chosen: int | None) -> int:
        """The first one decides the others: one number is enough to repeat the test."""
        if chosen is None:
            first = self.first_seed = new_seed() if self.first_seed is None else self.first_seed
            chosen = random.Random(first + len(self.seeds)).getrandbits(32) if self.seeds else first
        self.seeds.append(chosen)
        return chosen
