"""Exposition: the one collector of a registry, which shows all schedulers, claims and clients that were added to it.

Prometheus wants each metric once, with the samples of all who have it. So two schedulers of one process cannot be two
collectors of one registry: they would show the same metric twice.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, cast
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..error_types import InvalidOptionError
from .metric_names_and_buckets import FAMILIES, Family


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram shows.

    Attributes:
        counts: By upper bound, in ascending order, how many values are in each bucket and in none before it. The last
            bound is infinity.
        total: The sum of the values.
    """

    counts: Sequence[tuple[float, int]]
    total: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric. `labels` are the values of the labels that the family names."""

    family: Family
    value: float | Distribution
    labels: Sequence[str] = ()


class Metrics(ABC):
    """The metrics of one source, on a registry while a `with` or `async with` block runs.

    Args:
        namespace: The collection with its database.
        registry: Of prometheus_client.
    """

    def __init__(self, namespace: str, registry: CollectorRegistry) -> None:
        self.namespace = namespace
        self._registry = registry

    @abstractmethod
    def samples(self) -> Iterable[Sample]:
        """Return the values of this moment. In any thread, also in several at once."""

    def __enter__(self) -> Self:
        _add(self._registry, self)
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _remove(self._registry, self)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(error_type, error, traceback)


class Exposition(Collector):
    """Shows the samples of all sources. The registry calls it in the threads that serve scrapes."""

    def __init__(self) -> None:
        self.sources: tuple[Metrics, ...] = ()  # Replaced and never changed: a scrape may be reading it.

    def describe(self) -> Iterator[Metric]:
        """The names, for the registry: it refuses another collector that has one of them."""
        return (family.empty() for family in FAMILIES)

    def collect(self) -> Iterator[Metric]:
        metrics = {family: family.empty() for family in FAMILIES}
        for source in self.sources:
            for sample in source.samples():
                _show(metrics[sample.family], sample, source.namespace)
        return (metric for metric in metrics.values() if metric.samples)


def _show(metric: Metric, sample: Sample, namespace: str) -> None:
    family = sample.family
    labels = dict(zip(("collection", *family.labels), (namespace, *sample.labels), strict=True))
    if isinstance(sample.value, Distribution):
        buckets, seen = [], 0
        for bound, count in sample.value.counts:
            seen += count
            buckets.append(("+Inf" if bound == math.inf else str(bound), seen))
        cast("HistogramMetricFamily", metric).add_metric(tuple(labels.values()), buckets, sample.value.total)
    else:
        metric.add_sample(family.name, labels, sample.value)


_lock: Final = threading.Lock()
_expositions: Final[WeakKeyDictionary[CollectorRegistry, Exposition]] = WeakKeyDictionary()


def _add(registry: CollectorRegistry, source: Metrics) -> None:
    with _lock:
        shown = _expositions.get(registry)
        if shown is None:
            shown = Exposition()
            registry.register(shown)
            _expositions[registry] = shown
        if any(source.namespace == other.namespace for other in shown.sources):
            raise InvalidOptionError(
                "registry",
                registry,
                f"has metrics of {source.namespace} already: pass a CollectorRegistry of their own for the second ones",
            )
        shown.sources = (*shown.sources, source)


def _remove(registry: CollectorRegistry, source: Metrics) -> None:
    with _lock:
        shown = _expositions[registry]
        shown.sources = tuple(other for other in shown.sources if other is not source)
        if not shown.sources:
            del _expositions[registry]
            registry.unregister(shown)


DEFAULT_REGISTRY: Final = REGISTRY
