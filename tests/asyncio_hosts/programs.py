"""Programs with a scheduler on asyncio or uvloop, each in a process of its own: it may be frozen, killed or ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

A_WHILE: Final = 200.0
"""Seconds: on a busy machine, a program needs half a minute to import what it runs. Tests with one may take longer."""

Program = str
"""Python code. It has `workers`, `db`, `say`, `run` and `new_loop`, and what PRELUDE imports."""

PRELUDE: Program = """
import asyncio, gc, os, signal, sys, threading, time
from contextlib import suppress
from pymongo import MongoClient
from trio_monque import *
from trio_monque.events import *

uri, name, kind = {uri!r}, {name!r}, {kind!r}
client = MongoClient(uri, tz_aware=True)
db = client[name]
workers = Workers()

def say(*words):
    # In one piece: print writes a line in several, and other threads write theirs in between.
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()

def new_loop():
    if kind == "asyncio":
        return asyncio.new_event_loop()
    import uvloop
    return uvloop.new_event_loop()

def run(main, debug=None):
    with asyncio.Runner(loop_factory=new_loop, debug=debug) as runner:
        return runner.run(main())
"""


class Process(subprocess.Popen[str]):
    """A program that runs.

    Attributes:
        lines: What it has printed so far.
        error_lines: What it has printed to the standard error so far.
    """

    def __init__(self, program: Program, uri: str, name: str, kind: str, *options: str) -> None:
        self.lines: list[str] = []
        self.error_lines: list[str] = []
        self._printed = threading.Condition()
        code = PRELUDE.format(uri=uri, name=name, kind=kind) + program
        super().__init__(
            [sys.executable, "-X", "faulthandler", *options, "-c", code],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._readers = [
            threading.Thread(target=self._read, args=(pipe, lines))
            for pipe, lines in ((self.stdout, self.lines), (self.stderr, self.error_lines))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: Iterator[str], lines: list[str]) -> None:
        for line in pipe:
            with self._printed:
                lines.append(line.rstrip("\n"))
                self._printed.notify_all()

    def wait_for(self, beginning: str, seconds: float = A_WHILE) -> None:
        """Return when it has printed a line that begins so."""
        with self._printed:
            found = self._printed.wait_for(lambda: any(line.startswith(beginning) for line in self.lines), seconds)
        assert found, self.report()

    def wait_ended(self, seconds: float = A_WHILE) -> None:
        """Return when it has ended, and all that it has printed is in `lines`."""
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            self.send_signal(signal.SIGABRT)  # It prints the stacks of its threads.
            self.wait(60)
            self.wait_read()
            raise AssertionError(f"the program does not end: {self.report()}") from None
        self.wait_read()

    def wait_read(self) -> None:
        for reader in self._readers:
            reader.join(10)

    def report(self) -> str:
        return "\n".join([*self.lines, *self.error_lines])


@contextmanager
def running(program: Program, uri: str, name: str, kind: str, *options: str) -> Iterator[Process]:
    """Run the program; kill it at the end of the block if it still runs."""
    process = Process(program, uri, name, kind, *options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.wait_read()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
