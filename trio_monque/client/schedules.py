"""Schedules: declares a recurring job, and previews one. With a unique key, a declaration is idempotent. Blocking.

Every instance of a fleet declares its schedules when it starts, so several declare the same one at the same moment,
while another instance may run it. A declaration reads the job, compares, and writes only if something differs. The
guard of that write has the `rev` that was read, and the due date of a pending job: if another declaration or a run came
in between, it matches nothing, and the comparison starts again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack
from zoneinfo import ZoneInfo

from ..checks import check_known
from ..error_types import InvalidOptionError, MonqueConnectionError, MonqueError
from ..jobs import schedule_preview, transitions
from ..jobs.conditional_write import Transition, applied
from ..jobs.job import Job, JobStatus
from ..jobs.job_parts import Schedule
from ..jobs.new_job import Draft, NewSchedule, check_order, name_of
from ..jobs.schedule_preview import SchedulePreview
from ..jobs.stored_value_limits import TypedWorker, check_payload
from ..log import logger_of
from ..store.jobs import job_changes
from .client_context import ClientContext
from .enqueue import draft_of, insert
from .operation import Operation, Read

logger = logger_of()

ON_CONFLICT: Final = ("keep", "update")

# Of several contradicting declarations at the same moment, one is written in each round, and the others look again. So
# a hundred of them may meet; more is not a coincidence.
MOST_ROUNDS: Final = 100


class ScheduleOptions(TypedDict, total=False):
    """Options of one schedule; see `Monque.schedule`."""

    unique_key: str | None
    timezone: str | ZoneInfo
    on_exhausted: str
    version: int | None
    meta: Mapping[str, str] | None


class Declare(Operation[Job]):
    """One schedule.

    Attributes:
        draft: The schedule, completely checked.
    """

    def __init__(self, context: ClientContext, draft: Draft, on_conflict: str) -> None:
        super().__init__()
        self.draft = draft
        self._context = context
        self._on_conflict = on_conflict

    def step(self) -> None:
        job = _declared(self._context, self.draft, self._on_conflict)
        self.caused.jobs = [job]
        self.finish(job)


def schedule(
    context: ClientContext,
    cron: str,
    worker: str | TypedWorker[Any],
    data: Any = None,
    *,
    on_conflict: str = "keep",
    **options: Unpack[ScheduleOptions],
) -> Declare:
    """Check a schedule; see `Monque.schedule`."""
    check_known(options, ScheduleOptions.__annotations__, "schedule")
    if on_conflict not in ON_CONFLICT:
        raise InvalidOptionError("on_conflict", on_conflict, f"must be one of {', '.join(ON_CONFLICT)}")
    check_order(cron, worker)
    draft = draft_of(context, NewSchedule(name=name_of(worker), cron=cron, data=data, **options), worker)
    for warning in schedule_preview.warnings_of(cron):
        logger.warning("schedule %s: %s", draft.new.name, warning, extra={"job_name": draft.new.name})
    return Declare(context, draft, on_conflict)


def preview(
    context: ClientContext, cron: str, timezone: str | ZoneInfo = "UTC", count: int = 5
) -> Operation[SchedulePreview]:
    """Return what a schedule means, in words and as its next runs; store nothing.

    Args:
        cron: Five fields, or an alias such as @daily.
        timezone: The zone of `cron`, or its IANA name.
        count: How many runs.

    Raises:
        InvalidCronError: The expression or the time zone is invalid.
        InvalidOptionError: `count` is out of range.
        MonqueConnectionError: The database was asked for its time, and did not answer.
    """
    # Invalid arguments raise before the database is asked.
    schedule_preview.preview(cron, timezone, count, context.clock.now())
    return Read(lambda: schedule_preview.preview(cron, timezone, count, context.now()))


def _declared(context: ClientContext, draft: Draft, on_conflict: str) -> Job:
    """Return the job of a schedule: a new one, or the pending or processing one that has its unique key.

    With `on_conflict="update"` the latter gets what was declared, from its next occurrence on. What is the same
    already is not written again: every instance of a fleet declares its schedules at its start.

    During a rolling deploy instances of two releases declare in any order, and nothing but a `version` that the
    user gives can tell which release is the newer one: a new release may return to an earlier schedule on purpose.
    Without versions the last declaration wins, and each change is logged as a warning.
    """
    job = insert(context, draft)
    if on_conflict == "keep" or job.id == draft.id:
        return job
    has_lost_an_answer = False
    for _ in range(MOST_ROUNDS):
        now = context.now()
        declared = draft.at(now)
        same = _says_the_same(context, job, declared, draft.payload)
        if job.id == draft.id or (same and not _is_newer(declared, job)):
            return job
        if _is_newer(job, declared):
            _log_kept(job, declared)
            return job
        change = _change(job, declared, now, context.who)
        try:
            before = job_changes.apply_if_allowed(context.jobs, change)
        except MonqueConnectionError as error:
            if not error.unknown_outcome or has_lost_an_answer:
                raise
            has_lost_an_answer = True  # A second lost answer is an outage, and raised.
            before = None  # The next look shows whether the change was applied.
        if before is not None:
            if not same:
                _log_changed(before, declared)
            return applied(before, change)
        job = insert(context, draft)
    raise MonqueError(f"schedule {draft.new.unique_key!r} of {draft.new.name!r} kept changing while it was updated")


def _says_the_same(context: ClientContext, job: Job, declared: Job, payload: bytes) -> bool:
    if _content(job) != _content(declared):
        return False
    try:
        return check_payload(job.data, None, context.jobs.codec.callers) == payload
    except MonqueError:
        return False  # A client with other codec options stored data that ours cannot encode: so they differ.


def _is_newer(one: Job, other: Job) -> bool:
    return _version_of(one) > _version_of(other)


def _version_of(job: Job) -> int:
    return 0 if job.schedule is None else job.schedule.version or 0


def _log_kept(job: Job, declared: Job) -> None:
    logger.warning(
        "kept schedule %s unchanged (%s): this process declares an older version (%s). To go back on purpose, delete "
        "job %s or declare a higher version",
        job.name,
        _in_words(job),
        _in_words(declared),
        job.id,
        extra={"job_id": str(job.id), "job_name": job.name},
    )


def _log_changed(before: Job, declared: Job) -> None:
    is_decided = _is_newer(declared, before)
    logger.log(
        logging.INFO if is_decided else logging.WARNING,
        "schedule %s changed to this process's declaration (%s), including its data; it was (%s)%s",
        before.name,
        _in_words(declared),
        _in_words(before),
        ""
        if is_decided
        else "; a process of another release changes it again when it starts: give each declaration a version",
        extra={"job_id": str(before.id), "job_name": before.name},
    )


def _in_words(job: Job) -> str:
    if job.schedule is None:
        return "a one-off job"
    version = "no version" if job.schedule.version is None else f"version {job.schedule.version}"
    return f"{job.schedule.cron}, {job.schedule.timezone or 'UTC'}, {version}"


def _content(job: Job) -> tuple[Schedule | None, Mapping[str, str]]:
    """What two declarations have in common if they are the same, besides the data. The version may differ."""
    schedule = job.schedule
    if schedule is None:
        return None, job.meta
    # Another program may store the defaults explicitly.
    timezone = None if schedule.timezone == "UTC" else schedule.timezone
    on_exhausted = None if schedule.on_exhausted == "continue" else schedule.on_exhausted
    return Schedule(cron=schedule.cron, timezone=timezone, on_exhausted=on_exhausted), job.meta


def _change(job: Job, declared: Job, now: datetime, by: str) -> Transition:
    content = {
        "schedule": _schedule_after(job, declared, now, by),
        "meta": declared.meta or None,
        "data": declared.data,
    }
    if job.status is JobStatus.PROCESSING:
        return transitions.update_claimed(job, now, **content)
    # If the times of the schedule are the same, the due date stays: it may be that of a retry, or one that a caller
    # set.
    same_times = _times_of(job) == _times_of(declared)
    change = transitions.update_pending(job, now, job.next_run_at if same_times else declared.next_run_at, **content)
    # An occurrence may have run since the job was read. It must not become due a second time.
    return replace(change, guard={**change.guard, "next_run_at": job.next_run_at})


def _schedule_after(job: Job, declared: Job, now: datetime, by: str) -> Schedule | None:
    """Return the declared schedule, with what a declaration changed last."""
    before, after = job.schedule, declared.schedule
    if before is None or after is None or _is_newer(declared, job):
        return after  # A higher version decides: an older release does not change it back.
    if _times_of(job) == _times_of(declared):
        return replace(
            after, changed_from=before.changed_from, changed_at=before.changed_at, changed_by=before.changed_by
        )
    return replace(after, changed_from=before.in_words, changed_at=now, changed_by=by)


def _times_of(job: Job) -> tuple[str, str] | None:
    return None if job.schedule is None else (job.schedule.cron, job.schedule.timezone or "UTC")
