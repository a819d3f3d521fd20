"""Worker processes that are forked from one which has imported everything: most of what a start takes is imports.

The process that forks has one thread and no connection, and does nothing else. What it forks is a process as any other:
with an id, an exit code, and signals of its own.
"""

from __future__ import annotations

import importlib
import multiprocessing
import multiprocessing.forkserver
import os
import random
import subprocess
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pytest

from .stacks import show_tasks_on_signal

REPOSITORY: Final = Path(__file__).parents[2]
_WORKERS: Final = ("worker", "mixed_worker", "claims_worker", "clocked_worker", "nursery_worker")
MODULES: Final = tuple(f"tests.faults.{name}" for name in _WORKERS)

_FORKS: Final = multiprocessing.get_context("forkserver")


def _work(module: str, order: Mapping[str, Any], log: Path, begin: Connection) -> None:
    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    show_tasks_on_signal()
    # Or all of them would draw the same.
    random.seed()
    begin.recv()
    importlib.import_module(module).work(order)


class ForkedProcess:
    """One of them; what it can be asked is called as in `subprocess.Popen`. It begins on request."""

    def __init__(self, module: str, order: Mapping[str, Any], log: Path) -> None:
        begin, self._begin = _FORKS.Pipe(duplex=False)
        self._process = _FORKS.Process(target=_work, args=(module, order, log, begin), daemon=True)
        with begin, pytest.MonkeyPatch.context() as patch:
            # For the one that forks: it begins with the first of them.
            patch.setenv("PYTHONPATH", str(REPOSITORY))
            _FORKS.set_forkserver_preload(list(MODULES))
            self._process.start()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def begin(self) -> None:
        self._begin.send(None)

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(str(self._process), timeout)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Kills it if it still runs."""
        self._process.kill()
        self._process.join()
        self._begin.close()
        self._process.close()
