"""A worker process, to be frozen, cut off and signalled. Started by `processes.py`; its order is its argument.

Its handlers write down when they start and end, by themselves, whatever the scheduler believes.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio
from pymongo import MongoClient

from tests.support.internals import engine_of
from trio_monque import RunningJob, Scheduler, Workers, run_until_signalled
from trio_monque.engine.lease import LeaseTerms
from trio_monque.errors import ClaimLostError
from trio_monque.events import JobClaimLost, JobCompleted, JobFailed

from .records import Recorder

TICK = 0.2
FILE_POLL_INTERVAL = 0.05


class Handlers:
    """What the process can run."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.workers = Workers()
        self.workers.register("works", self.works)
        self.workers.register("lasts", self.lasts)
        self.workers.register("ticks", self.ticks)
        self.workers.register("blocks", self.blocks)
        self.workers.register("kills", self.kills)

    def _write(self, job: RunningJob[Any], what: str, detail: str = "") -> None:
        self._recorder.write(what, str(job.id), job.attempt, detail)

    @contextmanager
    def _recorded(self, job: RunningJob[Any]) -> Iterator[None]:
        self._write(job, "start")
        try:
            yield
        finally:
            self._write(job, "end")

    async def works(self, job: RunningJob[dict[str, float]]) -> None:
        """Sleeps as many seconds as the data asks for this try."""
        await self._until(job, partial(trio.sleep, job.data["first" if job.attempt == 1 else "later"]))

    async def lasts(self, job: RunningJob[dict[str, str]]) -> None:
        """Each try until the file is there."""

        async def wait_for_file() -> None:
            while not await trio.Path(job.data["until"]).exists():
                await trio.sleep(FILE_POLL_INTERVAL)

        await self._until(job, wait_for_file)

    async def _until(self, job: RunningJob[Any], done: Callable[[], Awaitable[None]]) -> None:
        """Cancelled, it uses all the time for cleaning up that it can get."""
        with self._recorded(job):
            try:
                await done()
            except trio.Cancelled:
                self._write(job, "cancelled", str(job.cancel_reason))
                with job.cleanup(60):
                    while True:
                        await trio.sleep(0.01)
                        self._write(job, "cleaning")
                raise

    def blocks(self, job: RunningJob[None]) -> None:
        """The first try is a thread that never ends."""
        with self._recorded(job):
            if job.attempt == 1:
                threading.Event().wait()

    async def kills(self, job: RunningJob[None]) -> None:
        """Each try is the end of its process, also where its lease has run out by then."""
        self._write(job, "start")
        with trio.CancelScope(shield=True):
            await trio.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    async def ticks(self, job: RunningJob[dict[str, str]]) -> None:
        """The first try goes on for ever. Cancelled, it does what it must not, and ends as its data asks."""
        with self._recorded(job):
            if job.attempt > 1:
                while not await trio.Path(job.data["until"]).exists():
                    await trio.sleep(0.01)
                return
            try:
                while True:
                    await trio.sleep(TICK)
                    self._write(job, "passed")
            except trio.Cancelled:
                self._write(job, "cancelled", str(job.cancel_reason))
                with job.cleanup(60):
                    await trio.lowlevel.checkpoint()
                    self._write(job, "passed")
                await self._save_all_the_same(job)
                match job.data["then"]:
                    case "returns":
                        return
                    case "raises":
                        raise RuntimeError("no failure of the job's") from None
                raise

    async def _save_all_the_same(self, job: RunningJob[Any]) -> None:
        with trio.CancelScope(shield=True):
            try:
                await job.save("by a run that lost its claim")
            except ClaimLostError:
                self._write(job, "refused")
            else:
                self._write(job, "saved")


async def run(order: dict[str, Any]) -> None:
    recorder = Recorder(Path(order["records"]), order["name"])
    # Not closed: that would wait for a frozen server.
    client: MongoClient[Any] = MongoClient(order["uri"], tz_aware=True)

    def tell(what: str, event: JobClaimLost | JobCompleted | JobFailed) -> None:
        recorder.write(what, str(event.job.id), event.job.attempts, str(event.job.fail_count))

    async with trio.open_nursery() as nursery:
        scheduler: Scheduler = await nursery.start(
            partial(
                run_until_signalled,
                client[order["database"]],
                Handlers(recorder).workers,
                listeners={
                    JobClaimLost: partial(tell, "lost"),
                    JobCompleted: partial(tell, "reported completed"),
                    JobFailed: partial(tell, "reported failed"),
                },
                instance_id=order["name"],
                **order["options"],
            )
        )
        recorder.write("ready")
        await engine_of(scheduler).stop.draining.wait()
        recorder.write("draining")
    recorder.write("left")


def work(order: dict[str, Any]) -> None:
    if order["unfenced"]:
        # The mutation that shows what the lease is for: a run goes on until a write shows that its claim is gone.
        LeaseTerms.lease_deadline = lambda self, sent: math.inf  # type: ignore[method-assign]
    trio.run(run, order)


if __name__ == "__main__":
    print("loaded", flush=True)  # noqa: T201
    sys.stdin.readline()
    work(json.loads(sys.argv[1]))
