"""A scenario of claims on documents: processes under load, what befalls them, and the outcome of the checker."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import bson
import trio
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from trio_monque.claims import create_claim_index

from . import processes
from .document_promises import RESULT, DocumentEvidence, broken
from .documents import COLLECTION, LEFT_ALONE, WANTED
from .history import read_history
from .lock_history import LOCK
from .processes import WorkerProcess
from .records import Record, read
from .scenario import HEARTBEAT, LEASE, Scenario

DOCUMENTS: Final = 5000

OPTIONS: Final[Mapping[str, Any]] = {
    "concurrency": 20,
    "heartbeat_interval": HEARTBEAT,
    "operation_timeout": 2.0,
    "base_retry_interval": 0.02,
    "poll_interval": 0.05,
}

IN_THE_MIDDLE: Final = 5
"""Runs of a process that is stopped that wait then, and whose wait is not over."""


@dataclass
class DocumentScenario(Scenario):
    """One of these tests.

    Attributes:
        originals: The documents as they were stored, by the text of their ids.
    """

    originals: dict[str, dict[str, Any]] = field(default_factory=dict)

    def fill(self, chosen: Sequence[dict[str, Any]]) -> None:
        self.originals |= {str(one["_id"]): one for one in chosen}
        self.db[COLLECTION].insert_many(chosen)

    def make_index(self) -> None:
        trio.run(create_claim_index, self.db[COLLECTION], WANTED)

    @property
    def started_as(self) -> Mapping[str, Any]:
        return {"module": "tests.faults.claims_worker", **OPTIONS}

    def kill(self, worker: WorkerProcess) -> None:
        """In the middle of its runs: it is frozen first, for far less than its lease, so that this cannot change."""

        def is_killed() -> bool:
            with processes.frozen(worker.pid):
                if is_running := self._runs_in(worker):
                    worker.process.kill()
            return is_running

        self.wait(is_killed, f"{worker.name} runs something")
        worker.process.wait()
        self.recorder.write("killed", detail=worker.name)

    def held_by(self, worker: WorkerProcess) -> int:
        return self.held_under(worker.name)

    def held_under(self, *names: str) -> int:
        return self.db[COLLECTION].count_documents({f"{LOCK}.by": {"$in": names}})

    def wait_completed(self, count: int) -> None:
        done = {"state": "done", LEFT_ALONE: None}
        self.wait(lambda: self.db[COLLECTION].count_documents(done) >= count, f"{count} documents are done")

    def wait_left(self, *workers: WorkerProcess, seconds: float = 60.0) -> None:
        """They end by themselves."""
        self.wait(
            lambda: all(worker.process.poll() is not None for worker in workers), "nothing is left, they end", seconds
        )
        assert [worker.process.returncode for worker in workers] == [0] * len(workers)

    def _runs_in(self, worker: WorkerProcess) -> bool:
        """Whether its runs wait, and none of them has waited long enough by now: each is before its checkpoint."""
        now, last = time.monotonic(), dict[tuple[str, int], Record]()
        for record in worker.records():
            if record.job:
                last[record.job, record.attempt] = record
        waiting = [float(one.detail) for one in last.values() if one.what == "waits"]
        between = [one for one in last.values() if one.what in ("start", "passed")]
        return len(waiting) >= IN_THE_MIDDLE and min(waiting) > now and not between

    def gather(self, rescued_within: float = math.inf, plain: Sequence[str] = ()) -> DocumentEvidence:
        with MongoClient[Any](self.uri, tz_aware=True) as client:
            changes = read_history(client, self.db.name, COLLECTION)
        # The server's clock is that of this machine.
        origin = datetime.now(UTC) - timedelta(seconds=time.monotonic())
        of_jobs = (
            read(self.records),
            changes,
            LEASE,
            rescued_within,
            origin,
            self.witness.seen(),
            self.witness.waits(),
        )
        return DocumentEvidence(*of_jobs, plain=frozenset(plain))

    def judge(self, *, rescued_within: float = math.inf, plain: Sequence[str] = ()) -> DocumentEvidence:
        """What there is to judge by, where no promise was broken, and all is as it was but for one result each."""
        evidence, again = self.gather(rescued_within, plain), f"again with MONQUE_TEST_SEED={self.seed}"
        stored = {str(one["_id"]): one for one in self.db[COLLECTION].find()}
        assert evidence.documents == stored, "the history is that of what is stored"
        # In no order: that of a collection is the one of whichever member answers.
        assert sorted(stored) == sorted(self.originals), again
        assert self._changed() == [], again
        lines = broken(evidence)
        if lines:
            (self.folder / "holds").write_text("".join(f"{hold}\n" for hold in evidence.holds))
        assert not lines, f"{len(lines)} promises broken, {again}; the holds are in {self.folder}: {lines[:20]}"
        return evidence

    def _changed(self) -> Sequence[str]:
        """The documents in which anything is otherwise than before, but what was given to `finish`, byte by byte."""
        raw = self.db[COLLECTION].with_options(bson.CodecOptions(document_class=RawBSONDocument, tz_aware=True))
        return [
            document
            for stored in raw.find()
            for document in [str(stored["_id"])]
            if _kept(stored) != _kept(RawBSONDocument(bson.encode(self.originals[document])))
        ]


def _kept(document: RawBSONDocument) -> Mapping[str, bytes]:
    """Each field but those of a result, and the lock of what was to be worked through."""
    written = frozenset() if LEFT_ALONE in document else RESULT | {LOCK}
    return {name: bson.encode({"": value}) for name, value in document.items() if name not in written}
