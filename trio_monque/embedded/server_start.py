"""Starts the servers: chooses ports, lays out folders, waits until they listen."""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..error_types import EmbeddedServerError
from . import data_folder, replica_set, server_log
from .binary import find_binary
from .embedded_server import EmbeddedMember, EmbeddedServer
from .shared_libraries import loader_advice
from .supervised_servers import ServerCommand, ServerDiedError, SupervisedServers

_START_SECONDS = 60.0  # for slow machines; a fast one needs a third of a second
_PORT_ATTEMPTS = 5
# Seconds for an orderly shutdown, if the data is kept. The server needs one of them to stop its replication threads.
_SHUTDOWN_TIMEOUT = 5.0
_POLL_SECONDS = 0.005
_OTHER_PORT = "end what listens there, or give another port"


@dataclass(frozen=True)
class LaunchOptions:
    """The options of `embedded_mongod`, see there.

    Attributes:
        always_start: Start a server although MONQUE_MONGODB_URI names one.
    """

    members: int
    port: int | None
    folder: Path | None
    replica_set: str = replica_set.DEFAULT_NAME
    always_start: bool = False


class Launch:
    """One start and its end; both block, and `abort` may be called from any thread."""

    def __init__(self, options: LaunchOptions) -> None:
        self._options = options
        self._aborted = threading.Event()
        # Held for the whole start, so that `end`, which follows `abort`, finds everything that was started.
        self._lock = threading.Lock()
        self._supervised: SupervisedServers | None = None
        self._private_folder: Path | None = None

    def start(self) -> EmbeddedServer:
        """Start the servers. If that fails, end what was started, and raise."""
        with self._lock:
            try:
                self._check_aborted()
                server = self._start()
                self._check_aborted()
                return server
            except BaseException:
                self._clean_up()
                raise

    def abort(self) -> None:
        """Let a start that is under way fail soon."""
        self._aborted.set()

    def end(self) -> None:
        """End the servers, and remove temporary folders. A second call does nothing."""
        with self._lock:
            self._clean_up()

    def _start(self) -> EmbeddedServer:
        attempts = _PORT_ATTEMPTS if self._options.port is None else 1
        while True:
            attempts -= 1
            try:
                return self._attempt(choose_ports(self._options))
            except ServerDiedError as death:
                if death.cause == "port" and attempts:
                    # Another program took the port between our choice and the start: choose again.
                    self._clean_up()
                    continue
                raise _explained(death, self._options) from None

    def _attempt(self, ports: Sequence[int]) -> EmbeddedServer:
        deadline = time.monotonic() + _START_SECONDS
        self._private_folder = private = Path(tempfile.mkdtemp(prefix="trio-monque-")).resolve()
        binary = find_binary(private)
        folder = self._options.folder or private / "data"
        data_folders = data_folder.prepare(folder, self._options.members, self._check_aborted)
        name = self._options.replica_set
        data_folder.keep_name(folder, name)
        commands = [server_command(binary, port, data, name) for port, data in zip(ports, data_folders, strict=True)]
        # Temporary data needs no orderly shutdown, which would take a second.
        shutdown_timeout = _SHUTDOWN_TIMEOUT if self._options.folder else 0.0
        self._supervised = supervised = SupervisedServers(commands, shutdown_timeout=shutdown_timeout, remove=private)
        for command in commands:
            self._wait_listening(command.log, supervised, deadline)
        replica_set.form(name, ports, lambda: self._check(supervised), deadline)
        processes = zip(ports, supervised.pids, data_folders, strict=True)
        members = [EmbeddedMember(port, pid, data) for port, pid, data in processes]
        return EmbeddedServer(replica_set.connection_string(name, ports), members, folder, supervised)

    def _wait_listening(self, log: Path, supervised: SupervisedServers, deadline: float) -> None:
        while not server_log.has_listening_line(log):
            self._check(supervised)
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"the embedded server did not listen within {_START_SECONDS:g} s",
                    log_tail=server_log.tail(log),
                )
            time.sleep(_POLL_SECONDS)

    def _check(self, supervised: SupervisedServers) -> None:
        supervised.check()
        self._check_aborted()

    def _check_aborted(self) -> None:
        if self._aborted.is_set():
            raise EmbeddedServerError("the start of the embedded server was cancelled")

    def _clean_up(self) -> None:
        supervised, self._supervised = self._supervised, None
        private, self._private_folder = self._private_folder, None
        if supervised is not None:
            supervised.end()
            if not supervised.is_ours:
                return
        if private is not None:
            shutil.rmtree(private, ignore_errors=True)


def choose_ports(options: LaunchOptions) -> list[int]:
    if options.port is not None:
        return [options.port + index for index in range(options.members)]
    probes = [socket.create_server((replica_set.HOST, 0)) for _ in range(options.members)]
    try:
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def server_command(binary: Path, port: int, data: Path, name: str) -> ServerCommand:
    command = [
        str(binary),
        *("--dbpath", str(data)),
        *("--bind_ip", replica_set.HOST),
        *("--port", str(port)),
        *("--replSet", name),
        *("--oplogSize", "256"),  # MB; by default it is a twentieth of the disk
        *("--wiredTigerCacheSizeGB", "1"),  # a limit; by default it is half of the memory
        *("--setParameter", "diagnosticDataCollectionEnabled=false"),
        # For so long, a primary that shuts down waits for its clients to notice; by default 15 s.
        *("--setParameter", "shutdownTimeoutMillisForSignaledShutdown=100"),
    ]
    if sys.platform != "win32":
        command.append("--nounixsocket")
    return ServerCommand(command, data / "mongod.log")


def _explained(death: ServerDiedError, options: LaunchOptions) -> EmbeddedServerError:
    match death.cause:
        case "port":
            problem = f"port {options.port} (or the next, for more members) is taken: {_OTHER_PORT}"
        case "folder":
            problem = data_folder.in_use(options.folder)
        case _:
            advice = loader_advice("\n".join(death.log_tail))
            # Without the log: the loader wrote all of it, and the sentence has its content.
            return death if advice is None else EmbeddedServerError(advice)
    return EmbeddedServerError(problem, log_tail=death.log_tail)
