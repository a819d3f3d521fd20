"""What people do to a job, in the model: cancel, retry, reschedule, update, delete."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId

from .model import Model, Refusal
from .state import ModelJob

Answer = ModelJob | Refusal | None


def cancel(model: Model, job_id: ObjectId) -> Answer:
    """Of a pending job: done. Of our run: asked for, once. The holder of another library's claim would not see it."""
    job = model.jobs.get(job_id)
    if job is None or job.status == "cancelled":
        return job
    if job.status == "pending":
        model.mark("cancel_pending", job.status)
        job.status, job.updated_at = "cancelled", model.now
        job.forget_again()
        return job
    if job.status != "processing" or not job.is_claimed_by_us:
        return Refusal(job.status)
    request_cancel(model, job)
    return job


def _waiting_as_seen(model: Model, seen: ModelJob) -> ModelJob | None:
    """The pending job, if nothing has run or changed it since."""
    job = model.jobs.get(seen.id)
    if job is None or job.status != "pending" or job.claimed_by is not None:
        return None
    pinned = ["attempts", "fail_count", "rescues", "rev", *(["next_run_at"] if seen.repeat_interval else [])]
    return None if any(getattr(job, pin) != getattr(seen, pin) for pin in pinned) else job


def end_unstarted(model: Model, seen: ModelJob, receipt: str) -> bool:
    """Of a pending job whose moment has passed; whether it is as it was seen, and is cancelled now."""
    job = _waiting_as_seen(model, seen)
    if job is None or seen.start_by is None or job.start_by != seen.start_by:
        return False
    model.mark("end_unstarted", job.status)
    job.status, job.updated_at, job.receipt = "cancelled", model.now, receipt
    job.fail_reason = f"start_by: not started by {seen.start_by.isoformat(timespec='milliseconds')}"
    return True


def set_aside(model: Model, seen: ModelJob, reason: str) -> bool:
    """Of a pending job on which the server refuses every claim; whether it is as it was seen, and has failed now."""
    job = _waiting_as_seen(model, seen)
    if job is None:
        return False
    model.mark("set_aside", job.status)
    job.status, job.fail_reason, job.updated_at = "failed", reason, model.now
    return True


def request_cancel(model: Model, seen: ModelJob) -> bool:
    """Of the claim that was seen, and no other; whether it was asked for now."""
    job = model.holds(seen)
    if job is None or job.cancel_requested_at is not None:
        return False
    model.mark("request_cancel", job.status)
    job.cancel_requested_at = job.updated_at = model.now
    return True


def retry(model: Model, job_id: ObjectId) -> Answer:
    """Refused, too, while another job has the unique key."""
    job = model.jobs.get(job_id)
    if job is None:
        return None
    if job.status not in ("failed", "cancelled") or model.holder_of_key(job) is not None:
        return Refusal(job.status)
    model.mark("retry_again", job.status)
    job.status, job.updated_at, job.next_run_at = "pending", model.now, model.now
    job.fail_count, job.fail_reason, job.rescues = 0, None, 0
    job.claimed_by = job.locked_at = job.claim_token = job.token_of = None
    job.last_heartbeat = job.heartbeat_interval = job.cancel_requested_at = job.renewed_at = None
    job.start_by = None
    job.rev += 1
    return job


def reschedule(model: Model, job_id: ObjectId, moment: datetime) -> Answer:
    job = model.jobs.get(job_id)
    if job is None:
        return None
    if job.status != "pending":
        return Refusal(job.status)
    model.mark("reschedule", job.status)
    job.next_run_at, job.updated_at = moment, model.now
    job.rev += 1
    return job


def delete(model: Model, job_id: ObjectId) -> bool:
    if model.jobs.pop(job_id, None) is None:
        return False
    model.mark("delete", "any")
    return True


def update(
    model: Model, seen: ModelJob, data: Any, repeat_interval: str | None, next_run_at: datetime
) -> ModelJob | None:
    """Brings a job up to date that is as it was seen; None where it is not. A run keeps its time."""
    job = model.jobs.get(seen.id)
    if job is None or job.status != seen.status or not job.is_active or job.rev != seen.rev:
        return None
    model.mark("update_claimed" if job.status == "processing" else "update_pending", job.status)
    if job.status == "pending":
        job.next_run_at = next_run_at
    job.data, job.repeat_interval, job.updated_at = data, repeat_interval, model.now
    job.rev += 1
    return job


# --- Calls that change the job that has their key ---


def replace(model: Model, new: ModelJob, max_wait: timedelta | None = None) -> tuple[str, ModelJob]:
    """The outcome of a call that replaces, or that debounces if the new job has `debounced_since`; and the job."""
    holder = model.holder_of_key(new)
    if holder is None:
        model.jobs[new.id] = new
        return "created", new
    runs = holder.status == "processing"
    if holder.repeat_interval is not None or (runs and holder.cancel_requested_at is not None):
        return "kept", holder
    since, due = None, new.next_run_at
    if new.debounced_since is not None:
        since = (holder.again_since if runs else holder.debounced_since) or model.now
        due = due if max_wait is None else min(due, since + max_wait)
    if runs:
        model.mark("replace", holder.status)
        holder.again, holder.again_data, holder.again_at = new.id, new.data, due
        holder.again_start_by, holder.again_since = new.start_by, since
        return "again", holder
    model.mark("replace", holder.status)
    if holder.is_resumed:
        holder.resumes_at = due
    holder.data, holder.next_run_at, holder.updated_at = new.data, due, model.now
    holder.start_by, holder.debounced_since = new.start_by, since
    holder.saved = None
    holder.rev += 1
    holder.forget_again()
    return "replaced", holder


def run_after_end(model: Model) -> None:
    """Of one-off jobs that ended although something was left in them: another library does not see it."""
    for job in list(model.jobs.values()):
        if job.status in ("completed", "failed") and job.again is not None and job.repeat_interval is None:
            job.updated_at = model.now
            if model.holder_of_key(job) is not None:
                job.forget_again()
                continue
            model.mark("run_after_end", job.status)
            model.put_again(job)
            job.status, job.fail_reason = "pending", None
            job.claimed_by = job.locked_at = job.claim_token = job.token_of = None
            job.last_heartbeat = job.heartbeat_interval = job.cancel_requested_at = job.renewed_at = None
