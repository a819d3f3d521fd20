"""The supervising process: runs the servers, and ends them when its standard input ends.

It runs as a script under `python -I -S`, so it imports only the standard library. It exists because a killed process
cannot clean up after itself: however the parent ends, the kernel closes its end of the pipe. A death signal
(`PR_SET_PDEATHSIG`) was rejected: it is sent when the thread ends that forked, and worker threads come and go.

Standard input: one line of JSON, `{"servers": [{"command", "log"}], "shutdown_timeout", "remove"}`,
then nothing until it ends. `shutdown_timeout` is how many seconds the servers have to shut down before they are killed
(0: killed at once); `remove` is a folder to delete afterwards.
Standard output: one line of JSON per event, `{"pids": [...]}` or `{"failed": reason}`, then
`{"exited": index, "code": n}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any


class _EndRequested(BaseException):
    pass


def _report(event: dict[str, Any]) -> None:
    # A parent that was killed does not read. The servers must be ended all the same.
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(event).encode() + b"\n")


def _raise_end_requested(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _EndRequested


def _read_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            raise _EndRequested
        line += piece
    return line


def _start(server: dict[str, Any]) -> subprocess.Popen[bytes]:
    Path(server["log"]).write_bytes(b"")
    # Opened to append: two servers that use one folder by mistake must not overwrite each other's lines.
    with Path(server["log"]).open("ab") as log:
        return subprocess.Popen(
            server["command"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _watch(index: int, server: subprocess.Popen[bytes]) -> None:
    _report({"exited": index, "code": server.wait()})


def _end(servers: list[subprocess.Popen[bytes]], watches: list[threading.Thread], shutdown_timeout: float) -> None:
    deadline = time.monotonic() + shutdown_timeout
    if shutdown_timeout:
        for server in servers:
            server.terminate()
            if sys.platform != "win32":
                # A stopped process handles SIGTERM only once it continues.
                server.send_signal(signal.SIGCONT)
        for watch in watches:
            watch.join(max(0.0, deadline - time.monotonic()))
    for server in servers:
        server.kill()
    for server in servers:
        server.wait()
    for watch in watches:
        watch.join()


def main() -> None:
    """Run the servers until standard input ends, or this process gets SIGTERM; then end them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _raise_end_requested)
    servers: list[subprocess.Popen[bytes]] = []
    watches: list[threading.Thread] = []
    orders: dict[str, Any] = {"shutdown_timeout": 0.0, "remove": None}
    try:
        orders = json.loads(_read_line())
        for server in orders["servers"]:
            servers.append(_start(server))  # noqa: PERF401 - if one cannot start, those before it must be ended
        watches.extend(threading.Thread(target=_watch, args=pair) for pair in enumerate(servers))
        _report({"pids": [server.pid for server in servers]})
        for watch in watches:
            watch.start()
        while os.read(0, 1):
            pass
    except _EndRequested:
        pass
    except OSError as error:
        _report({"failed": str(error)})
    finally:
        _end(servers, [watch for watch in watches if watch.ident is not None], orders["shutdown_timeout"])
        if orders["remove"]:
            shutil.rmtree(orders["remove"], ignore_errors=True)


if __name__ == "__main__":
    main()
