"""A rescuer that takes each claim at the first moment that the design allows, by plain pymongo.

Who and when: a claim is taken when `(claimedBy, lockedAt, claimToken, lastHeartbeat)` has stayed unchanged
for three of the document's own intervals, on this process's monotonic clock, counted from after the
answer of the read that showed it first, in a write that is conditional on all four. That write is the
second look: it finds nothing where something has changed meanwhile.

It looks as fast as it can, and sends its writes on connections that are open already, so that they lie in
wait in a server that is frozen. Unlike a reaper it puts no job off and gives none up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

IDENTITY: Final = ("claimedBy", "lockedAt", "claimToken", "lastHeartbeat")
CLAIM: Final = (*IDENTITY, "heartbeatInterval")
LEASE_IN_BEATS: Final = 3
HANDS: Final = 12


@dataclass(frozen=True)
class Observation:
    """What a claim looked like, and since when.

    Attributes:
        seen: The four values.
        since: When the answer had come that showed them first.
        due: From when on the claim may be taken.
    """

    seen: Mapping[str, Any]
    since: float
    due: float


@dataclass(frozen=True)
class Taken:
    """A claim that was taken away.

    Attributes:
        job: The id.
        claimed_by: Whose it was.
        sent, at: When the write was sent, and when its answer had come.
    """

    job: str
    claimed_by: str
    sent: float
    at: float


class Rescuer:
    """Looks in one thread, and takes in others: a look that a frozen server does not answer holds up nothing.

    Attributes:
        taken: What it took, in the order of the answers.
    """

    def __init__(self, uri: str, database: str) -> None:
        self.taken: list[Taken] = []
        self._client: MongoClient[Any] = MongoClient(uri, tz_aware=True, minPoolSize=HANDS + 1)
        self._jobs = self._client[database].get_collection("monque_jobs", write_concern=WriteConcern("majority"))
        self._observed: dict[Any, Observation] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._hands = ThreadPoolExecutor(HANDS)
        self._threads = [threading.Thread(target=work) for work in (self._look, self._take_what_is_due)]

    def start(self) -> None:
        all_there = threading.Barrier(HANDS)

        def connect() -> None:
            all_there.wait()
            self._client.admin.command("ping")

        for connected in [self._hands.submit(connect) for _ in range(HANDS)]:
            connected.result()
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """May be said again."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._hands.shutdown()
        self._client.close()

    def _look(self) -> None:
        while not self._ended:
            found = list(self._jobs.find({"status": "processing"}, [*CLAIM]))
            answered = time.monotonic()
            with self._changed:
                known, self._observed = self._observed, {}
                for document in found:
                    seen = {name: document.get(name) for name in IDENTITY}
                    before = known.get(document["_id"])
                    if before is None or before.seen != seen:
                        lease = LEASE_IN_BEATS * document["heartbeatInterval"] / 1000
                        before = Observation(seen, answered, answered + lease)
                    self._observed[document["_id"]] = before
                self._changed.notify_all()
            # Nothing is waited for: it looks again and again. What is looked at needs the processor, too. A look that
            # comes so much later is nothing beside the sixth of a heartbeat by which a holder ends before its lease.
            time.sleep(0.005)

    def _take_what_is_due(self) -> None:
        with self._changed:
            while not self._ended:
                now = time.monotonic()
                for job, observed in list(self._observed.items()):
                    if observed.due <= now:
                        # If the write finds nothing, the observation begins anew with the next look.
                        del self._observed[job]
                        self._hands.submit(self._take, job, observed)
                nearest = min((observed.due for observed in self._observed.values()), default=now + 1)
                self._changed.wait(max(nearest - now, 0))

    def _take(self, job: Any, observed: Observation) -> None:
        sent = time.monotonic()
        now = datetime.now(UTC)
        written = self._jobs.update_one(
            {"_id": job, "status": "processing", **observed.seen, "cancelRequestedAt": None},
            {
                "$set": {"status": "pending", "updatedAt": now},
                "$unset": dict.fromkeys(CLAIM, ""),
                "$inc": {"rescues": 1},
            },
        )
        if written.matched_count:
            self.taken.append(Taken(str(job), observed.seen["claimedBy"], sent, time.monotonic()))


@contextmanager
def rescuing(uri: str, database: str) -> Iterator[Rescuer]:
    """A rescuer at work, for as long as the block. The server must answer again when it ends."""
    rescuer = Rescuer(uri, database)
    rescuer.start()
    try:
        yield rescuer
    finally:
        rescuer.end()
