"""EmbeddedMongod: the context manager, for `with` and `async with`. The async form runs the plain one in a thread."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import anyio
import anyio.to_thread

from ..error_types import AsyncWithError, EmbeddedServerError, InvalidOptionError, MonqueConnectionError
from ..store.driver import member_admin
from .embedded_server import EmbeddedServer
from .replica_set import DEFAULT_NAME
from .server_start import Launch, LaunchOptions

_URI_VARIABLE = "MONQUE_MONGODB_URI"


class EmbeddedMongod:
    """The server for as long as the block lasts: `with` blocks the thread, `async with` does not.

    The async form works on trio and asyncio. Cancelled while it starts, it ends what it has started;
    the end is not cancelled, and is bounded (a fraction of a second, some seconds where data is kept).

    If the block raises and the server had ended by itself, the exception gets a note with the last lines of the
    server's log.
    """

    def __init__(self, options: LaunchOptions) -> None:
        self._options = options
        self._launch: Launch | None = None
        self._server: EmbeddedServer | None = None

    def __enter__(self) -> EmbeddedServer:
        return self._enter(self._new_launch())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exit(error)

    async def __aenter__(self) -> EmbeddedServer:
        launch = self._new_launch()
        try:
            return await anyio.to_thread.run_sync(
                self._enter, launch, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
            )
        except BaseException:
            launch.abort()
            await self._exit_in_thread(None)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._exit_in_thread(error)

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("uri", "members", "folder", "owned", "check", "log_tail", "step_down", "wait_exited"):
            raise AsyncWithError(
                f"embedded_mongod() has no {name!r}, as it was not entered: write `with embedded_mongod() as server:`"
            )
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def _new_launch(self) -> Launch:
        if self._launch is not None:
            raise EmbeddedServerError("this embedded_mongod() is already in use: call it again for another")
        self._launch = Launch(self._options)
        return self._launch

    def _enter(self, launch: Launch) -> EmbeddedServer:
        try:
            uri = None if self._options.always_start else os.environ.get(_URI_VARIABLE)
            if uri and self._options.members == 1:
                self._server = _named(uri)
            else:
                self._server = launch.start()
        except BaseException:
            self._launch = None
            raise
        return self._server

    def _exit(self, error: BaseException | None) -> None:
        launch, self._launch = self._launch, None
        server, self._server = self._server, None
        if server is not None and error is not None:
            _note_death(server, error)
        if launch is not None:
            launch.end()

    async def _exit_in_thread(self, error: BaseException | None) -> None:
        # With a limiter of its own: all threads of the default limiter may be busy with work of the caller.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._exit, error, limiter=anyio.CapacityLimiter(1))


def embedded_mongod(
    *,
    members: int = 1,
    port: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    replica_set: str = DEFAULT_NAME,
) -> EmbeddedMongod:
    """A real MongoDB server as a replica set, for development and tests only.

    Use it with `with` or `async with`; the value is an `EmbeddedServer`. If MONQUE_MONGODB_URI is set and `members` is
    1, it starts nothing and uses that server.

    Args:
        members: 1, or 3 for tests of failover.
        port: Where to listen on 127.0.0.1, the second and third member on the two ports after it. By
            default free ones.
        folder: Where to keep the data between runs. By default a temporary folder, removed at the end.
        replica_set: The name of the replica set, as clients give it in `replicaSet=`. A folder keeps its name.

    Raises:
        InvalidOptionError: A value is invalid.
        EmbeddedServerError: On entering: no server was found, or it could not be started.
    """
    if members not in (1, 3):
        raise InvalidOptionError("members", members, "must be 1 or 3")
    if port is not None and not 1 <= port <= 65_536 - members:
        raise InvalidOptionError("port", port, f"must be from 1 to {65_536 - members}")
    kept = None if folder is None else Path(folder).resolve()
    return EmbeddedMongod(LaunchOptions(members, port, kept, check_replica_set(replica_set)))


def check_replica_set(name: object) -> str:
    """Return the name if it is valid for a replica set and in a URI; raise InvalidOptionError otherwise."""
    if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        return name
    raise InvalidOptionError("replica_set", name, "must be 1 to 64 characters of A-Z, a-z, 0-9, `_`, `.` and `-`")


def _named(uri: str) -> EmbeddedServer:
    try:
        member_admin.ping(uri)
    except MonqueConnectionError as error:
        raise EmbeddedServerError(
            f"the server that {_URI_VARIABLE} names cannot be used: {error}. "
            "Start it, correct the variable, or unset it to get a server of your own"
        ) from error
    return EmbeddedServer(uri)


def _note_death(server: EmbeddedServer, error: BaseException) -> None:
    try:
        server.check()
    except EmbeddedServerError as death:
        error.add_note(str(death))
