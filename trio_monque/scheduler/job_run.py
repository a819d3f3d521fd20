"""Calls the handler, and says what its end means."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial
from typing import Any, cast

import trio

from ..clock import HoldingLimiter, VirtualTime, in_time_of, virtual_time
from ..engine.run import CancelReason, Run, RunEnd
from ..jobs.job import Job
from ..jobs.verdicts import CutShort, Discard, RetryPolicy, Succeeded, Verdict, judged
from .running_job import RunCancelled, RunningJob
from .workers import Worker


async def call_handler(
    worker: Worker[Any], running_job: RunningJob[Any], run: Run[Job], threads: HoldingLimiter
) -> object:
    """What the handler returns or raises; an async one as it is, a plain one in a thread.

    A thread cannot be cancelled: it is awaited, shielded by the run's patience, and hears of a
    cancellation through `check_cancelled`.
    """
    if worker.payload is not None:
        running_job.data = _loaded(worker.payload, running_job.job.data)
    if worker.is_async:
        return await _unprotected(worker.handler, running_job)
    call = partial(_in_thread, virtual_time(), worker.handler, running_job)
    with run.patience:
        unwound, value = await trio.to_thread.run_sync(
            call, limiter=cast("trio.CapacityLimiter", threads), abandon_on_cancel=True
        )
        if not unwound:
            return value
    run.abandoned = run.patience.cancelled_caught
    # The run's scope is cancelled: this ends it as a cancellation.
    await trio.lowlevel.checkpoint()
    return None


def _loaded(payload: Callable[..., Any], stored: Any) -> Any:
    try:
        if is_dataclass(payload) and isinstance(stored, dict):
            return payload(**stored)
        return payload(stored)
    except Exception as error:
        # The next try would get the same data.
        raise Discard(f"the data is no {getattr(payload, '__name__', payload)}: {error!r}") from error


# Our own loops are protected from Ctrl-C, and a protected caller would protect its handlers, too.
@trio.lowlevel.disable_ki_protection
async def _unprotected(handler: Callable[..., Any], running_job: RunningJob[Any]) -> object:
    return await handler(running_job)


def _in_thread(
    virtual: VirtualTime | None, handler: Callable[..., Any], running_job: RunningJob[Any]
) -> tuple[bool, object]:
    with in_time_of(virtual):
        try:
            result = handler(running_job)
        except RunCancelled:
            return True, None
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            f"the handler {handler!r} is a plain function that returned a coroutine, which nobody would run: "
            "register the async function itself"
        )
    return False, result


def verdict_of(end: RunEnd, time_limit: float, policy: RetryPolicy, *, store_result: bool) -> Verdict:
    """What the end of a run means for its job."""
    if end.error is not None:
        return judged(end.error, policy)
    if not end.cancelled:
        return Succeeded(end.value if store_result else None)
    if end.reason is CancelReason.TIMEOUT:
        return judged(TimeoutError(f"the run took longer than {time_limit:g} s"), policy)
    # Where somebody asked for the cancellation, the request is found, and written instead of the release.
    return CutShort()
