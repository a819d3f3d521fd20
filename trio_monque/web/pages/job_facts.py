"""The two lists beside the timeline of a job: how its run is held, and what else its document says. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from ...diagnosis.parents_and_children import BlockNow
from ...diagnosis.reasons import Reason
from ...jobs.claim_stamps_and_fences import last_sign_of_life
from ...jobs.instance import Instance, clamped
from ...jobs.job import Job, JobStatus, deaths_of
from ...jobs.job_parts import NO_CLAIM, FollowUpChosen, FollowUpOwed, FollowUpParked
from ...jobs.nursery_scopes import has_had_scope
from ..api.full_view import lease_end_of
from ..words.lengths import ago, counted, grouped, length, moment

MOST_META: Final = 100
"""Values of the meta in the list. The JSON of the job has all."""

MOST_CHILDREN_SHOWN: Final = 20
"""Children of a block in the list. A link leads to all."""

_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of a list.

    Attributes:
        label: What it is.
        text: What is said of it.
        at: The moment that it is, in place of the text.
        note: What stands behind it, less strong.
        until: A moment behind the note.
        loud: What stands before it; `look` is its class.
        look: "bad", "due" or "".
        parts, query: Where the text leads; no parts for nowhere.
        is_code: Whether the text is one of the program.
        begins: Whether a line is drawn above it.
    """

    label: str
    text: str = ""
    at: datetime | None = None
    note: str = ""
    until: datetime | None = None
    loud: str = ""
    look: str = ""
    parts: Sequence[str] = ()
    query: Mapping[str, str] = field(default_factory=dict)
    is_code: bool = False
    begins: bool = False


def facts_of_run(job: Job, instances: Sequence[Instance], now: datetime) -> Sequence[Fact]:
    """Return how a running job is held, and what follows a failure; nothing for other jobs."""
    if job.status is not JobStatus.PROCESSING:
        return ()
    claim = job.claim or NO_CLAIM
    holder = next((one for one in instances if one.id == claim.by), None)
    found: list[Fact] = []
    if claim.by is None:
        found.append(Fact("Held by", "an unknown instance"))
    else:
        where = "no entry of this instance" if holder is None else f"{holder.host}:{holder.pid}"
        found.append(Fact("Held by", claim.by, note=where, parts=("instances", claim.by)))
    if claim.since is not None:
        found.append(Fact("Since", at=claim.since, note=ago(claim.since, now)))
    found.append(_lease(job, now))
    found.append(_time_limit(job, None if holder is None else holder.time_limits.get(job.name)))
    if claim.cancel_requested_at is not None:
        note = f"{ago(claim.cancel_requested_at, now)}; the handler has not ended yet"
        found.append(Fact("Cancel requested", at=claim.cancel_requested_at, note=note))
    found.append(Fact("If it fails", after_a_failure(job)))
    if job.again is not None:
        found.append(Fact("Then again", "again, with newer data from a later call"))
    return found


def _lease(job: Job, now: datetime) -> Fact:
    claim, end = job.claim or NO_CLAIM, lease_end_of(job)
    signal = last_sign_of_life(job)
    every = f"every {length(clamped(claim.heartbeat_interval))}"
    renewed = every if signal is None else f"renewed {ago(signal, now)}, {every}"
    if end is None:
        return Fact("Lease until", "unknown: its holder has given no sign of life")
    return Fact("Lease until", at=end, note=renewed, loud="expired" if end < now else "", look="bad")


def _time_limit(job: Job, of_worker: float | None) -> Fact:
    timeout, since = job.limits.timeout, (job.claim or NO_CLAIM).since
    if timeout is None:
        timeout = of_worker
    if timeout is None:
        return Fact("Time limit", "that of its worker, if it has one")
    if since is None:
        return Fact("Time limit", length(timeout))
    try:
        return Fact("Time limit", length(timeout), note="ends at", until=since + timeout * _SECOND)
    except OverflowError:  # Beyond the year 9999.
        return Fact("Time limit", length(timeout))


def after_a_failure(job: Job) -> str:
    """Return what follows if this run fails, as far as the document decides it."""
    limit = job.limits.max_attempts
    if limit is None:
        return "again after a delay, until the attempts of its worker are used up"
    left = limit - job.fail_count - 1
    if left > 0:
        return f"again after a delay, with {counted(left, 'attempt')} left"
    if job.schedule is not None and job.schedule.on_exhausted != "fail":
        return "its schedule continues with the next occurrence"
    return "it has failed for good"


def facts_of_job(job: Job, filters: Collection[str], now: datetime, cancelled: Reason | None = None) -> Sequence[Fact]:
    """Return what else its document says.

    Args:
        job: The job.
        filters: The fields that lists can be filtered by, such as "meta.tenant".
        now: The server's time.
        cancelled: Who cancelled it, if it is a child of a job nursery.
    """
    return [*_moments(job, now), *_counts(job), *_relatives(job), *_as_child(job, cancelled), *_meta(job, filters)]


