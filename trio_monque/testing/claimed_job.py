"""The job that run_job gives a handler: made and claimed in memory, by the rules of production."""

from __future__ import annotations

import secrets
from dataclasses import fields, replace
from typing import Any

from ..checks import check_count
from ..client.context import ClientContext
from ..client.enqueue import draft_of
from ..errors import InvalidOptionError
from ..jobs import transitions
from ..jobs.conditional_write import applied
from ..jobs.fences import ClaimStamp
from ..jobs.job import Job
from ..jobs.new_job import NewJob
from ..jobs.stored_value_limits import snapshot
from ..scheduler.worker import Worker
from ..scheduler.workers import Workers


def registered(handler: Any) -> tuple[Workers, Worker[Any]]:
    """Workers with this handler, which may be a plain function. Raises WorkerRegistrationError for an invalid one."""
    workers = Workers()
    if not isinstance(handler, Worker):
        return workers, workers.register("run_job", handler)
    settings = {field.name: getattr(handler.settings, field.name) for field in fields(handler.settings) if field.init}
    return workers, workers.register(handler.name, handler.handler, **settings)


def new_job(
    context: ClientContext, worker: Worker[Any], data: Any, stored: Any, timeout: float | None, unique_key: str | None
) -> Job:
    """The job as `enqueue` makes it; raises what `enqueue` raises. Its data is what a scheduler would read."""
    if stored is not None and data is not None:
        raise InvalidOptionError("stored", stored, "goes without data: give one of the two")
    new = NewJob(name=worker.name, data=data if stored is None else stored, timeout=timeout, unique_key=unique_key)
    job = draft_of(context, new, worker if stored is None else None).at(context.clock.now())
    return replace(job, data=snapshot(job.data, None, context.jobs.codec.callers))


def claimed(job: Job, *, attempt: int | None, fail_count: int, fail_reason: str | None, saved: Any) -> Job:
    """The claimed job after `fail_count` failures. Raises InvalidOptionError if the numbers contradict each other."""
    check_count("fail_count", fail_count, at_least=0)
    attempt = fail_count + 1 if attempt is None else attempt
    check_count("attempt", attempt, at_least=1)
    if attempt <= fail_count:
        raise InvalidOptionError("attempt", attempt, f"cannot be: {fail_count} attempts have failed before this one")
    before = replace(job, attempts=attempt - 1, fail_count=fail_count, fail_reason=fail_reason, saved=saved)
    stamp = ClaimStamp.new("run_job", job.created_at, 30.0, secrets.token_hex(6))
    return applied(before, transitions.claim([job.name], job.created_at, stamp))
