"""Plays a plan: the fleet, with its clients and handlers, until the faults have stopped and all has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import trio

from tests.support.internals import engine_of
from trio_monque import Monque, MonqueError, Scheduler, run_scheduler
from trio_monque.client.local_wakeups import wake_all_schedulers
from trio_monque.errors import InstanceCollisionError
from trio_monque.events import Event
from trio_monque.scheduler.scheduler_client import SchedulerClient
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import crash, now

from .clients import Clients
from .handlers import Handlers
from .network import Network, in_the_way, whose
from .plan import NAMES, Instance, Life, Plan
from .records import LIVE, Played

SWEEPER: Final[dict[str, Any]] = {"heartbeat_interval": 5.0, "base_retry_interval": 0.1, "concurrency_per_name": 20}
TRIES_AGAIN_AFTER: Final = 3.0
MOST_SWEEPS: Final = 120
LONGEST_SWEEP: Final = 2000.0
FAST: Final = 1
"""Acknowledged by one member of one. What "majority" adds is the journal, and nothing here dies for real."""


class World:
    """One schedule. `db` is empty."""

    def __init__(self, plan: Plan, db: Database) -> None:
        self.played = Played()
        self.network = Network(plan)
        self._plan = plan
        self._db = db
        self._jobs: Collection = db["monque_jobs"]
        self._clients = Clients(self.played, db)
        self._handlers = Handlers(plan.seed, self.played, self._clients, self._kill)

    async def play(self) -> None:
        """Until the faults have stopped, and everything that can end has ended."""
        plan = self._plan
        with in_the_way(self.network):
            async with trio.open_nursery() as nursery:
                for number, instance in enumerate(plan.instances):
                    nursery.start_soon(self._instance, number, instance)
                client = Monque(self._db, operation_timeout=5.0, write_concern=FAST)
                for action in plan.actions:
                    nursery.start_soon(self._clients.act, client, action)
            self._handlers.spawn = False
            await self.network.stop()
            await self._sweep()
            await self.network.stop()
        self.played.ended_at = now()
        self.played.troubles = self.network.log

    # --- The fleet ---

    async def _instance(self, number: int, instance: Instance) -> None:
        for life in instance.lives:
            self.played.options[life.id] = instance.options
            await trio.sleep_until(life.start)
            if trio.current_time() >= life.end:
                continue  # The one before took so long to leave.
            whose.set(life.id)
            while not await self._live(life, instance.options) and trio.current_time() < life.end - TRIES_AGAIN_AFTER:
                await trio.sleep(TRIES_AGAIN_AFTER)

    async def _live(self, life: Life, options: dict[str, Any]) -> bool:
        """Whether it could begin: the entry of a life before, which died, may still be there."""
        is_taken = False
        asked: list[tuple[str, float]] = []
        self.played.write(life.id, "opens")
        with trio.CancelScope() as cut:
            try:
                async with self._scheduler(life.id, life.names, options) as scheduler:
                    with trio.move_on_at(life.end):
                        await scheduler.wait_drained()
                    if not engine_of(scheduler).stop.draining.is_set():
                        asked.append((life.ending, trio.current_time()))
                        self.played.write(life.id, f"is asked to {life.ending}")
                        match life.ending:
                            case "drain":
                                scheduler.drain()
                            case "cut":
                                cut.cancel()
                            case "crash":
                                self._kill(scheduler)
            except* InstanceCollisionError:
                is_taken = True
            except* MonqueError as group:
                # It could not begin, or met a fault that does not pass.
                self.played.broken.add(life.id)
                self.played.write(life.id, "breaks", detail=_first_leaf(group))
        for how, at in asked:
            self.played.left.append((life.id, how, at, trio.current_time()))
        self.played.write(life.id, "is taken" if is_taken else "has left")
        return not is_taken

    @asynccontextmanager
    async def _scheduler(
        self,
        who: str,
        names: tuple[str, ...],
        options: dict[str, Any],
    ) -> AsyncIterator[Scheduler]:
        started: list[Scheduler] = []

        async def hear(event: Event) -> None:
            self._hear(who, event)

        try:
            async with trio.open_nursery() as nursery:
                scheduler: Scheduler = await nursery.start(
                    partial(
                        run_scheduler,
                        self._db,
                        self._handlers.workers(names),
                        listeners={Event: hear},
                        instance_id=who,
                        retry_jitter=0.2,
                        write_concern=FAST,
                        **options,
                    )
                )
                started.append(scheduler)
                yield scheduler
        finally:
            for one in started:
                assert one.report is not None, "it has ended"
                self.played.unfinished.update(job.id for job in one.report.unfinished)

    def _kill(self, scheduler: SchedulerClient) -> None:
        """At once, as far as this run can: its handlers do nothing any more that anybody could notice."""
        self.played.broken.add(scheduler.id)
        self.played.write(scheduler.id, "dies")
        trio.lowlevel.spawn_system_task(crash, scheduler)

    def _hear(self, who: str, event: Event) -> None:
        job = getattr(event, "job", None)
        job_id = getattr(event, "job_id", None) if job is None else job.id
        attempt = 0 if job is None else job.attempts
        detail = getattr(event, "will_retry", None)
        if job is not None:
            detail = (str(job.status), job.fail_count, detail)
        self.played.write(who, type(event).__name__, job_id, attempt, detail)

    # --- The end ---

    async def _sweep(self) -> None:
        """Nothing fails any more: what can end does. Only handlers kill."""
        whose.set("sweeper")
        for number in range(MOST_SWEEPS):
            who = f"sweeper{number}"
            self.played.options[who] = SWEEPER
            async with self._scheduler(who, NAMES, SWEEPER) as scheduler:
                while not engine_of(scheduler).stop.draining.is_set():
                    wake_all_schedulers()
                    with trio.move_on_after(10):
                        await scheduler.wait_drained()
                    one_off = {"status": {"$in": LIVE}, "repeatInterval": None}
                    of_the_dead = {"status": "processing", "claimedBy": {"$ne": who}}
                    is_over = self._jobs.find_one({"$or": [one_off, of_the_dead]}) is None
                    if is_over or trio.current_time() > self._plan.horizon + LONGEST_SWEEP:
                        scheduler.drain()
                await scheduler.wait_drained()
            if who not in self.played.broken:
                return


def _first_leaf(group: BaseExceptionGroup[Any]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__
