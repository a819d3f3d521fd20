"""In virtual time, schedulers and clients of a run say when a job may have ended; tasks that wait for it look again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from ..loops import post_to_runs


class Ends:
    """What has ended since the last `wait`. On the thread of the run."""

    def __init__(self) -> None:
        self._happened = trio.Event()

    def happened(self) -> None:
        self._happened.set()

    async def wait(self) -> None:
        """Return when a job has ended since the last time."""
        await self._happened.wait()
        self._happened = trio.Event()


_ends_of_run: trio.lowlevel.RunVar[defaultdict[str, list[Ends]]] = trio.lowlevel.RunVar("monque_local_ends")

# All open waits of this process that are in virtual time. Without any, nothing is announced.
_waiting: Final[set[Ends]] = set()


@contextmanager
def noticed(namespace: str) -> Iterator[Ends]:
    """Notice the ends of jobs of this collection, for as long as the block."""
    try:
        by_namespace = _ends_of_run.get()
    except LookupError:
        by_namespace = defaultdict(list)
        _ends_of_run.set(by_namespace)
    ends = Ends()
    by_namespace[namespace].append(ends)
    _waiting.add(ends)
    try:
        yield ends
    finally:
        by_namespace[namespace].remove(ends)
        _waiting.discard(ends)


def announce(namespace: str) -> None:
    """Say that a job of this collection may have ended. From a task, or from a thread that works for one."""
    if _waiting:
        post_to_runs(lambda: _announce(namespace))


def _announce(namespace: str) -> None:
    for ends in _ends_of_run.get(defaultdict(list))[namespace]:
        ends.happened()
