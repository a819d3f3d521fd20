"""SupervisedServers: the parent's side of the supervising process. It starts that process, and reads its events.

To end the servers, the parent closes the pipe. If the parent is killed, the kernel closes it. So the normal end and the
rare one are the same path, and each normal end tests the rare one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..error_types import EmbeddedServerError
from . import server_log

_SUPERVISOR = Path(__file__).with_name("mongod_supervisor.py")
if sys.platform == "win32":
    _OWN_CONSOLE_GROUP = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
else:
    _OWN_CONSOLE_GROUP = 0
_REPORT_SECONDS = 30.0  # a guess at the slowest interpreter start on a loaded machine
_MARGIN_SECONDS = 10.0  # beyond the shutdown timeout, for the kill and the removal of the folder


@dataclass(frozen=True)
class ServerCommand:
    """One server to run.

    Attributes:
        command: The executable and its arguments.
        log: The file for all that it prints, in the folder of its data.
    """

    command: Sequence[str]
    log: Path


class SupervisedServers:
    """Servers that run until `end`, or until this process is gone, whichever comes first.

    Attributes:
        pids: The process id of each server, in the order given.
    """

    def __init__(self, servers: Sequence[ServerCommand], *, shutdown_timeout: float, remove: Path) -> None:
        """Start them.

        Args:
            servers: What to run.
            shutdown_timeout: Seconds to end in order before they are killed; 0 kills at once.
            remove: A folder to delete when all have ended.

        Raises:
            EmbeddedServerError: The supervising process could not be started, or could not start them.
        """
        self.pids: tuple[int, ...] = ()
        self._logs = [server.log for server in servers]
        self._shutdown_timeout = shutdown_timeout
        self._owner = os.getpid()
        # The listener thread writes these, and any thread reads them, under the condition.
        self._changed = threading.Condition()
        self._codes: dict[int, int] = {}
        self._is_gone = False
        self._failure = ""
        self._process = _start_supervisor(remove)
        self._listener = threading.Thread(target=self._listen, name="embedded-mongod-events", daemon=True)
        try:
            _alive.add(self)
            self._listener.start()
            self._send(
                {"servers": [_plain(s) for s in servers], "shutdown_timeout": shutdown_timeout, "remove": str(remove)}
            )
        except BaseException:
            self.end()
            raise

    @property
    def is_ours(self) -> bool:
        """Whether this process started the servers. In a forked child they belong to its parent."""
        return os.getpid() == self._owner

    def check(self) -> None:
        """Return at once if all servers run.

        Raises:
            EmbeddedServerError: One has ended, or the supervising process has.
        """
        with self._changed:
            ended, gone = dict(self._codes), self._is_gone
        for index, code in ended.items():
            raise ServerDiedError(code, self._logs[index])
        if gone:
            raise EmbeddedServerError("the process that supervises the embedded server has been killed")

    def wait_exited(self, index: int, timeout: float) -> bool:
        """Wait until that server has ended; return False if it has not within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: index in self._codes or self._is_gone, timeout)

    def end(self) -> None:
        """End all of them, and return when they have. Bounded; a second call does nothing.

        In a forked child it does nothing.
        """
        if not self.is_ours:
            return
        _alive.discard(self)
        self.let_go()
        try:
            self._process.wait(self._shutdown_timeout + _MARGIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._listener.ident is not None:
            self._listener.join()
        self._kill_orphans()

    def _send(self, orders: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        # If the supervisor has ended already, `pids` stays empty, and the error below reports it.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(orders).encode() + b"\n")
        with self._changed:
            self._changed.wait_for(lambda: self.pids or self._is_gone, _REPORT_SECONDS)
        if not self.pids:
            raise EmbeddedServerError(
                "the embedded server could not be started: "
                + (self._failure or f"its supervising process, {sys.executable} {_SUPERVISOR}, did not answer")
            )

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as events:
            for line in iter(events.readline, b""):
                self._hear(json.loads(line))
        self._hear({"gone": True})

    def _hear(self, event: Mapping[str, Any]) -> None:
        with self._changed:
            match event:
                case {"pids": pids}:
                    self.pids = tuple(pids)
                case {"exited": index, "code": code}:
                    self._codes[index] = code
                case {"failed": reason}:
                    self._failure = reason
                case _:
                    self._is_gone = True
            self._changed.notify_all()

    def let_go(self) -> None:
        """Close this process's end of the pipe, without waiting for what follows."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _kill_orphans(self) -> None:
        """Kill servers that still run because their supervisor was killed."""
        for index, pid in enumerate(self.pids):
            if index not in self._codes:
                kill_if_serving(pid, self._logs[index].parent)


def _plain(server: ServerCommand) -> dict[str, Any]:
    return {"command": list(server.command), "log": str(server.log)}


def _start_supervisor(folder: Path) -> subprocess.Popen[bytes]:
    """Start it in a session of its own, so that Ctrl-C in a terminal reaches only the program.

    The program then still has its database while it shuts down.
    """
    if not sys.executable:
        raise EmbeddedServerError("this Python does not know its own executable (sys.executable is empty)")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_SUPERVISOR)],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Not that of the program: a program that reads it would see no end of it while the servers run.
        stderr=subprocess.DEVNULL,
        cwd=folder.anchor,  # not the program's: that folder could not be removed or unmounted
        start_new_session=True,
        creationflags=_OWN_CONSOLE_GROUP,
    )


def kill_if_serving(pid: int, data: Path) -> None:
    """Kill the process if the lock file of the data still names it: another process may have its id by now."""
    try:
        owner = (data / "mongod.lock").read_text().strip()
    except OSError:
        return
    if owner == str(pid) and sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class ServerDiedError(EmbeddedServerError):
    """The server ended by itself.

    Attributes:
        cause: See `server_log.cause_of_death`.
    """

    def __init__(self, code: int, log: Path) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        super().__init__(f"the embedded server {how} ({log})", log_tail=server_log.last_words(log))
        self.cause = server_log.cause_of_death(log)


# The servers to which this process has a pipe. A child that is forked without exec (as by multiprocessing) inherits the
# pipes, and would keep the servers alive after the end of this process.
_alive: weakref.WeakSet[SupervisedServers] = weakref.WeakSet()


def _let_go_in_forked_child() -> None:
    for servers in list(_alive):
        servers.let_go()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_forked_child)
