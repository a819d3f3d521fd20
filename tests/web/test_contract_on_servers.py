"""The table of the contract on each server, in each mount, behind a proxy and behind the login of the host."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio
import httpx
import pytest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.nginx import nginx
from tests.support.web_servers import WebServer
from tests.web import contract_table
from tests.web.http import LOOPS
from tests.web.mounts import HOSTS, in_fastapi
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web import allow_all, create_app

SERVED: Final = Path(__file__).with_name("served_app.py")
HOST: Final = "http://jobs.test"
SECONDS: Final = 30.0
PREFIX: Final = "/ops/jobs"
TOKEN: Final = {"authorization": "Bearer s3cret"}


@pytest.fixture
def filled(db: Database, jobs: Collection) -> Database:
    contract_table.fill(jobs)
    return db


async def check_table(client: httpx.AsyncClient, prefix: str) -> None:
    async def send(method: str, path: str, **options: Any) -> httpx.Response:
        return await client.request(method, f"{prefix}/api/v1{path}", **options)

    await contract_table.check_reads(send)
    await contract_table.check_changes(send)


def behind_login(app: ASGIApp) -> ASGIApp:
    """A host that refuses requests without a token, and mounts the application."""
    mounted = in_fastapi(app)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        is_known = scope["type"] != "http" or (b"authorization", TOKEN["authorization"].encode()) in scope["headers"]
        await (mounted if is_known else JSONResponse({"detail": "log in"}, 401))(scope, receive, send)

    return guarded


PLACES: Final = {**HOSTS, "login": behind_login}


@pytest.mark.full
@pytest.mark.parametrize("host", PLACES)
@pytest.mark.parametrize("loop", LOOPS)
def test_mounted_application_answers_the_table(filled: Database, host: str, loop: str) -> None:
    app = PLACES[host](create_app(Monque(filled, stats_cache_ttl=0), authorize=allow_all))

    async def work() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=HOST, headers=TOKEN) as client:
            await check_table(client, "/admin")
        async with httpx.AsyncClient(transport=transport, base_url=HOST) as stranger:
            assert (await stranger.get("/admin/api/v1/health")).status_code == (401 if host == "login" else 200)

    anyio.run(work, backend=loop)


@contextmanager
def serving(kind: str, mongod: EmbeddedServer, db: Database, mount: str, *options: str) -> Iterator[WebServer]:
    order = {"uri": mongod.uri, "database": db.name, "mount": mount, "rate": 1_000_000}
    with WebServer(kind, SERVED, {"ORDER": json.dumps(order)}, options) as server:
        server.wait_until_it_serves()
        yield server


@pytest.mark.full
@pytest.mark.parametrize("kind", ["uvicorn", "hypercorn, trio"])
def test_server_answers_the_table(mongod: EmbeddedServer, filled: Database, kind: str) -> None:
    with serving(kind, mongod, filled, "") as server:

        async def work() -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS) as client:
                await check_table(client, "")

        anyio.run(work)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "is_stripped"), [("uvicorn", True), ("hypercorn, trio", False)])
def test_server_behind_nginx_answers_the_table(
    mongod: EmbeddedServer, filled: Database, kind: str, *, is_stripped: bool
) -> None:
    options = ["--root-path", PREFIX] if is_stripped else []
    with serving(kind, mongod, filled, "" if is_stripped else PREFIX, *options) as server:
        target = server.url + ("/" if is_stripped else "")
        location = f"location {PREFIX}/ {{ proxy_pass {target}; proxy_set_header Host $http_host; }}"
        with TemporaryDirectory(prefix="nginx") as folder, nginx(Path(folder), location) as where:

            async def work() -> None:
                transport = httpx.AsyncHTTPTransport(uds=str(where))
                async with httpx.AsyncClient(transport=transport, base_url=HOST, timeout=SECONDS) as client:
                    await check_table(client, PREFIX)

            anyio.run(work)
