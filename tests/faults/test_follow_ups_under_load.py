"""Each job that ends has exactly one follow-up: through kills of processes, elections, and servers that freeze.

Retention deletes jobs as soon as it may, so that a write that arrives late meets a job that is gone.
"""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.support.waiting import wait_until
from trio_monque import Monque, NewJob
from trio_monque.store.driver.types import Database

from .members import ReplicaSet
from .processes import WorkerProcess, worker_process
from .scenario import OPTIONS
from .torments import cut_off, freeze

pytestmark = [pytest.mark.timeout(300), pytest.mark.full]

AT_ONCE: Final = 60
KILLS: Final = 5

PATIENT: Final = {**OPTIONS, "max_rescues": 1000, "operation_timeout": 3.0}


class Warehouse:
    """The jobs that are packed, and what was shipped."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db = db
        self.folder = folder
        self.packed: dict[object, int] = {}
        self._monque = Monque(db, operation_timeout=30.0).sync

    def shipped(self) -> int:
        return self.db.shipped.count_documents({})

    def goes_on(self) -> None:
        """Enqueue further ones, and return when half of them are shipped."""
        before, number = self.shipped(), len(self.packed)
        numbers = range(number, number + AT_ONCE)
        found = self._monque.enqueue_many([NewJob("pack", one) for one in numbers])
        self.packed |= {job.id: one for job, one in zip(found, numbers, strict=True)}
        wait_until(lambda: self.shipped() >= before + AT_ONCE // 2, "parcels are shipped", seconds=60)

    def opened(self, stack: ExitStack, number: int, uri: str) -> WorkerProcess:
        name = f"packer-{number}"
        records = self.folder / f"{name}.records"
        module = "tests.faults.follow_ups"
        worker = stack.enter_context(worker_process(name, uri, self.db.name, records, module=module, **PATIENT))
        worker.open()
        return worker

    def judge(self) -> None:
        shipped = list(self.db.shipped.find())
        assert Counter(one["parent"] for one in shipped) == Counter(list(self.packed))
        for one in shipped:
            assert one["status"] == ("failed" if self.packed[one["parent"]] % 3 == 0 else "completed")
        assert self.db.monque_jobs.count_documents({}) == 0, "nothing is held, and nothing owes"


def test_each_job_is_followed_once_through_kills_and_elections(
    three_members: ReplicaSet, three_db: Database, tmp_path: Path
) -> None:
    warehouse = Warehouse(three_db, tmp_path)
    uri = three_members.uri
    with ExitStack() as stack:
        workers = [warehouse.opened(stack, number, uri) for number in range(3)]
        for number in range(KILLS):
            warehouse.goes_on()
            workers.pop(0).process.send_signal(signal.SIGKILL)
            workers.append(warehouse.opened(stack, 3 + number, uri))
        # Both leave writes behind that arrive late, or are rolled back.
        for torment in (freeze, cut_off):
            warehouse.goes_on()
            torment(three_members, three_db.name, warehouse.goes_on)
        # A last look of a new scheduler: what a killed one has left must not wait for half a minute.
        wait_until(lambda: warehouse.shipped() >= len(warehouse.packed) - AT_ONCE, "most is shipped", seconds=60)
        workers.append(warehouse.opened(stack, 99, uri))
        jobs = three_db.monque_jobs
        wait_until(lambda: jobs.count_documents({}) == 0, "all is shipped and deleted", seconds=90)
        for worker in workers:
            worker.end()
    warehouse.judge()
