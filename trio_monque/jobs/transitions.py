"""The state machine of a job: every change of its status, each as a conditional write. Pure.

Each function returns a Transition: the guard that the document must satisfy, what is written, and what is written
instead if the guard failed for a known reason. The codec turns it into a MongoDB filter and update; tests read and
apply it without a database. TABLE lists all of them.

Two processes may change the same job at the same moment. MongoDB applies one write, then the other. So each guard
repeats everything that its writer relied on when it read the job. If another write came first and changed any of that,
the second write matches nothing. Each condition closes one race:

- The whole condition of a claim. Instances A and B both read a due job. A claims it, runs it and moves it to tomorrow.
  Then B's claim arrives: the job is pending again. Without `next_run_at` in the guard, B would run it a day early.
- The fence, in every write under a claim. A is suspended for longer than its lease, B rescues the job and runs it, A
  wakes up and writes its result. Without the fence, A would end B's run, and B's result would be lost.
- `claim.cancel_requested_at: None`, in every end but the completion of a one-off job. A caller requests a cancellation
  just before the run fails. Every end clears the request together with the claim. Without the condition, the retry
  would drop the request unseen, and the job would run again. With it, the guard fails, and `otherwise` cancels the job.
- `schedule.cron` and `schedule.timezone`, where a schedule moves on or ends. The holder computes the next occurrence
  from its copy; meanwhile a deployment declares another cron expression. Without them, the job would wait for a date of
  the old schedule, perhaps for a year. A completion asks for the absence of a schedule: otherwise a schedule that was
  declared during the run of a one-off job would end with that run.
- `schedule.on_exhausted`, where a schedule ends. A deployment changes it to "continue" during the last attempt. Without
  it, the schedule would stop for good.
- `again.call`, in every end of a job with a unique key after which it runs no more. A caller replaces the data of the
  running job, which then runs once more with them; see `run_again.py`. Without it, the end would drop the newer data.
- The sign of life and `rescues`, in a rescue. An observer saw no renewal for a whole lease, the holder renews the
  claim, then the rescue arrives. Without the sign of life, a job with a live run would run a second time beside it.
- `internals.rev`, in changes of a job's content. Two deployments read the same job and each change it. Without it, the
  second write would silently undo the first. A claim pins it too, so no run starts with data that were replaced since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from bson import ObjectId

from .claim_stamps_and_fences import ClaimStamp, cycle_fence, fence, is_ours, sign_of_life, stamp_fence
from .claimable import claimable, pins, unstarted_reason
from .conditional_write import OneOf, Transition
from .error_history import Failure
from .follow_ups import OWED
from .job import OF_ONE_OCCURRENCE, Job, JobStatus, deaths_of, occurrence_of, resumed
from .job_parts import NurseryScope
from .run_again import COPIED

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

_BY_ITS_BLOCK: Final = ("child.cancelled_by",)
"""The field that a block or a sweeper writes into a child that it cancels."""

PENDING, PROCESSING = JobStatus.PENDING, JobStatus.PROCESSING
COMPLETED, FAILED, CANCELLED = JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the state machine: a transition, the statuses before and after it, and its reason."""

    name: str
    source: JobStatus
    target: JobStatus
    why: str


