"""Tracing of jobs with OpenTelemetry: the trace of the caller in a job's meta, and a span for each run.

It needs opentelemetry-api: `python -m pip install opentelemetry-api`. Nothing else of the package imports this file.

A run may begin hours after its job was enqueued, and may be repeated. So its span is not a child of the caller's, whose
trace would never end: it begins a trace of its own, with a link to the caller's span, as the semantic conventions for
messaging recommend.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from .client.children_of_block import ChildrenOfBlock
from .client.opening_nurseries import BLOCK_TRACE
from .interruptions import is_interruption
from .jobs.meta import LARGEST_META, MOST_ENTRIES, size_of
from .jobs.outcomes import Snooze
from .log import exc_info_of, logger_of
from .safe_text import text_of
from .scheduler import CancelReason, RunningJob

try:
    from opentelemetry import context, propagate, trace
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "opentelemetry":
        raise
    raise ModuleNotFoundError(
        "trio_monque.otel needs opentelemetry-api: python -m pip install opentelemetry-api", name="opentelemetry"
    ) from None

__all__ = ["trace_context", "tracing_middleware"]

logger = logger_of("otel")

T = TypeVar("T")

MOST_REMEMBERED: Final = 1000

TracingMiddleware = Callable[[RunningJob[Any, Any], Callable[[], Awaitable[Any]]], Awaitable[None]]


def trace_context(meta: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the meta for a new job that carries the current trace: `enqueue(..., meta=trace_context())`.

    It has what the global propagator of OpenTelemetry injects: `traceparent`, and perhaps `tracestate` and `baggage`.
    If all of it does not fit, the largest of these are left out. Outside of a span, it may have nothing.

    Args:
        meta: Further strings, which the result contains too.
    """
    given = dict(meta or {})
    injected: dict[str, str] = {}
    # Also in handlers that enqueue: tracing must not fail them.
    _contained(lambda: propagate.inject(injected))
    while injected and not _fits({**given, **injected}):
        del injected[max(injected, key=lambda name: len(injected[name]))]
    return {**given, **injected}


def _fits(meta: Mapping[str, str]) -> bool:
    return len(meta) <= MOST_ENTRIES and size_of(meta) <= LARGEST_META


def tracing_middleware(*, tracer_provider: trace.TracerProvider | None = None) -> TracingMiddleware:
    """Return a middleware that makes a span for each run: `Workers(middleware=[tracing_middleware()])`.

    The span has the kind CONSUMER, the name "process <name>", and a link to the span in which the job was enqueued with
    `meta=trace_context()`. If this middleware has seen the attempt before fail, in this process, the span has a link to
    that one, too. It is the current span in the handler, also in the thread of a plain one, and its baggage is
    that of the caller.

    A run that has failed has the status ERROR, `error.type`, and the exception as an event. So has one that is
    cancelled because it took too long or lost its claim. A run that is cancelled otherwise, or snoozes, has no
    error status.

    A block of `open_job_nursery` in the handler has a span, too, a child of the run's, with its scope, its key, and how
    many children it had and how many of them failed. Give children the trace by `meta=trace_context()`.

    Errors of processors, samplers and exporters are logged. They change neither the run nor its end.

    Args:
        tracer_provider: Where the spans go; the global one by default.
    """
    tracer = trace.get_tracer("trio_monque", tracer_provider=tracer_provider)
    failed = _FailedAttempts()

    async def tracing(job: RunningJob[Any, Any], run: Callable[[], Awaitable[Any]]) -> None:
        span = _contained(lambda: _start_span(tracer, job, failed.pop(job.id, trace.INVALID_SPAN_CONTEXT)))
        if span is None:
            await run()
            return
        token = _contained(lambda: context.attach(trace.set_span_in_context(span, _extracted(job))))
        blocks = BLOCK_TRACE.set(partial(_begin_block, tracer))
        try:
            await run()
        except BaseException as error:
            _contained(partial(_note_end, span, error, job.cancel_reason))
            _contained(lambda: failed.remember(job.id, span.get_span_context()))
            raise
        finally:
            BLOCK_TRACE.reset(blocks)
            if token is not None:
                _contained(lambda: context.detach(token))
            _contained(span.end)

    return tracing


def _extracted(job: RunningJob[Any, Any]) -> context.Context:
    return propagate.extract(job.meta, context.Context())


def _start_span(tracer: trace.Tracer, job: RunningJob[Any, Any], before: trace.SpanContext) -> trace.Span:
    extracted = _extracted(job)
    enqueued_in = trace.get_current_span(extracted).get_span_context()
    return tracer.start_span(
        f"process {job.name}",
        # Neither the caller's span is the parent, nor the one in which the scheduler was opened.
        trace.set_span_in_context(trace.INVALID_SPAN, extracted),
        kind=trace.SpanKind.CONSUMER,
        links=[trace.Link(one) for one in (enqueued_in, before) if one.is_valid],
        attributes={
            "messaging.system": "trio_monque",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": job.name,
            "messaging.message.id": str(job.id),
            "trio_monque.attempt": job.attempt,
        },
    )


def _begin_block(tracer: trace.Tracer, block: ChildrenOfBlock) -> Callable[[BaseException | None], None]:
    """Begin the span of a block of a job nursery, a child of the run's. Return what ends it."""
    asking = block.block.asking
    span = _contained(
        lambda: tracer.start_span(
            f"nursery {block.block.key}",
            attributes={
                "trio_monque.scope": str(asking.scope),
                "trio_monque.block": block.block.key,
                "trio_monque.attempt": asking.epoch,
            },
        )
    )

    if span is None:
        return lambda error: None

    def end(error: BaseException | None) -> None:
        _contained(lambda: span.set_attribute("trio_monque.children", len(block.children)))
        _contained(lambda: span.set_attribute("trio_monque.children_failed", sum(map(block.is_failure, block.ended))))
        if isinstance(error, Exception) and not isinstance(error, Snooze):
            _contained(lambda: _fail(span, type(error).__qualname__, text_of(error)))
        _contained(span.end)

    return end


def _contained(call: Callable[[], T]) -> T | None:
    """Call OpenTelemetry, where processors, samplers and exporters of others run; None if they raise.

    Their error would fail a job whose handler has succeeded, and run it again.
    """
    try:
        return call()
    except BaseException as error:
        if is_interruption(error):
            raise
        logger.warning("tracing failed; the job continues without it", exc_info=exc_info_of(error))
        return None


class _FailedAttempts(OrderedDict[object, trace.SpanContext]):
    """The spans of the last attempts that did not succeed, by the ids of their jobs."""

    def remember(self, job_id: object, span: trace.SpanContext) -> None:
        self[job_id] = span
        if len(self) > MOST_REMEMBERED:  # Their jobs run again late, in another process, or never.
            self.popitem(last=False)


def _note_end(span: trace.Span, error: BaseException, reason: CancelReason | None) -> None:
    if reason is not None:
        span.set_attribute("trio_monque.cancel_reason", str(reason))
    if isinstance(error, Exception):
        if not isinstance(error, Snooze):
            span.record_exception(error)
            _fail(span, type(error).__qualname__, text_of(error))
    elif reason in (CancelReason.TIMEOUT, CancelReason.LOST):
        _fail(span, str(reason), f"the run was cancelled: {reason}")


def _fail(span: trace.Span, error_type: str, description: str) -> None:
    span.set_attribute("error.type", error_type)
    span.set_status(trace.StatusCode.ERROR, description)
