"""An instance that is cut off from its database knows it within the time that is published, and when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
from pymongo import MongoClient
from pymongo.uri_parser import parse_uri

from tests.support.standstills import Witness
from trio_monque import Health, RunningJob, Scheduler, Workers, open_scheduler
from trio_monque.store.driver.types import Database

from .processes import OwnServer, frozen
from .relay import relay

HEARTBEAT = 0.6
OPTIONS: dict[str, Any] = {
    "change_stream": False,  # With one, an idle instance asks for nothing, and notices the cut when the stream breaks.
    "heartbeat_interval": HEARTBEAT,
    "operation_timeout": 0.2,
    "poll_interval": 0.05,
    "cleanup_timeout": 0.1,
    "shutdown_timeout": 0.0,
}
LIMIT = max(2 * 0.2, HEARTBEAT)
MARGIN = 1.5
"""Seconds for a machine that does something else."""


async def until(scheduler: Scheduler, is_so: Callable[[Health], bool]) -> Health:
    with trio.fail_after(20):
        while not is_so(health := scheduler.health()):
            await trio.sleep(0.01)
    return health


def failing(health: Health) -> Sequence[str]:
    """Which loops cannot look for jobs: the one of these two that was about to ask when the cut came."""
    return [
        loop.name
        for loop in health.loops
        if loop.name in ("claimer", "waker") and (loop.reason or "").startswith(f"the {loop.name} has failed for ")
    ]


def is_healthy(health: Health) -> bool:
    return health.healthy


def is_in_contact(health: Health) -> bool:
    return health.healthy and health.last_database_contact_age is not None and health.last_database_contact_age < LIMIT


@pytest.mark.full
async def test_idle_instance_reports_a_cut_off_in_time_and_is_healthy_again_after(
    own_server: OwnServer, own_db: Database, witness: Witness
) -> None:
    with relay(parse_uri(own_server.uri)["nodelist"][0]) as passing:
        with MongoClient[Any](passing.uri) as client:
            workers = Workers()
            workers.register("job", lambda job: None)
            async with open_scheduler(client[own_db.name], workers, **OPTIONS) as scheduler:
                for _ in range(3):
                    with passing.cut_off():
                        began = time.monotonic()
                        health = await until(scheduler, lambda health: bool(failing(health)))
                        assert witness.undisturbed(began, time.monotonic()) < LIMIT + 0.05 + MARGIN
                        assert not scheduler.is_healthy()
                        reasons = " ".join(health.reasons)
                        assert all(f"the {name} has failed for " in reasons for name in failing(health))
                        assert health.last_database_contact_age is not None
                        assert health.last_database_contact_age >= LIMIT - 0.05
                    await until(scheduler, is_in_contact)


@pytest.mark.full
async def test_frozen_database_stops_a_run_and_health_names_the_heartbeat(
    own_server: OwnServer, own_db: Database
) -> None:
    workers = Workers()
    started, stopped = trio.Event(), trio.Event()
    reported: list[Health] = []

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        started.set()
        if job.attempt > 1:
            return
        try:
            await trio.sleep_forever()
        finally:
            reported.append(job.scheduler.health())
            stopped.set()

    async with open_scheduler(own_db, workers, **OPTIONS) as scheduler:
        await scheduler.enqueue("job")
        await started.wait()
        with frozen(own_server.pid), trio.fail_after(20):
            await stopped.wait()
        await until(scheduler, is_healthy)
        assert scheduler.statistics().claims_lost == 1
    assert "the heartbeat could not renew 1 claim in time" in " ".join(reported[0].reasons)
