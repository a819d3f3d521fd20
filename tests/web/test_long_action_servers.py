"""Long bulk actions on real servers: they go on without their client, and end with the server after a whole batch."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.support.many_jobs import insert
from tests.support.waiting import wait_until
from tests.support.web_servers import WebServer
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database

SERVED: Final = Path(__file__).parent / "served_app.py"
KINDS: Final = ["uvicorn", "hypercorn, trio"]
SELECTOR: Final = b'{"status": "completed"}'
SECONDS: Final = 60.0
# How long a server waits for what it still does when it shuts down.
PATIENCE: Final = {"uvicorn": ["--timeout-graceful-shutdown", "1"], "hypercorn, trio": ["--graceful-timeout", "1"]}


def begun(url: str) -> dict[str, Any]:
    """Ask for an action, read its answer, and leave."""
    where = urlsplit(url)
    assert where.hostname is not None
    with socket.create_connection((where.hostname, where.port or 80), timeout=SECONDS) as client:
        client.sendall(
            b"POST /admin/api/v1/jobs/actions/delete HTTP/1.1\r\nHost: jobs.test\r\nPrefer: respond-async\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(SELECTOR), SELECTOR)
        )
        answer = b""
        while not answer.endswith(b"}"):
            piece = client.recv(4096)
            assert piece, answer
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    found: dict[str, Any] = json.loads(body)
    assert head.split()[1] == b"202", answer
    assert f"location: /admin/api/v1/actions/{found['action']}" in head.decode().lower()
    return found


@pytest.mark.full
@pytest.mark.parametrize("host", [{}, {"middleware": True}], ids=["plain", "in middleware"])
@pytest.mark.parametrize("kind", KINDS)
def test_action_goes_on_after_its_client_has_left(
    mongod: EmbeddedServer, db: Database, jobs: Collection, kind: str, host: dict[str, bool]
) -> None:
    insert(jobs, 5000)
    number = jobs.count_documents({"status": "completed"})
    order = {"ORDER": json.dumps({"uri": mongod.uri, "database": db.name, "batch": 100, **host})}
    with WebServer(kind, SERVED, order) as server:
        server.wait_until_it_serves()
        found = begun(server.url)
        assert found["count"] == number
        path = f"/admin/api/v1/actions/{found['action']}"
        wait_until(lambda: server.ask("GET", path)[1]["state"] != "running", "the action is over", SECONDS)
        _, action = server.ask("GET", path)
        assert (action["state"], action["done"], action["count"]) == ("done", number, number)
    assert jobs.count_documents({"status": "completed"}) == 0


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_server_that_shuts_down_ends_an_action_after_a_whole_batch(
    mongod: EmbeddedServer, db: Database, jobs: Collection, kind: str
) -> None:
    batch = 10
    insert(jobs, 20_000)
    number = jobs.count_documents({"status": "completed"})
    order = {"ORDER": json.dumps({"uri": mongod.uri, "database": db.name, "batch": batch})}
    with WebServer(kind, SERVED, order, PATIENCE[kind]) as server:
        server.wait_until_it_serves()
        begun(server.url)
        wait_until(lambda: jobs.count_documents({"status": "completed"}) < number, "it has begun", SECONDS)
        server.signal(signal.SIGTERM)
        server.wait()
        assert "Traceback" not in server.printed
    left = jobs.count_documents({"status": "completed"})
    assert 0 < left < number
    assert (number - left) % batch == 0
