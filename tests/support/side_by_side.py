"""Two threads in one piece of code at once: the first is held in the middle of it, and the second comes.

Without chance: the test goes on when the second thread has ended, or waits for a lock that the first one holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import pytest

from .waiting import wait_until

_REAL_LOCK: Final = threading.Lock


class NoticingLock:
    """A lock that knows whether a thread waits for it."""

    def __init__(self) -> None:
        self._lock = _REAL_LOCK()
        self.is_waited_for = False

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.is_waited_for = True
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@contextmanager
def noticing_locks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[NoticingLock]]:
    """What is made inside gets such locks; they are in the list."""
    made: list[NoticingLock] = []

    def make() -> NoticingLock:
        made.append(NoticingLock())
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Lock", make)
        yield made


class Hold:
    """A point at which the first thread that passes is held. Later ones pass."""

    def __init__(self) -> None:
        self._is_reached = threading.Event()
        self._goes_on = threading.Event()
        self._first = _REAL_LOCK()

    def here(self) -> None:
        if self._first.acquire(blocking=False):
            self._is_reached.set()
            assert self._goes_on.wait(20), "held for too long"

    def side_by_side(
        self, first: Callable[[], Any], second: Callable[[], Any], locks: list[NoticingLock]
    ) -> tuple[Future[Any], Future[Any]]:
        """Let `first` reach the point, then let `second` run to its end or to a lock, and then `first` to its end."""
        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(first)
            wait_until(lambda: self._is_reached.is_set() or one.done(), "the first thread is at the point")
            other = pool.submit(second)
            try:
                wait_until(lambda: other.done() or any(lock.is_waited_for for lock in locks), "the second one came")
            finally:
                self._goes_on.set()
        return one, other
