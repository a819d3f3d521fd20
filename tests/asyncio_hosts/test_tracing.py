"""Traces of jobs with OpenTelemetry's SDK: from the caller of `enqueue` to each run, on trio and on asyncio."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode

from tests.asyncio_hosts.conftest import Run
from tests.asyncio_hosts.scenes import LONG, QUICK, SECONDS_TO_BEAT, statuses, until
from tests.support.pages import DOCS
from tests.support.programs import ROOT, fenced_blocks
from trio_monque import Discard, Monque, Retry, RunningJob, Snooze, Workers, open_job_nursery, open_scheduler
from trio_monque.jobs.meta import LARGEST_META, size_of
from trio_monque.otel import trace_context, tracing_middleware
from trio_monque.store.driver.types import Database
from trio_monque.testing import run_job


@pytest.fixture(scope="module")
def global_exporter() -> InMemorySpanExporter:
    """The SDK, as a program sets it up. It can be set up only once in a process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def exporter(global_exporter: InMemorySpanExporter) -> InMemorySpanExporter:
    global_exporter.clear()
    return global_exporter


def context_of(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def id_of(span: ReadableSpan) -> int:
    return context_of(span).span_id


def linked(span: ReadableSpan) -> Sequence[int]:
    return [link.context.span_id for link in span.links]


def attribute(span: ReadableSpan, name: str) -> object:
    assert span.attributes is not None
    return span.attributes.get(name)


def test_programs_of_the_page_trace_a_chain_of_jobs(db: Database, run: Run, exporter: InMemorySpanExporter) -> None:
    names: dict[str, Any] = {}
    for block in fenced_blocks(DOCS / "how-to/trace-jobs.md", "python"):
        exec(compile(block, "the page", "exec"), names)
    tracer = trace.get_tracer("the program")

    async def main() -> None:
        with tracer.start_as_current_span("start of the program"):
            async with open_scheduler(db, names["workers"], **QUICK):
                with tracer.start_as_current_span("request", context.Context()):
                    await names["order"](Monque(db), 7)
                await until(lambda: statuses(db, "send-receipt") == ["completed"])

    run(main)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    charge, receipt = spans["process charge"], spans["process send-receipt"]
    assert linked(charge) == [id_of(spans["request"])]
    assert linked(receipt) == [id_of(charge)]
    # Not in the trace of the request, nor in that of the program, whose span was current at the start.
    assert charge.parent is None
    assert receipt.parent is None
    assert len({context_of(span).trace_id for span in spans.values()}) == len(spans) == 4
    stored = db["monque_jobs"].find_one({"name": "charge"})
    assert stored is not None
    assert charge.kind is SpanKind.CONSUMER
    assert dict(charge.attributes or {}) == {
        "messaging.system": "trio_monque",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "charge",
        "messaging.message.id": str(stored["_id"]),
        "trio_monque.attempt": 1,
    }
    assert charge.status.status_code is receipt.status.status_code is StatusCode.UNSET


def test_every_attempt_links_to_the_caller_and_says_how_it_ended(
    db: Database, run: Run, exporter: InMemorySpanExporter
) -> None:
    workers = Workers(middleware=[tracing_middleware()])

    @workers.register("async", backoff=0.01)
    async def in_task(job: RunningJob[Any]) -> None:
        if job.attempt == 1:
            raise ValueError("not yet")

    @workers.register("plain", backoff=0.01)
    def in_thread(job: RunningJob[Any]) -> None:
        in_span = trace.get_current_span().get_span_context()
        assert in_span.is_valid
        assert baggage.get_baggage("customer") == "Ada"
        trace.get_tracer("handler").start_span("inside").end()
        if job.attempt == 1:
            raise ValueError("not yet")

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            with trace.get_tracer("the program").start_as_current_span("request"):
                token = context.attach(baggage.set_baggage("customer", "Ada"))
                for name in ("async", "plain"):
                    await scheduler.enqueue(name, meta=trace_context({"tenant": "acme"}))
                context.detach(token)
            for name in ("async", "plain"):
                await until(lambda name=name: statuses(db, name) == ["completed"])  # type: ignore[misc]

    run(main)
    (request,) = (span for span in exporter.get_finished_spans() if span.name == "request")
    assert [document["meta"]["tenant"] for document in db["monque_jobs"].find()] == ["acme", "acme"]
    for name in ("async", "plain"):
        first, second = (span for span in exporter.get_finished_spans() if span.name == f"process {name}")
        assert linked(first) == [id_of(request)]
        assert linked(second) == [id_of(request), id_of(first)]
        assert [attribute(span, "trio_monque.attempt") for span in (first, second)] == [1, 2]
        assert (first.status.status_code, attribute(first, "error.type")) == (StatusCode.ERROR, "ValueError")
        assert first.status.description == "ValueError: not yet"
        assert [event.name for event in first.events] == ["exception"]
        assert (second.status.status_code, attribute(second, "error.type")) == (StatusCode.UNSET, None)
        inside = [span.parent.span_id for span in exporter.get_finished_spans() if span.parent is not None]
        if name == "plain":
            assert inside == [id_of(first), id_of(second)]


def waits_in_thread(job: RunningJob[Any]) -> None:
    while True:
        job.check_cancelled()
        time.sleep(0.001)


async def waits(job: RunningJob[Any]) -> None:
    await anyio.sleep(LONG)


def raising(error: Exception) -> Callable[[RunningJob[Any]], Any]:
    async def handler(job: RunningJob[Any]) -> None:
        raise error

    return handler


def raising_in_thread(error: Exception) -> Callable[[RunningJob[Any]], Any]:
    def handler(job: RunningJob[Any]) -> None:
        raise error

    return handler


@pytest.mark.full
def test_status_of_each_end(run: Run, exporter: InMemorySpanExporter) -> None:
    async def end_of(handler: Callable[..., Any], **options: Any) -> tuple[object, ...]:
        exporter.clear()
        worker = Workers(middleware=[tracing_middleware()]).register("job", handler)
        while not exporter.get_finished_spans():  # On a busy machine a time limit may be over before the run begins.
            await run_job(worker, reraise=False, **options)
        (span,) = exporter.get_finished_spans()
        assert span.links == ()  # It was not enqueued in a span.
        return span.status.status_code.name, attribute(span, "error.type"), attribute(span, "trio_monque.cancel_reason")

    async def main() -> None:
        for make in (raising, raising_in_thread):
            assert await end_of(make(Retry("busy"))) == ("ERROR", "Retry", None)
            assert await end_of(make(Discard("gone"))) == ("ERROR", "Discard", None)
            assert await end_of(make(Snooze(after=1))) == ("UNSET", None, None)
            group = ExceptionGroup("two", [KeyError(1), ValueError(2)])
            assert await end_of(make(group)) == ("ERROR", "ExceptionGroup", None)
        assert await end_of(waits, timeout=0.2) == ("ERROR", "timeout", "timeout")
        assert await end_of(waits_in_thread, timeout=0.2) == ("ERROR", "timeout", "timeout")

    run(main)


def test_run_that_a_shutdown_or_a_user_has_cut_has_no_error_status(
    db: Database, run: Run, exporter: InMemorySpanExporter
) -> None:
    began = threading.Semaphore(0)

    async def counted(job: RunningJob[Any], run: Callable[[], Any]) -> None:
        began.release()
        await run()

    workers = Workers(middleware=[tracing_middleware(), counted])
    workers.register("async", waits)
    workers.register("plain", waits_in_thread)

    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with open_scheduler(db, workers, **QUICK, heartbeat_interval=SECONDS_TO_BEAT) as scheduler:
                for name in ("async", "plain"):
                    job = await scheduler.enqueue(name)
                    await until(lambda: began.acquire(blocking=False))
                    await scheduler.cancel_job(job.id)
                    await until(lambda name=name: statuses(db, name) == ["cancelled"])  # type: ignore[misc]
                for name in ("async", "plain"):
                    await scheduler.enqueue(name)
                    await until(lambda: began.acquire(blocking=False))
                scope.cancel()

    run(main)
    reasons = [attribute(span, "trio_monque.cancel_reason") for span in exporter.get_finished_spans()]
    assert reasons == ["user", "user", "shutdown", "shutdown"]
    assert {span.status.status_code for span in exporter.get_finished_spans()} == {StatusCode.UNSET}


# --- The context in the meta ---


def test_baggage_that_does_not_fit_is_left_out_and_nothing_is_there_without_a_span(
    exporter: InMemorySpanExporter,
) -> None:
    assert trace_context() == {}
    assert trace_context({"tenant": "acme"}) == {"tenant": "acme"}
    with trace.get_tracer("the program").start_as_current_span("request") as span:
        token = context.attach(baggage.set_baggage("large", "x" * LARGEST_META))
        meta = trace_context({"tenant": "acme"})
        context.detach(token)
        assert meta.keys() == {"tenant", "traceparent"}
        assert size_of(meta) <= LARGEST_META
        assert f"{span.get_span_context().trace_id:032x}" in meta["traceparent"]


@pytest.mark.full
@pytest.mark.timeout(300)  # On a busy machine, a program needs half a minute to import what it runs.
def test_tracing_says_what_to_install_where_opentelemetry_is_missing() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "try:\n    import trio_monque.otel\nexcept ModuleNotFoundError as error:\n    print(error)"
    )
    printed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "trio_monque.otel needs opentelemetry-api: python -m pip install opentelemetry-api"


