"""What tests put in the way of a client's calls to the database, beside `fail_next`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from pymongo.errors import AutoReconnect

T = TypeVar("T")


class Slow:
    """Calls of that purpose are under way until they `may_go_on`.

    Attributes:
        has_ended: One of them is not under way any more.
    """

    def __init__(self, purpose: str) -> None:
        self.has_begun, self.may_go_on, self.has_ended = threading.Event(), threading.Event(), threading.Event()
        self._purpose = purpose

    def takes(self, purpose: str) -> bool:
        return purpose == self._purpose

    def inject(self, call: Callable[[], T]) -> T:
        self.has_begun.set()
        try:
            assert self.may_go_on.wait(50)
            return call()
        finally:
            self.has_ended.set()


class Failing:
    """Calls of that purpose fail as if the connection was lost, before anything is sent."""

    def __init__(self, purpose: str) -> None:
        self.times = 0
        self._purpose = purpose

    def takes(self, purpose: str) -> bool:
        return purpose == self._purpose

    def inject(self, call: Callable[[], T]) -> T:
        self.times += 1
        raise AutoReconnect("gone")
