"""Values by the name of a job, with a cap on the number of names: each series costs Prometheus memory.

Programs may make names from data, a customer's number for example. Names beyond the cap share the label `other`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

from .exposition import Distribution, Sample
from .metric_names_and_buckets import BUCKETS, Family

OTHER: Final = "other"


class NameLabels:
    """Chooses the label of each name. The names that come first keep their labels. From any thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: set[str] = set()

    def label_of(self, name: str) -> str:
        """Return the name, or "other" if it is beyond the cap."""
        with self._lock:
            if name not in self._known:
                if len(self._known) >= self._most:
                    return OTHER
                self._known.add(name)
            return name

    def forget_others_than(self, names: Iterable[str]) -> None:
        """Give the places of all other names free. Only for gauges: a counter must not lose its series."""
        with self._lock:
            self._known.intersection_update(names)


class Durations:
    """A histogram of seconds by name. From any thread."""

    def __init__(self, family: Family, most_names: int) -> None:
        self._family = family
        self._names = NameLabels(most_names)
        self._lock = threading.Lock()
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, name: str, seconds: float) -> None:
        label = self._names.label_of(name)
        place = bisect_left(BUCKETS, seconds)
        with self._lock:
            counts = self._counts.setdefault(label, [0] * (len(BUCKETS) + 1))
            counts[place] += 1
            self._sums[label] = self._sums.get(label, 0.0) + seconds

    def samples(self) -> Iterator[Sample]:
        with self._lock:
            found = [(label, tuple(counts), self._sums[label]) for label, counts in self._counts.items()]
        bounds = (*BUCKETS, float("inf"))
        for label, counts, total in found:
            yield Sample(self._family, Distribution(tuple(zip(bounds, counts, strict=True)), total), (label,))
