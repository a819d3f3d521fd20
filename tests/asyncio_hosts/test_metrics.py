"""Metrics of schedulers and claims on trio, asyncio and uvloop, served over HTTP as Prometheus gets them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import anyio
import anyio.to_thread
import pytest
from prometheus_client import CollectorRegistry, make_asgi_app, make_wsgi_app, start_http_server
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as open_metrics
from prometheus_client.openmetrics import parser as open_metrics_parser
from prometheus_client.parser import text_string_to_metric_families

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run
from tests.asyncio_hosts.scenes import QUICK, until
from tests.metrics.scrapes import Scrape
from tests.support.documents import DONE, OPEN, fill
from trio_monque import RunningJob, Workers, open_claims, open_scheduler
from trio_monque.metrics import ClaimsMetrics, SchedulerMetrics
from trio_monque.metrics.metric_names_and_buckets import FAMILIES
from trio_monque.store.driver.types import Collection, Database

workers = Workers()


@workers.register("works")
async def works(job: RunningJob[None]) -> None:
    pass


@contextmanager
def served(registry: CollectorRegistry) -> Iterator[str]:
    """The address of a server of prometheus_client, in a thread of its own."""
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def fetched(address: str) -> str:
    with urlopen(address, timeout=40) as answer:
        text: str = answer.read().decode()
        return text


@pytest.mark.full
def test_server_shows_every_metric_with_its_type_and_labels(db: Database, things: Collection, run: Run) -> None:
    registry = CollectorRegistry()
    fill(things, 3)

    async def main() -> None:
        async with (
            open_scheduler(db, workers) as scheduler,
            open_claims(things, OPEN, **QUICK) as claims,
            SchedulerMetrics(scheduler, registry=registry, collection_interval=0),
            ClaimsMetrics(claims, registry=registry),
        ):
            await scheduler.enqueue("works")
            first = await anext(claims)
            async with first:
                await first.finish(DONE)
            await until(lambda: scheduler.statistics().completed == 1 and claims.statistics().finished == 1)
            with served(registry) as address:
                while True:
                    text = await anyio.to_thread.run_sync(fetched, address)
                    # Its event comes a moment later than the count, and the watchdog asks soon after the start.
                    if "job_run_seconds_count" in text and "event_loop_lag" in text:
                        break
                    await anyio.sleep(0.01)
            scrape = Scrape(registry)
            # Prometheus asks for this format, which is stricter: so is its parser.
            strict = open_metrics.generate_latest(registry).decode()  # type: ignore[no-untyped-call]
            parse: Callable[[str], Iterable[Metric]] = open_metrics_parser.text_string_to_metric_families
            in_strict = list(parse(strict))
            assert [one.name for one in in_strict] == [one.removesuffix("_info") for one in scrape.families]
            assert {one.unit for one in in_strict if one.name.endswith("_seconds")} == {"seconds"}
            assert scrape.value("documents_total", verdict="finished", collection=things.full_name) == 1
            assert scrape.value("runs_total", verdict="completed", collection=scheduler.namespace) == 1
            assert scrape.value("held_claims", collection=things.full_name) == 2
            assert scrape.value("waiting_claims") == 2
            assert sorted(scrape.by("kind", "instance_info")) == ["claims", "scheduler"]
            texts.append(text)
        assert Scrape(registry).samples == []

    texts: list[str] = []
    run(main)
    shown = {one.name: one for one in text_string_to_metric_families(texts[0])}
    for family in FAMILIES:
        metric = shown.pop(family.name.removesuffix("_total"))
        assert metric.type == ("gauge" if family.kind == "info" else family.kind)
        assert metric.documentation == family.meaning
        labels = {label for sample in metric.samples for label in sample.labels} - {"le"}
        assert labels == {"collection", *family.labels}
    assert shown == {}


@pytest.mark.full
@ON_ASYNCIO
def test_lag_of_the_loop_of_the_application_is_shown_beside_that_of_the_scheduler(db: Database, run: Run) -> None:
    registry = CollectorRegistry()

    async def main() -> None:
        async with open_scheduler(db, workers) as scheduler:
            with SchedulerMetrics(scheduler, registry=registry, collection_interval=None):
                seen: list[dict[str, float]] = []

                def watch() -> None:
                    # A busy machine may delay the loop of the instance for a while, too.
                    while not seen or not seen[-1].get("instance", 0.0) < 0.5 <= seen[-1].get("application", 0.0):
                        seen.append(Scrape(registry).by("of", "event_loop_lag_seconds"))
                        time.sleep(0.01)

                watching = threading.Thread(target=watch)
                watching.start()
                watching.join(40)  # Blocks the loop of the application until a scrape in a thread shows it.
                assert not watching.is_alive(), seen[-1]

    run(main)


@pytest.mark.parametrize("name", ["wsgi", "asgi"])
def test_apps_of_the_library_serve_them(db: Database, run: Run, name: str) -> None:
    registry = CollectorRegistry()

    async def main() -> None:
        async with open_scheduler(db, workers) as scheduler:
            with SchedulerMetrics(scheduler, registry=registry):
                if name == "wsgi":
                    environ: dict[str, Any] = {"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics"}
                    (body,) = make_wsgi_app(registry)(environ, lambda *_: None)
                else:
                    sent: list[Any] = []

                    async def receive() -> dict[str, Any]:
                        return {"type": "http.request", "body": b"", "more_body": False}

                    async def send(message: Any) -> None:
                        sent.append(message)

                    scope = {"type": "http", "method": "GET", "path": "/metrics", "query_string": b"", "headers": []}
                    await make_asgi_app(registry)(scope, receive, send)
                    body = sent[-1]["body"]
                assert f'id="{scheduler.id}"' in body.decode()

    run(main)
