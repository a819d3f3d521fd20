"""Jobs of a few keys are replaced and debounced all the time: the last word of each key runs, through every kill."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest

from tests.support.waiting import wait_until
from trio_monque import Monque
from trio_monque.store.driver.types import Database

from .members import ReplicaSet
from .processes import WorkerProcess, worker_process
from .scenario import OPTIONS
from .torments import cut_off, kill

pytestmark = [pytest.mark.timeout(300), pytest.mark.full]

KEYS: Final = ("a", "b", "c")
KILLS: Final = 4
RUNS_BETWEEN: Final = 40

PATIENT: Final = {**OPTIONS, "max_rescues": 1000, "operation_timeout": 3.0}


class Builders:
    """The callers, one for each key, and what they wrote last."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db = db
        self.last: dict[str, int] = {}
        self.outcomes: Counter[str] = Counter()
        self._folder = folder
        self._monque = Monque(db, operation_timeout=60.0).sync
        self._ends = Event()

    @contextmanager
    def calling(self) -> Iterator[None]:
        with ThreadPoolExecutor(len(KEYS)) as pool:
            calls = [pool.submit(self._call, key) for key in KEYS]
            try:
                yield
            finally:
                self._ends.set()
            for one in calls:
                one.result()

    def _call(self, key: str) -> None:
        chance, number = random.Random(key), 0
        while not self._ends.is_set():
            options: Any = {"on_conflict": "replace"}
            if chance.random() < 0.5:
                options = {"on_conflict": "debounce", "delay": chance.random() * 0.1, "max_wait": 0.2}
            enqueued = self._monque.enqueue_with_outcome("build", number, unique_key=key, **options)
            self.outcomes[enqueued.outcome] += 1
            self.last[key] = number
            number += 1
            self._ends.wait(chance.random() * 0.01)

    def opened(self, stack: ExitStack, number: int, uri: str) -> WorkerProcess:
        name = f"builder-{number}"
        records = self._folder / f"{name}.records"
        module = "tests.faults.replaced"
        worker = stack.enter_context(worker_process(name, uri, self.db.name, records, module=module, **PATIENT))
        worker.open()
        return worker

    def goes_on(self) -> None:
        before = self.db.runs.count_documents({})
        wait_until(lambda: self.db.runs.count_documents({}) >= before + RUNS_BETWEEN, "jobs run", seconds=60)

    def judge(self) -> None:
        left = self.db.monque_jobs.find({"again": {"$exists": True}})
        assert list(left) == []
        for key in KEYS:
            assert self.db.runs.count_documents({"key": key, "number": self.last[key]}) >= 1
        # Each attempt of a job is one run: two at once would have the same number.
        attempts = Counter((one["job"], one["attempt"]) for one in self.db.runs.find())
        assert set(attempts.values()) == {1}
        assert self.outcomes["again"] > 100


def test_last_word_of_each_key_runs_through_kills_and_elections(
    three_members: ReplicaSet, three_db: Database, tmp_path: Path
) -> None:
    builders = Builders(three_db, tmp_path)
    uri = three_members.uri
    with ExitStack() as stack:
        workers = [builders.opened(stack, number, uri) for number in range(2)]
        with builders.calling():
            for number in range(KILLS):
                builders.goes_on()
                workers.pop(0).process.send_signal(signal.SIGKILL)
                workers.append(builders.opened(stack, 2 + number, uri))
            # Both lose answers, and the second one rolls writes back.
            for torment in (kill, cut_off):
                builders.goes_on()
                torment(three_members, three_db.name, builders.goes_on)
        unfinished = {"status": {"$ne": "completed"}, "name": "build"}
        wait_until(lambda: not three_db.monque_jobs.count_documents(unfinished), "all is built", seconds=60)
        for worker in workers:
            worker.end()
    builders.judge()
