"""What the tests on several event loops have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import anyio

from trio_monque import Monque, RunningJob, Workers
from trio_monque.store.driver.types import Collection, Database

T = TypeVar("T")

LONG: Final = 60.0
"""Seconds that a handler would sleep if nothing cancelled it."""

QUICK: Final[Any] = {"base_retry_interval": 0.01, "poll_interval": 0.1}


async def until(condition: Callable[[], T], seconds: float = 40.0) -> T:
    """Return the first answer that is true."""
    with anyio.fail_after(seconds):
        while not (answer := condition()):
            await anyio.sleep(0.02)
        return answer


def statuses(db: Database, name: str) -> list[str]:
    return [document["status"] for document in db["monque_jobs"].find({"name": name})]


def only_document(db: Database) -> dict[str, Any]:
    (document,) = db["monque_jobs"].find()
    return dict(document)


def heartbeat_of_instance(db: Database) -> object:
    """When the only scheduler last wrote its heartbeat. A blocked event loop does not keep it from that."""
    (instance,) = Monque(db).sync_in_loop.instances()
    return instance.last_heartbeat


def heartbeat_of_job(db: Database, name: str) -> object:
    """When the claim on the only job of that name was last renewed."""
    (document,) = db["monque_jobs"].find({"name": name}, {"lastHeartbeat": 1})
    return document["lastHeartbeat"]


class LongJobs:
    """A worker whose handler sleeps until it is cancelled, and then perhaps cleans up.

    Attributes:
        log: "began", then the reason of the cancellation.
    """

    def __init__(self, cleanup: float = 0.0) -> None:
        self.log: list[str] = []
        self.workers = Workers()
        self._cleanup = cleanup
        self.workers.register("long", self._handle)

    async def _handle(self, job: RunningJob[Any]) -> None:
        self.log.append("began")
        try:
            await anyio.sleep(LONG)
        finally:
            self.log.append(str(job.cancel_reason))
            if self._cleanup:
                with job.cleanup(self._cleanup):
                    await anyio.sleep(LONG)


SECONDS_TO_BEAT: Final = 1.5
"""The shortest heartbeat in real time: three of them are a lease, which a busy machine must not lose by itself."""

BEATS: Final[Any] = {**QUICK, "heartbeat_interval": SECONDS_TO_BEAT, "cleanup_timeout": 0.5}
"""For claims: a lost lock is noticed soon."""


def are_free(things: Collection, *, failed: int = 0) -> bool:
    """Whether no document is locked, and that many attempts were counted in all."""
    locks = [one.get("lock") or {"by": None, "tries": 0} for one in things.find()]
    return all(lock["by"] is None for lock in locks) and sum(lock["tries"] for lock in locks) == failed