async def never(job: RunningJob[Any]) -> None:
    raise ValueError("never")


def test_attempt_of_another_job_is_not_linked(exporter: InMemorySpanExporter) -> None:
    worker = Workers(middleware=[tracing_middleware()]).register("never", never)

    async def main() -> None:
        for _ in range(3):
            await run_job(worker, reraise=False)  # Each is another job.

    anyio.run(main, backend="trio")
    assert [span.links for span in exporter.get_finished_spans()] == [()] * 3


class _Raising(SpanProcessor, Sampler):
    """Raises in one of its methods."""

    def __init__(self, method: str, error: BaseException) -> None:
        self.calls = 0
        setattr(self, method, self._raise)
        self._error = error

    def _raise(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        raise self._error

    def should_sample(self, *arguments: Any, **options: Any) -> SamplingResult:
        return SamplingResult(Decision.RECORD_AND_SAMPLE)

    def get_description(self) -> str:
        return "raises"


class _Hostile(Exception):  # noqa: N818
    """Whatever asks it for its class or its truth value raises."""

    __class__ = property(lambda self: 1 / 0)

    def __bool__(self) -> bool:
        raise ZeroDivisionError


@pytest.mark.full
@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, GeneratorExit, _Hostile])
@pytest.mark.parametrize("method", ["on_start", "on_end", "should_sample"])
@pytest.mark.parametrize("fails", [False, True], ids=["job that succeeds", "job that fails"])
def test_error_of_a_processor_or_sampler_is_logged_and_does_not_change_the_end_of_a_job(
    db: Database, run: Run, caplog: pytest.LogCaptureFixture, method: str, kind: type[BaseException], fails: bool
) -> None:
    raising = _Raising(method, kind("no collector"))
    provider = TracerProvider(sampler=raising)
    provider.add_span_processor(raising)
    workers = Workers(middleware=[tracing_middleware(tracer_provider=provider)])
    ran: list[str] = []

    @workers.register("async", max_attempts=1)
    async def in_task(job: RunningJob[Any]) -> None:
        ran.append(job.name)
        if fails:
            raise ValueError("of the job")

    @workers.register("plain", max_attempts=1)
    def in_thread(job: RunningJob[Any]) -> None:
        ran.append(job.name)
        if fails:
            raise ValueError("of the job")

    end = "failed" if fails else "completed"

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            for name in ("async", "plain"):
                await scheduler.enqueue(name)
            for name in ("async", "plain"):
                await until(lambda name=name: statuses(db, name) == [end])  # type: ignore[misc]

    run(main)
    assert sorted(ran) == ["async", "plain"]
    assert raising.calls == caplog.text.count("tracing failed; the job continues without it") == 2
    assert not fails or {job["failReason"] for job in db["monque_jobs"].find()} == {"ValueError: of the job"}


