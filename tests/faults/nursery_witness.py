"""What a change stream shows of job nurseries while they run, and the rules that only it can see broken.

It knows nothing of the library: a change stream of its own shows every insert and update of the jobs, in the order that
a majority holds. So it sees what no look afterwards could: a parent that completes while a child of it lives, or a
child of a failed block that begins again.

What an ended parent leaves behind is allowed where its process died, or its clean-up took too long: such jobs are
orphans, and have to end soon.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tests.support.waiting import wait_until

LIVE: Final = frozenset({"pending", "processing"})

ORPHANS_END_WITHIN: Final = 30
"""Seconds. It takes a lease, a look, and what their own handlers need to end; the rest is for a busy machine."""

SILENT_FOR_AT_MOST: Final = 3.0
"""Seconds without an event after which the stream is opened again, perhaps of another member."""

RECENT: Final = 50_000
"""Events that are kept, to show what was before a fault."""


class Witnessed:
    """What the stream has shown of the jobs, and the faults that it has found.

    Attributes:
        child: Of each child its parent and its block.
        undone: Parents whose handler went on behind the failure of a block: they have started another one.
        orphans: The second since which each live job has an ancestor that is over: a parent, or the root.
        counts: What was seen of what is allowed, but rare.
    """

    def __init__(self) -> None:
        self.status: dict[Any, str] = {}
        self.child: dict[Any, tuple[Any, str]] = {}
        self.children: dict[Any, set[Any]] = {}
        self.undone: set[Any] = set()
        self.completions: Counter[Any] = Counter()
        self.orphans: dict[Any, int] = {}
        self.longest_orphan = 0
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.seen = 0
        self._attempts: dict[Any, int] = {}
        self._recent: deque[tuple[Any, int, str, Any]] = deque(maxlen=RECENT)

    def take(self, event: dict[str, Any]) -> None:
        self.seen += 1
        one, at = event["documentKey"]["_id"], event["clusterTime"].time
        changed = event.get("fullDocument") or event.get("updateDescription", {}).get("updatedFields")
        self._recent.append((one, at, event["operationType"], changed))
        match event["operationType"]:
            case "insert":
                self._inserted(one, event["fullDocument"], at)
            case "update":
                self._updated(one, event["updateDescription"]["updatedFields"], at)
            case "replace":
                # How the server writes an update down, where that is shorter.
                self._updated(one, event["fullDocument"], at)
            case "delete":
                self.status.pop(one, None)

    def _inserted(self, one: Any, document: dict[str, Any], at: int) -> None:
        if "scope" in document:
            parent, block = document["parent"], document["block"]
            self.child[one] = (parent, block)
            self.children.setdefault(parent, set()).add(one)
            if block != "place":
                self._went_on(parent, block)
            ended = self.status.get(parent)
            if document["status"] in LIVE and ended not in LIVE:
                # A run that was frozen sends what it had begun to send. The run that ended the parent does not, but
                # a cancelled parent may have been ended by other processes.
                is_stale = ended == "cancelled" or document["scopeRun"] < self._attempts.get(parent, 0)
                if ended is None or not is_stale:
                    self._fault(f"child {one} of {parent}, which is {ended}, was started", one, parent)
                self.counts["started by stale runs"] += 1
        self._updated(one, document, at)

    def _went_on(self, parent: Any, block: str) -> None:
        if block == "undo":
            self.undone.add(parent)
        for other in self._children_in(parent, "place"):
            status = self.status.get(other)
            if status in LIVE or (block == "ship" and status != "completed"):
                what = f"{parent} came to {block!r}, and {other} of the block before was {status}"
                self._fault(what, parent, other)

    def _updated(self, one: Any, changed: dict[str, Any], at: int) -> None:
        if "attempts" in changed:
            self._attempts[one] = changed["attempts"]
        status, before = changed.get("status"), self.status.get(one)
        if status is None or status == before:
            return
        self.status[one] = status
        if status == "completed":
            self._completed(one)
        if status in LIVE:
            self._lives(one, status, before, at)
        else:
            self._ended(one, at)

    def _completed(self, one: Any) -> None:
        self.completions[one] += 1
        if alive := [other for other in self.children.get(one, ()) if self.status.get(other) in LIVE]:
            self._fault(f"{one} completed, and its children {alive} lived", one, *alive)

    def _lives(self, one: Any, status: str, before: str | None, at: int) -> None:
        parent, block = self.child.get(one, (None, ""))
        if parent is None:
            return
        if before not in LIVE:
            if block == "place" and parent in self.undone:
                what = f"child {one} of a failed block became {status} after its handler had gone on"
                self._fault(what, one, parent)
            if self.status.get(parent) not in LIVE:
                self.orphans.setdefault(one, at)
        if self._is_far_below_failed(parent):
            self.counts["begun far below a failed block"] += 1

    def _ended(self, one: Any, at: int) -> None:
        if one in self.orphans:
            lasted = at - self.orphans.pop(one)
            self.counts["orphans"] += 1
            self.longest_orphan = max(self.longest_orphan, lasted)
            if lasted > ORPHANS_END_WITHIN:
                what = f"{one} lived for {lasted} s although what is above it was over"
                self._fault(what, one, *self._all_above(one))
        left = self._children_in(one) if one in self.child else self._below(one)
        for other in left:
            if self.status.get(other) in LIVE:
                self.orphans.setdefault(other, at)

    def _is_far_below_failed(self, one: Any) -> bool:
        while one in self.child:
            one, block = self.child[one]
            if block == "place" and one in self.undone:
                return True
        return False

    def _children_in(self, parent: Any, block: str | None = None) -> Sequence[Any]:
        return [one for one in self.children.get(parent, ()) if block in (None, self.child[one][1])]

    def _below(self, one: Any) -> Iterator[Any]:
        for child in self.children.get(one, ()):
            yield child
            yield from self._below(child)

    def _all_above(self, one: Any) -> Iterator[Any]:
        while one in self.child:
            one, _ = self.child[one]
            yield one

    def _fault(self, what: str, *jobs: Any) -> None:
        """Note it, with what was seen of these jobs not long before."""
        seen = [f"\n    {one} at {at}: {how} {changed}" for one, at, how, changed in self._recent if one in jobs]
        self.faults.append(what + "".join(seen))

    def live(self) -> Sequence[Any]:
        # As a list: the thread that follows the stream adds to them.
        return [one for one, status in list(self.status.items()) if status in LIVE]


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
                        silent_since = time.monotonic()
                        # A primary that was cut off answers, and knows of nothing new.
                        while not stop.is_set() and time.monotonic() < silent_since + SILENT_FOR_AT_MOST:
                            event = stream.try_next()
                            token = stream.resume_token
                            if event is not None:
                                found.take(dict(event))
                                silent_since = time.monotonic()
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
