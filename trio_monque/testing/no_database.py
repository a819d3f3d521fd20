"""What run_job has in place of a database: a context that checks and encodes, and a job that is claimed in memory."""

from __future__ import annotations

import secrets
from dataclasses import fields, replace
from datetime import UTC
from typing import Any, Final, NoReturn, Self, Unpack, cast

from ..checks import check_count
from ..client.client_context import ClientContext
from ..client.enqueue import draft_of
from ..error_types import InvalidOptionError, MonqueError
from ..jobs import transitions
from ..jobs.claim_stamps_and_fences import ClaimStamp
from ..jobs.conditional_write import applied
from ..jobs.job import Job
from ..jobs.new_job import JobOptions, NewJob
from ..jobs.stored_value_limits import snapshot
from ..options_and_defaults import ClientConfig
from ..scheduler.worker import Worker
from ..scheduler.workers import Workers
from ..store.codec import Codec
from ..store.driver.types import CodecOptions, Collection
from ..store.job_collection import JobCollection

# As the fixtures of the kit read: datetimes of payloads come back timezone-aware.
AWARE: Final[CodecOptions[Any]] = CodecOptions(tz_aware=True, tzinfo=UTC)


NURSERY: Final = "open_job_nursery"


class NoDatabaseError(MonqueError, AttributeError):
    """A handler that `run_job` runs asked for something that only a database has.

    It is an AttributeError too, so that `hasattr` says what is there.
    """

    def __init__(self, asked_for: str) -> None:
        # A nursery starts jobs and waits for them: nothing but a database can stand in for that.
        or_else = "" if asked_for == NURSERY else "give run_job a stand-in of your own as scheduler=, or "
        super().__init__(
            f"run_job has no database, so {asked_for} is not there: {or_else}run the job against a database, with "
            "open_test_scheduler"
        )


class _NoCollection:
    """Stands where the jobs collection would; whatever would be sent to it ends here."""

    full_name: Final = "run_job has no collection"

    def with_options(self, **_options: object) -> Self:
        """Another handle of what is not there."""
        return self

    def __getattr__(self, name: str) -> NoReturn:
        # A session is compared with the client of the collection.
        asked_for = (
            "the database of that session" if name == "database" else f"the collection that {name!r} was asked of"
        )
        raise NoDatabaseError(asked_for)


def context_without_database(config: ClientConfig, codec_options: CodecOptions[Any]) -> ClientContext:
    """Checks and encodes as a client with these options does."""
    collection = cast("Collection", _NoCollection())
    return ClientContext(JobCollection(collection, Codec(codec_options), config.operation_timeout), config)


# --- The job, by the rules of production ---


def registered(handler: Any) -> tuple[Workers, Worker[Any]]:
    """Workers with this handler, which may be a plain function. Raises WorkerRegistrationError for an invalid one."""
    if not isinstance(handler, Worker):
        workers = Workers()
        return workers, workers.register("run_job", handler)
    workers = Workers(middleware=handler.middleware)
    settings = {field.name: getattr(handler.settings, field.name) for field in fields(handler.settings) if field.init}
    return workers, workers.register(handler.name, handler.handler, **settings)


def new_job(context: ClientContext, worker: Worker[Any], data: Any, stored: Any, **options: Unpack[JobOptions]) -> Job:
    """The job as `enqueue` makes it; raises what `enqueue` raises. Its data is what a scheduler would read."""
    if stored is not None and data is not None:
        raise InvalidOptionError("stored", stored, "goes without data: give one of the two")
    new = NewJob(name=worker.name, data=data if stored is None else stored, **options)
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
