"""A caller who is denied learns nothing of what exists: not by the answer, and not by the work that is done for it.

Each route that names something by an id is asked about what exists, in each state, and about what does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from pymongo import MongoClient

from tests.cli.doctor_support import enter
from tests.support.interception import Recorder
from tests.support.store import claim, handle, insert
from tests.web.http import Ask, asking
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database
from trio_monque.web import ClaimRules, create_app
from trio_monque.web.api import long_actions
from trio_monque.web.api.added_table import ALL_ROUTES

UNKNOWN: Final = "f" * 24
SELECTED: Final = {"POST /jobs/actions/by-ids"}
"""A route whose ids are in the body."""

# Each with the bodies that make it another action.
OF_JOBS: Final[list[tuple[str, str, Any]]] = [
    ("GET", "/jobs/{id}", None),
    ("GET", "/jobs/{id}?view=full", None),
    ("GET", "/jobs/{id}/reasons", None),
    ("GET", "/events?job={id}", None),
    ("DELETE", "/jobs/{id}", None),
    ("POST", "/jobs/{id}/actions/cancel", None),
    ("POST", "/jobs/{id}/actions/cancel", {"running": True}),
    ("POST", "/jobs/{id}/actions/retry", None),
    ("POST", "/jobs/{id}/actions/reschedule", {"nextRunAt": "2030-01-01T00:00:00Z"}),
    *(("POST", "/jobs/actions/by-ids", {"action": one, "ids": ["{id}"]}) for one in ("cancel", "retry", "delete")),
]
OF_INSTANCES: Final[list[tuple[str, str, Any]]] = [("GET", "/instances/{id}", None)]
OF_SOURCES: Final[list[tuple[str, str, Any]]] = [
    ("GET", "/claims/{id}/dead", None),
    ("POST", "/claims/{id}/actions/readmit", {"everything": True}),
    ("POST", "/claims/{id}/actions/readmit", {"ids": ["1"]}),
]
OF_ACTIONS: Final[list[tuple[str, str, Any]]] = [("GET", "/actions/{id}", None)]
ALL: Final = [*OF_JOBS, *OF_INSTANCES, *OF_SOURCES, *OF_ACTIONS]

Rule = Callable[[str, Any], bool]

RULES: Final[dict[str, Rule]] = {
    "nothing": lambda action, target: False,
    "reading only": lambda action, target: action == "read",
    "own jobs only": lambda action, target: getattr(target, "data", None) == "mine",
    "other jobs only": lambda action, target: (
        action not in ("readmit", "cancelBulk") and getattr(target, "data", None) is None
    ),
}
"""What the caller may do."""


def test_every_route_with_an_id_is_asked() -> None:
    asked = {f"{method} {path.partition('?')[0]}" for method, path, _ in ALL} | SELECTED
    routes = {f"{one.method} {one.path.replace('{source}', '{id}')}" for one in ALL_ROUTES}
    assert {one for one in routes if "{" in one} | SELECTED <= asked <= routes


@contextmanager
def recorded(mongod: EmbeddedServer, db: Database) -> Iterator[tuple[Database, Recorder]]:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        yield client[db.name], recorder


@pytest.mark.full
@pytest.mark.parametrize("rule", RULES)
def test_denied_caller_gets_the_same_answer_by_the_same_commands_whatever_exists(
    mongod: EmbeddedServer, db: Database, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_actions, "MOST_AT_ONCE", -1)  # A bulk action of no job is long.
    pending = insert(handle(db), data="x" * 100_000)
    failed = insert(handle(db), data="x")
    db["monque_jobs"].update_one({"_id": failed.id}, {"$set": {"status": "failed", "failReason": "no"}})
    (running,) = claim(handle(db), 1, name="runs")
    db["monque_jobs"].update_one({"_id": running.id}, {"$set": {"data": "x"}})
    broken = db["monque_jobs"].insert_one({"name": "greet", "status": "pending", "data": None}).inserted_id
    enter(db, "worker-1", "greet")
    before = list(db["monque_jobs"].find())
    ids = [str(pending.id), str(running.id), str(failed.id), UNKNOWN]
    if rule != "other jobs only":  # A broken document belongs to no one: those who may act in general see the error.
        ids.append(str(broken))

    with recorded(mongod, db) as (theirs, recorder):

        def authorize(action: str, context: Any, target: Any) -> bool:
            theirs.command("ping")  # As a hook that looks the caller up: each question to it is a command, too.
            return context == "admin" or RULES[rule](action, target)

        claims = {"orders": (theirs["orders"], ClaimRules())}
        app = create_app(
            Monque(theirs), authorize=authorize, claims=claims, context=lambda request: request.headers.get("x-user")
        )

        async def seen(ask: Ask, method: str, path: str, body: Any, named: str) -> Any:
            recorder.commands.clear()
            sent = {**body, "ids": [named]} if body is not None and body.get("ids") == ["{id}"] else body
            answer = await ask(method, path.replace("{id}", named), **({} if sent is None else {"json": sent}))
            commands = [(name, command[name]) for name, command in recorder.commands]
            return answer.status_code, answer.text.replace(named, "ID"), sorted(answer.headers.items()), commands

        async def work(ask: Ask) -> None:
            headers = {"x-user": "admin", "prefer": "respond-async"}
            begun = await ask("POST", "/jobs/actions/cancel", headers=headers, json={"name": "none"})
            action, may_read = begun.json()["action"], RULES[rule]("read", None)
            for asked, names in (
                (OF_JOBS, ids),
                (OF_INSTANCES, ["worker-1", "other"]),
                (OF_SOURCES, ["orders", "no"]),
                (OF_ACTIONS, [action, "f" * len(action)]),
            ):
                for method, path, body in asked:
                    if method == "GET" and may_read and asked is not OF_ACTIONS:
                        continue
                    first, *others = [await seen(ask, method, path, body, one) for one in names]
                    assert others == [first] * len(others), (method, path)
                    is_unknown = (rule == "other jobs only" and asked is OF_JOBS) or (may_read and asked is OF_ACTIONS)
                    expected = 200 if "by-ids" in path else 404 if is_unknown else 403
                    assert first[0] == expected, (method, path)

        asking("trio", app, work)
    assert list(db["monque_jobs"].find()) == before
