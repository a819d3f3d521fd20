"""Operations on new jobs and on claims: each on both sides, and the answers compared.

An operation takes two numbers that choose among what there is. One that finds nothing to act on makes
something instead, so that nearly every step of a random sequence does something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from bson import ObjectId

from tests.support.jobs_in_memory import flat
from trio_monque.jobs import transitions
from trio_monque.jobs.claim_stamps_and_fences import ClaimStamp
from trio_monque.store.jobs import claiming, due, inserting, job_changes, leases

from .context import new_pair, parcel_of
from .play import Copy, Instance, Play, turned
from .state import HALF_PAST, HOURLY, check_equal, check_same

STEPS_OF_TIME: Final = (
    timedelta(hours=1),
    timedelta(minutes=10),
    timedelta(seconds=5),
    timedelta(milliseconds=1),
)
# Later than all that is played: here it is only kept, until the job has run.
FAR: Final = datetime(2100, 1, 1, tzinfo=UTC)

NEW_JOBS: Final[Sequence[dict[str, Any]]] = (
    {"name": "greet", "max_attempts": 1, "max_rescues": 0},
    {"name": "greet", "repeat_interval": HOURLY},
    {"name": "sweep", "unique_key": "k"},
    {"name": "greet", "max_rescues": 0, "start_by": FAR},
    {"name": "sweep", "unique_key": "k", "repeat_interval": HALF_PAST},
    {"name": "greet", "repeat_interval": HOURLY, "on_exhausted": "fail", "max_attempts": 1},
    {"name": "sweep", "unique_key": "k", "delay": 5.0},
    {"name": "sweep", "data": {"version": 0}, "max_rescues": 0, "meta": {"tenant": "acme"}},
)
WITH_A_MOMENT: Final = 3
WANTED: Final = ({"greet": 3, "sweep": 2}, {"greet": 2}, {"sweep": 1, "greet": 1}, {"sweep": 2})

# In these a claimed copy may be older than the claim: Node reschedules, and retries a job that had not failed, and
# leaves alone all that a claim pins. No run relies on them.
NOT_PINNED: Final = frozenset({"next_run_at", "fail_reason", "receipt", "started_at", "finished_at"})


def enqueue(play: Play, a: int, b: int) -> None:
    job_id = ObjectId(f"{play.number():024x}")
    expected, made = new_pair(job_id, play.model.now, **NEW_JOBS[a % len(NEW_JOBS)])
    if made.unique_key is None:
        check_equal("enqueue: refused", {}, inserting.insert_all(play.jobs, [parcel_of(made)]))
        play.model.enqueue(expected)
    else:
        found = inserting.insert_unless_key_is_in_use(play.jobs, parcel_of(made))
        check_same("enqueue", play.model.enqueue(expected), found)


def node_enqueue(play: Play, a: int, b: int) -> None:
    ours = ("max_attempts", "max_rescues", "on_exhausted", "meta", "start_by")
    content = {name: value for name, value in NEW_JOBS[a % len(NEW_JOBS)].items() if name not in ours}
    expected, _ = new_pair(ObjectId(f"{play.number():024x}"), play.model.now, **content)
    play.node.enqueue(expected)


def advance(play: Play, a: int, b: int) -> None:
    play.pass_time(STEPS_OF_TIME[a % len(STEPS_OF_TIME)])


def look(play: Play, a: int, b: int) -> None:
    """For a `take` some steps later."""
    play.instance(a).candidates = _looked(play, WANTED[b % len(WANTED)])


def take(play: Play, a: int, b: int) -> None:
    """Of candidates that were read some steps before."""
    instance = play.instance(a) if play.instance(a).candidates else play.instance(a + 1)
    candidates, instance.candidates = instance.candidates, []
    if candidates:
        _take(play, instance, candidates)
    else:
        look(play, a, b)


def claim(play: Play, a: int, b: int) -> None:
    """Look and take with nothing in between; where nothing is due, time passes or a new job is made first."""
    if not any(play.model.is_due(job) for job in play.model.jobs.values()):
        if b % 4 and any(job.status == "pending" for job in play.model.jobs.values()):
            advance(play, 0, 0)
        else:
            enqueue(play, b // 4, a)
    if candidates := _looked(play, WANTED[a // 2 % len(WANTED)]):
        _take(play, play.instance(a), candidates)


def _looked(play: Play, wanted: Mapping[str, int]) -> list[Copy]:
    found = due.look(play.jobs, wanted, play.model.now).jobs
    play.model.check_looked(wanted, [job.id for job in found])
    for job in found:
        check_same("look", play.model.jobs[job.id], job)
    return [play.copy(job) for job in found]


def _take(play: Play, instance: Instance, candidates: Sequence[Copy]) -> None:
    stamp = ClaimStamp.new(instance.id, play.model.now, 30.0, f"{play.number():x}")
    taken = claiming.take(play.jobs, [copy.real for copy in candidates], play.model.now, stamp)
    ids = [job.id for job in taken.jobs]
    play.model.take([copy.model for copy in candidates], ids, stamp.claim_token, instance.id)
    check_equal("take: more", len(ids) < len(candidates), taken.more)
    for job in taken.jobs:
        check_same("take", play.model.jobs[job.id], job, but=NOT_PINNED)
        instance.held.append(play.copy(job))


def renew(play: Play, a: int, b: int) -> None:
    """One beat, a moment later; at times of claims that ended while it was on its way."""
    instance = play.instance(a)
    copies = [*(instance.ended if b % 2 else ()), *instance.held]
    if not copies:
        claim(play, a, b)
        return
    play.pass_time(timedelta(milliseconds=1))
    beaten = turned(copies, a // 2, 10)
    real = [copy.real for copy in beaten]
    lost = play.model.renew([copy.model for copy in beaten])
    asked = {copy.claim for copy in beaten if (job := play.model.holds(copy.model)) and job.cancel_requested_at}
    found = leases.renew(play.jobs, real, play.model.now)
    check_equal("renew: lost", lost, found.lost)
    check_equal("renew: cancel requests", asked, found.cancel_requested)
    for copy in beaten:
        if copy.claim in lost:
            instance.forget(copy)


def report(play: Play, a: int, b: int) -> None:
    copy = _any_claim(play, a)
    if copy is None:
        claim(play, a, b)
        return
    transition = transitions.report(copy.real, play.model.now, saved={"b": b})
    check_equal("report", play.model.report(copy.model, {"b": b}), job_changes.report_if_held(play.jobs, transition))


def release_all(play: Play, a: int, b: int) -> None:
    """As after a claim whose answer was lost."""
    of = _any_claim(play, a)
    if of is None:
        claim(play, a, b)
        return
    real = flat(of.real)
    stamp = ClaimStamp(
        claimed_by=real.claimed_by, locked_at=real.locked_at, claim_token=real.claim_token, heartbeat_interval=30.0
    )
    expected = play.model.release_all(of.model)
    check_equal("release_all", expected, claiming.release_all(play.jobs, stamp, play.model.now))


def _any_claim(play: Play, a: int) -> Copy | None:
    """A claim that the instance holds, held, or believes to hold."""
    instance = play.instance(a)
    copies = [*instance.held, *instance.ended]
    return copies[a // 2 % len(copies)] if copies else None
