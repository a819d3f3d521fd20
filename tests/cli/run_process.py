"""`trio-monque run` as a process of its own, which can be signalled, and a program for it to run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .demo_process import environment

PROGRAM: Final = '''
import asyncio
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from trio_monque import Workers

workers = Workers()
empty = Workers()
number = 3


def say(*words):
    # In one piece: print writes a line in several, and other threads write theirs in between.
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()


@workers.register("send")
async def send(job):
    say("send", job.data, job.resources)


@workers.register("wait")
async def wait(job):
    """Until the scheduler drains; for ever if the data is "for ever"."""
    say("waiting")
    while job.data == "for ever" or not job.scheduler.health().draining:
        await (asyncio.sleep(0.01) if on_asyncio() else trio.sleep(0.01))


@workers.register("until-file")
async def until_file(job):
    """Until there is a file of this name, also while the scheduler drains."""
    say("waiting for a file")
    while not Path(job.data).exists():
        await (asyncio.sleep(0.01) if on_asyncio() else trio.sleep(0.01))


@workers.register("count")
async def count(job):
    await (asyncio.sleep(0.01) if on_asyncio() else trio.sleep(0.01))
    say("counted", job.data)


@workers.register("swallow")
async def swallow(job):
    """Never ends."""
    say("swallowing")
    while True:
        try:
            await (asyncio.sleep(60) if on_asyncio() else trio.sleep(60))
        except (trio.Cancelled, asyncio.CancelledError):
            pass


@workers.register("block")
async def block(job):
    """Blocks the event loop until there is a file `go on`."""
    say("blocking")
    while not Path("go on").exists():
        time.sleep(0.01)


def on_asyncio():
    return not trio.lowlevel.in_trio_task()


async def long():
    # In short steps: a signal that comes just before an asyncio loop without signal handlers begins to wait does not
    # wake it. (A loop with such handlers, and trio, is woken.)
    for _ in range(6000):
        await (asyncio.sleep(0.1) if on_asyncio() else trio.sleep(0.1))


@asynccontextmanager
async def opened():
    say("opened on", "asyncio" if on_asyncio() else "trio")
    try:
        yield workers, "a pool"
    finally:
        say("closed")


@asynccontextmanager
async def slow_to_open():
    try:
        say("opening")
        await long()
        yield workers
    finally:
        say("closed")


@asynccontextmanager
async def slow_to_close():
    try:
        yield workers
        say("closing")
        await long()
    finally:
        say("closed")


async def when_there_is_a_file():
    say("opening")
    while not Path("open").exists():
        await (asyncio.sleep(0.01) if on_asyncio() else trio.sleep(0.01))
    say("opened")
    return workers


@asynccontextmanager
async def suppressing():
    try:
        yield workers
    except Exception:
        pass


async def made():
    return workers


def of_another_type():
    return {}


def exits():
    sys.exit()


def broken():
    raise ValueError("no pool at postgresql://me:hunter2@db")
'''

MAIL: Final = """
import sys

from trio_monque import Workers

workers = Workers()
post = Workers()


def say(*words):
    # In one piece: print writes a line in several, and other threads write theirs in between.
    sys.stdout.write(" ".join(map(str, words)) + "\\n")
    sys.stdout.flush()


@workers.register("send")
def send(job):
    raise NotImplementedError


@post.register("post")
def post_letter(job):
    say("post", job.data, job.resources)


@post.register("weigh", runs_on="runtime")
async def weigh(job):
    say("weigh", job.data, job.resources)


async def with_stamps():
    return post, "stamps"
"""


def write_program(folder: Path) -> None:
    """Make the modules `shop`, `mail`, `raising`, `importing`, `exiting` and `ending` there."""
    (folder / "shop.py").write_text(PROGRAM, encoding="utf-8")
    (folder / "mail.py").write_text(MAIL, encoding="utf-8")
    (folder / "raising.py").write_text("import shop\n\nshop.broken()\n", encoding="utf-8")
    (folder / "exiting.py").write_text("import sys\n\nsys.exit(0)\n", encoding="utf-8")
    (folder / "ending.py").write_text("import os\n\nos._exit(0)\n", encoding="utf-8")
    (folder / "importing.py").write_text("import a_missing_module\n", encoding="utf-8")


class RunProcess:
    """A worker process, or the parent of several.

    Attributes:
        pid: Its process id.
        lines: What it has printed to standard output, as far as it was read.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid
        self.lines: list[str] = []

    def wait_for(self, line: str) -> None:
        """Read the output until there is a line that begins so."""
        assert self._process.stdout is not None
        for one in self._process.stdout:
            self.lines.append(one.rstrip("\n"))
            if self.lines[-1].startswith(line):
                return
        raise AssertionError(f"no line {line!r} in {self.lines}: {self.wait_ended()}")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait_for_log(self, text: str) -> str:
        """Read the log until a line has this text, and return the line."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if text in line:
                return line
        raise AssertionError(f"no line with {text!r}")

    def wait_ended(self) -> tuple[int, str]:
        """The exit status, and what was printed to standard error."""
        # Not `communicate`: it would miss what these two have read ahead.
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.lines.extend(line.rstrip("\n") for line in self._process.stdout)
        errors = self._process.stderr.read()
        return self._process.wait(), errors


@contextmanager
def run_process(folder: Path, *arguments: str, **variables: str) -> Iterator[RunProcess]:
    """A running worker process in a folder; killed at the end if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-m", "trio_monque", "run", *arguments],
        env=environment(**variables),
        cwd=folder,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield RunProcess(process)
        finally:
            process.kill()
