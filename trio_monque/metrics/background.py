"""LatestAnswer: asks a question in a thread of its own, at most every some seconds, and knows the last answer.

A scrape has to be answered soon, or Prometheus takes the process for dead just when its numbers matter: while the
database does not answer. So a scrape only begins the question, waits for a moment, and shows what is known then.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from ..call_context import is_in_event_loop
from ..log import logger_of

logger = logger_of("metrics")

T = TypeVar("T")

LONGEST_WAIT: Final = 1.0
"""Seconds for which a scrape waits for the answer that it has asked for."""


class LatestAnswer(Generic[T]):
    """The last answer to a question. From any thread.

    Args:
        ask: Blocks until the database has answered, or raises.
        interval: Seconds from one question to the next.

    Attributes:
        failures: How many questions have failed.
    """

    def __init__(self, ask: Callable[[], T], interval: float) -> None:
        self.failures = 0
        self._ask = ask
        self._interval = interval
        self._lock = threading.Lock()
        self._asked_at = self._answered_at = -math.inf
        self._under_way: threading.Event | None = None
        self._answer: T | None = None
        self._has_failed = False

    @property
    def age(self) -> float:
        """Seconds since the question of the last answer; infinity without one."""
        return time.monotonic() - self._answered_at

    def get(self) -> T | None:
        """Begin a new question if the last one is old, and return the last answer; None without one.

        Wait for the answer that is on its way, for a second at most. On an event loop do not wait: all its tasks would.
        """
        answered = self._begin()
        if answered is not None and not is_in_event_loop():
            answered.wait(LONGEST_WAIT)
        return self._answer

    def _begin(self) -> threading.Event | None:
        """Begin a question if one is due. Return an event for the answer that is on its way; None if none is."""
        with self._lock:
            now = time.monotonic()
            if self._under_way is not None:
                return self._under_way
            if now - self._asked_at < self._interval:
                return None
            self._asked_at, self._under_way = now, (answered := threading.Event())
            # A daemon: at the end of the program, Python would wait for a database that does not answer.
            thread = threading.Thread(target=self._work, args=(answered, now), name="trio_monque metrics", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # No more threads.
                self._under_way = None
                self._failed(error)
                return None
            return answered

    def _work(self, answered: threading.Event, asked_at: float) -> None:
        try:
            answer = self._ask()
        except Exception as error:  # noqa: BLE001  # No caller gets it: it is counted and logged.
            self._failed(error)
        else:
            self._answer, self._answered_at, self._has_failed = answer, asked_at, False
        finally:
            self._under_way = None
            answered.set()

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        log = logger.debug if self._has_failed else logger.warning  # Once in each outage.
        self._has_failed = True
        log("could not read the numbers of the collection: %s; the metrics keep the last ones", error)
