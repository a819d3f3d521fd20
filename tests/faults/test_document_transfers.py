"""Transfers in transactions of claims, through kills, lost commit replies and a process that outlived its lease.

Each is written exactly once: no effect without the update of its document, no update without its effect, none twice.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.support.waiting import wait_until
from tests.support.wire import Command
from trio_monque.store.driver.types import Database

from .document_scenario import OPTIONS
from .document_transfers import COLLECTION
from .processes import OwnServer, WorkerProcess, frozen, worker_process
from .proxy import faulty_proxy
from .scenario import SEED, outlast_lease
from .transfers import ACCOUNTS, fill, transfers

pytestmark = [pytest.mark.timeout(200), pytest.mark.full]

MANY: Final = 600
KILLS: Final = 6


class Orders:
    """The documents of the transfers, and what has become of them."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db = db
        self.records = folder / "records"
        self.records.mkdir()
        self._numbers = iter(range(1000))
        fill(db)
        # What a killed process had locked in a transaction is free after two seconds, and not after a minute.
        db.client.admin.command("setParameter", 1, transactionLifetimeLimitSeconds=2)
        self.data = transfers(Random(SEED), MANY)
        db[COLLECTION].insert_many([{"_id": number, "state": "new", **one} for number, one in enumerate(self.data)])

    def worker(self, uri: str) -> AbstractContextManager[WorkerProcess]:
        name = f"clerk-{next(self._numbers)}"
        options = {**OPTIONS, "max_attempts": 1000, "operation_timeout": 3.0, "concurrency": 4}
        path = self.records / f"{name}.records"
        return worker_process(name, uri, self.db.name, path, module="tests.faults.document_transfers", **options)

    def done(self) -> int:
        return self.db[COLLECTION].count_documents({"state": "done"})

    def goes_on(self, by: int = 20) -> None:
        wanted = min(self.done() + by, MANY)
        wait_until(lambda: self.done() >= wanted, "transfers are made", seconds=60)

    def judge(self) -> None:
        documents = list(self.db[COLLECTION].find())
        assert all("lock" not in one for one in documents)
        assert Counter((one["state"], one["results"]) for one in documents) == {("done", 1): MANY}
        assert Counter(effect["job"] for effect in self.db.effects.find()) == Counter(range(MANY))
        expected = dict.fromkeys(range(ACCOUNTS), 0)
        for one in self.data:
            expected[one["from"]] -= one["amount"]
            expected[one["to"]] += one["amount"]
        assert {one["_id"]: one["balance"] for one in self.db.accounts.find()} == expected


def test_each_transfer_of_a_document_is_made_once_through_kills_lost_replies_and_a_thawed_process(
    own_server: OwnServer, own_db: Database, tmp_path: Path
) -> None:
    orders, random = Orders(own_db, tmp_path), Random(SEED)

    def chooses(command: Command) -> bool:
        return next(iter(command)) == "commitTransaction" and random.random() < 0.25

    with faulty_proxy(own_db.client.address or ("", None)) as proxy, ExitStack() as stack:

        def opened() -> WorkerProcess:
            worker = stack.enter_context(orders.worker(proxy.uri("serverMonitoringMode=poll")))
            worker.open()
            return worker

        proxy.lose_replies(chooses)
        workers = [opened() for _ in range(3)]
        for _ in range(KILLS):
            orders.goes_on()
            workers.pop(0).process.kill()
            workers.append(opened())
        orders.goes_on()
        with frozen(workers[0].pid):
            orders.goes_on()
            outlast_lease()
        wait_until(lambda: orders.done() == MANY, "all transfers are made", seconds=120)
        proxy.lose_nothing()
        for worker in workers:
            assert worker.process.wait(20) == 0, worker.aborted()
        assert proxy.lost > MANY / 10
    orders.judge()