TABLE: Final = (
    Row("claim", PENDING, PROCESSING, "an instance takes a due job"),
    Row("complete", PROCESSING, COMPLETED, "a one-off job succeeded"),
    Row("go_on", PROCESSING, PENDING, "a recurring job moves to its next occurrence"),
    Row("run_again", PROCESSING, PENDING, "it was replaced while it ran, and runs with the newer data"),
    Row("retry", PROCESSING, PENDING, "an attempt failed, and others are left"),
    Row("snooze", PROCESSING, PENDING, "the handler asked to be run later"),
    Row("release", PROCESSING, PENDING, "the claim is given back, uncounted"),
    Row("rescue", PROCESSING, PENDING, "the claim had died"),
    Row("give_up", PROCESSING, FAILED, "too many claims in a row had died"),
    Row("fail", PROCESSING, FAILED, "the last attempt failed, or no other can be made"),
    Row("cancel_claimed", PROCESSING, CANCELLED, "a requested cancellation"),
    Row("cancel_pending", PENDING, CANCELLED, "a caller cancelled it"),
    Row("end_unstarted", PENDING, CANCELLED, "it was not started by its `start_by`"),
    Row("run_after_end", COMPLETED, PENDING, "another library ended it, and did not see that it was replaced"),
    Row("run_after_end", FAILED, PENDING, "another library ended it, and did not see that it was replaced"),
    Row("set_aside", PENDING, FAILED, "the server refuses every claim on it"),
    Row("retry_again", FAILED, PENDING, "a caller gave it new attempts"),
    Row("retry_again", CANCELLED, PENDING, "a caller gave it new attempts"),
    Row("run_child_again", FAILED, PENDING, "its block, in a new try or a later run of its parent, asks for it again"),
    Row(
        "run_child_again", CANCELLED, PENDING, "its block, in a new try or a later run of its parent, asks for it again"
    ),
    Row("reschedule", PENDING, PENDING, "a caller changed when it is due"),
    Row("update_pending", PENDING, PENDING, "its schedule or data was brought up to date"),
    Row("update_claimed", PROCESSING, PROCESSING, "its schedule or data was brought up to date"),
    Row("request_cancel", PROCESSING, PROCESSING, "a caller requested that its run be cancelled"),
)
"""All changes of a job's status, and the changes that keep it. A job can be deleted in any status."""


# The claim writes the mark, so that every end makes the job owe a follow-up, also the end that an instance writes that
# does not know the worker. No end needs another field for it.
_FOLLOWED: Final[Mapping[str, Any]] = MappingProxyType({"follow_up": OWED})


# --- pending -> processing ---


def claim(
    names: Sequence[str],
    now: datetime,
    stamp: ClaimStamp,
    pinned: Mapping[str, Any] = _NOTHING,
    *,
    followed: bool = False,
) -> Transition:
    """pending -> processing, for those of the chosen jobs that are still claimable (and still as pinned).

    If their worker has a `then`, they are `followed`: see `follow_ups.py`.
    """
    return Transition(
        guard={**claimable(names, now), **pinned},
        set={
            "status": JobStatus.PROCESSING,
            # As a whole: it takes the place of what an older release and Node leave of a claim, such as a request to
            # cancel, which was not meant for this one.
            "claim": stamp.claim(),
            "updated_at": stamp.locked_at,
            **(_FOLLOWED if followed else _NOTHING),
        },
        added={"attempts": 1},
    )


# --- pending -> failed ---


def set_aside(job: Job, now: datetime, reason: str) -> Transition:
    """pending -> failed: the server refuses every claim on the job. There was no attempt, so no failure is counted."""
    return Transition(
        # Pinned like a claim: a job that changed since the refusal may be claimable now.
        guard={"id": job.id, "status": PENDING, "claim.by": None, **pins(job)},
        set={"status": FAILED, "fail_reason": reason, "updated_at": now},
    )


# --- pending -> cancelled, by the time ---


def end_unstarted(job: Job, now: datetime) -> Transition:
    """pending -> cancelled: no run began by the job's `start_by`. `fail_reason` has that as the reason."""
    start_by = job.limits.start_by
    assert start_by is not None
    return Transition(
        # Either this or a claim wins: both ask for a pending job without an owner. `start_by` is in the guard because a
        # caller may have put the job back without its limit since it was read; `rev` and the numbers, because it may
        # have run meanwhile.
        guard={"id": job.id, "status": PENDING, "claim.by": None, **pins(job), "limits.start_by": start_by},
        set={
            "status": CANCELLED,
            "fail_reason": unstarted_reason(start_by),
            "updated_at": now,
        },
        cleared=_cancelled_by_block(job),
    )


def _started(job: Job) -> tuple[str, ...]:
    """What is removed when a job whose run had begun is pending again: what is about its first run."""
    # Only of jobs that have one: all others are written as ever.
    about = {"limits.start_by": job.limits.start_by, "debounced_since": job.debounced_since}
    return tuple(name for name, value in about.items() if value is not None)


# --- The ends of a claim: all under the fence ---


