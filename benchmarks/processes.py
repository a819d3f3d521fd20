"""Other processes that work for a benchmark: asked and answering in lines of JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from .measuring import Db

REPOSITORY = Path(__file__).parents[1]
TIMEOUT = 10.0  # Seconds that one may take to end by itself.
LONGEST_BACKLOG = 300.0  # Seconds in which several have worked one off.


class Child:
    """One of them, as its parent sees it. Its calls block."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def say(self, **request: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._has_ended()
        return json.loads(line)

    def check_alive(self) -> None:
        """Raises RuntimeError where it has ended."""
        if self._process.poll() is not None:
            raise self._has_ended()

    def _has_ended(self) -> RuntimeError:
        return RuntimeError(f"a process of the benchmark has ended: {self._process.args!r}")

    def ask(self, **request: Any) -> Any:
        self.say(**request)
        return self.hear()


@contextmanager
def child(module: str, *arguments: str) -> Iterator[Child]:
    """`python -m benchmarks.MODULE`; it ends when nothing more is asked, or is killed at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Child(process)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(TIMEOUT)
        finally:
            process.kill()


def worked_off(workers: Sequence[Child], database: Db, **request: Any) -> tuple[float, list[Any]]:
    """How many seconds these `workers` took for the backlog of the database, and what each of them did.

    They begin together: when the last of them has loaded and is connected.
    """
    for one in workers:
        one.say(database=database.name, **request)
    for one in workers:
        assert one.hear() == "ready"
    begun = time.perf_counter()
    for one in workers:
        one.say()
    jobs = database["monque_jobs"]
    # Each by a partial index of its own; together they would be a scan.
    while any(jobs.find_one({"status": status}, {"_id": 1}) for status in ("pending", "processing")):
        for one in workers:
            one.check_alive()
        assert time.perf_counter() < begun + LONGEST_BACKLOG, "the backlog is not worked off"
        time.sleep(0.01)
    took = time.perf_counter() - begun
    return took, [one.ask() for one in workers]


async def requests() -> AsyncIterator[dict[str, Any]]:
    """What the parent asks, until it asks nothing more."""
    while line := await trio.to_thread.run_sync(sys.stdin.readline):
        yield json.loads(line)


async def next_request() -> dict[str, Any]:
    line = await trio.to_thread.run_sync(sys.stdin.readline)
    if not line:
        raise SystemExit("the benchmark has ended")
    asked: dict[str, Any] = json.loads(line)
    return asked


def answer(told: Any) -> None:
    print(json.dumps(told), flush=True)
