"""A server that refuses commands with a given error code: MongoDB's own fail points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
from pymongo import MongoClient

from trio_monque.embedded import embedded_mongod, server_start
from trio_monque.embedded.supervised_servers import ServerCommand

from .haste import hasten

ALL_COMMANDS: Final = (
    *("find", "aggregate", "getMore", "insert", "update", "delete", "findAndModify"),
    *("create", "createIndexes", "listIndexes", "explain", "count", "distinct"),
)
"""All that the library sends, but `hello`: the driver's monitors send that, too."""


@dataclass(frozen=True)
class RefusingServer:
    """It refuses nothing until it is asked to, and then only what the clients named `app` send."""

    uri: str
    app: str = "refused"

    def client(self, **options: Any) -> MongoClient[Any]:
        return MongoClient(self.uri, appname=self.app, tz_aware=True, **options)

    @contextmanager
    def refusing(self, code: int, commands: Sequence[str] = ALL_COMMANDS) -> Iterator[None]:
        """While inside, these commands fail with that error code."""
        with MongoClient[Any](self.uri) as admin:
            data = {"failCommands": list(commands), "errorCode": code, "appName": self.app}
            admin.admin.command({"configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data})
            try:
                yield
            finally:
                admin.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


@contextmanager
def refusing_server() -> Iterator[RefusingServer]:
    """One of its own: an ordinary server has no fail points."""
    command = server_start.server_command

    def with_fail_points(*arguments: Any) -> ServerCommand:
        ordinary = command(*arguments)
        return replace(ordinary, command=[*ordinary.command, "--setParameter", "enableTestCommands=1"])

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MONQUE_MONGODB_URI", raising=False)
        patch.setattr(server_start, "server_command", with_fail_points)
        with embedded_mongod() as server:
            hasten(server)
            yield RefusingServer(server.uri)
