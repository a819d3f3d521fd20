"""Why a job does not run now, or how its run is: facts, without words. The terminal and HTTP have their own. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from ..error_types import UnreadablePayloadError
from ..jobs.claim_stamps_and_fences import is_ours, last_sign_of_life
from ..jobs.claimable import was_unstarted
from ..jobs.error_history import MOST_ERRORS
from ..jobs.instance import LIVE_FOR_BEATS, Instance, clamped, may_run, similar_name
from ..jobs.job import Job, JobStatus, deaths_of, is_resumed
from ..jobs.job_parts import NO_CLAIM
from ..jobs.name_pause import NamePause
from ..jobs.nursery_scopes import scope_of
from ..jobs.rescue_policy import SUSPECT_FROM
from ..options_and_defaults import LEASE_IN_BEATS

BLOCKED_LATELY: Final = 900.0
"""Seconds since an event loop was blocked last, up to which that is a finding. What blocks it usually does so again."""


IDLE_AFTER: Final = 60.0
"""Seconds that a job behind others may be due, before it is strange that none of its name was running."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A fact about a job that explains why it does not run now, or how its run is.

    Attributes:
        kind: Such as "paused"; the page on browsing jobs lists all.
        values: What the kind names; lengths of time are seconds, moments are in UTC.
    """

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What else decides whether a job runs.

    Attributes:
        now: The server's time.
        instances: All that have an entry, dead ones too.
        paused: The pauses, by name.
        ahead: How many due jobs of its name are due before it, counted up to `most_ahead`.
        most_ahead: Where the count ended.
    """

    now: datetime
    instances: Sequence[Instance] = ()
    paused: Mapping[str, NamePause] = field(default_factory=dict)
    ahead: int = 0
    most_ahead: int = 0


def reasons_of(job: Job, about: Circumstances) -> Sequence[Reason]:
    """Return why the job does not run now, or how its run is; never nothing."""
    match job.status:
        case JobStatus.PENDING:
            return [*_why_pending(job, about)]
        case JobStatus.PROCESSING:
            return [*_how_it_runs(job, about)]
        case JobStatus.FAILED:
            is_unreadable = (job.fail_reason or "").startswith(UnreadablePayloadError.__name__)
            parent = None if job.child is None or job.child.parent is None else str(job.child.parent)
            values = {"is_recurring": job.schedule is not None, "is_unreadable": is_unreadable, "parent": parent}
            return [Reason("failed", values)]
        case JobStatus.CANCELLED:
            start_by = job.limits.start_by if was_unstarted(job) else None
            return [Reason("cancelled", {"is_recurring": job.schedule is not None, "start_by": start_by})]
        case JobStatus.COMPLETED:
            return [Reason("completed", {"cut_short": _attempts_cut_short(job)})]


def _attempts_cut_short(job: Job) -> int:
    """Return how many attempts before the one that completed the job have left no failure, as far as that is known."""
    # A recurring job, and one whose first failures are not kept, have more attempts than their documents explain.
    is_known = job.schedule is None and len(job.errors) < MOST_ERRORS
    return max(0, job.attempts - 1 - max(job.fail_count, len(job.errors))) if is_known else 0


def _why_pending(job: Job, about: Circumstances) -> Iterator[Reason]:
    claim = job.claim or NO_CLAIM
    if claim.by is not None:
        yield Reason("has_owner", {"by": claim.by})
        return
    is_due = job.next_run_at <= about.now
    if not is_due:
        seconds = (job.next_run_at - about.now) / timedelta(seconds=1)
        because = _why_then(job)
        yield Reason(
            "not_due", {"at": job.next_run_at, "seconds": seconds, "because": because, "failures": job.fail_count}
        )
    if (pause := about.paused.get(job.name)) is not None:
        yield Reason("paused", {"name": job.name, **pause.facts})
    missing = no_instance_runs(job.name, about.instances)
    if missing is not None:
        yield missing
    elif is_due and job.name not in about.paused:
        yield from _why_due(job, about)


def _why_then(job: Job) -> str:
    if job.fail_count:
        return "retry"
    # A one-off job that has run and did not fail: no field has more about it.
    if is_resumed(job) or (job.schedule is None and job.attempts):
        return "again"
    return "next" if job.schedule is not None else "first"


def no_instance_runs(name: str, instances: Sequence[Instance]) -> Reason | None:
    """Return why no live instance runs the name, or None if one does or may do."""
    live = [one for one in instances if one.is_live]
    if not live:
        return Reason("no_instances")
    runs_it = [one for one in live if name in one.names]
    if runs_it:
        return Reason("all_draining") if all(one.draining for one in runs_it) else None
    if may_run(name, live):
        return None
    served = sorted({known for one in live for known in one.names})
    return Reason("not_served", {"name": name, "similar": similar_name(name, live), "served": served})


