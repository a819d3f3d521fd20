"""What is recorded of each change that was tried: a line of the log and an event, whatever came of it."""

from __future__ import annotations

import json
import logging
from typing import Any

import anyio
import pytest
from starlette.types import Message

from tests.support.store import handle, insert
from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque
from trio_monque.events import DashboardActed, Event, JobsCancelled
from trio_monque.store.driver.types import Database
from trio_monque.web import allow_all, create_app


@pytest.mark.parametrize("loop", LOOPS)
def test_each_change_that_was_tried_is_an_event(db: Database, loop: str) -> None:
    job = insert(handle(db))
    monque = Monque(db)
    reported: list[Event] = []
    monque.on(Event, reported.append)

    def authorize(action: str, context: Any, target: Any) -> bool:
        return action not in ("delete", "pause")

    async def work(ask: Ask) -> None:
        await ask("GET", "/jobs")
        await ask("POST", "/jobs/actions/count", json={"name": "greet"})
        await ask("DELETE", f"/jobs/{job.id}")
        await ask("POST", "/jobs/actions/cancel", json={"name": "greet"})
        await ask("POST", f"/jobs/{job.id}/actions/cancel", content=b"{", headers={"content-type": "application/json"})
        await ask("POST", "/names/actions/pause", json={"name": "greet"})
        await ask("POST", "/jobs", json={"name": "a", "data": "s3cret"})
        await ask("POST", "/jobs/actions/by-ids", json={"action": "retry", "ids": [str(job.id), "x"]})

    asking(loop, create_app(monque, authorize=authorize), work)
    acts = [one for one in reported if isinstance(one, DashboardActed)]
    assert [type(one) for one in reported if one not in acts][:1] == [JobsCancelled]
    of_greet = json.dumps({"name": "greet"})
    assert [(one.action, one.target, one.count, one.outcome) for one in acts] == [
        ("delete", str(job.id), None, 403),
        ("cancelBulk", of_greet, 1, 200),
        ("cancel", "", None, 400),
        ("pause", of_greet, None, 403),
        ("enqueue", "", None, 403),
        ("byIds", "retry of 2 ids", 1, 200),
    ]
    assert "s3cret" not in repr(acts)


@pytest.mark.parametrize("loop", LOOPS)
def test_caller_is_the_address_where_the_context_has_no_user(db: Database, loop: str) -> None:
    """As with the request itself for a context: its `user` raises without the authentication of Starlette."""
    job = insert(handle(db))
    monque = Monque(db)
    users: list[str] = []
    monque.on(DashboardActed, lambda event: users.append(event.user))

    async def work(ask: Ask) -> int:
        return (await ask("POST", f"/jobs/{job.id}/actions/cancel")).status_code

    for context in (None, lambda request: request, lambda request: object()):
        assert asking(loop, create_app(monque, authorize=allow_all, context=context), work) == 200
    assert users == ["127.0.0.1"] * 3


def test_change_whose_client_left_is_recorded(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trio_monque.web.audit")

    async def work() -> None:
        reached = anyio.Event()

        async def authorize(action: str, context: Any, target: Any) -> bool:
            reached.set()
            await anyio.sleep_forever()
            return True

        app = create_app(Monque(db), authorize=authorize)
        body = b'{"name": "greet"}'
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/v1/jobs/actions/delete",
            "headers": [(b"content-type", b"application/json")],
            "query_string": b"",
            "scheme": "http",
        }

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None: ...

        async def serve() -> None:
            await app(scope, receive, send)

        async with anyio.create_task_group() as group:
            group.start_soon(serve)
            await reached.wait()
            group.cancel_scope.cancel()

    anyio.run(work, backend="trio")
    (line,) = [one.getMessage() for one in caplog.records if one.name == "trio_monque.web.audit"]
    assert line == 'deleteBulk by unknown from unknown: {"name": "greet"}, answered 499 (jobs: -)'
