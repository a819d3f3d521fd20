"""Workflows of job nurseries through kills, freezes, drains and elections: each ends as its number says, and once."""

from __future__ import annotations

import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.support.thoroughly import THOROUGH
from tests.support.waiting import wait_until
from trio_monque import Monque, NewJob
from trio_monque.store.driver.types import Database, ObjectId

from .members import ReplicaSet
from .nursery_judge import Witnessed, judge, witnessed
from .processes import OwnServer, WorkerProcess, frozen, worker_process
from .scenario import LEASE, OPTIONS, SEED
from .torments import cut_off, freeze, kill, step_down

pytestmark = [pytest.mark.timeout(5400), pytest.mark.full]

SECONDS: Final = 3600 if THOROUGH else 90
AT_ONCE: Final = 12

PATIENT: Final = {**OPTIONS, "max_rescues": 1000, "operation_timeout": 3.0, "shutdown_timeout": 0.5}


class Fleet:
    """The workflows that were enqueued, and the processes that run them: on trio and on asyncio in turn."""

    def __init__(self, db: Database, uri: str, folder: Path, found: Witnessed, stack: ExitStack) -> None:
        self.db = db
        self.numbers: dict[ObjectId, int] = {}
        self.workers: list[WorkerProcess] = []
        self.done: Counter[str] = Counter()
        self._uri = uri
        self._folder = folder
        self._found = found
        self._stack = stack
        self._opened = 0
        self._monque = Monque(db, operation_timeout=30.0).sync

    def open_one(self) -> None:
        name = f"flow-{self._opened}"
        loop = "asyncio" if self._opened % 2 else "trio"
        self._opened += 1
        worker = self._stack.enter_context(
            worker_process(
                name,
                self._uri,
                self.db.name,
                self._folder / f"{name}.records",
                module="tests.faults.nursery_worker",
                loop=loop,
                **PATIENT,
            )
        )
        worker.open()
        self.workers.append(worker)

    def enqueue(self) -> None:
        number = len(self.numbers)
        found = self._monque.enqueue_many([NewJob("order", one) for one in range(number, number + AT_ONCE)])
        self.numbers |= {job.id: job.data for job in found}

    def completed(self) -> int:
        return sum(self._found.completions[one] > 0 for one in self.numbers)

    def goes_on(self) -> None:
        """Enqueue further workflows, and return when some of them have ended."""
        before = self.completed()
        self.enqueue()
        wait_until(lambda: self.completed() >= before + AT_ONCE // 3, "workflows end", seconds=90)

    def kill_one(self) -> None:
        self.workers.pop(0).process.send_signal(signal.SIGKILL)
        self.open_one()

    def freeze_one(self) -> None:
        with frozen(self.workers[0].pid):
            end = time.monotonic() + LEASE + 1
            self.goes_on()
            wait_until(lambda: time.monotonic() > end, "its lease is over")

    def drain_one(self) -> None:
        self.workers.pop(0).end()
        self.open_one()

    def ends(self) -> None:
        wait_until(lambda: self.completed() == len(self.numbers), "all workflows end", seconds=240)
        wait_until(lambda: not self._found.live(), "nothing lives", seconds=60)
        for worker in self.workers:
            worker.end()


def test_workflows_end_as_they_should_through_kills_freezes_and_drains(
    own_server: OwnServer, own_db: Database, tmp_path: Path
) -> None:
    random, began = Random(SEED), time.monotonic()
    with witnessed(own_server.uri, own_db.name) as found, ExitStack() as stack:
        fleet = Fleet(own_db, own_server.uri, tmp_path, found, stack)
        for _ in range(3):
            fleet.open_one()
        while time.monotonic() < began + SECONDS:
            fleet.goes_on()
            torment = random.choice((fleet.kill_one, fleet.kill_one, fleet.freeze_one, fleet.drain_one))
            fleet.done[torment.__name__] += 1
            torment()
        fleet.ends()
    print(dict(fleet.done), dict(judge(own_db, found, fleet.numbers, tmp_path)))  # noqa: T201  # pytest -rP shows it.


def test_workflows_end_as_they_should_through_elections(
    three_members: ReplicaSet, three_db: Database, tmp_path: Path
) -> None:
    uri = three_members.uri
    with witnessed(uri, three_db.name) as found, ExitStack() as stack:
        fleet = Fleet(three_db, uri, tmp_path, found, stack)
        for _ in range(3):
            fleet.open_one()
        for torment in (step_down, kill, freeze, cut_off):
            fleet.goes_on()
            torment(three_members, three_db.name, fleet.goes_on)
            fleet.kill_one()
        fleet.ends()
    print(dict(judge(three_db, found, fleet.numbers, tmp_path)))  # noqa: T201  # pytest -rP shows it.
