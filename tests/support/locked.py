"""Documents with locks, the store's handle on them, and claims made by hand."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from pymongo import MongoClient

from tests.support.interception import Recorder
from trio_monque.locks_and_dead_letters import Fence, LockStamp
from trio_monque.store import documents
from trio_monque.store.documents.claiming import TakenDocument
from trio_monque.store.documents.locked_collection import LockedCollection
from trio_monque.store.driver.types import Collection, Database

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)

UNKNOWN_LOCKS: Sequence[Any] = [
    5,
    "x",
    [],
    [{"by": None, "until": NOW - SECOND}],
    {},
    {"owner": "x"},
    {"by": "x"},
    {"by": "x", "until": "soon"},
    {"by": 5, "until": NOW},
    {"by": None, "until": "soon"},
    {"by": [None], "until": NOW - SECOND},
    {"by": None, "until": [NOW - SECOND]},
    {"until": None},
]


def handle(documents: Collection, filter: Mapping[str, Any] | None = None, **options: Any) -> LockedCollection:  # noqa: A002
    return LockedCollection.of(documents, {"done": None} if filter is None else filter, **options)


def stamp(by: str = "us", at: datetime = NOW, nonce: str | None = None) -> LockStamp:
    """One of its own; with a `nonce` the same every time, as parameters of tests have to be."""
    return LockStamp.new(by, at, 20.0, secrets.token_hex(6) if nonce is None else nonce)


def fence(mark: LockStamp, *untils: datetime) -> Fence:
    return Fence(mark.by, mark.token, (mark.until, *untils))


def claim(locked: LockedCollection, most: int, mark: LockStamp, now: datetime = NOW) -> Sequence[TakenDocument]:
    """Claims what a look finds, as one claim does."""
    ids = documents.due.survey(locked, most, now).ids
    return documents.claiming.take(locked, ids, now, mark).documents if ids else []


def lock_of(documents: Collection, document_id: Any) -> Any:
    """As it is stored; of a document that is there."""
    (document,) = documents.find({"_id": {"$eq": document_id}})
    return document.get("lock")


@contextmanager
def recorded(documents: Collection, **options: Any) -> Iterator[tuple[Collection, Recorder]]:
    """The same collection by a client of its own, and the commands that this sends."""
    recorder = Recorder()
    hosts = [f"{host}:{port}" for host, port in documents.database.client.nodes]
    replica_set = documents.database.client.options.replica_set_name
    with MongoClient[Any](hosts, replicaSet=replica_set, event_listeners=[recorder], **options) as client:
        yield client[documents.database.name][documents.name], recorder


def explained(db: Database, command: Mapping[str, Any]) -> Mapping[str, Any]:
    """How the server does what was sent."""
    sent = {
        name: value
        for name, value in command.items()
        if not name.startswith("$") and name not in ("lsid", "txnNumber", "readConcern", "writeConcern", "cursor")
    }
    answer: Mapping[str, Any] = db.command("explain", sent, verbosity="executionStats")
    return answer


def stages(plan: Any) -> Iterator[Mapping[str, Any]]:
    """Of a plan, from the top."""
    yield plan
    for below in [plan.get("inputStage"), *plan.get("inputStages", [])]:
        if below is not None:
            yield from stages(below)
