"""CollectionMetrics: the numbers of a jobs collection, for a client that runs no jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry

from ..checks import check_count, check_number
from ..client.monque import Monque
from ..clock import in_time_of, virtual_time
from ..jobs.job import JobStatus
from ..jobs.views import QueueDepth
from .background import LatestAnswer
from .by_name import NameLabels
from .exposition import DEFAULT_REGISTRY, Metrics, Sample
from .families import JOBS, OLDEST_DUE, SNAPSHOT_AGE, SNAPSHOT_FAILURES, STUCK


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
