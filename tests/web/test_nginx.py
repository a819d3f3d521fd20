"""Behind nginx, under a prefix that it strips or keeps: links are right, streams pass, and no path leads out."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from tests.support.many_jobs import insert
from tests.support.nginx import nginx
from tests.support.waiting import wait_until
from tests.support.web_servers import WebServer
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database

SERVED: Final = Path(__file__).parent / "served_app.py"
SECONDS: Final = 30.0
PREFIX: Final = "/ops/jobs"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Sends requests to the letter: a library would make other paths of some."""

    def __init__(self, where: Path) -> None:
        self._where = where

    def connect(self, method: str, path: str, body: bytes = b"", **headers: str) -> socket.socket:
        sent = {"Host": "ops.test", "Connection": "close", "Content-Length": str(len(body))}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(SECONDS)
        client.connect(str(self._where))
        client.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        return client

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        content = b"" if body is None else json.dumps(body).encode()
        kind = {} if body is None else {"Content_Type": "application/json"}
        with self.connect(method, path, content, **kind, **headers) as client:
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        head, _, found = answer.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        named = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Answer(int(status.split()[1]), named, _joined(found) if "chunked" in head.decode().lower() else found)


def _joined(chunked: bytes) -> bytes:
    found = b""
    while chunked:
        size, _, rest = chunked.partition(b"\r\n")
        found, chunked = found + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return found


@contextmanager
def behind_nginx(kind: str, how: str, mongod: EmbeddedServer, db: Database) -> Iterator[tuple[Client, WebServer]]:
    """A server behind a proxy that strips the prefix, which the server has as an option then, or keeps it."""
    is_stripped = how == "stripped"
    order = {"uri": mongod.uri, "database": db.name, "mount": "" if is_stripped else PREFIX, "audit": True}
    options = ["--root-path", PREFIX] if is_stripped else []
    with WebServer(kind, SERVED, {"ORDER": json.dumps(order)}, options) as server:
        server.wait_until_it_serves()
        target = server.url + ("/" if is_stripped else "")
        headers = "proxy_set_header Host $http_host; proxy_set_header X-Forwarded-For $remote_addr;"
        location = f"location {PREFIX}/ {{ proxy_pass {target}; {headers} }}"
        with TemporaryDirectory(prefix="nginx") as folder, nginx(Path(folder), location) as where:
            yield Client(where), server


@pytest.mark.full
@pytest.mark.parametrize("how", ["stripped", "kept"])
@pytest.mark.parametrize("kind", ["uvicorn", "hypercorn, trio"])
def test_application_works_behind_nginx_under_a_prefix(
    mongod: EmbeddedServer, db: Database, jobs: Collection, kind: str, how: str
) -> None:
    insert(jobs, 2000)
    with behind_nginx(kind, how, mongod, db) as (client, server):
        links_are_right(client)
        stream_passes_at_once(client, db)
        before = sorted(map(repr, jobs.find()))
        no_path_leads_out(client)
        assert sorted(map(repr, jobs.find())) == before
        caller_does_not_choose_the_address(client, server)


def links_are_right(client: Client) -> None:
    strange = {"X_Forwarded_Prefix": "/evil", "X_Forwarded_Host": "evil.test", "X_Script_Name": "/evil"}
    for path in (f"{PREFIX}/openapi.json", f"{PREFIX}/openapi.json/"):
        assert client.ask("GET", path, **strange).json["servers"] == [{"url": PREFIX}]
    body = {"status": "completed"}
    begun = client.ask("POST", f"{PREFIX}/api/v1/jobs/actions/delete", body, Prefer="respond-async", **strange)
    assert (begun.status, begun.headers["location"]) == (202, f"{PREFIX}/api/v1/actions/{begun.json['action']}")
    wait_until(lambda: client.ask("GET", begun.headers["location"]).json["state"] == "done", "it is done", SECONDS)
    for path in (f"{PREFIX}/api/v1/jobs", f"{PREFIX}/api/v1/jobs/"):
        assert client.ask("GET", path).status == 200


def stream_passes_at_once(client: Client, db: Database) -> None:
    with client.connect("GET", f"{PREFIX}/api/v1/events") as stream:
        _read_until(stream, b'"schedules"')  # All is stale at first, and the stream goes on.
        Monque(db).sync.enqueue("new")
        assert b"names" in _read_until(stream, b"event: stale")


def caller_does_not_choose_the_address(client: Client, server: WebServer) -> None:
    """It is who is limited, and whom the log names."""
    body = {"name": "forged"}
    client.ask(
        "POST", f"{PREFIX}/api/v1/names/actions/pause", body, X_Forwarded_For="192.0.2.66", X_Real_IP="192.0.2.66"
    )
    line = server.wait_for_line("forged")
    assert line.startswith("pause by ")
    assert "192.0.2.66" not in line


def _read_until(stream: socket.socket, text: bytes) -> bytes:
    found = b""
    while text not in found or not found.endswith(b"\n\n\r\n"):
        piece = stream.recv(4096)
        assert piece, found
        found += piece
    return found


ID: Final = "0" * 23 + "3"
OUT: Final = (
    f"{PREFIX}/../secret",
    f"{PREFIX}/../../secret",
    f"{PREFIX}/%2e%2e/%2e%2e/secret",
    f"{PREFIX}/..%2f..%2fsecret",
    f"{PREFIX}/%2e%2e%2f%2e%2e%2fsecret",
    f"{PREFIX}/%252e%252e/%252e%252e/secret",
    f"{PREFIX}/..%5c..%5csecret",
    f"{PREFIX}/..;/..;/secret",
    f"{PREFIX}//secret",
    f"{PREFIX}//evil.test/",
    f"/{PREFIX}//evil.test/..",
    f"{PREFIX}/%2Fevil.test",
    f"{PREFIX}/%5Cevil.test",
    f"{PREFIX}/api/v1/jobs/%2e%2e",
    # Where it strips a prefix, nginx makes slashes of these: then it is the path of a route, as if it were written so.
    f"{PREFIX}/api/v1/jobs/%2F{ID}%2Factions%2Fnothing",
    f"{PREFIX}/api/v1//jobs//{ID}//actions//nothing",
    f"{PREFIX}/api/v1/jobs/{ID}%00",
    f"{PREFIX}/api/v1/jobs/{ID}%0d%0aX-Evil:%20yes",
    f"{PREFIX}/secret",
    f"{PREFIX}",
    "/secret",
    "http://evil.test/secret",
    f"http://evil.test{PREFIX}/nothing",
)


def no_path_leads_out(client: Client) -> None:
    for path in OUT:
        for method in ("GET", "POST", "DELETE"):
            found = client.ask(method, path)
            # nginx makes the root of the application of some: that is its dashboard.
            is_dashboard = found.status == 200 and b"<title>" in found.body and b"evil" not in found.body
            assert is_dashboard or found.status in (301, 400, 404, 405), (method, path, found)
            # nginx itself leads from the place without a slash to that with one.
            assert found.status != 301 or found.headers["location"].endswith(f"ops.test{PREFIX}/"), (path, found)
            assert "x-evil" not in found.headers
            assert b"of the host" not in found.body, path
