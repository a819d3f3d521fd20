"""Operations by hand, and the Node peer's commands. Each on both sides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import bson
from bson import ObjectId

from trio_monque.errors import JobStateError
from trio_monque.jobs import transitions
from trio_monque.jobs.job import Job, JobStatus
from trio_monque.store.jobs import job_changes, replacing, starting_again, unstarted_writes

from . import by_hand, claims, ends
from .context import new_pair
from .model import Refusal
from .play import Play
from .state import HALF_PAST, HOURLY, check_equal, check_same

_OTHER = {HOURLY: HALF_PAST, HALF_PAST: HOURLY, None: None}


def _done(play: Play, what: str, call: Callable[[], Job | None], expected: by_hand.Answer) -> None:
    """Compares the answer, or the refusal, with the model's."""
    try:
        real = call()
    except JobStateError as error:
        check_equal(what, expected, Refusal(str(error.status)))
        return
    if isinstance(expected, Refusal):
        check_equal(what, expected, real)
    else:
        check_same(what, expected, real)


def _target(play: Play, a: int, *preferred: str) -> ObjectId:
    if (job_id := play.job(a, *preferred)) is None:
        claims.enqueue(play, a, 0)
        (job_id,) = play.model.jobs
    return job_id


def cancel(play: Play, a: int, b: int) -> None:
    job_id = _target(play, a, *(("processing", "pending") if b % 2 else ("pending", "processing")))
    _done(play, "cancel", lambda: play.client.cancel_job(job_id), by_hand.cancel(play.model, job_id))


def cancel_seen(play: Play, a: int, b: int) -> None:
    """The request as it is sent some steps after the run was seen: by then, the claim may be another."""
    seen = [copy for copy in play.read if copy.model.status == "processing" and copy.model.is_claimed_by_us]
    if not seen:
        ends.read(play, a, b)
        return
    copy = seen[a % len(seen)]
    allowed = by_hand.request_cancel(play.model, copy.model)
    real = job_changes.apply_if_allowed(play.jobs, transitions.request_cancel(copy.real, play.model.now))
    check_equal("request to cancel", allowed, real is not None)


