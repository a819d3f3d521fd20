"""The last look before a handler is called on the loop of the program, which may come to it long after the claim."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run
from tests.asyncio_hosts.scenes import QUICK, until
from tests.support.documents import OPEN, fill
from tests.support.internals import engine_of, parts_of, runs_of, runs_of_claims
from tests.support.waiting import wait_until
from trio_monque import Claim, Monque, RunningJob, Workers, open_scheduler, run_claims
from trio_monque.claims import RunningClaims
from trio_monque.engine.nursery import Engine
from trio_monque.store.driver.types import Collection, Database

pytestmark = ON_ASYNCIO

SHORT_LEASE: Any = {"heartbeat_interval": 0.5, "cleanup_timeout": 0.1}
TURNS = 50
"""More turns of a loop than a call needs to begin."""


def blocking(function: Callable[[], object]) -> None:
    """Call it in a thread, and block the event loop of the caller until it has ended."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.full
def test_job_that_was_claimed_in_time_does_not_start_after_its_limit(db: Database, run: Run) -> None:
    workers, ran = Workers(), list[int]()

    @workers.register("greet")
    async def greet(job: RunningJob[int]) -> None:
        ran.append(job.data)

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK):
            ids: list[Any] = []

            def claimed_and_late() -> None:
                monque = Monque(db).sync
                status = ""
                while status != "processing":  # A busy machine may claim one too late.
                    limit = datetime.now(UTC) + timedelta(seconds=2)
                    ids[:] = [monque.enqueue("greet", 1, start_by=limit).id]
                    wait_until(lambda: status_of(db, ids[0]) != "pending", "the claim")
                    status = status_of(db, ids[0])
                wait_until(lambda: datetime.now(UTC) > limit, "the limit")

            blocking(claimed_and_late)
            await until(lambda: status_of(db, ids[0]) not in ("pending", "processing"))
            assert status_of(db, ids[0]) == "cancelled"

    run(main)
    assert ran == []


def status_of(db: Database, job_id: Any) -> str:
    found = db["monque_jobs"].find_one({"_id": job_id})
    assert found is not None
    return str(found["status"])


def both_loops_stand_still(engine: Engine[Any, Any, Any, Any, Any], is_late: Callable[[], bool]) -> threading.Event:
    """Block the loop of the program until a lease is over, and that of the engine until the event is set."""
    goes_on = threading.Event()

    def stand_still() -> None:
        goes_on.wait(60)

    engine.post(stand_still)
    wait_until(is_late, "the end of the lease")
    return goes_on


async def let_calls_begin() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@pytest.mark.full
def test_handler_is_not_called_for_a_claim_that_was_lost_while_the_process_stood_still(db: Database, run: Run) -> None:
    workers, reasons = Workers(), list[Any]()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        reasons.append(job.cancel_reason)

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK, **SHORT_LEASE) as scheduler:
            events: list[threading.Event] = []

            def stand_still() -> None:
                Monque(db).sync.enqueue("job")
                wait_until(lambda: any(one.task is not None for one in runs_of(scheduler)), "the run")
                (held,) = runs_of(scheduler)
                is_late = lambda: held.seconds_until_cancelled < 0  # noqa: E731
                events.append(both_loops_stand_still(engine_of(scheduler), is_late))

            blocking(stand_still)
            await let_calls_begin()  # Before the engine can cancel anything.
            assert reasons == []
            events[0].set()
            await until(lambda: reasons)

    run(main)
    assert reasons == [None] * len(reasons)


@pytest.mark.full
def test_document_is_not_worked_on_for_a_lock_that_was_lost(things: Collection, run: Run) -> None:
    calls: list[Any] = []

    async def handler(claim: Claim[Any]) -> None:
        calls.append(claim.cancel_reason)
        await claim.finish({"$set": {"state": "done"}})

    async def main() -> None:
        started: list[RunningClaims] = []

        class Status:
            def started(self, value: RunningClaims) -> None:
                started.append(value)

        status: Any = Status()
        options: Any = {**QUICK, **SHORT_LEASE}
        work = asyncio.create_task(run_claims(things, OPEN, handler, task_status=status, **options))
        await until(lambda: started)
        engine = parts_of(started[0]).engine
        events: list[threading.Event] = []

        def stand_still() -> None:
            fill(things, 1)
            wait_until(lambda: any(one.task is not None for one in runs_of_claims(started[0])), "the run")
            (held,) = runs_of_claims(started[0])
            is_late = lambda: held.seconds_until_cancelled < 0  # noqa: E731
            events.append(both_loops_stand_still(engine, is_late))

        blocking(stand_still)
        await let_calls_begin()
        assert calls == []
        events[0].set()
        await until(lambda: calls)
        started[0].drain()
        await work

    run(main)
    assert calls == [None] * len(calls)