def _ended(job: Job, now: datetime) -> dict[str, Any]:
    """What every counted end of a run writes."""
    return {"updated_at": now, "started_at": None if job.claim is None else job.claim.since, "finished_at": now}


def _unless_cancelled(job: Job) -> dict[str, Any]:
    """The fence, and that no cancellation was requested."""
    # Every end clears the request together with the claim. Without this condition, a retry that is written just after
    # the request would drop it unseen, and the job would run again.
    return {**fence(job), "claim.cancel_requested_at": None}


def _nursery(job: Job) -> tuple[str, ...]:
    """Return the fields to clear when the work of a job is done: its scope lives as long as its checkpoint."""
    # Only for jobs with a scope; all others are written as before. A run that has opened a scope has it in its copy.
    return () if job.nursery is None else ("nursery",)


def _same_schedule(job: Job, *names: str) -> dict[str, Any]:
    """That these attributes of the schedule are as they were read; or that there still is none."""
    if job.schedule is None:
        return {"schedule.cron": None}
    return {f"schedule.{name}": getattr(job.schedule, name) for name in names}


def _unless_asked_again(job: Job) -> dict[str, Any]:
    """The condition of an end after which the job runs no more: no call wants another run (see `run_again.py`)."""
    # Only a one-off job with a unique key can be replaced. All others end with the same statement as ever.
    return {} if job.unique_key is None or job.schedule is not None else {"again.call": None}


def complete(job: Job, now: datetime, result: Any = None) -> Transition:
    """processing -> completed: a one-off job succeeded."""
    # The fence alone: a cancellation that was requested meanwhile came too late, because the work is done.
    return _completion(job, now, fence(job), {} if result is None else {"result": result})


def complete_claimed_with(job: Job, now: datetime) -> Transition:
    """Like `complete`, for any job of the same claim cycle: one statement ends many. No results are stored."""
    return _completion(job, now, cycle_fence(job), {})


def _completion(job: Job, now: datetime, fenced: Mapping[str, Any], stored: Mapping[str, Any]) -> Transition:
    return Transition(
        # It must still be a one-off job: a caller may have declared a schedule over it while it ran, and that schedule
        # would end with this run.
        # And no call may have left newer data in it.
        guard={**fenced, "schedule.cron": None, **_unless_asked_again(job)},
        set={"status": COMPLETED, **_ended(job, now), **stored},
        cleared=("claim", "fail_reason", "rescues", "saved", *_nursery(job)),
    )


def unless_cancelled(job: Job, now: datetime, ending: Transition) -> Transition:
    """The same end, if no cancellation was requested. For an end that is committed together with the work.

    There no request comes too late: the work is not done before the end is written.
    """
    return replace(
        ending,
        guard={**ending.guard, "claim.cancel_requested_at": None},
        otherwise=ending.otherwise or cancel_claimed(job, now),
    )


def run_again(job: Job, now: datetime, failure: Failure | None = None, result: Any = None) -> Transition:
    """processing -> pending with the data that a call has left in the running job.

    With a `failure`, the run with the data from before has failed for good; without one, it succeeded.
    """
    return Transition(
        # Not what was left in it: more calls may follow until this is written, and the server copies what is there.
        guard={**_unless_cancelled(job), "schedule.cron": None},
        copied=COPIED,
        set={
            "status": PENDING,
            "fail_count": 0,
            **_ended(job, now),
            **({} if failure is None else failure.written(job)),
            **({} if result is None else {"result": result}),
        },
        added={"internals.rev": 1},
        cleared=("claim", "rescues", "saved", "again", *(("fail_reason",) if failure is None else ()), *_nursery(job)),
        otherwise=cancel_claimed(job, now),
    )


