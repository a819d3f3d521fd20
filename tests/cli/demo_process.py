"""The demo as a process of its own, which can be signalled and killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
COMMAND: Final = (sys.executable, "-m", "trio_monque", "demo")


def environment(**more: str) -> dict[str, str]:
    """This process's, without what would choose a server for the demo."""
    inherited = {name: value for name, value in os.environ.items() if name != "MONQUE_MONGODB_URI"}
    return {**inherited, "PYTHONPATH": str(REPOSITORY), **more}


class DemoProcess:
    """A demo that runs.

    Attributes:
        process: Its process.
        lines: What it has printed, as far as it was read.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def wait_for_line(self, pattern: str) -> re.Match[str]:
        """Reads on until a line matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no line matches {pattern!r} in {self.lines} and {self._errors()}")

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def wait_ended(self) -> tuple[int, str]:
        """Reads the rest; the exit status, and what was printed to standard error."""
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip("\n") for line in self.process.stdout)
        errors = self._errors()
        return self.process.wait(), errors

    def _errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()


@contextmanager
def demo_process(*arguments: str, **more: str) -> Iterator[DemoProcess]:
    """A running demo; killed at the end if it still runs."""
    with subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield DemoProcess(process)
        finally:
            process.kill()
