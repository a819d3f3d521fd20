"""What reaches the application through the parser of a real server: the bytes of a request are an attacker's choice."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.support.store import handle, insert
from tests.support.web_servers import WebServer
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web.guard.body import MOST_BYTES

SERVED: Final = Path(__file__).parent / "served_app.py"
KINDS: Final = ["uvicorn", "hypercorn, trio"]
SECONDS: Final = 30.0
OWN: Final = b"Host: jobs.test\r\n"
HEALTH: Final = b"/admin/api/v1/health"
DELETE: Final = (
    b"POST /admin/api/v1/jobs/actions/delete HTTP/1.1\r\nHost: jobs.test\r\nContent-Type: application/json\r\n"
)
EVERYTHING: Final = b'{"everything": true}'


def head(target: bytes, *lines: bytes, method: bytes = b"GET") -> bytes:
    return method + b" " + target + b" HTTP/1.1\r\n" + b"".join(lines) + b"Connection: close\r\n\r\n"


# Each with the statuses that are right. A server may refuse it before the application does.
REQUESTS: Final[dict[str, tuple[bytes, set[int]]]] = {
    "own host": (head(HEALTH, OWN), {200}),
    "other host": (head(HEALTH, b"Host: evil.test\r\n"), {421}),
    "two hosts": (head(HEALTH, OWN, b"Host: evil.test\r\n"), {400, 421}),
    "two hosts, the other one first": (head(HEALTH, b"Host: evil.test\r\n", OWN), {400, 421}),
    "two hosts in one": (head(HEALTH, b"Host: jobs.test, evil.test\r\n"), {400, 421}),
    "host with a user": (head(HEALTH, b"Host: jobs.test@evil.test\r\n"), {400, 421}),
    "no host": (head(HEALTH), {400}),
    "no host, in HTTP/1.0": (b"GET " + HEALTH + b" HTTP/1.0\r\n\r\n", {421}),
    "folded host": (head(HEALTH, b"Host: jobs.test\r\n evil.test\r\n"), {400, 421}),
    "absolute request line": (head(b"http://evil.test" + HEALTH, OWN), {400, 404}),
    "absolute request line, of the own host": (
        head(b"http://jobs.test" + HEALTH, b"Host: evil.test\r\n"),
        {400, 404, 421},
    ),
    "absolute deletion": (
        b"POST http://jobs.test/admin/api/v1/jobs/actions/delete HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: 20\r\n\r\n" + EVERYTHING,
        {400, 404, 421},
    ),
    "line break in a path": (head(b"/admin/api/v1/jobs/%0d%0aX-Evil:%20yes", OWN), {400, 404}),
    "line break in a query": (head(b"/admin/api/v1/jobs?cursor=%0d%0aX-Evil:%20yes", OWN), {400}),
    "line break in a mount": (head(b"/admin%0d%0aX-Evil:%20yes/api/v1/health", OWN), {400, 404}),
    "NUL in a path": (head(b"/admin/api/v1/jobs/\x00", OWN), {400, 404}),
    "bytes in a path": (head(b"/admin/api/v1/jobs/\xff\xfe", OWN), {400, 404}),
    "percent signs in a path": (head(b"/admin/api/v1/jobs/%ff%fe%zz%", OWN), {400, 404}),
    "dots out of the mount": (head(b"/admin/../secret", OWN), {400, 404}),
    "encoded dots": (head(b"/admin/%2e%2e/secret", OWN), {400, 404}),
    "two slashes": (head(b"//evil.test/admin/api/v1/health", OWN), {400, 404}),
    "backslash": (head(b"/admin\\..\\secret", OWN), {400, 404}),
    "query of a megabyte": (head(b"/admin/api/v1/jobs?cursor=F" + b"A" * (1 << 20), OWN), {400, 414, 431}),
    "header of a megabyte": (head(HEALTH, OWN, b"Prefer: " + b"A" * (1 << 20) + b"\r\n"), {400, 431}),
    "preference in other bytes": (head(HEALTH, OWN, b"Prefer: \xff\xfe\r\n"), {200, 400}),
    "site in other bytes": (
        head(b"/admin/api/v1/jobs/" + b"f" * 24, OWN, b"Sec-Fetch-Site: \xff\r\n", method=b"DELETE"),
        {400, 403},
    ),
    "origin in other bytes": (
        head(b"/admin/api/v1/jobs/" + b"f" * 24, OWN, b"Origin: http://[\xff\r\n", method=b"DELETE"),
        {400, 403},
    ),
    "type in other bytes": (
        DELETE.replace(b"application/json", b"\xff") + b"Content-Length: 20\r\n\r\n" + EVERYTHING,
        {400, 415},
    ),
    "a hundred megabytes, announced": (DELETE + b"Content-Length: 104857600\r\n\r\n", {413}),
    "negative length": (DELETE + b"Content-Length: -1\r\n\r\n" + EVERYTHING, {400}),
    "two lengths": (DELETE + b"Content-Length: 20\r\nContent-Length: 2\r\n\r\n" + EVERYTHING, {400}),
    "chunk of no size": (DELETE + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + EVERYTHING, {400}),
    "unknown encoding": (DELETE + b"Transfer-Encoding: gzip, chunked\r\n\r\n", {400, 501}),
    "compressed body": (
        DELETE + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
        {400},
    ),
}


@contextmanager
def connected(server: WebServer) -> Iterator[socket.socket]:
    where = urlsplit(server.url)
    assert where.hostname is not None
    with socket.create_connection((where.hostname, where.port or 80), timeout=SECONDS) as client:
        yield client


def answer_to(server: WebServer, request: bytes) -> bytes:
    with connected(server) as client:
        found = b""
        with suppress(OSError):  # It may have answered, and closed, before it has read everything.
            client.sendall(request)
        with suppress(ConnectionResetError):
            while b"\r\n\r\n" not in found and (piece := client.recv(65536)):
                found += piece
        return found


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_no_bytes_of_a_request_do_harm(mongod: EmbeddedServer, db: Database, jobs: Collection, kind: str) -> None:
    insert(handle(db))
    order = {"uri": mongod.uri, "database": db.name, "hosts": ["jobs.test"]}
    with WebServer(kind, SERVED, {"ORDER": json.dumps(order)}) as server:
        server.wait_until_it_serves()
        wrong = {}
        for name, (request, statuses) in REQUESTS.items():
            answer = answer_to(server, request)
            status = int(answer.split()[1]) if answer else 0
            if status not in statuses or b"x-evil" in answer.partition(b"\r\n\r\n")[0].lower():
                wrong[name] = answer
        assert not wrong
        assert sent_without_an_end(server) < 16 * MOST_BYTES
        assert answer_to(server, REQUESTS["own host"][0]).split()[1] == b"200"
        server.kill()
        assert server.process.stdout is not None
        printed = server.printed + server.process.stdout.read()
        assert "a request failed" not in printed, printed
    assert jobs.count_documents({}) == 1


def sent_without_an_end(server: WebServer) -> int:
    """Send a body in chunks until the server answers, and return how many bytes it took."""
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    sent = 0
    with connected(server) as client:
        client.sendall(DELETE + b"Transfer-Encoding: chunked\r\n\r\n")
        client.settimeout(0.05)
        while sent < 64 * MOST_BYTES:
            try:
                client.sendall(chunk)
                sent += len(chunk)
                answer = client.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                return sent
            assert not answer or b" 413 " in answer, answer
            break
    return sent
