"""`run_until_signalled` is a worker process on trio, asyncio and uvloop: a signal drains it, the second one cuts it."""

from __future__ import annotations

import math
import os
import signal
import socket
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from pymongo import MongoClient

from tests.support.waiting import becomes_readable, wait_until
from trio_monque import Monque, RunningJob, Scheduler, SchedulerReport, Workers, process_signals, run_until_signalled
from trio_monque.errors import InvalidOptionError
from trio_monque.store.driver.types import Database

from .conftest import Run
from .scenes import LONG, statuses, until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_lets_running_jobs_finish(run: Run, db: Database, number: signal.Signals) -> None:
    workers = Workers()

    @workers.register("job", concurrency=1)
    async def handler(job: RunningJob[Any]) -> None:
        signal.raise_signal(number)
        await until(lambda: job.scheduler.health().draining)

    async def main() -> None:
        await Monque(db).enqueue("job")
        await Monque(db).enqueue("job")
        assert await run_until_signalled(db, workers) == SchedulerReport(completed=1)
        assert sorted(statuses(db, "job")) == ["completed", "pending"]

    run(main)


def test_second_signal_cancels_and_releases_running_jobs(run: Run, db: Database) -> None:
    workers = Workers()
    reasons: list[str | None] = []

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        signal.raise_signal(signal.SIGTERM)
        await until(lambda: job.scheduler.health().draining)
        signal.raise_signal(signal.SIGINT)  # A second SIGTERM so soon would count as the same one.
        try:
            await anyio.sleep(LONG)
        finally:
            reasons.append(job.cancel_reason)

    async def main() -> None:
        await Monque(db).enqueue("job")
        report = await run_until_signalled(db, workers, shutdown_timeout=LONG)
        # A look that was in flight at the drain may claim the released job again: then it is released twice.
        assert replace(report, released=1) == SchedulerReport(released=1)
        assert 1 <= report.released <= 2
        assert (reasons, statuses(db, "job")) == (["shutdown"], ["pending"])

    run(main)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_same_signal_again_at_once_counts_as_one(
    run: Run, db: Database, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """As `timeout 60 python worker.py` sends it: to the process, and to its group."""
    monkeypatch.setattr(process_signals, "REPEAT_WITHIN", math.inf)  # However busy the machine is.
    workers = Workers()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        signal.raise_signal(number)
        await until(lambda: job.scheduler.health().draining)
        signal.raise_signal(number)
        # The signal has come to the task that would cut when a later one comes to another.
        with anyio.open_signal_receiver(signal.SIGUSR1) as others:
            signal.raise_signal(signal.SIGUSR1)
            await anext(others)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()

    async def main() -> None:
        await Monque(db).enqueue("job")
        assert await run_until_signalled(db, workers) == SchedulerReport(completed=1)

    run(main)


@pytest.mark.full
@pytest.mark.parametrize("is_plain", [True, False])
def test_forked_child_of_a_handler_has_default_signals_and_its_end_does_not_touch_the_worker(
    run: Run, db: Database, is_plain: bool
) -> None:
    workers = Workers()
    ends: list[int] = []

    def end_a_child() -> None:
        ready, told = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork beside threads.
            child = os.fork()
        if child == 0:  # A pause that only a signal ends.
            os.write(told, b".")
            while True:
                time.sleep(60)
        try:
            # A child that is forked beside threads may find a lock taken, and never get here. Then this test must fail,
            # and not wait for it in a thread.
            assert becomes_readable(ready, 20), "the forked child has begun"
            os.kill(child, signal.SIGTERM)
            wait_until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT), "the child ends", 20)
        finally:
            os.close(ready)
            os.close(told)
            os.kill(child, signal.SIGKILL)  # It is not waited for yet, so the id is still its own.
            ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    @workers.register("plain")
    def plain(job: RunningJob[Any]) -> None:
        end_a_child()

    @workers.register("async")
    async def on_the_loop(job: RunningJob[Any]) -> None:
        end_a_child()

    @workers.register("other")
    async def other(job: RunningJob[Any]) -> None:
        await until(lambda: bool(ends))
        # A signal that the loop got from the child would have come by the time it gets this one.
        with anyio.open_signal_receiver(signal.SIGUSR1) as others:
            signal.raise_signal(signal.SIGUSR1)
            await anext(others)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert not job.scheduler.health().draining
        job.scheduler.drain()

    async def main() -> None:
        for name in ("other", "plain" if is_plain else "async"):
            await Monque(db).enqueue(name)
        assert await run_until_signalled(db, workers) == SchedulerReport(completed=2)
        assert ends == [-signal.SIGTERM]

    run(main)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_signal_during_the_start_ends_it(run: Run, silent: socket.socket) -> None:
    port = silent.getsockname()[1]

    async def main() -> None:
        with MongoClient[Any]("127.0.0.1", port, serverSelectionTimeoutMS=200, connect=False) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(signal_when_it_connects)
                scheduler = await tasks.start(run_until_signalled, client["any"], Workers())
            assert isinstance(scheduler, Scheduler)
            await scheduler.wait_drained()

    async def signal_when_it_connects() -> None:
        connection, _ = await anyio.to_thread.run_sync(silent.accept)
        with connection:
            signal.raise_signal(signal.SIGTERM)

    run(main)


def test_invalid_argument_is_refused(run: Run, db: Database) -> None:
    async def main() -> None:
        with pytest.raises(InvalidOptionError, match="must be the Workers"):
            await run_until_signalled(db, "workers")  # type: ignore[arg-type]

    run(main)
