"""The table of the page on security: what of a job is in its document, in the log, in metrics and in traces."""

from __future__ import annotations

import logging
import socket
from typing import Final

import pytest
import trio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.pages import rows
from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.metrics import SchedulerMetrics
from trio_monque.otel import tracing_middleware
from trio_monque.store.driver.types import Database

PAGE: Final = "how-to/security.md"
INSTANCE: Final = "the-instance"
HOST: Final = "host-4711"


async def fail_in_a_frame_of_its_own(job: RunningJob[str]) -> None:
    await job.save("saved-4711")
    await job.set_progress("progress-4711")
    raise ValueError("error-4711")


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def workers(exporter: InMemorySpanExporter) -> Workers:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    workers = Workers(middleware=[tracing_middleware(tracer_provider=provider)])
    workers.register("name-4711", fail_in_a_frame_of_its_own, max_attempts=1)

    @workers.register("other-4711", store_result=True)
    async def succeed(job: RunningJob[str]) -> str:
        return "result-4711"

    return workers


async def test_table_tells_what_lands_where(
    db: Database,
    workers: Workers,
    exporter: InMemorySpanExporter,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    caplog.set_level(logging.INFO, "trio_monque")
    registry = CollectorRegistry()
    async with open_scheduler(db, workers, instance_id=INSTANCE, change_stream=False, poll_interval=0.05) as scheduler:
        with SchedulerMetrics(scheduler, registry=registry):
            first = await scheduler.enqueue(
                "name-4711", "data-4711", unique_key="key-4711", meta={"tenant": "meta-4711"}
            )
            await scheduler.enqueue("other-4711", "data-4711")
            with trio.fail_after(20):
                while scheduler.statistics().failed < 1 or scheduler.statistics().completed < 1:
                    await trio.sleep(0.01)
            entries = list(db["monque_jobs.instances"].find())
            metrics = (await trio.to_thread.run_sync(generate_latest, registry)).decode()
    documents = f"{list(db['monque_jobs'].find())}{entries}"
    traces = "".join(span.to_json() for span in exporter.get_finished_spans())
    places = (documents, caplog.text, metrics, traces)

    of_row = {
        "`data`, results, progress, saved state": ["data-4711", "result-4711", "progress-4711", "saved-4711"],
        "`meta`": ["meta-4711"],
        "unique key": ["key-4711"],
        "name of the job": ["name-4711"],
        "id of the job": [str(first.id)],
        "text of an error": ["error-4711"],
        "traceback": ["in fail_in_a_frame_of_its_own"],
        "instance id": [INSTANCE],
        "host": [HOST],
    }
    table = {row[0]: row[1:5] for row in rows(PAGE, "## What lands where")[: len(of_row)]}
    found = {what: [all(text in place for text in texts) for place in places] for what, texts in of_row.items()}
    assert {what: [not cell.startswith(("no", "only")) for cell in cells] for what, cells in table.items()} == found
    partly = {what for what, texts in of_row.items() for place in places if any(text in place for text in texts)}
    assert partly == {what for what, cells in found.items() if any(cells)}
