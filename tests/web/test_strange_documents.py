"""Documents in which any field may have any type, as other programs may write them: no question fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import cycle
from typing import Any, Final

import pytest
from bson import Code, Decimal128, MaxKey, ObjectId, Regex

from tests.support.store import handle, insert
from tests.web.http import Ask, asking
from trio_monque import Monque
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.fields import FIELD
from trio_monque.store.jobs.instances import name_of_collection
from trio_monque.web import allow_all, create_app

STRANGE: Final[list[Any]] = [
    Code("f()", {"x": 1}),
    Regex("(", "i"),
    Decimal128("NaN"),
    MaxKey(),
    -1,
    1e400,
    [],
    [{"error": Code("x"), "at": 5, "attempt": -1, "traceback": {}}],
    {"$where": {"a.b": None}},
    None,
    "",
    "\x00\u202e<script>",
    datetime(1, 1, 1, tzinfo=UTC),
]
LISTS: Final = (
    *(
        f"/jobs?limit=100{view}&sortBy={by}&sortDirection={direction}"
        for view in ("", "&view=full")
        for by in ("identifier", "createdAt", "updatedAt", "nextRunAt")
        for direction in ("asc", "desc")
    ),
    "/jobs?view=full&status=failed&errorContains=a",
    "/jobs?view=full&due=true",
    "/jobs?view=full&instance=w1",
    "/jobs?view=full&meta.tenant=a&data.n=1",
    "/jobs/stats",
    "/queue-views",
    "/errors",
    "/overview",
    "/schedules",
    "/minutes",
    "/findings",
    "/instances",
    "/instances/w1",
)


def documents(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    running = {"status": "processing", "claimedBy": "w1", "lockedAt": moment, "lastHeartbeat": moment}
    kinds: list[dict[str, Any]] = [
        {},
        {"status": "failed", "failReason": "a"},
        {"repeatInterval": "* * * * *"},
        running,
    ]
    for field in FIELD.values():
        if field == "_id":
            continue
        for number, value in enumerate(STRANGE):
            yield {**whole, **kinds[number % len(kinds)], field: value, "_id": ObjectId()}


def entries() -> Iterator[dict[str, Any]]:
    """Of instances."""
    now = datetime.now(UTC)
    whole = {
        "incarnation": "i",
        "host": "h",
        "pid": 1,
        "startedAt": now,
        "heartbeatInterval": 30_000,
        "version": "1",
        "heartbeatAt": now,
        "names": ["greet"],
        "draining": False,
        "held": 1,
        "slots": 2,
        "heldByName": [{"name": "greet", "count": 1}],
        "overdueByName": [],
    }
    for field in whole:
        for number, value in enumerate(STRANGE):
            yield {**whole, field: value, "_id": f"w{field}{number}"}


@pytest.mark.full
def test_no_question_fails_because_of_a_strange_document(db: Database, jobs: Collection) -> None:
    job = insert(handle(db))
    whole = {**(jobs.find_one() or {}), "createdAt": datetime(2030, 1, 1, tzinfo=UTC)}
    made = list(documents(whole))
    jobs.insert_many(made)
    db[name_of_collection(jobs.name)].insert_many(entries())
    rests = cycle(["", "?view=full", "/reasons"])

    async def work(ask: Ask) -> None:
        for path in LISTS:
            found = await ask("GET", path)
            assert found.status_code == 200, (path, found.text)
            json.loads(found.content, parse_constant=pytest.fail)
        seen: set[str] = set()
        page = (await ask("GET", "/jobs?limit=100")).json()
        while True:
            seen |= {one["id"] for one in page["jobs"]}
            if not page["hasNextPage"]:
                break
            page = (await ask("GET", f"/jobs?limit=100&cursor={page['cursor']}")).json()
        assert str(job.id) in seen
        for one in made:
            path = f"/jobs/{one['_id']}{next(rests)}"
            found = await ask("GET", path)
            assert found.status_code in (200, 409), (one, path, found.text)
            json.loads(found.content, parse_constant=pytest.fail)
        for action in ("cancel", "retry"):
            body = {"action": action, "ids": [str(one["_id"]) for one in made[:100]]}
            found = await ask("POST", "/jobs/actions/by-ids", json=body)
            assert "Internal" not in found.text

    filters = ("meta.tenant", "data.n")
    asking("trio", create_app(Monque(db, stats_cache_ttl=0), authorize=allow_all, filters=filters), work)


def test_infinite_heartbeat_is_the_largest_number(db: Database, jobs: Collection) -> None:
    """JSON has no infinity, and the field is a number for clients of the contract."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    running = {"status": "processing", "claimedBy": "w1", "lockedAt": moment, "heartbeatInterval": float("inf")}
    jobs.update_one({"_id": insert(handle(db)).id}, {"$set": running})

    async def work(ask: Ask) -> Any:
        return (await ask("GET", "/jobs")).json()["jobs"][0]["heartbeatInterval"]

    assert asking("trio", create_app(Monque(db)), work) == sys.float_info.max
