"""Documents of a user who knows nothing of locks, and what the tests ask of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import trio

from tests.support.internals import interferences_of_claims, parts_of
from trio_monque import Claim, open_claims
from trio_monque.claims.claims import RunningClaims
from trio_monque.events import DocumentClaimLost, DocumentDeadLettered, DocumentFailed, DocumentsRescued
from trio_monque.store.driver.types import Collection, ConnectionFailure
from trio_monque.testing import now

OPEN: Final = {"state": "new"}
DONE: Final = {"$set": {"state": "done"}}

T = TypeVar("T")

Handler = Callable[[Claim[Any]], Awaitable[object]]


def fill(things: Collection, count: int, **fields: Any) -> None:
    things.insert_many([{"_id": number, "state": "new", "n": {"x": [number]}, **fields} for number in range(count)])


def lock_of(things: Collection, document_id: Any = 0, field: str = "lock") -> Any:
    found = things.find_one({"_id": {"$eq": document_id}})
    assert found is not None
    return found.get(field)


def states(things: Collection) -> Sequence[Any]:
    return [one["state"] for one in things.find(sort=[("_id", 1)])]


def take_away(things: Collection, document_id: Any = 0, by: str = "another") -> None:
    """As a program that ignores locks."""
    things.update_one({"_id": document_id}, {"$set": {"lock": {"by": by, "until": later(3600)}}})


def later(seconds: float) -> datetime:
    return now() + timedelta(seconds=seconds)


def listened(reported: list[Any]) -> Mapping[Any, Any]:
    return dict.fromkeys((DocumentFailed, DocumentDeadLettered, DocumentClaimLost, DocumentsRescued), reported.append)


@asynccontextmanager
async def first_claim(things: Collection, reported: list[Any], **options: Any) -> AsyncIterator[Claim[Any]]:
    """What claims deliver first. They go on for a moment after its block, and report its end."""
    async with open_claims(things, OPEN, listeners=listened(reported), **options) as claims:
        yield await anext(claims)
        await trio.sleep(0.1)


async def finish(claim: Claim[Any]) -> None:
    await claim.finish(DONE)


class _Dead:
    def takes(self, purpose: str) -> bool:
        return True

    def inject(self, call: Callable[[], T]) -> T:
        raise ConnectionFailure("the process is dead")


async def kill(claims: RunningClaims) -> None:
    """Ends claims as a kill would: nothing is written any more."""
    parts = parts_of(claims)
    for interference in interferences_of_claims(parts.sources):
        interference.append(_Dead())
    parts.engine.die()
    await claims.wait_drained()


class Gauge:
    """How many are at work at once, and were at most."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def __enter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        self.now -= 1
