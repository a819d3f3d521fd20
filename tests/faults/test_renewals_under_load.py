"""Renewals do not wait behind what else goes through the same scheduler: not for a thread, nor for a connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any, Final

import pytest
import trio
from pymongo import MongoClient
from pymongo.uri_parser import parse_uri

from tests.support.lossy_proxy import Loss, LossyProxy, lossy_proxy
from tests.support.standstills import Witness
from tests.support.wire import Command
from trio_monque import Job, RunningJob, Scheduler, Workers, open_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.engine.demand import ClaimState
from trio_monque.scheduler.renewals import JobRenewals
from trio_monque.store.driver.database_threads import CONNECTIONS_NEEDED, Channel
from trio_monque.store.driver.types import Database

from .traffic import kind_of

HEARTBEAT: Final = 1.5
TENTH_OF_THE_LEASE: Final = 3 * HEARTBEAT / 10
TASKS: Final = 200
BEATS: Final = 3


class Beats:
    """When each was sent and acknowledged, by time.monotonic()."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[float] = []
        self.acknowledged: list[float] = []
        renew = JobRenewals.renew

        async def recorded(renewals: JobRenewals, claims: Sequence[Job]) -> Sequence[ClaimState]:
            self.sent.append(time.monotonic())
            states = await renew(renewals, claims)
            assert set(states) == {ClaimState.HELD}
            self.acknowledged.append(time.monotonic())
            return states

        monkeypatch.setattr(JobRenewals, "renew", recorded)

    async def wait(self, count: int) -> None:
        """Returns after `count` further renewals."""
        enough = len(self.acknowledged) + count
        with trio.fail_after(20):
            while len(self.acknowledged) < enough:
                await trio.sleep(0.01)

    @property
    def durations(self) -> Sequence[float]:
        """Of each beat after the first one, from when it was sent."""
        return [acknowledged - sent for sent, acknowledged in zip(self.sent, self.acknowledged, strict=False)][1:]

    def delays(self, witness: Witness) -> Sequence[float]:
        """Of each beat after the first one, from when it was due until it was acknowledged."""
        due = [self.sent[0] + number * HEARTBEAT for number in range(len(self.acknowledged))]
        return [witness.undisturbed(*beat) for beat in zip(due, self.acknowledged, strict=True)][1:]


@pytest.fixture
def workers() -> Workers:
    workers = Workers()

    @workers.register("held", concurrency=5)
    async def held(job: RunningJob[Any]) -> None:
        await trio.sleep_forever()

    return workers


async def hold(scheduler: Scheduler) -> None:
    """Five jobs, and another instance may have none of them."""
    for _ in range(5):
        await scheduler.enqueue("held")


async def enqueue_without_pause(scheduler: Scheduler, task: int, took: list[float]) -> None:
    while True:
        asked = trio.current_time()
        # With a key of its own each is a command of its own; others are sent together.
        await scheduler.enqueue("elsewhere", unique_key=f"{task}-{asked}")
        took.append(trio.current_time() - asked)


@pytest.mark.full
async def test_two_hundred_enqueuing_tasks_do_not_delay_a_renewal(
    db: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch, witness: Witness
) -> None:
    beats = Beats(monkeypatch)
    enqueues: list[float] = []
    async with open_scheduler(db, workers, heartbeat_interval=HEARTBEAT, shutdown_timeout=0) as scheduler:
        await hold(scheduler)
        await beats.wait(1)  # By this one the others are measured.
        async with trio.open_nursery() as nursery:
            for task in range(TASKS):
                nursery.start_soon(enqueue_without_pause, scheduler, task, enqueues)
            await beats.wait(BEATS)
            nursery.cancel_scope.cancel()
    # One of three may be late because the machine was busy for a moment. What waits in a queue, waits each time.
    assert median(beats.delays(witness)) < TENTH_OF_THE_LEASE
    # As fast or slow as the machine is, it has stood in no queue with them. On one limiter it was their median.
    assert min(beats.durations) < median(enqueues) / 2


class Hanging:
    """The answers to chosen commands, as long as the block lasts; then their connections break."""

    def __init__(self, proxy: LossyProxy) -> None:
        self._proxy = proxy

    def hung(self) -> int:
        return len(self._proxy.lost)

    @contextmanager
    def answers_to(self, kind: str) -> Iterator[None]:
        is_over = threading.Event()

        def is_chosen(command: Command) -> bool:
            return kind_of(command) == kind

        for name in ("update", "findAndModify"):
            self._proxy.lose(name, Loss.ANSWER, 10 * TASKS, matches=is_chosen, after=partial(is_over.wait, 30))
        try:
            yield
        finally:
            is_over.set()


@pytest.fixture
def hanging_and_uri(mongod: EmbeddedServer) -> Iterator[tuple[Hanging, str]]:
    with lossy_proxy(parse_uri(mongod.uri)["nodelist"][0]) as proxy:
        yield Hanging(proxy), f"{proxy.uri}&maxPoolSize={CONNECTIONS_NEEDED}"


@pytest.mark.full
async def test_renewals_go_on_although_no_enqueue_is_answered(
    db: Database, workers: Workers, hanging_and_uri: tuple[Hanging, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, uri = hanging_and_uri
    beats = Beats(monkeypatch)
    with MongoClient[Any](uri, tz_aware=True) as client:
        options: dict[str, Any] = {"heartbeat_interval": HEARTBEAT, "shutdown_timeout": 0, "operation_timeout": 15.0}
        async with open_scheduler(client[db.name], workers, **options) as scheduler:
            await hold(scheduler)
            async with trio.open_nursery() as nursery:
                with hanging.answers_to("enqueue with a key"):
                    for task in range(TASKS):
                        nursery.start_soon(enqueue_without_pause, scheduler, task, [])
                    await beats.wait(BEATS)
                    assert hanging.hung() == Channel.COMMANDS.value, "all threads that enqueue wait for an answer"
                    nursery.cancel_scope.cancel()
