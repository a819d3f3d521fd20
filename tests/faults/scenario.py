"""A scenario: processes under load, what befalls them, and the outcome of the checker at the end."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from pymongo import MongoClient

from tests.support.standstills import Witness
from tests.support.waiting import wait_until
from trio_monque import Monque
from trio_monque.store.driver.types import Database

from . import processes
from .history import read_history
from .mixture import Enqueuer, is_over
from .processes import WorkerProcess, worker_process
from .promises import Evidence, Rule, broken
from .records import Recorder, read

JOBS: Final = 2000
"""With fewer, a process may have nothing left when it is killed or frozen on a busy machine."""
SEED: Final = int(os.environ.get("MONQUE_TEST_SEED", "17"))
HEARTBEAT: Final = 0.4
LEASE: Final = 3 * HEARTBEAT
REAPER_PASS: Final = HEARTBEAT / 2

# Seconds in which the server has done what was on its way to it. No party can report that: what lies in a
# connection is neither the sender's nor the server's. Where it takes longer, a process is killed that has settled
# all it held, and proves less; that jobs of it are rescued is asked for elsewhere.
ARRIVAL: Final = 0.1

# What is promised is one lease and one pass of the reaper. The rest is for commands on a machine that is busy; what it
# stands still altogether is not counted.
RESCUED_WITHIN: Final = LEASE + REAPER_PASS + 1.0

STANDSTILL: Final = 30.0
"""Seconds after which a fleet under load that has ended no job is stuck."""

OPTIONS: Final[Mapping[str, Any]] = {
    "concurrency_per_name": 20,
    "heartbeat_interval": HEARTBEAT,
    "operation_timeout": 2.0,
    "base_retry_interval": 0.02,
    "poll_interval": 0.05,
    # On a busy machine, runs miss their leases again and again. Too many in a row would count as a failed attempt.
    "max_rescues": 100,
}


def outlast_lease() -> None:
    """Return when a lease that began now is over."""
    end = time.monotonic() + LEASE + 0.5
    wait_until(lambda: time.monotonic() > end, "a lease is over")


@dataclass
class Scenario:
    """One of these tests.

    Attributes:
        uri: Of the server.
        folder: The test's own; each process has its records there.
        recorder: Of the test itself.
        random: For all random choices.
        witness: Of standstills of the machine.
    """

    uri: str
    db: Database
    folder: Path
    seed: int
    witness: Witness

    def __post_init__(self) -> None:
        self.records = self.folder / "records"
        self.records.mkdir()
        self.recorder = Recorder(self.records / "test.records", "test")
        self.random = Random(self.seed)
        self._workers: list[WorkerProcess] = []

    def enqueuer(
        self,
        number: int = 0,
        db: Database | None = None,
        client_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Enqueuer:
        client: dict[str, Any] = {"operation_timeout": OPTIONS["operation_timeout"], **(client_options or {})}
        monque = Monque(self.db if db is None else db, **client)
        return Enqueuer(monque, self.recorder, self.seed * 100 + number, **options)

    @property
    def started_as(self) -> Mapping[str, Any]:
        """The module of a worker process, and its options."""
        return {"module": "tests.faults.mixed_worker", **OPTIONS}

    @contextmanager
    def worker(self, name: str, uri: str | None = None, **options: Any) -> Iterator[WorkerProcess]:
        with worker_process(
            name,
            uri or self.uri,
            self.db.name,
            self.records / f"{name}.records",
            **{**self.started_as, **options},
        ) as worker:
            self._workers.append(worker)
            yield worker

    def held_by(self, worker: WorkerProcess) -> int:
        return self.db["monque_jobs"].count_documents({"status": "processing", "claimedBy": worker.name})

    def kill(self, worker: WorkerProcess) -> None:
        """While it holds something: it is frozen first, for far less than its lease, so that this cannot change."""

        def is_killed() -> bool:
            with processes.frozen(worker.pid):
                time.sleep(ARRIVAL)
                if is_holding := self.held_by(worker) > 0:
                    worker.process.kill()
            return is_holding

        self.wait(is_killed, f"{worker.name} holds something")
        worker.process.wait()
        self.recorder.write("killed", detail=worker.name)

    @contextmanager
    def frozen(self, worker: WorkerProcess) -> Iterator[None]:
        """In the middle of a run: claims without an answer by then would never begin, and prove less."""
        began_at = 0.0
        with ExitStack() as until_thawed:

            def is_frozen() -> bool:
                nonlocal began_at
                began_at = time.monotonic()
                with ExitStack() as perhaps:
                    perhaps.enter_context(processes.frozen(worker.pid))
                    if is_running := self.runs_in(worker):
                        until_thawed.push(perhaps.pop_all())
                return is_running

            self.wait(is_frozen, f"{worker.name} runs something")
            # Since then: the look at what runs may take longer than a lease on a busy machine.
            self.recorder.write("frozen", detail=worker.name, at=began_at)
            yield
            self.recorder.write("thawed", detail=worker.name)

    def runs_in(self, worker: WorkerProcess) -> bool:
        """Whether it is in the middle of a run; sure only while it is frozen."""
        begun = {(record.job, record.attempt) for record in worker.records("start")}
        return not begun <= {(record.job, record.attempt) for record in worker.records("end")}

    def wait_completed(self, count: int) -> None:
        self._wait_while_jobs_end(lambda: self._completed() >= count, f"{count} jobs are completed")

    def wait_over(self) -> None:
        self._wait_while_jobs_end(lambda: is_over(self.db), "all jobs have ended")

    def _completed(self) -> int:
        return self.db["monque_jobs"].count_documents({"status": "completed"})

    def _wait_while_jobs_end(self, condition: Callable[[], object], what: str) -> None:
        """However busy the machine is, something must end within a bound; else tell which jobs have not."""
        ended, deadline = -1, 0.0
        while not condition():
            now, before = time.monotonic(), ended
            if (ended := self._completed()) > before:
                deadline = now + STANDSTILL
            if now > deadline:
                live = {"status": {"$in": ["pending", "processing"]}}
                some = list(self.db["monque_jobs"].find(live).sort("nextRunAt").limit(3))
                # A worker that has failed says why in its log, and of one that hangs its stacks show where.
                logs = "".join(f"\n{worker.name}:\n{worker.aborted()}" for worker in self._workers)
                raise AssertionError(f"nothing ended for {STANDSTILL} s, not yet: {what}; not ended: {some}{logs}")
            time.sleep(0.05)

    def wait(self, condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        """Not so often that the question is a part of the load."""
        wait_until(condition, what, seconds, pause=0.05)

    def evidence(self, rescued_within: float = math.inf) -> Evidence:
        with MongoClient[Any](self.uri, tz_aware=True) as client:
            changes = read_history(client, self.db.name)
        # The server's clock is that of this machine.
        origin = datetime.now(UTC) - timedelta(seconds=time.monotonic())
        return Evidence(
            read(self.records), changes, LEASE, rescued_within, origin, self.witness.seen(), self.witness.waits()
        )

    def check(self, *more: Rule, rescued_within: float = math.inf) -> Evidence:
        """What there is to judge by, where no promise was broken, and every job that is not managed has completed."""
        evidence = self.evidence(rescued_within)
        stored = {str(one["_id"]): one for one in self.db["monque_jobs"].find()}
        again = f"again with MONQUE_TEST_SEED={self.seed}"
        assert evidence.documents == stored, "the history is that of what is stored"
        lines = broken(evidence, *more)
        if lines:
            (self.folder / "claims").write_text("".join(f"{claim}\n" for claim in evidence.claims))
        assert not lines, f"{len(lines)} promises broken, {again}; the claims are in {self.folder}: {lines[:20]}"
        ended = [one["status"] for one in stored.values() if one["name"] == "mixed" and "repeatInterval" not in one]
        assert set(ended) == {"completed"}, again
        return evidence
