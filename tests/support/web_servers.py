"""Programs in processes of their own, to be read, signalled and killed: web servers, which answer over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any, Final, Self
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.support.programs import ROOT
from tests.support.waiting import wait_until

SECONDS: Final = 50.0
"""Bound of each wait for an answer or a line."""

SECONDS_FOR_HELPERS: Final = 50.0
"""Python's own helper processes end by themselves, soon after the program."""

NO_HEADERS: Final[Mapping[str, str]] = {}

SERVERS: Final[Mapping[str, Sequence[str]]] = {
    "uvicorn": ["uvicorn", "--no-access-log", "--loop", "asyncio"],
    "uvicorn, uvloop": ["uvicorn", "--no-access-log", "--loop", "uvloop"],
    "hypercorn, trio": ["hypercorn", "--worker-class", "trio"],
    "hypercorn, asyncio": ["hypercorn", "--worker-class", "asyncio"],
}


class Program:
    """A process in a group of its own, with all that it prints and logs.

    Attributes:
        process: The first process of the group.
        lines: What it has printed and logged so far.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment},
            stdout=PIPE,
            stderr=STDOUT,
            text=True,
            start_new_session=True,
        )

    @property
    def printed(self) -> str:
        return "".join(self.lines)

    def wait_for_line(self, part: str) -> str:
        """Return the next line that contains the text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if part in line:
                return line
        raise AssertionError(f"ended without a line with {part!r}:\n{self.printed}")

    def wait_for_lines(self, part: str, count: int) -> None:
        """Return when the text was printed that often, earlier lines included."""
        # Counted in the lines: what two processes print at the same moment may be in one.
        while sum(line.count(part) for line in self.lines) < count:
            self.wait_for_line(part)

    def signal(self, number: int) -> float:
        """Send a signal to the first process; return the moment, by time.monotonic()."""
        moment = time.monotonic()
        self.process.send_signal(number)
        return moment

    def wait(self) -> int:
        """Read what it still prints, and return its exit status. No process of its group may be left."""
        assert self.process.stdout is not None
        self.lines += self.process.stdout.readlines()
        status = self.process.wait(SECONDS)
        what = f"the program leaves no process behind\n{self.printed}"
        wait_until(lambda: not list(_alive_in_group(self.process.pid)), what, SECONDS_FOR_HELPERS)
        return status

    def kill(self) -> None:
        """Kill the whole group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


class WebServer(Program):
    """A server with an application, on a free port of this machine.

    Args:
        kind: One of SERVERS.
        application: The file that has `app`.
        options: Of the server.
        environment: Variables for the application.

    Attributes:
        url: Where it is, once it serves.
    """

    def __init__(
        self, kind: str, application: Path, environment: Mapping[str, str], options: Sequence[str] = ()
    ) -> None:
        server = SERVERS[kind]
        if server[0] == "uvicorn":
            where = ["--host", "127.0.0.1", "--port", "0", "--app-dir", str(application.parent)]
            arguments = [*server, *where, *options, f"{application.stem}:app"]
        else:
            arguments = [*server, "--bind", "127.0.0.1:0", *options, f"{application}:app"]
        super().__init__(["-m", *arguments], environment)
        self.url = ""

    def wait_until_it_serves(self) -> None:
        (self.url,) = re.findall(r"http://127\.0\.0\.1:\d+", self.wait_for_line("unning on http"))

    def ask(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> tuple[int, Any]:
        """Return the status and the JSON of the answer. Raises OSError where no server answers."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, {"Content-Type": "application/json", **headers}, method=method)
        try:
            with urlopen(request, timeout=SECONDS) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"null")


def _alive_in_group(group: int) -> Iterator[str]:
    """The processes of the group that have not ended; one that has may wait for its parent to take notice."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            name, _, rest = (process / "stat").read_text().rpartition(")")
            state, _, of = rest.split()[:3]
            if int(of) == group and state not in "ZX":
                yield name
