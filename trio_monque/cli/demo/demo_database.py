"""The database of the demo: a server, and collections for this run only."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from ...embedded import EmbeddedServer, embedded_mongod
from ...error_types import MonqueError
from ...store.driver.commands import command
from ...store.driver.connection import connect
from ...store.driver.types import Database
from .printing import say

DATABASE: Final = "trio_monque_demo"


@dataclass(frozen=True)
class DemoDatabase:
    """A database, and a prefix that no other run has, so that the demo changes nothing else on the server.

    Attributes:
        prefix: What the names of all collections of this run begin with.
        operation_timeout: Seconds that one command may take.
    """

    database: Database
    prefix: str
    operation_timeout: float = 5.0

    @property
    def jobs(self) -> str:
        return f"{self.prefix}_jobs"

    def __str__(self) -> str:
        return f"collections {self.prefix}_* of database {self.database.name}"

    @command("remove the demo's collections")
    def remove_collections(self) -> None:
        """Drop the collections of this run by their prefix: schedulers have more of them beside the jobs."""
        for name in self.database.list_collection_names(filter={"name": {"$regex": f"^{self.prefix}_"}}):
            self.database.drop_collection(name)


@asynccontextmanager
async def open_demo_database(uri: str | None, *, keep: bool) -> AsyncIterator[DemoDatabase]:
    """Open collections of the server at `uri`, or of an embedded one.

    Leaving the block, also by cancellation, removes them, unless the server ends anyway or `keep` is set.
    """
    async with _server(uri) as server, _connected(server.uri) as database:
        opened = DemoDatabase(database, f"demo_{secrets.token_hex(4)}")
        if server.owned:
            yield opened
            return
        say(f"using the server of the connection string: {opened}")
        try:
            yield opened
        finally:
            await _remove(opened, keep=keep)


@asynccontextmanager
async def _server(uri: str | None) -> AsyncIterator[EmbeddedServer]:
    if uri is not None:
        yield EmbeddedServer(uri)
        return
    say("starting a MongoDB server ...")
    began = time.monotonic()
    async with embedded_mongod() as server:
        if server.owned:  # Otherwise MONQUE_MONGODB_URI names one.
            (member,) = server.members
            say(f"server: pid {member.pid}, MongoDB on port {member.port}, up in {time.monotonic() - began:.1f} s")
        yield server


@asynccontextmanager
async def _connected(uri: str) -> AsyncIterator[Database]:
    connection = connect(uri, database=DATABASE)
    # If cancelled, do not wait for a server that does not answer.
    database = await trio.to_thread.run_sync(connection.__enter__, abandon_on_cancel=True)
    try:
        yield database
    finally:
        connection.__exit__(None, None, None)


async def _remove(opened: DemoDatabase, *, keep: bool) -> None:
    if keep:
        say(f"kept: {opened}")
        return
    with trio.CancelScope(shield=True):
        try:
            await trio.to_thread.run_sync(opened.remove_collections)
        except MonqueError as error:
            say(f"left behind, please remove them: {opened} ({error})")
        else:
            say(f"removed: {opened}")