def _why_due(job: Job, about: Circumstances) -> Iterator[Reason]:
    late = (about.now - job.next_run_at) / timedelta(seconds=1)
    runs_it = [one for one in about.instances if one.is_live and job.name in one.names]
    held = sum(one.held_by_name.get(job.name, 0) for one in runs_it)
    is_full = all(one.is_full_for(job.name) for one in runs_it if not one.draining)
    is_capped = 0 < about.most_ahead < about.ahead
    ahead = about.most_ahead if is_capped else about.ahead
    yield Reason("is_due", {"seconds": late, "ahead": ahead, "is_capped": is_capped})
    if runs_it:
        overdue = sum(one.overdue_by_name.get(job.name, 0) for one in runs_it)
        # Jobs that take a moment may have run between the heartbeats. So it is only worth another look.
        is_idle = ahead > 0 and late > IDLE_AFTER and not held and not is_full
        values = {"instances": len(runs_it), "held": held, "overdue": overdue, "is_full": is_full, "is_idle": is_idle}
        yield Reason("is_served", values)
    blocked = list(_blocked_loops(runs_it, job.next_run_at, about.now))
    yield from blocked
    deaths = deaths_of(job)
    if deaths >= SUSPECT_FROM:
        yield Reason("is_suspect", {"deaths": deaths})
    if not about.ahead and runs_it and not held and not is_full and not blocked and deaths < SUSPECT_FROM:
        yield Reason("nothing_known")


def _blocked_loops(instances: Sequence[Instance], due_at: datetime, now: datetime) -> Iterator[Reason]:
    """Those that were seen while the job was due. An instance whose loop is blocked starts nothing."""
    for one in instances:
        if (last := one.last_block) is None or last.at < due_at:
            continue
        ago = max((now - last.at) / timedelta(seconds=1), 0.0)
        if ago <= BLOCKED_LATELY:
            values = {"instance": one.id, "handler": last.name, "seconds": last.seconds, "ago": ago}
            yield Reason("blocked_loop", values)


def is_silent(job: Job, now: datetime) -> bool:
    """Return whether the holder of a running job has shown no sign of life for a lease."""
    signal = last_sign_of_life(job)
    return signal is None or (now - signal) / timedelta(seconds=1) > _lease_of(job)


def _lease_of(job: Job) -> float:
    return LEASE_IN_BEATS * clamped((job.claim or NO_CLAIM).heartbeat_interval)


def _is_overdue(job: Job, limit: float, holder: Instance, now: datetime) -> bool:
    """Return whether it is one of those whose runs were cancelled, and whose threads go on."""
    # The time alone does not show it: a limit counts from the call of the handler, and not while a parent waits.
    since = (job.claim or NO_CLAIM).since
    return holder.overdue_by_name.get(job.name, 0) > 0 and since is not None and now - since > timedelta(seconds=limit)


def _how_it_runs(job: Job, about: Circumstances) -> Iterator[Reason]:
    claim = job.claim or NO_CLAIM
    holder = next((one for one in about.instances if one.id == claim.by), None)
    signal = last_sign_of_life(job)
    silence = None if signal is None else (about.now - signal) / timedelta(seconds=1)
    claimed = {
        "by": claim.by,
        "holder": None if holder is None else str(holder),
        "since": claim.since,
        "is_ours": is_ours(job),
    }
    is_held = silence is not None and not is_silent(job, about.now)
    if silence is not None and is_held and is_ours(job) and holder is None:
        # An instance has its entry from before its first claim until it has ended.
        is_held = False
        yield Reason("holder_gone", {**claimed, "silent": max(silence, 0.0), "lease": _lease_of(job)})
        yield from _no_rescuer(claim.by, about)
    elif silence is not None and is_held:
        limit = job.limits.timeout
        if limit is None and holder is not None:
            limit = holder.time_limits.get(job.name)
        is_over = limit is not None and holder is not None and _is_overdue(job, limit, holder, about.now)
        values = {
            "silent": max(silence, 0.0),
            "is_late": silence > _lease_of(job) * LIVE_FOR_BEATS / LEASE_IN_BEATS,
            "time_limit": limit,
            "is_over": is_over,
            "is_parent": scope_of(job) is not None,
        }
        yield Reason("runs", {**claimed, **values})
        if (deaths := deaths_of(job)) >= SUSPECT_FROM:
            yield Reason("is_suspect", {"deaths": deaths})
    else:
        # Other libraries have other rules: see `lock_timeout`.
        yield Reason("is_silent", {**claimed, "silent": silence, "lease": _lease_of(job)})
        yield from _no_rescuer(claim.by, about)
    if claim.cancel_requested_at is not None:
        seconds = (about.now - claim.cancel_requested_at) / timedelta(seconds=1)
        yield Reason("cancel_requested", {"seconds": seconds, "is_held": is_held})


def _no_rescuer(holder: str | None, about: Circumstances) -> Iterator[Reason]:
    if not any(one.is_live and one.id != holder for one in about.instances):
        yield Reason("no_rescuer")
