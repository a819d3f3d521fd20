"""Judges workflows of job nurseries by what the database said of each change, and by what their handlers wrote down.

It knows nothing of the library: a change stream of its own shows every insert and update of the jobs, in the order that
a majority holds. So it sees what no look afterwards could: a parent that completes while a child of it lives, or a
child of a failed block that begins again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tests.support.waiting import wait_until
from trio_monque.store.driver.types import Database

from .nursery_worker import expected_of, has_transaction, is_declined
from .records import read

LIVE: Final = frozenset({"pending", "processing"})


class Witnessed:
    """What the stream has shown of the jobs, and the faults that it has found."""

    def __init__(self) -> None:
        self.status: dict[Any, str] = {}
        self.child: dict[Any, dict[str, Any]] = {}
        self.children: dict[Any, set[Any]] = {}
        # Parents whose handler went on behind the failure of a block: they have started another one.
        self.undone: set[Any] = set()
        self.completions: Counter[Any] = Counter()
        self.faults: list[str] = []
        self.seen = 0

    def take(self, event: dict[str, Any]) -> None:
        self.seen += 1
        one = event["documentKey"]["_id"]
        match event["operationType"]:
            case "insert":
                self._inserted(one, event["fullDocument"])
            case "update":
                status = event["updateDescription"]["updatedFields"].get("status")
                if status is not None:
                    self._changed(one, status)
            case "replace":
                # How the server writes an update down, where that is shorter.
                self._changed(one, event["fullDocument"]["status"])
            case "delete":
                self.status.pop(one, None)

    def _inserted(self, one: Any, document: dict[str, Any]) -> None:
        if "scope" in document:
            self.child[one] = document
            self.children.setdefault(document["parent"], set()).add(one)
            if document["block"] == "undo":
                self.undone.add(document["parent"])
            parent = self.status.get(document["parent"])
            if document["status"] in LIVE and parent not in LIVE:
                self.faults.append(f"a child of {document['parent']}, which is {parent}, was started")
        self._changed(one, document["status"])

    def _changed(self, one: Any, status: str) -> None:
        before = self.status.get(one)
        if before == status:
            return
        self.status[one] = status
        child = self.child.get(one)
        if status == "completed":
            self.completions[one] += 1
            if alive := [other for other in self.children.get(one, ()) if self.status.get(other) in LIVE]:
                self.faults.append(f"{one} completed, and its children {alive} lived")
        if child is not None and child["block"] == "place" and child["parent"] in self.undone:
            begins = status in LIVE and before not in LIVE
            if begins:
                self.faults.append(f"child {one} of a failed block became {status} after its handler had gone on")

    def live(self) -> Sequence[Any]:
        return [one for one, status in self.status.items() if status in LIVE]


@contextmanager
def witnessed(uri: str, database: str) -> Iterator[Witnessed]:
    """Follow the jobs of a database; when the block ends, everything until then was seen."""
    found, stop = Witnessed(), threading.Event()
    # A frozen server answers nothing: without these, the stream would not go on with another one.
    patient = f"{uri}&socketTimeoutMS=2000&serverSelectionTimeoutMS=5000&connectTimeoutMS=2000"
    with MongoClient[dict[str, Any]](patient, tz_aware=True) as client:
        jobs = client[database].monque_jobs
        opened = threading.Event()

        def follow() -> None:
            token = None
            while not stop.is_set():
                try:
                    with jobs.watch(resume_after=token, max_await_time_ms=200) as stream:
                        opened.set()
                        while not stop.is_set():
                            event = stream.try_next()
                            token = stream.resume_token
                            if event is not None:
                                found.take(dict(event))
                except PyMongoError:
                    continue  # An election: it goes on behind the last event.

        thread = threading.Thread(target=follow)
        thread.start()
        try:
            assert opened.wait(30)
            yield found
            marker = jobs.insert_one({"_id": "the end", "status": "completed"}).inserted_id
            wait_until(lambda: marker in found.status, "the stream has shown everything")
            jobs.delete_one({"_id": marker})
        finally:
            stop.set()
            thread.join()


def judge(db: Database, found: Witnessed, numbers: dict[Any, int], records: Path) -> Counter[str]:
    """Raise if a promise was broken; return how much was seen of what."""
    assert found.faults == []
    jobs = db.monque_jobs
    wrong = []
    for one in jobs.find({"name": "order"}):
        number = numbers[one["_id"]]
        if (one["status"], one.get("result")) != ("completed", expected_of(number)):
            wrong.append((number, one["status"], one.get("result"), one.get("failReason"), one["attempts"]))
        assert "ownScope" not in one
        assert one["failCount"] == 0, one
    assert wrong == []
    assert found.live() == []
    twice = [one for one, count in found.completions.items() if count > 1]
    assert twice == []
    effects = Counter(one["number"] for one in db.effects.find())
    wanted = {number: 1 for number in numbers.values() if has_transaction(number) and not is_declined(number)}
    assert effects == wanted
    written = read(records)
    went_on: dict[str, set[str]] = {}
    for record in written:
        if record.what == "went on":
            went_on.setdefault(record.job, set()).add(record.detail)
    assert {job: ways for job, ways in went_on.items() if len(ways) > 1} == {}, "no later run found another end"
    starts = [record for record in written if record.what == "start"]
    runs = Counter(record.job for record in starts if record.detail == "order")
    return Counter(
        workflows=len(numbers),
        children=len(found.child),
        starts=len(starts),
        most_runs=max(runs.values(), default=0),
        events=found.seen,
    )
