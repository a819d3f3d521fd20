"""Statistics of a moment ago are returned again, and concurrent callers share one query. From any thread."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from ..clock import VirtualTime, virtual_time
from ..error_types import MonqueConnectionError

T = TypeVar("T")

MOST_NAMES: Final = 100

_Moment = tuple[VirtualTime | None, float]
"""A timeline, which is None for real time, and a moment in seconds of it."""


@dataclass(eq=False)
class _Answer(Generic[T]):
    """One query, and its answer for all callers that want it.

    Attributes:
        timeline: The virtual time in which it was asked; None for real time.
        asked_at: When, in seconds of that timeline.
        future: The answer. Only threads wait for it, never an event loop.
    """

    timeline: VirtualTime | None
    asked_at: float
    future: Future[T] = field(default_factory=Future)

    def is_good(self, ttl: float, now: _Moment) -> bool:
        timeline, seconds = now
        return self.timeline is timeline and seconds - self.asked_at < ttl


class StatsCache(Generic[T]):
    """Answers by name, for `ttl` seconds each; at most a hundred names.

    A query belongs to the thread that sends it, not to the task that the thread works for: if that task is cancelled,
    the thread continues, and the other callers get the answer. If the query fails, all of them raise its error, and the
    next call asks again.
    """

    def __init__(self, ttl: float) -> None:
        self._ttl = ttl
        self._lock = threading.Lock()
        self._answers: dict[
            str | None, _Answer[T]
        ] = {}  # In the order of the queries, so that the oldest one is dropped first.

    def known(self, name: str | None, max_age: float | None = None) -> T | None:
        """Return an answer that is known already, without waiting; None if there is none.

        Args:
            name: What it is about.
            max_age: It was asked for this number of seconds ago at most; None for any answer that is kept.
        """
        now = _now()
        with self._lock:
            answer = self._good(name, now, max_age)
            if answer is None or not answer.future.done():
                return None
        return answer.future.result()

    def get(self, name: str | None, ask: Callable[[], T], max_age: float | None = None) -> T:
        """Return the known answer, the one that another thread is waiting for, or else what `ask` returns."""
        if not self._ttl:
            return ask()
        now = _now()
        with self._lock:
            answer = self._good(name, now, max_age)
            is_ours = answer is None
            if answer is None:
                answer = self._begin(name, now)
        if is_ours:
            self._work(name, answer, ask)
        try:
            return answer.future.result()
        except MonqueConnectionError as error:
            # Many callers may raise the error of one query. Each raises a copy, or their tracebacks would mix.
            own = copy.copy(error)
            raise own from error.__cause__

    def clear(self) -> None:
        """Forget all answers. Callers that wait for one still get it."""
        with self._lock:
            self._answers.clear()

    def _good(self, name: str | None, now: _Moment, max_age: float | None) -> _Answer[T] | None:
        answer = self._answers.get(name)
        ttl = self._ttl if max_age is None else min(self._ttl, max_age)
        return answer if answer is not None and answer.is_good(ttl, now) else None

    def _begin(self, name: str | None, now: _Moment) -> _Answer[T]:
        self._answers.pop(name, None)  # A new entry goes to the end, so that the first one is always the oldest.
        while len(self._answers) >= MOST_NAMES:
            del self._answers[next(iter(self._answers))]
        answer = self._answers[name] = _Answer(*now)
        return answer

    def _work(self, name: str | None, answer: _Answer[T], ask: Callable[[], T]) -> None:
        try:
            stats = ask()
        except BaseException as error:  # noqa: BLE001  # All callers that wait raise it, this one included.
            with self._lock:
                # `clear` may have removed it, and another caller may have asked anew: only our own answer is dropped.
                if self._answers.get(name) is answer:
                    del self._answers[name]
            answer.future.set_exception(error)
        else:
            answer.future.set_result(stats)


def _now() -> _Moment:
    # Never under a lock: a thread of `trio.to_thread` asks the event loop for its virtual time, and the event loop may
    # wait for the lock.
    virtual = virtual_time()
    if virtual is None:
        return None, time.monotonic()
    return virtual, (virtual.now() - virtual.start).total_seconds()
