"""A replica set of three whose members speak to each other through relays: any of them can be cut off, or die.

Clients find the set at the relays as well. A member that is cut off from the others answers its clients all
the same: a relay knows by the process on the other end whose connection it passes on.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pymongo
import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tests.support.open_resources import RELAY
from tests.support.thoroughly import THOROUGH
from tests.support.waiting import wait_until
from trio_monque.embedded import EmbeddedServer, embedded_mongod, server_start
from trio_monque.embedded.supervised_servers import ServerCommand

from .processes import frozen, state_of

HOST: Final = "127.0.0.1"
ELECTION_TIMEOUT: Final = 3.0 if THOROUGH else 1.5
"""Seconds without a word from the primary after which another one is elected. In an hour, a loaded machine keeps a
member waiting for longer than the shorter time, again and again; a server's own default is ten."""

# A new primary would wait for what the old one might send it until that has been silent for another timeout.
_SETTINGS: Final = {
    "electionTimeoutMillis": round(1000 * ELECTION_TIMEOUT),
    "heartbeatIntervalMillis": 200,
    "catchUpTimeoutMillis": 300,
}

# A member that follows a silent primary notices it when its read of the log fails: by default after six seconds, in
# which the new primary has no majority, and nothing happens. The server takes this only as a start parameter.
_HASTE: Final = (
    *("--setParameter", "oplogNetworkTimeoutBufferSeconds=1"),
    # A killed process leaves documents locked for so long, by default for a minute.
    *("--setParameter", "transactionLifetimeLimitSeconds=2"),
)

_PAUSE: Final = 0.1
"""Seconds between two looks at the members. Each look is a new connection to every one of them."""

# Ends with the tests, however they end: the pipe is closed then.
_UNTIL_LET_GO: Final = 'log=$1; shift; "$@" >>"$log" 2>&1 & echo $!; cat >/dev/null; kill -9 $!; wait'


class Network:
    """Who cannot speak to whom.

    Attributes:
        pids: The process of each member, in their order. Any other process is a client.
        starting: Held while a member starts, until its process is among these: it may connect before that, and would
            be taken for a client, which nothing cuts off.
    """

    def __init__(self) -> None:
        self.pids: list[int] = []
        self.starting = threading.Lock()
        self._looking = threading.Lock()
        self._looked_at = -math.inf
        self._opened_by: Mapping[tuple[int, int], int] = {}
        self._cut_off: int | None = None
        self._changed = threading.Condition()

    def member_of(self, port: int, relay_port: int) -> int | None:
        """Which member has opened a connection to a relay, by the ports of both ends; None for a client.

        After an election come hundreds of connections at once. Those that wait meanwhile share the next look.
        """
        asked_at = time.monotonic()
        with self._looking:
            if self._looked_at < asked_at:
                with self.starting:
                    pids = tuple(self.pids)
                self._looked_at = time.monotonic()
                self._opened_by = _opened_by(pids)
            return self._opened_by.get((port, relay_port))

    def wait_open(self, one: int | None, other: int) -> None:
        """Returns when a byte may go from one to the other."""
        with self._changed:
            self._changed.wait_for(lambda: one is None or one == other or self._cut_off not in (one, other))

    def cut_off(self, member: int | None) -> None:
        with self._changed:
            self._cut_off = member
            self._changed.notify_all()


def _opened_by(pids: Sequence[int]) -> Mapping[tuple[int, int], int]:
    """Which of these processes, by its place, holds each connection, by the local port and the other one.

    Sockets to other ports may have the same local port: after many connections in a minute, the kernel has no other. A
    member that is taken for a client is not cut off.
    """
    holders: dict[str, int] = {}
    for place, pid in enumerate(pids):
        with suppress(OSError):
            for opened in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208  # It has hundreds, and is asked often.
                with suppress(OSError):
                    holders[os.readlink(f"/proc/{pid}/fd/{opened}")] = place  # noqa: PTH115
    found: dict[tuple[int, int], int] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, fields = line.split(maxsplit=4)
        if (holder := holders.get(f"socket:[{fields.split()[5]}]")) is not None:
            found[int(local[-4:], 16), int(remote[-4:], 16)] = holder
    return found


