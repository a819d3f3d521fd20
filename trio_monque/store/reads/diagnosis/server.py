"""What a server is: its version, its members, their clocks, its connections, and whether a change stream opens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeVar

from pymongo import ReadPreference
from pymongo import errors as driver

from ....clock import ClockReadings, steady_clock
from ....error_types import MonqueConnectionError
from ...codec import OWN_OPTIONS
from ...driver.commands import command
from ...driver.connection import client_of, measure_clock_offset
from ...driver.driver_errors import UNAUTHORIZED
from ...driver.types import MongoClient
from ...job_collection import JobCollection
from ...jobs.change_stream import open_watch

T = TypeVar("T")

_SECONDS_FOR_ONE_MEMBER: Final = 3.0

# Sections of serverStatus that are large, and not needed.
_BRIEF: Final = dict.fromkeys(("metrics", "repl", "wiredTiger", "locks", "tcmalloc", "sharding"), 0)


class Topology(StrEnum):
    """How the servers that a connection string names belong together."""

    STANDALONE = "standalone server"
    REPLICA_SET = "replica set"
    SHARDED = "sharded cluster"


@dataclass(frozen=True, kw_only=True)
class Member:
    """A member of a replica set, as the member that was asked sees it.

    Attributes:
        address: Its host and port.
        state: Such as "PRIMARY" or "SECONDARY".
        is_up: It can be reached.
    """

    address: str
    state: str
    is_up: bool


@dataclass(frozen=True, kw_only=True)
class Server:
    """What the server reports about itself.

    Attributes:
        version: Such as "6.0.27".
        topology: See Topology.
        has_primary: Some server accepts writes.
        is_direct: The connection string asks for one member only, although there are others.
        members: The members; empty if the user may not ask for them, or if there is no replica set.
        majority: The number of members that a majority write needs; None if unknown.
    """

    version: str
    topology: Topology
    has_primary: bool
    is_direct: bool = False
    members: Sequence[Member] = ()
    majority: int | None = None


@dataclass(frozen=True, kw_only=True)
class ServerConnections:
    """Connections in number.

    Attributes:
        largest_pool: `maxPoolSize` of the client; None for no limit.
        used, available: Those that the server has, and those that it would still accept; None if unknown.
    """

    largest_pool: int | None
    used: int | None = None
    available: int | None = None


@command("ask the server for its type", writes=False)
def look_at_server(jobs: JobCollection) -> Server:
    """Return what any member reports, also if there is no primary."""
    client = jobs.collection.database.client
    hello = ask(jobs, "hello")
    if "setName" in hello:
        topology = Topology.REPLICA_SET
    else:
        topology = Topology.SHARDED if hello.get("msg") == "isdbgrid" else Topology.STANDALONE
    # A secondary that is asked knows the primary, if there is one.
    has_primary = bool(hello.get("isWritablePrimary")) or "primary" in hello
    version = str(ask(jobs, "buildInfo")["version"])
    if topology is not Topology.REPLICA_SET:
        return Server(version=version, topology=topology, has_primary=has_primary)
    status = permitted(lambda: ask(jobs, "replSetGetStatus")) or {}
    return Server(
        version=version,
        topology=topology,
        has_primary=has_primary,
        is_direct=client.topology_description.topology_type_name == "Single",
        members=[
            Member(address=str(one["name"]), state=str(one["stateStr"]), is_up=one.get("health") == 1)
            for one in status.get("members", ())
        ],
        majority=status.get("writeMajorityCount"),
    )


@command("ask the server for its connections", writes=False)
def look_at_connections(jobs: JobCollection) -> ServerConnections:
    """Return the size of the client's pool, and the connections of the server if the user may ask for them."""
    size = jobs.collection.database.client.options.pool_options.max_pool_size
    largest = int(size) if size and size != float("inf") else None
    found = permitted(lambda: ask(jobs, "serverStatus", **_BRIEF)["connections"])
    if found is None:
        return ServerConnections(largest_pool=largest)
    return ServerConnections(largest_pool=largest, used=int(found["current"]), available=int(found["available"]))


def ask(jobs: JobCollection, name: str, **arguments: Any) -> dict[str, Any]:
    """Return the answer to a command of the database admin. A part of a command."""
    admin = jobs.collection.database.client.get_database("admin")
    preference = ReadPreference.PRIMARY_PREFERRED
    return admin.command(name, read_preference=preference, codec_options=OWN_OPTIONS, **arguments)


def permitted(question: Callable[[], T]) -> T | None:
    """Return the answer; None if the user may not ask this question. A part of a command."""
    try:
        return question()
    except driver.OperationFailure as error:
        if error.code != UNAUTHORIZED:
            raise
        return None


# --- Clocks ---


def seconds_ahead(jobs: JobCollection) -> float | None:
    """Return by how many seconds this machine's time of day is ahead of the primary's; None if it answers too late."""
    offset = measure_clock_offset(jobs)
    readings = ClockReadings.now()
    return None if offset is None else readings.wall - (readings.steady + offset)


def members_ahead(uri: str, addresses: Sequence[tuple[str, int]]) -> Mapping[str, float]:
    """Return by how many seconds the clock of each member is ahead of the first one's. Others are left out.

    A member that does not answer within a few seconds is left out.
    """
    wanted: tuple[str, int] | None = None
    client = client_of(
        uri,
        server_selector=lambda servers: [one for one in servers if wanted in (None, one.address)],
        serverSelectionTimeoutMS=round(_SECONDS_FOR_ONE_MEMBER * 1000),
    )
    offsets: dict[str, float] = {}
    with client:
        for wanted in addresses:
            with suppress(driver.PyMongoError):
                _ask_for_time(client)  # It opens the connection, and so is slow.
                offsets["{}:{}".format(*wanted)] = _ask_for_time(client)
        wanted = None  # To close itself, the client may want any server.
    first = next(iter(offsets.values()), 0.0)
    return {address: offset - first for address, offset in offsets.items()}


def _ask_for_time(client: MongoClient) -> float:
    """Return the seconds from the steady clock to the clock of a server."""
    sent = steady_clock()
    database = client.get_database("admin")
    answer = database.command("hello", read_preference=ReadPreference.NEAREST, codec_options=OWN_OPTIONS)
    moment: datetime = answer["localTime"]
    return moment.timestamp() - (sent + steady_clock()) / 2


# --- The change stream ---


def problem_of_change_stream(jobs: JobCollection) -> str | None:
    """Open the change stream of a scheduler and close it; return why the server refuses that, or None.

    Raises:
        MonqueConnectionError: The server does not answer.
    """
    try:
        open_watch(jobs, "doctor").close()
    except MonqueConnectionError as error:
        if error.transient:
            raise
        return str(error)
    return None
