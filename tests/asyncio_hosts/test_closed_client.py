"""A MongoClient that the program closes under a scheduler ends it, with one line about the cause."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from tests.asyncio_hosts.conftest import Run
from trio_monque import Workers, open_claims, open_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import ClientClosedError
from trio_monque.store.driver.types import Database, MongoClient


def shown(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    # Of ours: asyncio in debug mode warns about each step that takes long on a busy machine.
    ours = (one for one in caplog.records if one.name.startswith("trio_monque"))
    return [one for one in ours if one.levelno >= logging.WARNING]


@pytest.mark.parametrize("kind", ["scheduler", "claims"])
def test_closed_client_is_one_clear_line(
    run: Run, mongod: EmbeddedServer, db: Database, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level(logging.INFO)
    workers = Workers()
    workers.register("job", lambda job: None)
    client: MongoClient = MongoClient(mongod.uri, tz_aware=True)
    workers = Workers()
    workers.register("greet", lambda job: None)

    async def main() -> None:
        opened: Any = (
            open_scheduler(client[db.name], workers, heartbeat_interval=0.2, change_stream=False)
            if kind == "scheduler"
            else open_claims(client[db.name]["things"], {}, heartbeat_interval=0.2)
        )
        async with opened as running:
            client.close()
            if kind == "claims":
                async for _ in running:
                    pass
            await anyio.sleep_forever()

    with pytest.raises(ClientClosedError, match="close it after the scheduler"):
        run(main)
    [line] = shown(caplog)
    assert "the program has closed the MongoClient" in line.getMessage()
    assert line.exc_info is None
    assert not any("after close" in one.getMessage() for one in caplog.records)
