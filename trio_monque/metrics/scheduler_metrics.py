"""SchedulerMetrics: the numbers of a scheduler and of its jobs collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry

from ..checks import check_count, check_number
from ..events import Event, JobCompleted, JobFailed, JobStarted
from ..jobs.job import Job
from ..scheduler.scheduler_client import SchedulerClient
from .collection_metrics import CollectionNumbers
from .exposition import DEFAULT_REGISTRY, Metrics, Sample
from .histograms_by_name import Durations, NameLabels
from .metric_names_and_buckets import OVERDUE_THREADS, PARKED, RUN_TIME, RUNNING, RUNS, START_LAG, WAIT
from .samples_of_schedulers_and_claims import info, instance_samples


class SchedulerMetrics(Metrics):
    """The numbers of a scheduler on a registry of prometheus_client, while a `with` or `async with` block runs.

        async with open_scheduler(db, workers) as scheduler:
            with SchedulerMetrics(scheduler):
                start_http_server(9000)
                await scheduler.wait_drained()

    It works on trio, asyncio and uvloop, and does not wait. The registry may be served from any thread: by
    `start_http_server`, `make_wsgi_app` or `make_asgi_app` of prometheus_client. A scrape reads memory. Only the
    numbers of the collection need the database; see CollectionMetrics.

    Args:
        scheduler: The running scheduler. Its numbers can be read after its end, too.
        registry: On which the metrics appear; by default the one that prometheus_client serves.
        most_names: How many names of jobs have series of their own. All others are counted under `other`.
        collection_interval: Seconds from one command for the numbers of the collection to the next; None for none of
            these numbers. In a large fleet, let a few processes ask for them.

    Raises:
        InvalidOptionError: An argument is invalid. From `with`: the registry has metrics of this collection already.
    """

    def __init__(
        self,
        scheduler: SchedulerClient,
        *,
        registry: CollectorRegistry = DEFAULT_REGISTRY,
        most_names: int = 100,
        collection_interval: float | None = 15.0,
    ) -> None:
        check_count("most_names", most_names, at_least=1)
        if collection_interval is not None:
            check_number("collection_interval", collection_interval, at_least=0)
        super().__init__(scheduler.namespace, registry)
        self._scheduler = scheduler
        self._info = info(scheduler.id, "scheduler")
        self._names = NameLabels(most_names)
        self._lags, self._waits, self._runs = (Durations(one, most_names) for one in (START_LAG, WAIT, RUN_TIME))
        self._collection = (
            None if collection_interval is None else CollectionNumbers(scheduler, most_names, collection_interval)
        )
        self._stop_listening: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        entered = super().__enter__()
        # One listener for all types: each listener has a thread of its own while it is called.
        self._stop_listening = self._scheduler.on(Event, self._heard)
        return entered

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop_listening()
        super().__exit__(error_type, error, traceback)

    def _heard(self, event: Event) -> None:
        match event:
            case JobStarted(job):
                self._started(job)
            case JobCompleted(job, duration):
                self._runs.observe(job.name, duration)
            case JobFailed(job, duration=float(duration)):
                self._runs.observe(job.name, duration)

    def _started(self, job: Job) -> None:
        # By the dates of the claim, and not by the time of this call: a listener may be called late.
        claimed_at = None if job.claim is None else job.claim.since
        if claimed_at is None:
            return
        self._lags.observe(job.name, max(0.0, (claimed_at - job.next_run_at).total_seconds()))
        if job.attempts <= 1 and job.schedule is None:
            self._waits.observe(job.name, max(0.0, (claimed_at - job.created_at).total_seconds()))

    def samples(self) -> Iterator[Sample]:
        numbers, label_of = self._scheduler.statistics(), self._names.label_of
        yield self._info
        yield from instance_samples(numbers, self._scheduler.health(), numbers.claims_lost)
        yield Sample(PARKED, numbers.parked)
        yield Sample(OVERDUE_THREADS, numbers.overdue_threads)
        running: Counter[str] = Counter()
        for name in dict.fromkeys((*numbers.running_by_name, *numbers.ended_by_name)):
            running[label_of(name)] += numbers.running_by_name.get(name, 0)
        yield from (Sample(RUNNING, number, (label,)) for label, number in running.items())
        ended: Counter[tuple[str, str]] = Counter()
        for name, verdicts in numbers.ended_by_name.items():
            for verdict, number in verdicts.items():
                ended[label_of(name), verdict] += number
        yield from (Sample(RUNS, number, labels) for labels, number in ended.items())
        for durations in (self._lags, self._waits, self._runs):
            yield from durations.samples()
        if self._collection is not None:
            yield from self._collection.samples()
