"""Operations that end claims: in time, too late, twice, and by another party. Each on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trio_monque.jobs.job import JobStatus
from trio_monque.jobs.job_parts import RunAgain, Schedule
from trio_monque.store.jobs import settling
from trio_monque.store.jobs.settling import grouped
from trio_monque.store.reads import queries

from . import claims
from .context import transition_of
from .model import Ending
from .play import Batch, Copy, Instance, Play, turned
from .state import check_equal

OUTCOMES: Final = ("succeed", "fail", "discard", "snooze", "succeed", "cut short", "fail soon", "fail")


def settle(play: Play, a: int, b: int) -> None:
    """Ends one to three runs together."""
    instance = play.instance(a)
    if not instance.held:
        claims.claim(play, a, b)
        return
    copies = turned(instance.held, a // 2, 1 + a % 3)
    # Often one outcome for all, so that they become one statement.
    outcomes = [OUTCOMES[(b + place * (b // 8 % 2)) % len(OUTCOMES)] for place in range(len(copies))]
    instance.sent = _sent(play, copies, outcomes)
    _settle(play, instance, instance.sent)


def settle_lost(play: Play, a: int, b: int) -> None:
    """A run that goes on after its claim ended: the fence must hold."""
    instance = play.instance(a)
    if not instance.ended:
        settle(play, a, b)
        return
    copy = instance.ended[a // 2 % len(instance.ended)]
    _settle(play, instance, _sent(play, [copy], [OUTCOMES[b % len(OUTCOMES)]]))


def settle_again(play: Play, a: int, b: int) -> None:
    """The same statements once more, as after a lost answer: at once, or when others have acted."""
    instance = play.instance(a)
    if instance.sent is None:
        settle(play, a, b)
    else:
        _settle(play, instance, instance.sent)


def rescue(play: Play, a: int, b: int) -> None:
    """Of a claim as it was seen some steps before, or now."""
    seen = [copy for copy in play.read if copy.real.status is JobStatus.PROCESSING]
    if not seen or a % 2:
        read(play, b, a)
        seen = [copy for copy in play.read[-1:] if copy.real.status is JobStatus.PROCESSING]
    if seen:
        _settle(play, None, _sent(play, [seen[a // 2 % len(seen)]], ["rescue"]))


def read(play: Play, a: int, b: int) -> None:
    """Reads a job, for a rescue or an update that comes later."""
    job_id = play.job(a, "processing")
    if job_id is None:
        claims.enqueue(play, a, b)
        return
    found = queries.get_job(play.jobs, job_id)
    check_equal("read", job_id in play.model.jobs, found is not None)
    if found is not None:
        play.read = [*play.read, play.copy(found)][-4:]


def _sent(play: Play, copies: Sequence[Copy], outcomes: Sequence[str]) -> Batch:
    """What is to be sent, decided at this moment."""
    receipt, now = f"s{play.number()}", play.model.now
    endings = [Ending(copy.model, outcome, now, receipt) for copy, outcome in zip(copies, outcomes, strict=True)]
    transitions = [
        transition_of(copy.real, outcome, now, receipt) for copy, outcome in zip(copies, outcomes, strict=True)
    ]
    return Batch(copies, endings, grouped(transitions, receipt))


def _settle(play: Play, instance: Instance | None, batch: Batch) -> None:
    real = settling.settle(play.jobs, batch.statements)
    for copy, ending in zip(batch.copies, batch.endings, strict=True):
        fate = play.model.settle(ending)
        check_equal(f"fate of {ending.outcome!r}", fate, real[copy.claim].name)
        if instance is None:
            continue
        if fate != "JOB_CHANGED":
            instance.forget(copy)
        elif copy in instance.held:
            instance.held[instance.held.index(copy)] = _with_current_schedule(play, copy)


AGAIN: Final = ("again", "again_data", "again_at", "again_start_by", "again_since")


def _with_current_schedule(play: Play, copy: Copy) -> Copy:
    """As a scheduler does before it decides again: with what was left in the job for another run."""
    current = play.model.jobs[copy.model.id]
    read = {name: getattr(current, name) for name in ("repeat_interval", *AGAIN)}
    schedule = None if current.repeat_interval is None else Schedule(cron=current.repeat_interval)
    again = None
    if current.again is not None:
        again = RunAgain(
            call=current.again,
            data=current.again_data,
            next_run_at=current.again_at,
            start_by=current.again_start_by,
            debounced_since=current.again_since,
        )
    real = replace(copy.real, schedule=schedule, again=again)
    return Copy(replace(copy.model, **read), real)
