"""Judges the pending jobs of a name: why do due ones not run, although an instance runs the name? Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ..jobs.failure_groups import group_by
from ..jobs.instance import MOST_NAMES, Instance, similar_name
from ..store.reads.diagnosis.backlog import Backlog
from ..store.reads.diagnosis.caps import Count
from ..store.reads.diagnosis.held_jobs import RunsOfName
from .facts import JobFacts
from .findings import Finding, found

MOST_NAMES_IN_THE_WAY: Final = 3

LATE: Final = 60.0
"""Seconds that a job may be due before its name counts as one with a backlog."""


def judge_backlogs(facts: JobFacts, live: Sequence[Instance]) -> Iterator[Finding]:
    """Yield what is wrong with the pending jobs of each name; first what keeps names waiting for the same slots."""
    findings = [one for backlog in facts.backlogs for one in _judge_backlog(backlog, facts, live)]
    waiting = {one.values["name"]: one for one in findings if one.kind == "slots-taken"}
    # Names that wait for the slots of the same instances are one finding; also those that do not wait for long yet.
    soon = [one.name for one in facts.backlogs if waiting and _waits_for_a_slot(one, facts, live)]
    for names in group_by([*waiting, *soon], lambda name: _serving(name, live)):
        if late := [waiting[name] for name in names if name in waiting]:
            worst = max(late, key=lambda one: one.values["ago"])
            yield found("slots-taken", **worst.values, also=sorted({*names} - {worst.values["name"]}))
    yield from (one for one in findings if one.kind != "slots-taken")


def _waits_for_a_slot(backlog: Backlog, facts: JobFacts, live: Sequence[Instance]) -> bool:
    is_due = backlog.due and backlog.name not in facts.paused and facts.ago(backlog.oldest) <= LATE
    return bool(is_due and not _runs_of(backlog.name, facts) and _are_slots_taken(backlog.name, live))


def _serving(name: str, live: Sequence[Instance]) -> frozenset[str]:
    """Return the ids of the instances that claim jobs of the name."""
    return frozenset(one.id for one in live if name in one.names and not one.draining)


def _runs_of(name: str, facts: JobFacts) -> Mapping[str | None, RunsOfName]:
    return {one.instance_id: one.by_name[name] for one in facts.holders if name in one.by_name}


def _judge_backlog(backlog: Backlog, facts: JobFacts, live: Sequence[Instance]) -> Iterator[Finding]:
    """Yield what is wrong with the pending jobs of one name."""
    name = backlog.name
    if (pause := facts.paused.get(name)) is not None:
        if backlog.due:
            yield found("paused-name", name=name, due=backlog.due, **pause.facts)
        return
    if not live:
        return
    # A process of another library has no entry, and an entry lists a thousand names.
    is_all_known = not any(not one.is_ours for one in facts.holders) and all(
        len(one.names) < MOST_NAMES for one in live
    )
    known = {one for instance in live for one in instance.names}
    if name not in known and is_all_known:
        ago = facts.ago(backlog.oldest) if backlog.due else None
        similar = similar_name(name, live)
        yield found("unknown-name", name=name, pending=backlog.pending, oldest_due=ago, similar=similar)
    elif backlog.due and facts.ago(backlog.oldest) > LATE:
        yield _judge_late(backlog, facts, live)


def _judge_late(backlog: Backlog, facts: JobFacts, live: Sequence[Instance]) -> Finding:
    name = backlog.name
    late = {"name": name, "due": backlog.due, "ago": facts.ago(backlog.oldest)}
    runs = _runs_of(name, facts)
    # A job that was claimed within the last minute shows that jobs of the name start. Of more running jobs than are
    # looked at, one of the others may have been.
    is_known = not any(one.held.is_capped for one in facts.holders)
    if not is_known or any(facts.ago(one.latest) <= LATE for one in runs.values()):
        return found("backlog", **late)
    for one in live:
        if _has_free_slot(one, name, runs.get(one.id), facts):
            return found("not-starting", **late, instance=one.id)
    if of_live := [runs[one.id] for one in live if one.id in runs]:
        longest = min(of_live, key=lambda one: one.since)
        return found(
            "long-runs",
            **late,
            running=Count(sum(one.number for one in of_live)),
            job=str(longest.longest),
            since=longest.since,
            longest=facts.ago(longest.since),
        )
    if not runs and _are_slots_taken(name, live):
        return found("slots-taken", **late, names=_names_in_the_way(name, live))
    return found("backlog", **late)


def _are_slots_taken(name: str, live: Sequence[Instance]) -> bool:
    """Return whether no instance that runs the name had a free slot at its last heartbeat."""
    serving = [one for one in live if name in one.names and not one.draining]
    return bool(serving) and all(one.slots is not None and one.slots_taken >= one.slots for one in serving)


def _names_in_the_way(name: str, live: Sequence[Instance]) -> Sequence[str]:
    """Return the names that hold most of the slots of the instances that run this one, as far as that is known."""
    counts: Counter[str] = Counter()
    for one in live:
        if name in one.names and not one.draining:
            # Which names wait for children is unknown: those hold no slots. A name that holds more than wait does.
            counts.update({other: number for other, number in one.held_by_name.items() if number > one.parked})
            counts.update(one.overdue_by_name)
    return [other for other, _ in counts.most_common(MOST_NAMES_IN_THE_WAY)]


def _has_free_slot(instance: Instance, name: str, runs: RunsOfName | None, facts: JobFacts) -> bool:
    """Return whether the instance could run one more job of the name, as far as its last heartbeat shows.

    Its limit for the name is unknown, unless it runs no other name. But it has a slot for a name that has none.
    """
    if name not in instance.names or instance.draining or instance.slots is None:
        return False
    # It may not have looked for jobs yet.
    if facts.ago(instance.started_at) <= LATE:
        return False
    number = 0 if runs is None else runs.number
    is_limit_known = not number or len(instance.names) == 1
    # What it held then and does not run any more has ended: its jobs do start.
    are_the_same = instance.held_by_name.get(name, 0) <= number and name not in instance.overdue_by_name
    return is_limit_known and are_the_same and instance.slots_taken < instance.slots