def go_on(
    job: Job, now: datetime, next_run_at: datetime, failure: Failure | None = None, result: Any = None
) -> Transition:
    """processing -> pending at the next occurrence of a recurring job.

    With a `failure`, this occurrence used up its retries; without one, it succeeded.
    """
    return Transition(
        # The schedule from which `next_run_at` was computed. A deployment may declare another one while the job runs,
        # and the job would wait for a date of the old one, perhaps for a year.
        guard={**_unless_cancelled(job), **_same_schedule(job, "cron", "timezone")},
        set={
            "status": PENDING,
            "next_run_at": next_run_at,
            "fail_count": 0,
            **_ended(job, now),
            **({} if failure is None else failure.written(job)),
            **({} if result is None else {"result": result}),
        },
        # The handler saved its checkpoint for another attempt at this occurrence.
        cleared=(
            "claim",
            "rescues",
            *OF_ONE_OCCURRENCE,
            *(("fail_reason",) if failure is None else ()),
            *_nursery(job),
        ),
        otherwise=cancel_claimed(job, now),
    )


def retry(job: Job, now: datetime, failure: Failure, next_run_at: datetime) -> Transition:
    """processing -> pending after a failure, with attempts left."""
    return Transition(
        guard=_unless_cancelled(job),
        set={
            "status": PENDING,
            "next_run_at": next_run_at,
            **_ended(job, now),
            **failure.written(job),
            **resumed(job, next_run_at),
        },
        added={"fail_count": 1},
        # The count of deaths in a row ends with a run that the process survived.
        cleared=("claim", "rescues", *_started(job)),
        otherwise=cancel_claimed(job, now),
    )


def snooze(job: Job, now: datetime, next_run_at: datetime) -> Transition:
    """processing -> pending, as the handler asked: no failure is counted, and its checkpoint is kept."""
    return Transition(
        guard=_unless_cancelled(job),
        set={"status": PENDING, "next_run_at": next_run_at, **_ended(job, now), **resumed(job, next_run_at)},
        cleared=("claim", "rescues", *_started(job)),
        otherwise=cancel_claimed(job, now),
    )


def fail(job: Job, now: datetime, failure: Failure) -> Transition:
    """processing -> failed: the last attempt failed, or no other can be made."""
    return Transition(
        # What decides whether the schedule goes on: if a deployment changes `on_exhausted` to "continue" during the
        # last attempt, the schedule must not stop for good.
        guard={
            **_unless_cancelled(job),
            **_same_schedule(job, "cron", "timezone", "on_exhausted"),
            **_unless_asked_again(job),
        },
        set={"status": FAILED, **_ended(job, now), **failure.written(job)},
        added={"fail_count": 1},
        cleared=("claim", "rescues"),
        otherwise=cancel_claimed(job, now),
    )


def release(job: Job, now: datetime, *, has_begun: bool = False) -> Transition:
    """processing -> pending: releases the claim. The job is due as before, and no attempt is counted."""
    return Transition(
        guard=_unless_cancelled(job),
        set={"status": PENDING, "updated_at": now},
        # A run that was cut short at a shutdown had begun, and must be repeated however late it is.
        cleared=("claim", *_started(job)) if has_begun else ("claim",),
        otherwise=cancel_claimed(job, now),
    )


def release_all(stamp: ClaimStamp, now: datetime) -> Transition:
    """processing -> pending for every job that one claim cycle took: used when the answer to its claim was lost."""
    return Transition(
        guard={**stamp_fence(stamp), "claim.cancel_requested_at": None},
        set={"status": PENDING, "updated_at": now},
        cleared=("claim",),
    )


def rescue(job: Job, now: datetime, next_run_at: datetime) -> Transition:
    """processing -> pending: an observer saw the claim dead. Deaths are counted apart from failures."""
    rescued = Transition(
        # From this count the observer decided that the job is rescued, not given up, and when it is due.
        guard={**fence(job), "rescues": job.rescues or OneOf((None, 0))},
        set={
            "status": PENDING,
            "next_run_at": next_run_at,
            "updated_at": now,
            "rescues": deaths_of(job) + 1,
            "internals.resumes_at": next_run_at,  # In a one-off job too: Node may fail an attempt in between.
            **resumed(job, next_run_at),
        },
        # Nothing shows whether the dead instance had begun the run: at least once goes before the limit.
        cleared=("claim", *_started(job)),
    )
    return _of_the_dead(job, now, rescued)


