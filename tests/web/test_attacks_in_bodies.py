"""Bodies that no client sends."""

from __future__ import annotations

import gzip
from typing import Final

import anyio
import pytest
from starlette.types import Message

from tests.support.store import handle, insert
from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web import allow_all, create_app
from trio_monque.web.guard.body import DEEPEST, MOST_BYTES

NESTED: Final = "[" * 5000 + "]" * 5000
HARMFUL: Final = [
    b"{",
    b"nonsense",
    b"\xff\xfe",
    b'{"name": "\\ud800"}',
    b'{"name": "a", "name": "b"}',
    b'{"name": 1e999}',
    b'{"name": NaN}',
    b'{"name": ' + b"9" * 5000 + b"}",
    b'{"name": 9223372036854775808}',
    b'{"name": ' + NESTED.encode() + b"}",
    b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1),
]


@pytest.mark.parametrize("path", ["/jobs/{}/actions/cancel", "/jobs/{}/actions/reschedule", "/jobs/actions/delete"])
def test_bodies_that_cannot_be_read(db: Database, path: str) -> None:
    job = insert(handle(db))

    async def work(ask: Ask) -> None:
        for body in HARMFUL:
            found = await ask(
                "POST", path.format(job.id), content=body, headers={"content-type": "application/json; charset=utf-8"}
            )
            assert found.status_code == 400, body[:40]
            assert found.json()["error"].startswith("Malformed request. ")

    asking("trio", create_app(Monque(db), authorize=allow_all), work)


def test_compressed_body_is_not_unpacked(db: Database, jobs: Collection) -> None:
    """A few bytes may stand for gigabytes."""
    insert(handle(db))

    async def work(ask: Ask) -> int:
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        body = gzip.compress(b'{"everything": true}')
        return (await ask("POST", "/jobs/actions/delete", content=body, headers=headers)).status_code

    assert asking("trio", create_app(Monque(db), authorize=allow_all), work) == 400
    assert jobs.count_documents({}) == 1


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("headers", [[], [(b"content-length", b"1" * 30)]], ids=["chunked", "announced"])
def test_endless_body_is_read_up_to_its_limit(db: Database, loop: str, headers: list[tuple[bytes, bytes]]) -> None:
    app = create_app(Monque(db), authorize=allow_all)
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/v1/jobs/actions/delete",
        "headers": [(b"content-type", b"application/json"), *headers],
        "query_string": b"",
        "scheme": "http",
    }
    pieces = 0
    sent: list[Message] = []

    async def receive() -> Message:
        nonlocal pieces
        pieces += 1
        return {"type": "http.request", "body": b" " * 65536, "more_body": True}

    async def send(message: Message) -> None:
        sent.append(message)

    async def ask() -> None:
        await app(scope, receive, send)

    anyio.run(ask, backend=loop)
    assert sent[0]["status"] == 413
    assert pieces <= (0 if headers else MOST_BYTES // 65536 + 1)
