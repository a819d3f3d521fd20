"""Why a job does not run now, in sentences, each with what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ...jobs.fences import is_ours, last_sign_of_life
from ...jobs.instance import Instance, clamped, may_run, similar_name
from ...jobs.job import Job, JobStatus, deaths_of, is_resumed
from ...jobs.job_parts import NO_CLAIM
from ...jobs.rescue_policy import SUSPECT_FROM
from ...options_and_defaults import LEASE_IN_BEATS
from ..output import counted, duration, moment


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What else decides whether a job runs.

    Attributes:
        now: The server's time.
        instances: All that have an entry, dead ones too.
        paused: The names that are paused.
        ahead: How many due jobs of its name are due before it, counted up to `most_ahead`.
        most_ahead: Where the count ended.
    """

    now: datetime
    instances: Sequence[Instance] = ()
    paused: frozenset[str] = frozenset()
    ahead: int = 0
    most_ahead: int = 0


def why_not_now(job: Job, about: Circumstances) -> Sequence[str]:
    """Return why the job does not run now, or how its run is; never nothing."""
    match job.status:
        case JobStatus.PENDING:
            return [*_why_pending(job, about)]
        case JobStatus.PROCESSING:
            return [*_how_it_runs(job, about)]
        case JobStatus.COMPLETED:
            return ["It has completed."]
        case ended:
            # A rescue or an operator may have ended it without a try.
            has = "was" if ended is JobStatus.CANCELLED else "has"
            return [f"It {has} {ended}: `trio-monque retry {job.id}` lets it run again, with all its attempts."]


def _why_pending(job: Job, about: Circumstances) -> Iterator[str]:
    claim = job.claim or NO_CLAIM
    if claim.by is not None:
        yield (
            f"It is pending and still has an owner ({claim.by}), so no scheduler claims it: another program "
            f"wrote that. Cancel it and retry it (`trio-monque cancel {job.id}`, `trio-monque retry {job.id}`)."
        )
        return
    is_due = job.next_run_at <= about.now
    if not is_due:
        wait = duration((job.next_run_at - about.now) / timedelta(seconds=1))
        yield f"{_why_then(job)} {moment(job.next_run_at)}, in {wait}."
    if job.name in about.paused:
        yield f"Its name is paused: `trio-monque resume {job.name}`."
    missing = no_instance_runs(job.name, about.instances)
    if missing is not None:
        yield missing
    elif is_due and job.name not in about.paused:
        yield from _why_due(job, about)


def _why_then(job: Job) -> str:
    if is_resumed(job) or job.fail_count:
        if job.fail_count:
            return f"{counted(job.fail_count, 'failed attempt')}: the next one is due at"
        return "It is due again at"
    return "Its next occurrence is due at" if job.schedule is not None else "It is due at"


def no_instance_runs(name: str, instances: Sequence[Instance]) -> str | None:
    """Return the sentence that says that no live instance runs the name, or None if one does or may do."""
    live = [one for one in instances if one.is_live]
    if not live:
        return (
            "No live instance has an entry in this database. Start a worker (`trio-monque run`); Monque for Node works "
            "without entries."
        )
    runs_it = [one for one in live if name in one.names]
    if runs_it:
        if all(one.draining for one in runs_it):
            return "Each instance that runs its name is shutting down, and claims nothing more."
        return None
    if may_run(name, live):
        return None
    near = similar_name(name, live)
    known = sorted({known for one in live for known in one.names})
    hint = f"One runs {near!r}: is the name misspelt?" if near else f"They run: {_listed(known)}."
    return f"No live instance runs the name {name!r}. {hint}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5]) or "nothing"
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def _why_due(job: Job, about: Circumstances) -> Iterator[str]:
    late = duration((about.now - job.next_run_at) / timedelta(seconds=1))
    runs_it = [one for one in about.instances if one.is_live and job.name in one.names]
    held = sum(one.held_by_name.get(job.name, 0) for one in runs_it)
    if about.ahead:
        more = "more than " if about.most_ahead and about.ahead > about.most_ahead else ""
        number = min(about.ahead, about.most_ahead) if more else about.ahead
        others = f"{more}{counted(number, 'job')} of its name {'is' if number == 1 else 'are'}"
        yield f"It is due since {late}, and {others} due before it."
    else:
        yield f"It is due since {late}, the first of its name."
    if runs_it:
        instances = f"{len(runs_it)} live {_instances(len(runs_it))}"
        yield f"{instances} its name, and held {counted(held, 'job')} of it at the last heartbeat."
    deaths = deaths_of(job)
    if deaths >= SUSPECT_FROM:
        yield (
            f"The last {deaths} claims on it died, so it may kill its process: an instance runs one such job at a time."
        )
    if not about.ahead and runs_it and not held and deaths < SUSPECT_FROM:
        yield "Nothing seems to keep it: look again in a few seconds, then ask `trio-monque doctor`."


def _instances(number: int) -> str:
    return "instance runs" if number == 1 else "instances run"


def _how_it_runs(job: Job, about: Circumstances) -> Iterator[str]:
    claim = job.claim or NO_CLAIM
    holder = next((one for one in about.instances if one.id == claim.by), None)
    by = str(holder) if holder is not None else f"{claim.by}"
    signal = last_sign_of_life(job)
    silence = None if signal is None else (about.now - signal) / timedelta(seconds=1)
    lease = LEASE_IN_BEATS * clamped(claim.heartbeat_interval)
    since = "" if claim.since is None else f" since {moment(claim.since)}"
    library = "" if is_ours(job) else ", through another library"
    if silence is not None and silence <= lease:
        yield f"It runs{since} on {by}{library}; the last sign of life came {duration(max(silence, 0.0))} ago."
    else:
        # Other libraries have other rules: see `lock_timeout`.
        how_long = "never came" if silence is None else f"came {duration(silence)} ago"
        yield (
            f"It is claimed{since} by {by}{library}, and the last sign of life {how_long}: its process died, or is "
            f"frozen or cut off. Other instances rescue it {duration(lease)} after the last sign that they saw."
        )
        if not any(one.is_live and one.id != claim.by for one in about.instances):
            yield "No other live instance is there to do that: start a worker (`trio-monque run`)."
    if claim.cancel_requested_at is not None:
        ago = duration((about.now - claim.cancel_requested_at) / timedelta(seconds=1))
        yield f"Its cancellation was requested {ago} ago. A plain handler must call `job.check_cancelled()` to notice."
