"""Schedulers in trouble, to be left while their server is frozen; and the commands that are caught in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio
from pymongo import MongoClient, monitoring

from tests.support.interception import is_claim, is_settlement
from trio_monque import RunningJob, Scheduler, Workers

Matches = Callable[[str, Any], bool]


class Gate(monitoring.CommandListener):
    """Holds commands right before they are sent, until the server is frozen: then they are sent into that.

    A driver's command listener is called in the thread that sends, before it does.
    """

    def __init__(self, frozen: threading.Event) -> None:
        self._frozen = frozen
        self._wanted: list[Matches] = []
        self.held = 0

    def hold(self, matches: Matches) -> None:
        """The next one that matches."""
        self._wanted.append(matches)

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        for matches in tuple(self._wanted):
            if matches(event.command_name, event.command):
                self._wanted.remove(matches)
                self.held += 1
                self._frozen.wait()

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


# What keeps a scheduler from leaving -> the jobs that bring it about.
TROUBLES: Final[Mapping[str, tuple[str, ...]]] = {
    "a claim in flight": ("claimed",),
    "a batch being settled": ("quick",),
    "a thread that does not end": ("thread",),
    "a clean-up that asks for too long": ("lingering",),
    "an enqueue without an answer": ("enqueuing",),
    "a checkpoint without an answer": ("saving",),
    "all at once": ("quick", "thread", "lingering", "enqueuing", "saving", "claimed"),
}


class Trouble:
    """One scheduler's; on a client of its own.

    Attributes:
        workers: What its scheduler runs.
    """

    def __init__(self, jobs: tuple[str, ...], uri: str, frozen: threading.Event) -> None:
        self.jobs = jobs
        self._gate = Gate(frozen)
        self.client: MongoClient[Any] = MongoClient(uri, tz_aware=True, event_listeners=[self._gate])
        self.is_frozen = trio.Event()
        self.may_end = threading.Event()
        self._finish = trio.Event()
        self._started = 0
        self.workers = Workers()
        for name in jobs:
            self.workers.register(name, getattr(self, f"_{name}"))

    async def arrange(self, scheduler: Scheduler) -> None:
        """Returns when it is in trouble, as soon as its server is frozen."""
        running = [name for name in self.jobs if name != "claimed"]
        for name in running:
            await scheduler.enqueue(name)
        await _until(lambda: self._started == len(running))
        if "quick" in self.jobs:
            self._gate.hold(is_settlement)
            self._finish.set()
            await _until(lambda: self._gate.held == 1)
        if "claimed" in self.jobs:
            self._gate.hold(is_claim)
            held = self._gate.held
            await scheduler.enqueue("claimed")
            await _until(lambda: self._gate.held == held + 1)

    async def _claimed(self, job: RunningJob[None]) -> None:
        raise AssertionError("its answer comes when the scheduler has ended")

    async def _quick(self, job: RunningJob[None]) -> None:
        self._started += 1
        await self._finish.wait()

    def _thread(self, job: RunningJob[None]) -> None:
        self._started += 1
        self.may_end.wait()

    async def _lingering(self, job: RunningJob[None]) -> None:
        self._started += 1
        try:
            await trio.sleep_forever()
        finally:
            with job.cleanup(1000):
                await trio.sleep_forever()

    async def _enqueuing(self, job: RunningJob[None]) -> None:
        self._started += 1
        await self.is_frozen.wait()
        await job.scheduler.enqueue("another")

    async def _saving(self, job: RunningJob[None]) -> None:
        self._started += 1
        await self.is_frozen.wait()
        await job.save("half of it")


async def _until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not condition():
            await trio.sleep(0.005)
