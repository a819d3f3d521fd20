"""CollectionMetrics: the numbers of a jobs collection, for a client that runs no jobs.

A scrape has to be answered soon, or Prometheus takes the process for dead just when its numbers matter: while the
database does not answer. So a scrape only begins the question to the database, in a thread, waits for a moment, and
shows what is known then.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry

from ..checks import check_count, check_number
from ..client.monque import Monque
from ..client.operation import is_in_event_loop
from ..clock import in_time_of, virtual_time
from ..jobs.job import JobStatus
from ..jobs.views import QueueDepth
from ..log import logger_of
from .exposition import DEFAULT_REGISTRY, Metrics, Sample
from .histograms_by_name import NameLabels
from .metric_names_and_buckets import JOBS, OLDEST_DUE, SNAPSHOT_AGE, SNAPSHOT_FAILURES, STUCK

logger = logger_of("metrics")

T = TypeVar("T")

LONGEST_WAIT: Final = 1.0
"""Seconds for which a scrape waits for the answer that it has asked for."""


class CollectionMetrics(Metrics):
    """The numbers of a jobs collection on a registry of prometheus_client, while a `with` block runs.

        with CollectionMetrics(monque):
            start_http_server(9000)

    It is for a process that runs no jobs. SchedulerMetrics has the same numbers, and those of the scheduler. The
    database is asked when Prometheus scrapes, with one command at most every `interval` seconds, in a thread beside the
    scrape. A scrape waits for a second at most. Then it shows the last numbers, and their age is the metric
    `trio_monque_collection_age_seconds`.

    Args:
        monque: The client.
        registry: On which the metrics appear; by default the one that prometheus_client serves.
        most_names: How many names of jobs have series of their own. All others are counted under `other`.
        interval: Seconds from one command to the next.

    Raises:
        InvalidOptionError: An argument is invalid. From `with`: the registry has metrics of this collection already.
    """

    def __init__(
        self,
        monque: Monque,
        *,
        registry: CollectorRegistry = DEFAULT_REGISTRY,
        most_names: int = 100,
        interval: float = 15.0,
    ) -> None:
        check_count("most_names", most_names, at_least=1)
        check_number("interval", interval, at_least=0)
        super().__init__(monque.namespace, registry)
        self._numbers = CollectionNumbers(monque, most_names, interval)

    def samples(self) -> Iterable[Sample]:
        return self._numbers.samples()


class CollectionNumbers:
    """Asks for the numbers of the collection, and shows the last ones."""

    def __init__(self, monque: Monque, most_names: int, interval: float) -> None:
        self._monque = monque
        # The thread that asks belongs to no trio run: it would take the server's time in a run in virtual time.
        self._virtual = virtual_time()
        self._names = NameLabels(most_names)
        self._latest = LatestAnswer(self._ask, interval)

    def samples(self) -> Iterator[Sample]:
        """Return the last numbers and their age. Waits for new ones, for a second at most."""
        if (samples := self._latest.get()) is not None:
            yield from samples
        yield Sample(SNAPSHOT_AGE, self._latest.age)
        yield Sample(SNAPSHOT_FAILURES, self._latest.failures)

    def _ask(self) -> list[Sample]:
        with in_time_of(self._virtual):
            return list(self._samples_of(self._monque.sync.get_queue_depths()))

    def _samples_of(self, depths: Mapping[str, QueueDepth]) -> Iterator[Sample]:
        self._names.forget_others_than(depths)
        numbers: Counter[tuple[str, str]] = Counter()
        stuck: Counter[str] = Counter()
        ages: dict[str, float] = {}
        # Those with the most live jobs first: they get the labels if there are too many names.
        for name, depth in sorted(depths.items(), key=lambda one: (-(one[1].pending + one[1].processing), one[0])):
            label = self._names.label_of(name)
            for status in JobStatus:
                numbers[label, status.value] += getattr(depth, status.value)
            stuck[label] += depth.stuck
            ages[label] = max(depth.oldest_due_age or 0.0, ages.get(label, 0.0))
        yield from (Sample(JOBS, number, labels) for labels, number in numbers.items())
        yield from (Sample(OLDEST_DUE, age, (label,)) for label, age in ages.items())
        yield from (Sample(STUCK, number, (label,)) for label, number in stuck.items())


class LatestAnswer(Generic[T]):
    """Asks a question in a thread of its own, at most every `interval` seconds, and knows the last answer.

    Any thread may call it.

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
        log("could not read the collection metrics: %s; keeping the last values", error)