def set_aside(play: Play, a: int, b: int) -> None:
    """Of a job as it was read some steps before, or now."""
    seen = [copy for copy in play.read if copy.model.status == "pending"]
    if not seen or a % 2:
        ends.read(play, b, a)
        seen = [copy for copy in play.read[-1:] if copy.model.status == "pending"]
    if not seen:
        return
    copy = seen[a // 2 % len(seen)]
    expected = by_hand.set_aside(play.model, copy.model, "refused")
    real = job_changes.apply_if_allowed(play.jobs, transitions.set_aside(copy.real, play.model.now, "refused"))
    check_equal("set aside", expected, real is not None)


def end_unstarted(play: Play, a: int, b: int) -> None:
    """Of jobs as they were read some steps before, or now: their moment has passed by the clock of this caller."""
    seen = [copy for one in play.instances for copy in one.candidates if copy.model.start_by] if a % 2 else []
    if not seen:
        if b % 2:
            claims.enqueue(play, claims.WITH_A_MOMENT, b)
        pending = [job.id for job in play.model.jobs.values() if job.status == "pending" and job.start_by]
        seen = [play.copy(job) for job in unstarted_writes.look(play.jobs)]
        check_equal("jobs with a moment", sorted(pending), sorted(copy.real.id for copy in seen))
    if not seen:
        return
    receipt = f"unstarted {play.number()}"
    expected = [copy.real.id for copy in seen if by_hand.end_unstarted(play.model, copy.model, receipt)]
    ended = unstarted_writes.end(play.jobs, [copy.real for copy in seen], play.model.now, receipt)
    check_equal("ended unstarted", sorted(expected), sorted(job.id for job in ended))


CALLS: Final[Sequence[tuple[float, float | None]]] = ((0.0, None), (5.0, None), (5.0, 8.0), (0.0, 8.0), (5.0, 60.0))
"""The delays of calls, and the longest waits of those that debounce."""


def replace(play: Play, a: int, b: int) -> None:
    """Of a job with a key, often of one that runs."""
    is_debounced, (delay, max_wait) = bool(a % 2), CALLS[b % len(CALLS)]
    now, number = play.model.now, play.number()
    content: dict[str, Any] = {"debounced_since": now} if is_debounced else {}
    if b // 8 % 4 == 0:
        content["start_by"] = claims.FAR
    longest = max_wait if is_debounced else None
    delay = delay if longest is None else min(delay, longest)
    expected, made = new_pair(
        ObjectId(f"{number:024x}"), now, name="sweep", unique_key="k", data={"call": number}, delay=delay, **content
    )
    new = replacing.Replacement(made, bson.encode({"": made.data}), longest)
    found = replacing.replace_or_insert(play.jobs, new)
    outcome, job = by_hand.replace(play.model, expected, None if longest is None else timedelta(seconds=longest))
    check_equal("outcome", outcome, found.outcome)
    check_same("replaced", job, found.job)


def replace_running(play: Play, a: int, b: int) -> None:
    """Of a run of ours, which ends then: decided before the call, or after it."""
    replace(play, a, 0)
    play.pass_time(timedelta(seconds=8))
    claims.claim(play, a + 6, 0)
    replace(play, a // 2, b)
    ends.settle(play, a + 6, b)
    ends.settle(play, a + 6, b)


def run_after_end(play: Play, a: int, b: int) -> None:
    """Often after Node has ended such a job."""
    if a % 4:
        replace(play, a, 0)
        play.pass_time(timedelta(seconds=8))
        play.node.claim("sweep")
        replace(play, a // 4, b)
        if held := [held for held in play.node.held if play.node.holds(held)]:
            node_end(play, a // 8 * 8 + len(held), 0 if b % 2 else 3)
    by_hand.run_after_end(play.model)
    starting_again.start_again(play.jobs, play.model.now)


def retry(play: Play, a: int, b: int) -> None:
    job_id = _target(play, a, *(("failed", "cancelled") if b % 3 else ("cancelled", "failed")))
    _done(play, "retry", lambda: play.client.retry_job(job_id), by_hand.retry(play.model, job_id))


def reschedule(play: Play, a: int, b: int) -> None:
    job_id = _target(play, a, "pending")
    moment = play.model.now + timedelta(seconds=b % 7 - 2)
    expected = by_hand.reschedule(play.model, job_id, moment)
    _done(play, "reschedule", lambda: play.client.reschedule_job(job_id, moment), expected)


def reschedule_between(play: Play, a: int, b: int) -> None:
    """A job that was just read as due is put off, or not, and then claimed as it was read."""
    claims.look(play, a, b)
    reschedule(play, a // 2, b)
    claims.take(play, a, b)


def delete(play: Play, a: int, b: int) -> None:
    job_id = _target(play, a, "completed", "processing")
    check_equal("delete", by_hand.delete(play.model, job_id), play.client.delete_job(job_id))
    play.gone.append(job_id)


def update(play: Play, a: int, b: int) -> None:
    """Of a job as it was read some steps before, or now."""
    seen = [copy for copy in play.read if copy.model.is_active]
    if not seen or a % 2:
        ends.read(play, b, a)
        seen = [copy for copy in play.read[-1:] if copy.model.is_active]
    if not seen:
        return
    copy = seen[a // 2 % len(seen)]
    now = play.model.now
    following = now + timedelta(seconds=b % 5 - 2)
    data, schedule = {"version": play.number()}, _OTHER[copy.model.repeat_interval]
    declared = copy.real.schedule
    if declared is not None and schedule is not None:
        declared = dataclasses.replace(declared, cron=schedule)
    if copy.real.status is JobStatus.PENDING:
        transition = transitions.update_pending(copy.real, now, following, data=data, schedule=declared)
    else:
        transition = transitions.update_claimed(copy.real, now, data=data, schedule=declared)
    job = play.model.jobs.get(copy.model.id)
    before = None if job is None else job.copy()
    changed = by_hand.update(play.model, copy.model, data, schedule, following)
    real = job_changes.apply_if_allowed(play.jobs, transition)
    check_same("update: as it was before", None if changed is None else before, real)


# --- Node ---


def node_claim(play: Play, a: int, b: int) -> None:
    """Of the name that has something due, if only one has."""
    due = {job.name for job in play.model.jobs.values() if play.model.is_due(job)}
    name = ("greet", "sweep")[a % 2]
    play.node.claim(name if name in due or not due else due.pop())


def node_end(play: Play, a: int, b: int) -> None:
    """Of a claim of the Node peer, at times of one that it has lost."""
    held = [held for held in play.node.held[-4:] if a % 8 == 7 or play.node.holds(held)]
    if not held:
        node_claim(play, a, b)
        held = play.node.held[-1:]
    if not held:
        return
    one = held[a // 8 % len(held)]
    if b % 8 < 3:
        play.node.complete(one)
    elif b % 8 < 7:
        play.node.fail(one, limit=b // 8 % 3)
    else:
        play.node.release(one)


def node_recover(play: Play, a: int, b: int) -> None:
    """At the start of a Node process, late enough for most locks; often it claims at once."""
    if a % 4:
        play.pass_time(timedelta(minutes=10))
    play.node.recover()
    if a % 8 > 3:
        node_claim(play, a, b)


def node_beat(play: Play, a: int, b: int) -> None:
    if a % 2 and not any(play.node.holds(held) for held in play.node.held):
        node_claim(play, a, b)
    play.node.beat()


def node_cancel(play: Play, a: int, b: int) -> None:
    play.node.cancel(_target(play, a, "pending"))


def node_retry(play: Play, a: int, b: int) -> None:
    play.node.retry(_target(play, a, *(("failed", "cancelled") if b % 3 else ("cancelled", "failed"))))


def node_reschedule(play: Play, a: int, b: int) -> None:
    play.node.reschedule(_target(play, a, "pending"), play.model.now + timedelta(seconds=b % 7 - 2))