def give_up(job: Job, now: datetime, failure: Failure) -> Transition:
    """processing -> failed: an observer saw the claim dead, and too many died before. No failure is counted."""
    given_up = Transition(
        guard={
            **fence(job),
            **_same_schedule(job, "cron", "timezone", "on_exhausted"),
            **_unless_asked_again(job),
        },
        set={"status": FAILED, **_ended(job, now), **failure.written(job)},
        cleared=("claim", "rescues"),
    )
    return _of_the_dead(job, now, given_up)


def go_on_after_deaths(job: Job, now: datetime, next_run_at: datetime, failure: Failure) -> Transition:
    """Like `give_up`, for a schedule that goes on: only this occurrence is given up."""
    return _of_the_dead(job, now, go_on(job, now, next_run_at, failure))


def run_again_after_deaths(job: Job, now: datetime, failure: Failure) -> Transition:
    """Like `give_up`, for a job that was replaced while it ran: only the data from before are given up."""
    return _of_the_dead(job, now, run_again(job, now, failure))


def _of_the_dead(job: Job, now: datetime, ending: Transition) -> Transition:
    """The ending, as an observer may write it in place of the holder. `job` is the job as it was observed."""
    # If the holder renews the claim just before this write arrives, the claim is alive, and the write matches nothing.
    unmoved = sign_of_life(job)
    guard = {name: one for name, one in ending.guard.items() if name != "claim.cancel_requested_at"}
    if not is_ours(job):
        # Another library does not read requests: this one is left over from an earlier claim of ours, and is ignored.
        return replace(ending, guard={**guard, **unmoved}, otherwise=None)
    cancelled = cancel_claimed(job, now)
    return replace(
        ending,
        guard={**guard, "claim.cancel_requested_at": None, **unmoved},
        otherwise=replace(cancelled, guard={**cancelled.guard, **unmoved}),
    )


def cancel_claimed(job: Job, now: datetime) -> Transition:
    """processing -> cancelled: carries out a requested cancellation."""
    return Transition(
        guard=fence(job),
        set={"status": CANCELLED, **_ended(job, now)},
        cleared=("claim", "rescues", "again"),
    )


# --- Under a claim, without ending it ---


def report(job: Job, now: datetime, **reported: Any) -> Transition:
    """Writes what a handler saved or reported, under the fence: a run that lost its claim writes nothing."""
    # A checkpoint of one occurrence must not be used in the next one, whose work it does not describe.
    occurrence = occurrence_of(job)
    if "saved" in reported and occurrence is not None:
        reported["internals.saved_for"] = occurrence
    return Transition(guard=fence(job), set={**reported, "updated_at": now})


def open_scope(job: Job, now: datetime, scope: NurseryScope) -> Transition:
    """Writes the scope of the job's nurseries, and the results of its steps, before any child is started.

    Under the fence: a run that has lost its claim must not start children, which would have no parent.
    """
    return Transition(guard=fence(job), set={"nursery": scope, "internals.last_scope": scope.id, "updated_at": now})


def reset_deaths(job: Job, now: datetime) -> Transition:
    """Resets the count of deaths in a row: the run has reached a wait for its children without killing its process."""
    return Transition(guard=fence(job), set={"updated_at": now}, cleared=("rescues",))


def request_cancel(job: Job, now: datetime) -> Transition:
    """Asks the holder of a claim of ours to cancel its run."""
    # Under the fence: if Node has claimed the job meanwhile, it would not read the request.
    return Transition(
        guard=_unless_cancelled(job),
        set={"claim.cancel_requested_at": now, "updated_at": now},
        cleared=_cancelled_by_block(job),
    )


def _cancelled_by_block(job: Job) -> tuple[str, ...]:
    """Return the fields to clear when a child is cancelled, but not by its block: its parent must not run it again."""
    return () if job.child is None else _BY_ITS_BLOCK


# --- On request of a caller ---


def cancel_pending(job_id: ObjectId, now: datetime) -> Transition:
    """pending -> cancelled."""
    return Transition(
        guard={"id": job_id, "status": PENDING},
        set={"status": CANCELLED, "updated_at": now},
        # A job that is tried again may have them, and so may a child that Monque for Node took back from its block.
        cleared=("again", *_BY_ITS_BLOCK),
    )


