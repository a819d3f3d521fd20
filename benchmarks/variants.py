"""What may be otherwise in a backlog, and the handlers that work through it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
from pymongo import IndexModel

from tests.support import node_peer
from trio_monque import RunningJob

LONGEST_WAIT = 20  # Milliseconds that a handler of the variant waits.
TEN = node_peer.INDEXES[:10]  # Without that of its retention.


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What is otherwise in a backlog that 100 slots work through."""

    what: str
    names: int = 1
    waits: bool = False
    fails: bool = False
    stores: bool = False
    indexes: Sequence[IndexModel] = ()


VARIANTS = {
    "eight names": Variant(what="eight names share the backlog and the 100 slots", names=8),
    "waiting": Variant(what=f"handlers wait for 0 to {LONGEST_WAIT} ms", waits=True),
    "failing": Variant(what="one job in ten fails, with no retries", fails=True),
    "results": Variant(what="results are stored", stores=True),
    "ten indexes": Variant(what="Monque's ten indexes are there, too", indexes=TEN),
}
PLAIN = Variant(what="plain")


def seconds_of(number: int) -> float:
    """How long the handler of a job waits, in the variant where it does."""
    return number * 7919 % (LONGEST_WAIT + 1) / 1000


class Handlers:
    """What is run, and when each of the jobs has been."""

    def __init__(self, jobs: int) -> None:
        self.all_ran = anyio.Event()
        self._left = jobs

    def of(self, variant: Variant) -> Callable[[RunningJob[Any]], Awaitable[object]]:
        if variant.waits:
            return self._wait
        if variant.fails:
            return self._fail
        return self._result if variant.stores else self._noop

    def _count(self) -> None:
        self._left -= 1
        if not self._left:
            self.all_ran.set()

    async def _noop(self, _: RunningJob[Any]) -> None:
        self._count()

    async def _wait(self, job: RunningJob[Any]) -> None:
        await anyio.sleep(seconds_of(job.data["i"]))
        self._count()

    async def _fail(self, job: RunningJob[Any]) -> None:
        self._count()
        if job.data["i"] % 10 == 0:
            raise ValueError("one in ten")

    async def _result(self, job: RunningJob[Any]) -> dict[str, Any]:
        self._count()
        return {"i": job.data["i"]}
