"""Commands of an administrator, which form and steer a replica set.

The rest of the store assumes a database that an operator looks after. The embedded server and the tests of failover
look after their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError, WriteConcernError

from .connection import connect
from .driver_errors import translated

_TIMEOUT_MS = 5_000


class MemberAdmin:
    """A direct connection to one member, whatever its state. Use it with `with`.

    Every method raises `MonqueConnectionError` where the member does not do what was asked.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = f"{host}:{port}"
        self._client: MongoClient[dict[str, Any]] = MongoClient(
            host,
            port,
            directConnection=True,
            serverSelectionTimeoutMS=_TIMEOUT_MS,
            connectTimeoutMS=_TIMEOUT_MS,
            socketTimeoutMS=_TIMEOUT_MS,
        )

    def __enter__(self) -> MemberAdmin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def is_primary(self) -> bool:
        """Whether this member accepts writes."""
        return bool(self._run("hello")["isWritablePrimary"])

    def states(self) -> list[str]:
        """The state of each member as this one sees it, such as "PRIMARY" or "STARTUP2"."""
        return [member["stateStr"] for member in self._run("replSetGetStatus")["members"]]

    def stored_configuration(self) -> dict[str, Any] | None:
        """The replica set configuration in the member's own database; None where it never had one."""
        with _translated(f"read local.system.replset of {self._address}"):
            return self._client["local"]["system.replset"].find_one({})

    def initiate(self, configuration: Mapping[str, Any]) -> None:
        """Form a new replica set (`replSetInitiate`)."""
        self._run("replSetInitiate", dict(configuration))

    def reconfigure(self, configuration: Mapping[str, Any]) -> None:
        """Replace the configuration, also where no primary could agree (`replSetReconfig`, forced)."""
        self._run("replSetReconfig", dict(configuration), force=True)

    def replicate_note(self, copies: int, timeout_ms: int) -> None:
        """Append a note to the oplog, and wait until that many members have it (`appendOplogNote`)."""
        concern = {"w": copies, "wtimeout": timeout_ms}
        self._run("appendOplogNote", data={"note": "is everybody here?"}, writeConcern=concern)

    def step_up(self) -> None:
        """Have this member stand for election now, not after the election timeout (`replSetStepUp`)."""
        self._run("replSetStepUp")

    def step_down(self, seconds: int) -> None:
        """Make this primary a secondary that does not stand again for that long (`replSetStepDown`)."""
        self._run("replSetStepDown", seconds, secondaryCatchUpPeriodSecs=min(seconds, 2))

    def _run(self, command: str, value: Any = 1, **arguments: Any) -> dict[str, Any]:
        with _translated(f"run {command} on {self._address}"):
            answer = self._client["admin"].command({command: value, **arguments})
            # Unlike an error of the command itself, this one is left to the caller by `command`.
            if "writeConcernError" in answer:
                raise WriteConcernError("too few members have the write", details=answer["writeConcernError"])
            return answer


def ping(uri: str) -> None:
    """Reach the primary (or the router, or the standalone server) that the URI names.

    Raises:
        MonqueConnectionError: There is none within five seconds, or the URI is not one.
    """
    with connect(uri, database="admin", timeout=_TIMEOUT_MS / 1000):
        pass


@contextmanager
def _translated(purpose: str) -> Iterator[None]:
    try:
        yield
    except PyMongoError as error:
        raise translated(error, purpose) from error
