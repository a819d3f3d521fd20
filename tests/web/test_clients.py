"""A strict client reads every answer, wherever the application is mounted and whatever serves it."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest
from pymongo import MongoClient
from starlette.types import ASGIApp, Message

from tests.support.store import claim, handle, insert
from tests.support.web_servers import WebServer
from tests.web.http import LOOPS, asking
from tests.web.mounts import HOSTS
from tests.web.strict_client import ContractError, Fetch, StrictClient
from trio_monque import Monque, RunningJob, Workers, open_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database
from trio_monque.web import allow_all, create_app

SERVED: Final = Path(__file__).with_name("served_app.py")


async def use_everything(client: StrictClient, db: Database) -> None:
    """Read every kind of answer, and act in every way."""
    jobs = handle(db)
    pending, other = insert(jobs), insert(jobs, data={"n": 1, "s": "x"})
    (running,) = claim(jobs, 1, name="runs")
    assert (await client.health())["status"] == "ok"
    assert all((await client.capabilities())["actions"].values())
    assert {one["name"] for one in (await client.queue_views())["queueViews"]} == {"greet", "runs"}
    assert (await client.stats())["total"] == 3
    assert (await client.stats("greet"))["pending"] == 2
    page = await client.jobs(limit=1, status=["pending", "processing"], sortBy="identifier", sortDirection="asc")
    assert [one["id"] for one in page["jobs"]] == [str(pending.id)]
    page = await client.jobs(limit=100, cursor=page["cursor"], sortBy="identifier", sortDirection="asc")
    assert [one["id"] for one in page["jobs"]] == [str(other.id), str(running.id)]
    assert (await client.job(str(running.id)))["heartbeatInterval"] == 30_000
    assert (await client.jobs(status=["failed"]))["jobs"] == []
    assert (await client.act(str(pending.id), "cancel"))["status"] == "cancelled"
    assert (await client.act(str(pending.id), "retry"))["status"] == "pending"
    moved = await client.act(str(pending.id), "reschedule", {"nextRunAt": "2090-01-01T00:00:00.000Z"})
    assert moved["nextRunAt"] == "2090-01-01T00:00:00.000Z"
    with pytest.raises(ContractError, match="409"):
        await client.act(str(running.id), "retry")
    with pytest.raises(ContractError, match="404"):
        await client.job("f" * 24)
    assert await client.delete(str(other.id)) == {"deleted": True}
    assert (await client.act_in_bulk("cancel", {"name": "greet", "status": ["pending"]}))["count"] == 1
    assert (await client.act_in_bulk("retry", {"status": "cancelled"}))["count"] == 1
    assert (await client.act_in_bulk("delete", {"name": "greet"}))["count"] == 1


def fetching(client: httpx.AsyncClient, prefix: str) -> Fetch:
    async def fetch(method: str, path: str, body: Any) -> tuple[int, Any]:
        found = await client.request(method, f"{prefix}/api/v1{path}", **({} if body is None else {"json": body}))
        return found.status_code, found.json()

    return fetch


@pytest.fixture
def app(db: Database) -> ASGIApp:
    return create_app(Monque(db, stats_cache_ttl=0), authorize=allow_all)


@pytest.mark.full
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("loop", LOOPS)
def test_strict_client_reads_every_answer_of_a_mounted_application(
    db: Database, app: ASGIApp, host: str, loop: str
) -> None:
    async def work() -> None:
        transport = httpx.ASGITransport(HOSTS[host](app))
        async with httpx.AsyncClient(transport=transport, base_url="http://jobs.test") as client:
            await use_everything(StrictClient(fetching(client, "/admin")), db)
            described = (await client.get("/admin/openapi.json")).json()
            assert described["servers"] == [{"url": "/admin"}]

    anyio.run(work, backend=loop)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["uvicorn", "hypercorn, trio"])
def test_strict_client_reads_every_answer_of_a_server(mongod: EmbeddedServer, db: Database, kind: str) -> None:
    order = {"ORDER": json.dumps({"uri": mongod.uri, "database": db.name})}
    with WebServer(kind, SERVED, order) as server:
        server.wait_until_it_serves()

        async def work() -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
                await use_everything(StrictClient(fetching(client, "/admin")), db)

        anyio.run(work)


@pytest.mark.full
def test_document_behind_a_prefix_of_a_proxy_names_it(app: ASGIApp) -> None:
    async def work(root_path: str) -> Any:
        transport = httpx.ASGITransport(app, root_path=root_path)
        async with httpx.AsyncClient(transport=transport, base_url="http://jobs.test") as client:
            return (await client.get(root_path + "/openapi.json")).json()["servers"]

    assert anyio.run(work, "/tools/jobs") == [{"url": "/tools/jobs"}]
    assert anyio.run(work, "") == [{"url": "/"}]


async def test_scheduler_shows_its_workers_and_its_health(db: Database) -> None:
    workers = Workers()

    @workers.register("greet", concurrency=7)
    async def greet(job: RunningJob[Any]) -> None: ...

    async with open_scheduler(db, workers) as scheduler:
        transport = httpx.ASGITransport(create_app(scheduler))
        async with httpx.AsyncClient(transport=transport, base_url="http://jobs.test") as client:
            strict = StrictClient(fetching(client, ""))
            (view,) = (await strict.queue_views())["queueViews"]
            assert (view["hasRegisteredWorker"], view["worker"]) == (True, {"concurrency": 7, "activeCount": 0})
            assert (await strict.health())["scheduler"] == {"healthy": True}


def test_client_without_a_database_is_unavailable(mongod: EmbeddedServer) -> None:
    with MongoClient[Any](mongod.uri, tz_aware=True) as client:
        monque = Monque(client["closed"])

    async def work(ask: Callable[..., Awaitable[httpx.Response]]) -> None:
        found = await ask("GET", "/health")
        assert (found.status_code, found.json()) == (200, {"status": "unavailable", "scheduler": {"healthy": False}})
        failed = await ask("GET", "/jobs")
        assert (failed.status_code, failed.json()) == (500, {"error": "Internal server error"})

    asking("trio", create_app(monque), work)


def test_request_that_ends_before_its_body_is_not_logged_as_an_error(
    app: ASGIApp, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/v1/jobs/actions/delete",
            "headers": [(b"content-type", b"application/json")],
            "query_string": b"",
            "scheme": "http",
        }

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None: ...

        await app(scope, receive, send)

    anyio.run(work)
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]
