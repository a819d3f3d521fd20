"""The page of `--metrics`: the default registry of prometheus_client, of this process or of several ones together.

That registry also has what the targets themselves count with prometheus_client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from prometheus_client import REGISTRY, CollectorRegistry, make_wsgi_app
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ...metrics import SchedulerMetrics
from ...scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

LABEL: Final = "worker_process"
"""Tells the samples of several worker processes apart. Its value is their place: a restart makes no new series."""

_INTERVAL: Final = 15.0
"""Seconds from one command for the numbers of the collection to the next."""


@contextmanager
def shown_from_start(place: int = 1) -> Iterator[Callable[[Scheduler], None]]:
    """Give a function that shows the metrics of a scheduler on the registry until the end of the block.

    The processes of one parent would all have the same numbers of the collection: only the first one asks for them.
    """
    with ExitStack() as stack:

        def show(scheduler: Scheduler) -> None:
            interval = _INTERVAL if place == 1 else None
            stack.enter_context(SchedulerMetrics(scheduler, collection_interval=interval))

        yield show


def page_of_this_process() -> WSGIApplication:
    return make_wsgi_app()


def collected_here() -> list[Metric]:
    """Return the metrics of this process, to be sent to its parent.

    As plain values: the parent does not import the targets, and cannot make objects of their classes.
    """
    return [_plain(one) for one in REGISTRY.collect()]


def _plain(metric: Metric) -> Metric:
    plain = Metric(metric.name, metric.documentation, metric.type, metric.unit)
    plain.samples = [
        one._replace(labels={str(name): str(value) for name, value in one.labels.items()}, value=float(one.value))
        for one in metric.samples
    ]
    return plain


def page_of_processes(ask: Callable[[], Mapping[int, Sequence[Metric]]]) -> WSGIApplication:
    """Return the page of several processes. `ask` gives the metrics of each, by its place."""
    registry = CollectorRegistry()
    registry.register(_Processes(ask))
    return make_wsgi_app(registry)


class _Processes(Collector):
    def __init__(self, ask: Callable[[], Mapping[int, Sequence[Metric]]]) -> None:
        self._ask = ask

    def collect(self) -> Iterable[Metric]:
        return together(self._ask())


def together(processes: Mapping[int, Sequence[Metric]]) -> list[Metric]:
    """Return each metric once, with the samples of all processes."""
    found: dict[str, Metric] = {}
    for place, metrics in processes.items():
        for one in metrics:
            metric = found.setdefault(one.name, Metric(one.name, one.documentation, one.type, one.unit))
            metric.samples += [one._replace(labels={**one.labels, LABEL: str(place)}) for one in one.samples]
    return list(found.values())
