"""The options of the demo, and its place: a server, and collections for this run only."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import trio

from ...embedded import EmbeddedServer, embedded_mongod
from ...error_types import MonqueError
from ...store.commands import command
from ...store.connection import connect
from ...store.types import Database
from .views import View


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The arguments of `trio-monque demo`.

    Attributes:
        folder: Whose files are read.
        pattern: Which files of the folder.
        most_files: The largest number of files to process; None for all.
        uri: The server to use; None for an embedded one.
        keep: Leave the collections on the server of `uri`.
        job_seconds: Seconds that each job takes in addition to its work.
    """

    folder: Path
    pattern: str = "*.py"
    most_files: int | None = None
    uri: str | None = field(default=None, repr=False)  # It may hold a password.
    keep: bool = False
    job_seconds: float = 0.0


T = TypeVar("T")

DATABASE: Final = "trio_monque_demo"
CLEAN_UP_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Place:
    """A database, and a prefix that no other run has, so that the demo changes nothing else on the server.

    Attributes:
        database: Its handle.
        prefix: What the names of all collections of this run begin with.
        owned: Whether the server ends with the demo, and all of this with it.
        operation_timeout: Seconds that one command may take.
    """

    database: Database
    prefix: str
    owned: bool
    operation_timeout: float = CLEAN_UP_SECONDS

    @property
    def jobs(self) -> str:
        return f"{self.prefix}_jobs"

    @property
    def digests(self) -> str:
        return f"{self.prefix}_digests"

    def __str__(self) -> str:
        return f"collections {self.prefix}_* of database {self.database.name}"

    @command("remove the demo's collections")
    def remove_collections(self) -> None:
        """Drop the collections of this run by their prefix: schedulers have more of them beside the jobs."""
        for name in self.database.list_collection_names(filter={"name": {"$regex": f"^{self.prefix}_"}}):
            self.database.drop_collection(name)


@asynccontextmanager
async def open_place(options: DemoOptions, view: View) -> AsyncIterator[Place]:
    """Open a place to work in. Leaving it, also by cancellation, removes the collections, unless `keep` is set."""
    async with _server(options.uri, view) as server, _opened(connect(server.uri, database=DATABASE)) as database:
        place = Place(database, f"demo_{secrets.token_hex(4)}", server.owned)
        if not place.owned:
            view.say(f"using the server of the connection string: {place}")
        try:
            yield place
        finally:
            await _clean_up(place, view, keep=options.keep)


@asynccontextmanager
async def _server(uri: str | None, view: View) -> AsyncIterator[EmbeddedServer]:
    if uri is not None:
        yield EmbeddedServer(uri)
        return
    view.say("starting a MongoDB server ...")
    began = time.monotonic()
    async with embedded_mongod() as server:
        if server.owned:
            took = time.monotonic() - began
            view.say(
                f"server: pid {server.members[0].pid}, MongoDB on port {server.members[0].port}, up in {took:.1f} s"
            )
        yield server


@asynccontextmanager
async def _opened(blocking: AbstractContextManager[T]) -> AsyncIterator[T]:
    # If cancelled, do not wait for a server that does not answer.
    value = await trio.to_thread.run_sync(blocking.__enter__, abandon_on_cancel=True)
    try:
        yield value
    finally:
        blocking.__exit__(None, None, None)


async def _clean_up(place: Place, view: View, *, keep: bool) -> None:
    if place.owned:
        return
    if keep:
        view.say(f"kept: {place}")
        return
    with trio.CancelScope(shield=True):
        try:
            await trio.to_thread.run_sync(place.remove_collections)
        except MonqueError as error:
            view.say(f"left behind, please remove them: {place} ({error})")
        else:
            view.say(f"removed: {place}")
