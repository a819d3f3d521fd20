"""Two thousand transfers in transactions of jobs, through kills, elections, lost commit replies and thawed processes.

Each is written exactly once: no effect without the end of its job, no end without its effect, no effect twice.
"""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.support.waiting import wait_until
from tests.support.wire import Command
from trio_monque import Monque
from trio_monque.store.driver.types import Database

from .members import ReplicaSet
from .processes import OwnServer, WorkerProcess, frozen, worker_process
from .proxy import faulty_proxy
from .scenario import OPTIONS, SEED, outlast_lease
from .torments import IN_TURN
from .transfers import ACCOUNTS, NAME, fill, transfers

pytestmark = [pytest.mark.timeout(300), pytest.mark.full]

MANY: Final = 2000
KILLS: Final = 8
THAWS: Final = 4

# As often as it takes: what is asked for here is not how often a job may die.
PATIENT: Final = {**OPTIONS, "max_attempts": 1000, "max_rescues": 1000, "operation_timeout": 3.0}


class Bank:
    """The jobs of the transfers, and what has become of them."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db = db
        self.records = folder / "records"
        self.records.mkdir()
        self._numbers = iter(range(1000))
        fill(db)
        self.data = transfers(Random(SEED), MANY)
        self._left = iter(self.data)
        self.ordered = 0
        self._monque = Monque(db, operation_timeout=30.0).sync

    def order(self, number: int = MANY) -> None:
        """Enqueue the next of the transfers."""
        for one in islice(self._left, number):
            self.ordered += 1
            self._monque.enqueue(f"plain-{NAME}" if one["is_plain"] else NAME, one)

    def worker(self, uri: str) -> AbstractContextManager[WorkerProcess]:
        name = f"teller-{next(self._numbers)}"
        return worker_process(
            name, uri, self.db.name, self.records / f"{name}.records", module="tests.faults.transfers", **PATIENT
        )

    def done(self) -> int:
        return self.db.monque_jobs.count_documents({"status": "completed"})

    def goes_on(self, by: int = 40) -> None:
        """Return when this number of further ones is made, and about as many are left."""
        before = self.done()
        self.order(2 * by)
        wait_until(lambda: self.done() >= min(before + by, self.ordered), "transfers are made", seconds=60)

    def completes(self) -> None:
        """Return when all are made, which may take as long as there is progress."""
        while (before := self.done()) < MANY:
            wait_until(lambda: self.done() >= min(before + 40, MANY), "transfers are made", seconds=60)

    def judge(self) -> None:
        jobs = list(self.db.monque_jobs.find())
        assert Counter(job["status"] for job in jobs) == {"completed": MANY}
        effects = Counter(effect["job"] for effect in self.db.effects.find())
        assert effects == Counter(job["_id"] for job in jobs)
        assert all(job["result"] == job["data"]["amount"] for job in jobs)
        expected = dict.fromkeys(range(ACCOUNTS), 0)
        for one in self.data:
            expected[one["from"]] -= one["amount"]
            expected[one["to"]] += one["amount"]
        assert {one["_id"]: one["balance"] for one in self.db.accounts.find()} == expected


def test_each_transfer_is_made_once_through_kills_elections_and_thawed_processes(
    three_members: ReplicaSet, three_db: Database, tmp_path: Path
) -> None:
    bank = Bank(three_db, tmp_path)
    with ExitStack() as stack:

        def opened() -> WorkerProcess:
            worker = stack.enter_context(bank.worker(three_members.uri))
            worker.open()
            return worker

        workers = [opened() for _ in range(3)]
        for _ in range(KILLS):
            bank.goes_on(20)
            workers.pop(0).process.send_signal(signal.SIGKILL)
            workers.append(opened())
        for torment in IN_TURN:
            bank.goes_on()
            torment(three_members, three_db.name, bank.goes_on)
        for _ in range(THAWS):
            bank.goes_on(20)
            with frozen(workers[0].pid):
                bank.goes_on(20)
                outlast_lease()
            workers.append(workers.pop(0))
        bank.order()
        bank.completes()
        for worker in workers:
            worker.end()
    bank.judge()


def test_each_transfer_is_made_once_where_every_fourth_commit_loses_its_reply(
    own_server: OwnServer, own_db: Database, tmp_path: Path
) -> None:
    bank = Bank(own_db, tmp_path)
    bank.order()
    random = Random(SEED)

    def chooses(command: Command) -> bool:
        return next(iter(command)) == "commitTransaction" and random.random() < 0.25

    with faulty_proxy(own_db.client.address or ("", None)) as proxy, ExitStack() as stack:
        proxy.lose_replies(chooses)
        workers = [stack.enter_context(bank.worker(proxy.uri("serverMonitoringMode=poll"))) for _ in range(2)]
        for worker in workers:
            worker.open()
        bank.completes()
        proxy.lose_nothing()
        for worker in workers:
            worker.end()
        assert proxy.lost > MANY / 10
    bank.judge()