class MemberRelay:
    """Before one member: what is sent to it while its sender cannot speak to it arrives afterwards."""

    def __init__(self, network: Network, member: int, target: int) -> None:
        self._network = network
        self._member = member
        self._target = target
        self._listener = socket.create_server((HOST, 0))
        self._connections: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name=RELAY)
        self._acceptor.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, (_, port) = self._listener.accept()
                self._connections.add(client)
                thread = threading.Thread(target=self._serve, args=(client, port), name=RELAY)
                self._threads.add(thread)
                thread.start()

    def _serve(self, client: socket.socket, port: int) -> None:
        """Connect, and close it in the end: an hour of elections has more connections than may be open."""
        # If not, the member is dead.
        with client, suppress(OSError), socket.create_connection((HOST, self._target)) as upstream:
            self._connections.add(upstream)
            with suppress(OSError):
                for one in (client, upstream):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connect(self._network.member_of(port, self.port), client, upstream)
            self._connections.discard(upstream)
        self._connections.discard(client)
        self._threads.discard(threading.current_thread())

    def _connect(self, sender: int | None, client: socket.socket, upstream: socket.socket) -> None:
        """Pass on what both ends say."""
        there = threading.Thread(target=self._pass_on, args=(sender, client, upstream), name=RELAY)
        there.start()
        self._pass_on(sender, upstream, client)
        there.join()

    def _pass_on(self, sender: int | None, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while received := source.recv(1 << 18):
                self._network.wait_open(sender, self._member)
                target.sendall(received)
        self._network.wait_open(sender, self._member)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        for one in tuple(self._connections):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in tuple(self._threads):
            thread.join()
        self._listener.close()


@dataclass(frozen=True)
class _Command:
    """How a member was started, to start it again."""

    arguments: Sequence[str]
    environment: Mapping[str, str]

    @classmethod
    def of(cls, pid: int) -> _Command:
        def strings(name: str) -> list[str]:
            return Path(f"/proc/{pid}/{name}").read_text().rstrip("\0").split("\0")

        environment = dict(one.partition("=")[::2] for one in strings("environ"))
        return cls(strings("cmdline"), environment)


class ReplicaSet:
    """Three members, to be tormented one at a time. Whole again when each torment's block ends.

    Attributes:
        uri: Where clients find it: at the relays.
    """

    def __init__(self, server: EmbeddedServer, network: Network, relays: Sequence[MemberRelay]) -> None:
        self._server = server
        self._network = network
        self._ports = [member.port for member in server.members]
        self._commands = [_Command.of(member.pid) for member in server.members]
        self._restarted: list[subprocess.Popen[bytes]] = []
        hosts = [f"{HOST}:{relay.port}" for relay in relays]
        self.uri = f"mongodb://{','.join(hosts)}/?replicaSet=embedded"
        self._set_up(hosts)

    def _set_up(self, hosts: Sequence[str]) -> None:
        with self.direct(self.primary()) as client:
            config = client.admin.command("replSetGetConfig")["config"]
            for member, host in zip(config["members"], hosts, strict=True):
                member["host"] = host
            config["version"] += 1
            config["settings"].update(_SETTINGS)
            client.admin.command("replSetReconfig", config, force=True)
        self.wait_whole()
        for member in range(len(self._ports)):
            with self.direct(member) as client:
                client.admin.command("setParameter", 1, wiredTigerEngineRuntimeConfig="cache_size=256M")

    @contextmanager
    def direct(self, member: int) -> Iterator[MongoClient[dict[str, Any]]]:
        """A client of one member, whatever its state, past its relay."""
        with MongoClient[dict[str, Any]](
            HOST, self._ports[member], directConnection=True, tz_aware=True, serverSelectionTimeoutMS=5000
        ) as client:
            yield client

    def primary(self) -> int:
        """Waits until exactly one member says that it is the primary, and a majority follows it."""
        found: list[int] = []

        def is_elected() -> bool:
            found[:] = [member for member in range(len(self._ports)) if self.is_primary(member)]
            return len(found) == 1

        wait_until(is_elected, "there is a primary", seconds=30, pause=_PAUSE)
        return found[0]

    def is_primary(self, member: int) -> bool:
        """Whether it reports this."""
        try:
            with self.direct(member) as client, pymongo.timeout(0.5):
                return bool(client.admin.command("hello")["isWritablePrimary"])
        except PyMongoError:
            return False

    def wait_primary_other_than(self, member: int) -> int:
        """Which has been elected in its place; the old one may believe that it is the primary still."""
        others = [other for other in range(len(self._ports)) if other != member]
        found: list[int] = []

        def is_elected() -> bool:
            found[:] = [other for other in others if self.is_primary(other)]
            return bool(found)

        wait_until(is_elected, "another primary is elected", seconds=60, pause=_PAUSE)
        return found[0]

    def wait_whole(self) -> None:
        """Returns when each member has what the primary has, and all know each other."""

        def is_whole() -> bool:
            states = []
            for member in range(len(self._ports)):
                try:
                    with self.direct(member) as client, pymongo.timeout(1):
                        status = client.admin.command("replSetGetStatus")
                except PyMongoError:
                    return False
                states.append(sorted(one["stateStr"] for one in status["members"]))
            return all(one == ["PRIMARY", "SECONDARY", "SECONDARY"] for one in states)

        wait_until(is_whole, "the set is whole", seconds=60, pause=_PAUSE)
        with self.direct(self.primary()) as client:
            note = {"note": "is everybody here?"}
            client.admin.command("appendOplogNote", data=note, writeConcern={"w": 3, "wtimeout": 30_000})

    # --- Torments: each begins with a primary, and ends with a set that is whole ---

    @contextmanager
    def stepped_down(self) -> Iterator[int]:
        old = self.primary()
        with self.direct(old) as client:
            client.admin.command("replSetStepDown", 3, secondaryCatchUpPeriodSecs=2)
        yield old
        self.wait_whole()

    @contextmanager
    def killed(self) -> Iterator[int]:
        """The primary, at once; started again when the block ends."""
        old = self.primary()
        pid = self._network.pids[old]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not _is_alive(pid), "the primary is dead")
        try:
            yield old
        finally:
            self._start(old)
        self.wait_whole()

    def _start(self, member: int) -> None:
        command = self._commands[member]
        log = self._server.members[member].folder / "mongod.log"
        with self._network.starting:
            process = subprocess.Popen(
                ["sh", "-c", _UNTIL_LET_GO, "sh", str(log), *command.arguments],
                env=command.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._restarted.append(process)
            assert process.stdout is not None
            self._network.pids[member] = int(process.stdout.readline())

    @contextmanager
    def stopped(self) -> Iterator[int]:
        """The primary does nothing at all; thawed, it does not know yet that it has a successor."""
        old = self.primary()
        with frozen(self._network.pids[old]):
            yield old
        self.wait_whole()

    @contextmanager
    def without_majority(self) -> Iterator[int]:
        """Both others do nothing: the primary takes writes that no majority can acknowledge, and then no more."""
        old = self.primary()
        others = [pid for member, pid in enumerate(self._network.pids) if member != old]
        with ExitStack() as stack:
            for pid in others:
                stack.enter_context(frozen(pid))
            yield old
        self.wait_whole()

    @contextmanager
    def cut_off(self) -> Iterator[int]:
        """The primary from the other members. Clients reach it, and it takes their writes until it notices."""
        old = self.primary()
        self._network.cut_off(old)
        try:
            yield old
        finally:
            self._network.cut_off(None)
        self.wait_whole()

    def end(self) -> None:
        for process in self._restarted:
            process.communicate()


def _is_alive(pid: int) -> bool:
    try:
        return state_of(pid) not in "ZX"
    except OSError:
        return False


@contextmanager
def _three_hasty_members() -> Iterator[EmbeddedServer]:
    command = server_start.server_command

    def hasty(*given: Any) -> ServerCommand:
        made = command(*given)
        return replace(made, command=[*made.command, *_HASTE])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_start, "server_command", hasty)
        with embedded_mongod(members=3) as server:
            yield server


@contextmanager
def replica_set() -> Iterator[ReplicaSet]:
    """A set of one's own, for as long as the block."""
    with ExitStack() as stack:
        network = Network()
        server = stack.enter_context(_three_hasty_members())
        network.pids = [member.pid for member in server.members]
        relays = []
        for number, member in enumerate(server.members):
            relays.append(MemberRelay(network, number, member.port))
            stack.callback(relays[-1].end)
        members = ReplicaSet(server, network, relays)
        stack.callback(members.end)
        yield members
