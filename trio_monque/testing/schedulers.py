"""Schedulers of a test, over its own database."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Unpack

from ..clock import has_virtual_time_begun, is_run_virtual
from ..errors import MonqueError
from ..options import SchedulerOptions
from ..scheduler.running_job import Resources
from ..scheduler.scheduler import Listeners, Scheduler, open_scheduler
from ..scheduler.workers import Workers
from ..store.types import Database
from .clockwork import start_virtual_time
from .order import FIRST_MOMENT, new_seed, reproducible_order
from .own_threads import hold_for_own_threads


class SchedulerOpener:
    """`async with open_test_scheduler(workers) as scheduler:` is `open_scheduler` over the database of the test.

    May be called any number of times: several schedulers are a fleet. Under a virtual clock, the threads
    that handlers start themselves hold it, too.

    Attributes:
        db: The database.
        seeds: Of the deterministic schedulers that were opened, in order.
        first_seed: From which those come that were not chosen; None while there is none.
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
        deterministic: bool = False,
        seed: int | None = None,
        **options: Unpack[SchedulerOptions],
    ) -> AsyncIterator[Scheduler]:
        """Arguments and errors are those of `open_scheduler`; the database is the test's.

        Args:
            workers, resources, listeners, options: See `open_scheduler`. `stats_cache_ttl` is 0 unless it is given.
            deterministic: From here on the run does everything in an order that the seed decides. Where its
                virtual time has not begun, it begins with 2030-01-01 UTC. Open it first, and the others
                inside.
            seed: Of that order; by default that of `pytest --monque-seed`, or one by chance. Where the
                test fails, pytest's report tells it.

        Raises:
            MonqueError: `deterministic` under a real clock.
        """
        options.setdefault("stats_cache_ttl", 0)  # A test counts what is there now.
        virtual = is_run_virtual()
        async with AsyncExitStack() as stack:
            if deterministic:
                if not virtual:
                    raise MonqueError("a deterministic order needs a virtual clock, for example autojump_clock")
                if not has_virtual_time_begun():
                    start_virtual_time(FIRST_MOMENT)
                stack.enter_context(reproducible_order(self._next_seed(seed)))
            if virtual:
                hold_for_own_threads()
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
