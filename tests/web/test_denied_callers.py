"""Denied callers: the same answer, and the same cost, for what exists and what does not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from pymongo import MongoClient

from tests.support.interception import Recorder
from tests.support.store import claim, handle, insert
from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web import ClaimRules, create_app
from trio_monque.web.api.added_table import ALL_ROUTES
from trio_monque.web.api.route import Route

UNKNOWN: Final = "f" * 24
BODIES: Final[dict[str, Any]] = {
    "rescheduleJob": {"nextRunAt": "2040-01-01T00:00:00Z"},
    "cancelJobs": {"name": "greet"},
    "retryJobs": {"name": "greet"},
    "deleteJobs": {"name": "greet"},
    "cancelRunningJobs": {"name": "greet"},
    "countJobs": {"name": "greet"},
    "actByIds": {"action": "delete", "ids": ["{id}"]},
    "enqueueJob": {"name": "greet", "uniqueKey": "{id}"},
    "pauseName": {"name": "greet"},
    "resumeName": {"name": "greet"},
    "readmitDeadLetters": {"everything": True},
}
CLOSED: Final = [route for route in ALL_ROUTES if not route.is_open]


class Sent(Recorder):
    """The commands, without those by which the driver looks after its connections."""

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.commands if name not in ("hello", "ismaster", "endSessions", "ping")]


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def monque(mongod: EmbeddedServer, db: Database, sent: Sent) -> Iterator[Monque]:
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[sent]) as client:
        monque = Monque(client[db.name])
        monque.sync.enqueue("other")  # The client has its indexes then, and the server's time.
        yield monque


@pytest.mark.full
@pytest.mark.parametrize("route", CLOSED, ids=[route.operation_id for route in CLOSED])
def test_answer_and_commands_are_the_same_for_what_exists_and_what_does_not(
    monque: Monque, db: Database, sent: Sent, route: Route
) -> None:
    (running,) = claim(handle(db), 1, name="runs")
    ids = [str(insert(handle(db)).id), str(running.id), UNKNOWN]
    claims = {"orders": (db["orders"], ClaimRules())}
    app = create_app(monque, authorize=lambda *_: False, allow_enqueue=True, claims=claims)

    async def work(ask: Ask) -> list[Any]:
        found = []
        for one in ids:
            sent.commands.clear()
            body = BODIES.get(route.operation_id)
            options = {} if body is None else {"json": json.loads(json.dumps(body).replace("{id}", one))}
            path = route.path.replace("{id}", one).replace("{source}", "none" if one == UNKNOWN else "orders")
            answer = await ask(route.method, path, **options)
            content = answer.content.replace(one.encode(), b"ID")
            found.append((answer.status_code, content, sorted(answer.headers.items()), list(sent.names)))
        return found

    first, *others = asking("trio", app, work)
    assert others == [first] * len(others)
    status, content, _, commands = first
    if route.operation_id == "actByIds":
        assert json.loads(content) == {"count": 0, "errors": [{"jobId": "ID", "error": "Action denied"}]}
    else:
        assert (status, json.loads(content)["error"][-6:]) == (403, "denied")
    # What is asked of the database is one job, which `authorize` gets.
    is_of_a_job = route.changes and ("{id}" in route.path or route.operation_id == "actByIds")
    assert commands == (["find"] if is_of_a_job else [])


def raises(*arguments: Any) -> Any:
    raise ZeroDivisionError("s3cret of the inside")


async def raises_later(*arguments: Any) -> Any:
    raise ZeroDivisionError("s3cret of the inside")


@pytest.mark.full
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("hook", [raises, raises_later])
@pytest.mark.parametrize("name", ["authorize", "context"])
def test_hook_that_raises_denies_everything_and_shows_nothing(
    db: Database, jobs: Collection, loop: str, hook: Any, name: str
) -> None:
    job = insert(handle(db))
    before = list(jobs.find())

    async def work(ask: Ask) -> None:
        for route in CLOSED:
            body = BODIES.get(route.operation_id)
            options = {} if body is None else {"json": json.loads(json.dumps(body).replace("{id}", str(job.id)))}
            path = route.path.replace("{id}", str(job.id)).replace("{source}", "orders")
            answer = await ask(route.method, path, **options)
            assert b"s3cret" not in answer.content
            if route.operation_id == "actByIds" and name == "authorize":
                assert answer.json() == {
                    "count": 0,
                    "errors": [{"jobId": str(job.id), "error": "Internal server error"}],
                }
            else:
                assert (answer.status_code, answer.json()) == (500, {"error": "Internal server error"})

    hooks: Any = {name: hook}
    claims = {"orders": (db["orders"], ClaimRules())}
    asking(loop, create_app(Monque(db), allow_enqueue=True, claims=claims, **hooks), work)
    assert list(jobs.find()) == before
