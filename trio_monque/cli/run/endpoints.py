"""The addresses of `--health` and `--metrics`, and what is served there: pages of this process, or of its children."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...error_types import MonqueError
from .children import Children
from .health_answers import health_pages
from .http_server import Address, served
from .parent_link import HEALTH, METRICS
from .worker_state import WorkerState

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication


@dataclass(frozen=True)
class Endpoints:
    """Where something is served.

    Attributes:
        health, metrics: The addresses; None for nowhere.
    """

    health: Address | None
    metrics: Address | None

    @contextmanager
    def of_worker(self, state: WorkerState) -> Iterator[None]:
        """Serve the pages of this process, for as long as the block."""
        with ExitStack() as stack:
            pages: dict[str, Mapping[str, WSGIApplication]] = {"--health": health_pages(state.report)}
            if self.metrics is not None:
                metrics = _metrics()
                state.on_start.append(stack.enter_context(metrics.shown_from_start()))
                pages["--metrics"] = {"/metrics": metrics.page_of_this_process()}
            self._serve(pages, stack)
            yield

    @contextmanager
    def of_children(self, children: Children) -> Iterator[None]:
        """Serve the pages of worker processes, for as long as the block."""
        with ExitStack() as stack:
            pages: dict[str, Mapping[str, WSGIApplication]] = {"--health": health_pages(children.report)}
            if self.metrics is not None:
                pages["--metrics"] = {"/metrics": _metrics().page_of_processes(children.metrics)}
            self._serve(pages, stack)
            yield

    @contextmanager
    def asked_for(self, state: WorkerState, place: int) -> Iterator[Mapping[str, Callable[[], Any]]]:
        """Give the answers of a child to the questions of its parent, which serves the pages."""
        answers: dict[str, Callable[[], Any]] = {HEALTH: state.report}
        with ExitStack() as stack:
            if self.metrics is not None:
                metrics = _metrics()
                state.on_start.append(stack.enter_context(metrics.shown_from_start(place)))
                answers[METRICS] = metrics.collected_here
            yield answers

    def _serve(self, pages: Mapping[str, Mapping[str, WSGIApplication]], stack: ExitStack) -> None:
        """Serve the pages of each option. Options with the same address share a server."""
        options: dict[Address, list[str]] = {}
        for option, address in (("--health", self.health), ("--metrics", self.metrics)):
            if address is not None:
                options.setdefault(address, []).append(option)
        for address, names in options.items():
            of_all = {path: page for name in names for path, page in pages[name].items()}
            stack.enter_context(served(of_all, address, " and ".join(names)))


def _metrics() -> Any:
    try:
        from . import metrics  # Only here: prometheus_client is an extra.
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        raise MonqueError("--metrics needs prometheus_client: python -m pip install prometheus_client") from None
    return metrics