def _moments(job: Job, now: datetime) -> Iterator[Fact]:
    begin = (job.claim or NO_CLAIM).since if job.status is JobStatus.PROCESSING else None
    has_ended = job.status not in (JobStatus.PENDING, JobStatus.PROCESSING)
    if has_ended:
        if job.next_run_at <= job.updated_at:  # Otherwise it ended before, and is due no more.
            yield Fact("Was due", at=job.next_run_at)
    elif isinstance(job.follow_up, FollowUpParked):
        yield Fact("Due", at=job.follow_up.due, note="once it is released by the job that it follows")
    elif begin is not None:
        waited = (begin - job.next_run_at) / _SECOND
        yield Fact("Due", at=job.next_run_at, note=f"started {length(waited)} later" if waited >= 0 else "")
    else:
        yield Fact("Due", at=job.next_run_at, note=ago(job.next_run_at, now) if job.status is JobStatus.PENDING else "")
    yield Fact("Enqueued", at=job.created_at, note=ago(job.created_at, now))
    yield Fact("Changed", at=job.updated_at, note=ago(job.updated_at, now))
    if job.debounced_since is not None:
        yield Fact("Debounced", at=job.debounced_since, note="the first of the calls that became this job")
    if job.limits.start_by is not None:
        yield Fact("Start by", at=job.limits.start_by, note="" if has_ended else "or it is cancelled")
    if job.unique_key is not None:
        yield Fact("Key", job.unique_key, is_code=True)


def _counts(job: Job) -> Iterator[Fact]:
    limits, deaths = job.limits, deaths_of(job)
    yield Fact("Attempts", f"{job.attempts:,}", begins=True)
    yield _in_a_row("Failures", job.fail_count, limits.max_attempts, "bad")
    yield _in_a_row("Lost claims", deaths, limits.max_rescues, "due")


def _in_a_row(label: str, number: int, limit: int | None, look: str) -> Fact:
    of = "" if limit is None else f", of {limit:,}"
    return Fact(label, f"in a row{of}", loud=f"{number:,}", look=look) if number else Fact(label, f"none{of}")


def _relatives(job: Job) -> Iterator[Fact]:
    begins = True
    if job.follows is not None:
        yield Fact("Follows", str(job.follows), parts=("jobs", str(job.follows)), is_code=True, begins=True)
        begins = False
    match job.follow_up:
        case FollowUpOwed():
            has_ended = job.status in (JobStatus.COMPLETED, JobStatus.FAILED)
            note = "not enqueued yet" if has_ended else "enqueued when it ends"
            yield Fact("Then", "a follow-up", note=note, begins=begins)
        case FollowUpChosen(chosen):
            yield Fact("Then", str(chosen), parts=("jobs", str(chosen)), is_code=True, begins=begins)
        case _:
            pass


def _as_child(job: Job, cancelled: Reason | None) -> Iterator[Fact]:
    child = job.child
    if child is None or child.parent is None:
        return
    parent = str(child.parent)
    yield Fact("Child of", parent, parts=("jobs", parent), is_code=True, begins=True)
    if child.block is not None:
        yield Fact("In block", child.block, is_code=True)
    if child.key is not None:
        yield Fact("As", child.key, is_code=True)
    match cancelled:
        case None:
            pass
        case Reason("by_failure", {"jobs": ids}):
            first, more = str(ids[0]), len(ids) - 1
            note = f"failed in the same block{f', and {grouped(more)} more' if more else ''}"
            yield Fact("Cancelled by", first, note=note, parts=("jobs", first), is_code=True)
        case Reason("by_run", {"run": run}):
            yield Fact("Cancelled by", f"run {grouped(run)} of its parent, or by the end of that run")
        case Reason("by_deletion"):
            yield Fact("Cancelled by", "the deletion of its parent")
        case Reason("by_start_by", {"start_by": start_by}):
            yield Fact("Cancelled by", "its start_by", note=f"no run had begun by {moment(start_by)}")
        case _:
            yield Fact("Cancelled by", "a caller")


def facts_of_blocks(parent: Job, blocks: Sequence[BlockNow], *, is_capped: bool) -> Sequence[Fact]:
    """Return the blocks of a parent of job nurseries: their live children, by which they have failed, and a link."""
    if not has_had_scope(parent):
        return ()
    found: list[Fact] = []
    for block in blocks:
        numbers = [(len(block.running), "running"), (len(block.pending), "pending")]
        states = [f"{grouped(number)} {state}" for number, state in numbers if number]
        bad = "failed" if block.failed_by else ""
        found.append(Fact("Block", block.key, note=", ".join(states), loud=bad, look="bad", is_code=True, begins=True))
        failed = map(str, block.failed_by[:MOST_CHILDREN_SHOWN])
        found += [Fact("Failed by", child_id, parts=("jobs", child_id), is_code=True) for child_id in failed]
        for child in (*block.running, *block.pending)[:MOST_CHILDREN_SHOWN]:
            label = "Running" if child.status is JobStatus.PROCESSING else "Pending"
            key = None if child.child is None else child.child.key
            note = child.name if key is None else f"{child.name}, {key}"
            found.append(Fact(label, str(child.id), note=note, parts=("jobs", str(child.id)), is_code=True))
    more, query = "there are further live children" if is_capped else "", {"parent": str(parent.id)}
    found.append(Fact("List", "all children", note=more, parts=("jobs",), query=query, begins=True))
    return found


def _meta(job: Job, filters: Collection[str]) -> Iterator[Fact]:
    begins = True
    for key, value in islice(job.meta.items(), MOST_META):
        path = f"meta.{key}"
        can_filter = path in filters
        parts, query = (("jobs",), {path: value}) if can_filter else ((), {})
        yield Fact(key, value, parts=parts, query=query, is_code=True, begins=begins)
        begins = False
    if len(job.meta) > MOST_META:
        yield Fact("And more", f"{grouped(len(job.meta) - MOST_META)} are not shown")