def run_after_end(job: Job, now: datetime) -> Transition:
    """completed or failed -> pending, with the data that were left in it: its end did not see them."""
    assert job.again is not None
    return Transition(
        # A caller may retry or delete the ended job at the same moment.
        guard={"id": job.id, "status": job.status, "again.call": job.again.call, "schedule.cron": None},
        copied=COPIED,
        set={"status": PENDING, "fail_count": 0, "updated_at": now},
        added={"internals.rev": 1},
        cleared=("claim", "fail_reason", "rescues", "saved", "again", *_nursery(job)),
    )


def drop_again(job: Job, now: datetime) -> Transition:
    """Forget what was left in an ended job: another job has its key now."""
    assert job.again is not None
    return Transition(guard={"id": job.id, "again.call": job.again.call}, set={"updated_at": now}, cleared=("again",))


def retry_again(job_id: ObjectId, now: datetime) -> Transition:
    """failed or cancelled -> pending, due now, with all attempts available again."""
    return Transition(
        # Not a child: its parent may have gone on without it. If its parent does not need it, it is detached first.
        guard={"id": job_id, "status": OneOf((FAILED, CANCELLED)), "child.scope": None},
        set={"status": PENDING, "fail_count": 0, "next_run_at": now, "updated_at": now},
        # The limit too: the caller wants it to run now. For its job nurseries, a new try begins.
        cleared=("claim", "fail_reason", "rescues", "limits.start_by", "nursery.since_attempt", "nursery.failed"),
        added={"internals.rev": 1},
    )


def run_child_again(job: Job, now: datetime, epoch: int) -> Transition:
    """failed or cancelled -> pending: the block of a child asks for it again; see `nursery_scopes.py`."""
    assert job.child is not None
    child = job.child
    return Transition(
        guard={
            "id": job.id,
            "status": OneOf((FAILED, CANCELLED)),
            # As the run has read it: an operator or a newer run may have cancelled it meanwhile.
            "child.scope": child.scope,
            "child.run": child.run,
            "child.cancelled_by": child.cancelled_by,
        },
        set={
            "status": PENDING,
            "fail_count": 0,
            "next_run_at": max(now, job.next_run_at),  # One that was cancelled before it was due keeps its date.
            "updated_at": now,
            "child.run": epoch,
        },
        cleared=("claim", "fail_reason", "rescues", "limits.start_by", *_BY_ITS_BLOCK),
        added={"internals.rev": 1},
    )


def reschedule(job_id: ObjectId, now: datetime, next_run_at: datetime) -> Transition:
    """pending -> pending at another time."""
    return Transition(
        guard={"id": job_id, "status": PENDING},
        set={"next_run_at": next_run_at, "updated_at": now},
        # The guard of a claim has the due date already. `rev` makes copies stale that were read with the old date.
        added={"internals.rev": 1},
    )


def update_pending(job: Job, now: datetime, next_run_at: datetime, **content: Any) -> Transition:
    """Changes the content of a pending job."""
    return Transition(
        # Two deployments may read the same job and each change it. The second write must not silently undo the first,
        # so it matches nothing. The new `rev` also makes the copies stale that a look has read for a claim.
        guard={"id": job.id, "status": PENDING, "internals.rev": job.internals.rev or OneOf((None, 0))},
        set={"next_run_at": next_run_at, "updated_at": now, **_present(content)},
        cleared=_absent(content),
        added={"internals.rev": 1},
    )


def update_claimed(job: Job, now: datetime, **content: Any) -> Transition:
    """Changes the content of a running job from its next occurrence on: the run keeps its copy and its claim."""
    return Transition(
        guard={"id": job.id, "status": PROCESSING, "internals.rev": job.internals.rev or OneOf((None, 0))},
        set={"updated_at": now, **_present(content)},
        cleared=_absent(content),
        added={"internals.rev": 1},
    )


def _present(content: Mapping[str, Any]) -> dict[str, Any]:
    # `data` may be None as a value. For any other field, None means that the field is removed.
    return {name: value for name, value in content.items() if value is not None or name == "data"}


def _absent(content: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name, value in content.items() if value is None and name != "data")
