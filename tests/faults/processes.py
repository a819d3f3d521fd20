"""Processes of a test's own that can be frozen: worker processes and the server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.support.waiting import wait_until

from .forks import REPOSITORY, ForkedProcess
from .records import Reader, Record
from .stacks import SHOW_TASKS


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """The process does nothing at all, for as long as the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        # The signal has been sent when kill returns, and is heard soon after.
        wait_until(lambda: state_of(pid) == "T", "the process stops")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def state_of(pid: int) -> str:
    """The letter that proc(5) names; raises OSError where there is no such process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def log_of(name: str, records: Path) -> Path:
    """What the process writes to its standard streams."""
    return records.with_name(f"{name}.log")


@dataclass(frozen=True)
class OwnServer:
    """A server that no other test uses, so that it may be frozen."""

    uri: str
    pid: int


class FreshProcess(subprocess.Popen[str]):
    """One that imports everything by itself, and ends as a program does: after all that is to be done at its exit."""

    def __init__(self, module: str, order: Mapping[str, Any], log: IO[str]) -> None:
        super().__init__(
            [sys.executable, "-m", module, json.dumps(order)],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def begin(self) -> None:
        assert self.stdout is not None
        assert self.stdin is not None
        assert self.stdout.readline() == "loaded\n"
        self.stdin.write("\n")
        self.stdin.flush()


class WorkerProcess:
    """One process of `worker.py`, or of another module that has a `work` as well.

    Attributes:
        process: It begins to work on request.
    """

    def __init__(self, process: ForkedProcess | FreshProcess, name: str, records: Path) -> None:
        self.process = process
        self.name = name
        self.log = log_of(name, records)
        self._records = Reader(records)

    @property
    def pid(self) -> int:
        return self.process.pid

    def records(self, *whats: str) -> Sequence[Record]:
        """What it has written, of these kinds if any are named."""
        return [one for one in self._records.so_far() if one.process == self.name and (not whats or one.what in whats)]

    def wait_for(self, what: str, count: int = 1, *, attempt: int | None = None) -> None:
        """Returns when the process has written `count` records of the kind `what`."""

        def written() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"{self.name} has ended")
            return len([one for one in self.records(what) if attempt in (None, one.attempt)]) >= count

        wait_until(written, f"{self.name} writes {count} x {what!r}", pause=0.01)

    def open(self) -> None:
        """Begins to work; returns when it does."""
        self.process.begin()
        self.wait_for("ready")

    def end(self) -> None:
        """In order. If it does not end, the error shows what its tasks and threads wait for."""
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(20)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end:\n{self.aborted()}") from None
        assert status == 0

    def aborted(self) -> str:
        """Abort the process; return the end of its log, with what its tasks and threads waited for."""
        if self.process.poll() is None:
            self._abort()
        return self.log.read_text()[-20_000:]

    def _abort(self) -> None:
        for number in (SHOW_TASKS, signal.SIGABRT):  # The second one also where the main thread runs no Python.
            self.process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
                return


@contextmanager
def worker_process(
    name: str,
    uri: str,
    database: str,
    records: Path,
    *,
    unfenced: bool = False,
    module: str = "tests.faults.worker",
    is_fresh: bool = False,
    **options: Any,
) -> Iterator[WorkerProcess]:
    """A process that waits for its `open`; killed at the end if it still runs."""
    order: dict[str, Any] = {
        "name": name,
        "uri": uri,
        "database": database,
        "records": str(records),
        "unfenced": unfenced,
        "options": options,
    }
    log = log_of(name, records)
    if is_fresh:
        with log.open("w") as file, FreshProcess(module, order, file) as fresh:
            try:
                yield WorkerProcess(fresh, name, records)
            finally:
                fresh.kill()
    else:
        with closing(ForkedProcess(module, order, log)) as forked:
            yield WorkerProcess(forked, name, records)