def test_error_of_a_propagator_does_not_fail_the_handler_that_enqueues(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def inject(_carrier: object) -> None:
        raise SystemExit

    monkeypatch.setattr(propagate, "inject", inject)
    assert trace_context({"tenant": "acme"}) == {"tenant": "acme"}
    assert "tracing failed" in caplog.text


def test_block_of_a_job_nursery_has_a_span_under_that_of_its_run(
    db: Database, run: Run, exporter: InMemorySpanExporter
) -> None:
    workers = Workers(middleware=[tracing_middleware()])

    @workers.register("child")
    async def child(job: RunningJob[Any]) -> None:
        if job.data == "fail":
            raise Discard("declined")

    @workers.register("parent", max_attempts=1)
    async def parent(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job, key="well") as nursery:
            await nursery.map("child", [1, 2], meta=trace_context())
        async with open_job_nursery(job, fail="keep") as nursery:
            await nursery.map("child", [1, "fail"])
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", "fail")

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK):
            await Monque(db).enqueue("parent")
            await until(lambda: statuses(db, "parent") == ["failed"])

    run(main)
    spans = exporter.get_finished_spans()
    (process,) = (span for span in spans if span.name == "process parent")
    well, kept, failed = (span for name in ("well", "0", "1") for span in spans if span.name == f"nursery {name}")
    for span in (well, kept, failed):
        assert span.parent is not None
        assert span.parent.span_id == context_of(process).span_id
        assert attribute(span, "trio_monque.scope") == attribute(well, "trio_monque.scope")
    assert [attribute(span, "trio_monque.children") for span in (well, kept, failed)] == [2, 2, 1]
    assert [attribute(span, "trio_monque.children_failed") for span in (well, kept, failed)] == [0, 1, 1]
    assert [span.status.status_code for span in (well, kept, failed)] == [
        StatusCode.UNSET,
        StatusCode.UNSET,
        StatusCode.ERROR,
    ]
    children = [span for span in spans if span.name == "process child"]
    assert sum(linked(span) == [id_of(process)] for span in children) == 2
