"""What an operator asks about the jobs: which run, which recur, why others failed, or do not run. Blocking."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from ..checks import check_count, checked_moment
from ..diagnosis.reasons import Circumstances, Reason, reasons_of
from ..error_types import InvalidOptionError
from ..jobs.failure_groups import ErrorGroups, error_groups
from ..jobs.job import Job, JobStatus
from ..jobs.job_query import object_id
from ..jobs.job_selector import LIVE, checked_name
from ..jobs.minutes import KEPT_FOR, Minute, minute_of
from ..jobs.views import JobList
from ..store.driver.types import ObjectId
from ..store.jobs.minutes_written import read_minutes
from ..store.reads.diagnosis.jobs import MOST_READ, failed_jobs
from ..store.reads.queries import count_due_before, get_job
from ..store.reads.special_jobs import recurring_jobs, running_jobs
from .client_context import ClientContext
from .fleet import read_fleet
from .operation import Known, Operation, Read

MOST_LISTED: Final = 1_000
"""Jobs of one answer at most."""

_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)

STILL_WRITTEN: Final = timedelta(minutes=3)
"""Schedulers write a minute half a minute after its end; later where the database does not answer."""

MOST_AHEAD: Final = 1_000
"""Jobs that are due before another one are counted up to this number."""


def get_running(context: ClientContext, *, instance: str | None = None, limit: int = 100) -> Operation[JobList]:
    """Return the running jobs, those that run longest first.

    Args:
        instance: Only those that this instance holds: the `id` of an Instance, or `claimedBy` of Monque for Node.
        limit: How many, at most; up to a thousand.

    Raises:
        InvalidOptionError: An argument is invalid; the message names it.
        MonqueConnectionError: The database did not answer within `operation_timeout`.
    """
    check_count("limit", limit, at_least=1, at_most=MOST_LISTED)
    if instance is not None and not isinstance(instance, str):
        raise InvalidOptionError("instance", instance, "must be the id of an instance")
    return Read(lambda: running_jobs(context.jobs, instance, limit))


def get_schedules(context: ClientContext, *, limit: int = 100) -> Operation[JobList]:
    """Return the recurring jobs, next run first; also those that have ended.

    An index has these jobs alone. It is created with the first schedule that a client of this library declares. Without
    it, the call looks through 5,000 live jobs with a unique key, and the answer is capped and `is_without_index`.

    Args:
        limit: How many, at most; up to a thousand.

    Raises:
        InvalidOptionError: `limit` is invalid.
        MonqueConnectionError: The database did not answer within `operation_timeout`.
    """
    check_count("limit", limit, at_least=1, at_most=MOST_LISTED)
    return Read(lambda: recurring_jobs(context.jobs, limit))


def get_error_groups(
    context: ClientContext, *, since: datetime | None = None, name: str | None = None, limit: int = 100
) -> Operation[ErrorGroups]:
    """Group the jobs that failed for good by their error, the most frequent first.

    Errors that differ in numbers, ids and mail addresses only are one. The 5,000 jobs that failed last are looked at;
    of one name, those that were due last.

    Args:
        since: Only jobs that failed since then; timezone-aware.
        name: Only jobs of this name.
        limit: How many groups, at most; up to 5,000.

    Raises:
        InvalidOptionError: An argument is invalid; the message names it.
        AggregationTimeoutError: The server needed longer than a second.
        MonqueConnectionError: The database did not answer.
    """
    check_count("limit", limit, at_least=1, at_most=MOST_READ)
    begin = None if since is None else checked_moment("since", since)
    checked = checked_name(name)

    def read() -> ErrorGroups:
        failures, is_capped = failed_jobs(context.jobs, checked, begin)
        return error_groups(failures, context.now(), limit, is_capped=is_capped)

    return Read(read)


def why_not_now(context: ClientContext, job: Job | ObjectId | str) -> Operation[Sequence[Reason]]:
    """Return why a job does not run now, or how its run is, as facts.

    Args:
        job: A Job, which is judged as it was read; or its id, an ObjectId or its hex string: then it is read now.

    Returns:
        The reasons; none if there is no job of that id.

    Raises:
        InvalidOptionError: `job` is neither a Job nor an id.
        BrokenDocumentError: The document of that id is not a job.
        MonqueConnectionError: The database did not answer within `operation_timeout`.
    """
    if isinstance(job, Job):
        return Read(lambda: reasons_of(job, _circumstances(context, job)))
    if not isinstance(job, (ObjectId, str)):
        raise InvalidOptionError("job", job, "must be a Job, such as get_job returns, or the id of one")
    known = object_id(job)

    def read() -> Sequence[Reason]:
        found = None if known is None else get_job(context.jobs, known)
        return () if found is None else reasons_of(found, _circumstances(context, found))

    return Read(read)


def _circumstances(context: ClientContext, job: Job) -> Circumstances:
    now, is_pending = context.now(), job.status is JobStatus.PENDING
    entries, paused = read_fleet(context) if job.status in LIVE else ((), {})
    return Circumstances(
        now=now,
        instances=entries,
        paused=paused,
        ahead=count_due_before(context.jobs, job, MOST_AHEAD + 1) if is_pending and job.next_run_at <= now else 0,
        most_ahead=MOST_AHEAD,
    )


def get_minutes(
    context: ClientContext, *, since: datetime | None = None, until: datetime | None = None
) -> Operation[Sequence[Minute]]:
    """Return what all schedulers did in each minute of the last hour, or of another span; the earliest first.

    A minute is there about half a minute after its end, when the schedulers have sent their heartbeats; without any job
    that ended it is left out. Minutes are kept for 26 hours. Jobs that Monque for Node has ended are not counted, nor
    are those of schedulers with `minutes=False`, or in virtual time. What a process did in the minute in which it was
    killed, and since its last heartbeat, is missing.

    An answer is kept for `stats_cache_ttl` seconds, and concurrent callers share one query. It is made of the latest
    100,000 documents: 26 hours of 64 schedulers that always have jobs. Of the last hour, all but the last three minutes
    are kept for a minute.

    Args:
        since: The first minute is the one that this moment is in; timezone-aware; None for an hour ago.
        until: Minutes that began before this moment; None for now.

    Raises:
        InvalidOptionError: The span is invalid, or longer than 26 hours.
        MonqueConnectionError: The database did not answer within `operation_timeout`.
    """
    begin = None if since is None else minute_of(checked_moment("since", since))
    end = None if until is None else checked_moment("until", until)
    if begin is not None and end is not None and not timedelta() < end - begin <= KEPT_FOR:
        raise InvalidOptionError("until", until, "must be later than `since`, by at most 26 hours")
    key = f"{begin} {end}"
    if (known := context.minutes.known(key)) is not None:
        return Known(known)
    if begin is None and end is None:
        return Read(lambda: context.minutes.get(key, lambda: _last_hour(context)))
    return Read(lambda: context.minutes.get(key, lambda: _minutes_of(context, begin, end)))


def _minutes_of(context: ClientContext, begin: datetime | None, end: datetime | None) -> Sequence[Minute]:
    """Return the minutes of a span; None for an hour ago, and for now."""
    last = context.now() if end is None else end
    first = minute_of(_before(last, timedelta(hours=1))) if begin is None else begin
    return read_minutes(context.jobs, max(first, _before(last, KEPT_FOR)), last)


def read_hour(context: ClientContext) -> Sequence[Minute]:
    """Return the minutes of the last hour as they were within the last minute."""
    return context.hour.get(None, lambda: _minutes_of(context, None, None))


def _last_hour(context: ClientContext) -> Sequence[Minute]:
    """Return the minutes of the last hour. Only the last ones are read from the database.

    An hour of eight schedulers with twenty names has ten thousand rows, which take a tenth of a second to read.
    """
    if not context.config.stats_cache_ttl:
        return _minutes_of(context, None, None)
    hour, now = read_hour(context), context.now()
    begin, recent = minute_of(_before(now, timedelta(hours=1))), minute_of(_before(now, STILL_WRITTEN))
    return [*(one for one in hour if begin <= one.at < recent), *_minutes_of(context, recent, None)]


def _before(moment: datetime, span: timedelta) -> datetime:
    return moment - span if moment - _EARLIEST > span else _EARLIEST
