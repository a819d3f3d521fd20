"""Workflows and trees of job nurseries through kills, freezes, drains and elections: each ends as it should, once.

Two kinds of jobs in one fleet: orders, of two levels, and trees of three levels and a thousand jobs each. A tree
follows another until the time is over.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count, cycle, islice
from pathlib import Path
from random import Random
from typing import Final

import pytest
from pymongo.read_concern import ReadConcern

from tests.support.thoroughly import THOROUGH
from tests.support.waiting import wait_until
from trio_monque import Monque, NewJob
from trio_monque.errors import PartialEnqueueError
from trio_monque.store.driver.types import Database, ObjectId

from .members import ReplicaSet
from .nursery_judge import judge
from .nursery_witness import LIVE, Witnessed, witnessed
from .processes import OwnServer, WorkerProcess, frozen, worker_process
from .scenario import OPTIONS, SEED
from .torments import IN_TURN

# The longest timeout of all tests: it begins first, as it takes ten minutes, and an hour where all is tried.
pytestmark = [pytest.mark.timeout(6000), pytest.mark.full]

SECONDS: Final = 600 if THOROUGH else 120
SECONDS_WITH_ELECTIONS: Final = 3600 if THOROUGH else 480

# In the full part, other tests run beside these on the same machine.
AT_ONCE: Final = 12 if THOROUGH else 6
PAUSE: Final = 0.0 if THOROUGH else 3.0
"""Seconds after each kill, freeze or drain."""
TREE_EVERY: Final = 0.0 if THOROUGH else 30.0
"""Seconds from the begin of a tree to that of the next one, at least."""

NICER_BY: Final = 5
"""Steps of priority below this process, for the workers: they take all the processors that they get."""

MOST_DOUBTFUL: Final = 20
"""Calls of `enqueue_many` that may get no answer, as the primary froze."""

HEARTBEAT: Final = 1.0
"""Not so short that a busy machine takes all claims away, again and again: then no tree would end."""
LEASE: Final = 3 * HEARTBEAT

PATIENT: Final = {
    **OPTIONS,
    "heartbeat_interval": HEARTBEAT,
    "max_rescues": 1000,
    "operation_timeout": 3.0,
    "shutdown_timeout": 0.5,
}


class Fleet:
    """The workflows that were enqueued, and the processes that run them: on trio and on asyncio in turn."""

    def __init__(self, db: Database, uri: str, folder: Path, found: Witnessed, stack: ExitStack) -> None:
        self.db = db
        self.numbers: dict[ObjectId, int] = {}
        self.roots: list[ObjectId] = []
        self.workers: list[WorkerProcess] = []
        self.done: Counter[str] = Counter()
        self._uri = uri
        self._folder = folder
        self._found = found
        self._stack = stack
        self._opened = 0
        self._under_way: set[ObjectId] = set()
        self._numbers: dict[str, Iterator[int]] = {"order": count(), "root": count()}
        self._doubtful: dict[ObjectId, tuple[str, int]] = {}
        self._next_tree_at = 0.0
        self._until_dead: dict[str, ExitStack] = {}
        self._monque = Monque(db, operation_timeout=30.0).sync

    def open_one(self) -> None:
        name = f"flow-{self._opened}"
        loop = "asyncio" if self._opened % 2 else "trio"
        self._opened += 1
        until_dead = self._stack.enter_context(ExitStack())
        worker = until_dead.enter_context(
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
        # Otherwise they would take the time of the servers and of what is between them: elections without a torment.
        os.setpriority(os.PRIO_PROCESS, worker.pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICER_BY))
        worker.open()
        self.workers.append(worker)
        self._until_dead[worker.name] = until_dead

    def enqueue(self) -> None:
        while not (found := self._enqueued("order", AT_ONCE)):
            pass
        self.numbers |= found
        self._under_way |= set(found)
        if not self.has_tree() and time.monotonic() >= self._next_tree_at:
            self._next_tree_at = time.monotonic() + TREE_EVERY
            self.roots += self._enqueued("root", 1)

    def _enqueued(self, name: str, number: int) -> dict[ObjectId, int]:
        """The numbers of new jobs by their ids, without those that a frozen primary may still store."""
        chosen = list(islice(self._numbers[name], number))
        new = [NewJob(name, [one] if name == "root" else one) for one in chosen]
        try:
            found = {at: job.id for at, job in enumerate(self._monque.enqueue_many(new))}
        except PartialEnqueueError as error:
            found = {at: ObjectId(one) for at, one in error.enqueued.items()}
            self._doubtful |= {ObjectId(one): (name, chosen[at]) for at, one in error.unknown.items()}
            self.done["doubtful enqueue"] += 1
            assert self.done["doubtful enqueue"] < MOST_DOUBTFUL
        return {job_id: chosen[at] for at, job_id in found.items()}

    def _look_for_the_doubtful(self) -> None:
        """Each primary that froze is a secondary since: what it stored is there, and the rest never will be."""
        jobs = self.db["monque_jobs"].with_options(read_concern=ReadConcern("majority"))
        for document in jobs.find({"_id": {"$in": list(self._doubtful)}}, {"_id": True}):
            name, number = self._doubtful[document["_id"]]
            if name == "root":
                self.roots.append(document["_id"])
            else:
                self.numbers[document["_id"]] = number
                self._under_way.add(document["_id"])

    def has_tree(self) -> bool:
        """Whether one grows."""
        return bool(self.roots) and self._found.status.get(self.roots[-1], "pending") in LIVE

    def completed(self) -> int:
        self._under_way = {one for one in self._under_way if not self._found.completions[one]}
        return len(self.numbers) - len(self._under_way)

    def goes_on(self) -> None:
        """Enqueue further workflows, and return when some of them have ended."""
        before = self.completed()
        self.enqueue()
        for further in range(1, AT_ONCE // 3 + 1):  # For as long as there is progress, also on a busy machine.
            self._wait_completed(before + further)

    def _wait_completed(self, number: int) -> None:
        self._wait(lambda: self.completed() >= number, "a workflow ends", seconds=90)

    def _wait(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        wait_until(lambda: self._found.faults or condition(), what, seconds=seconds, pause=0.05)
        assert not self._found.faults, "\n".join(self._found.faults)

    def kill_one(self) -> None:
        worker = self.workers.pop(0)
        worker.process.send_signal(signal.SIGKILL)
        self._replace(worker)

    def freeze_one(self) -> None:
        """The oldest one, for longer than its lease. Afterwards it is the last in turn."""
        worker = self.workers.pop(0)
        with frozen(worker.pid):
            until = time.monotonic() + LEASE + 1
            self.goes_on()
            _wait_past(until)
        self.workers.append(worker)

    def drain_one(self) -> None:
        worker = self.workers.pop(0)
        worker.end()
        self._replace(worker)

    def _replace(self, worker: WorkerProcess) -> None:
        self._until_dead.pop(worker.name).close()
        self.open_one()

    def torment_one(self, random: Random) -> None:
        torment = random.choice((self.kill_one, self.kill_one, self.freeze_one, self.drain_one))
        self.done[torment.__name__] += 1
        torment()
        _wait_past(time.monotonic() + PAUSE)

    def has_done_enough(self, until: float) -> bool:
        """The time is over, and one tree has followed another."""
        return time.monotonic() > until and len(self.roots) > 1

    def ends(self) -> None:
        self._look_for_the_doubtful()
        self._wait(lambda: self.completed() == len(self.numbers), "all workflows end", seconds=240)
        self._wait(lambda: not self.has_tree(), "the tree ends", seconds=240)
        self._wait(lambda: not self._found.live(), "nothing lives", seconds=60)
        for worker in self.workers:
            worker.end()


def test_workflows_and_trees_end_as_they_should_through_kills_freezes_and_drains(
    own_server: OwnServer, own_db: Database, tmp_path: Path
) -> None:
    random, until = Random(SEED), time.monotonic() + SECONDS
    with witnessed(own_server.uri, own_db.name) as found, ExitStack() as stack:
        fleet = Fleet(own_db, own_server.uri, tmp_path, found, stack)
        for _ in range(3):
            fleet.open_one()
        while not fleet.has_done_enough(until):
            fleet.goes_on()
            fleet.torment_one(random)
        fleet.ends()
    _judge(fleet, found, tmp_path)


def test_workflows_and_trees_end_as_they_should_through_elections(
    three_members: ReplicaSet, three_db: Database, tmp_path: Path
) -> None:
    random, until = Random(SEED), time.monotonic() + SECONDS_WITH_ELECTIONS
    uri, losses = three_members.uri, cycle(IN_TURN)
    with witnessed(uri, three_db.name) as found, ExitStack() as stack:
        fleet = Fleet(three_db, uri, tmp_path, found, stack)
        for _ in range(3):
            fleet.open_one()
        while not fleet.has_done_enough(until):
            for _ in range(random.randrange(1, 4)):
                fleet.goes_on()
                fleet.torment_one(random)
            lose_primary = next(losses)
            fleet.done[f"{lose_primary.__name__} of the primary"] += 1
            lose_primary(three_members, three_db.name, fleet.goes_on)
        fleet.ends()
    _judge(fleet, found, tmp_path)


def _wait_past(until: float) -> None:
    wait_until(lambda: time.monotonic() > until, "that time is over", pause=0.05)


def _judge(fleet: Fleet, found: Witnessed, records: Path) -> None:
    seen = judge(fleet.db, found, fleet.numbers, len(fleet.roots), records)
    print(dict(fleet.done), dict(seen))  # noqa: T201  # pytest -rP shows it.
