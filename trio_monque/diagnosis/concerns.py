"""What needs an operator: judgements of what an overview shows, each a function of facts. Without words, and pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from ..jobs.instance import Instance
from ..jobs.job import JobStatus
from ..jobs.minutes import Figures
from ..jobs.name_pause import NamePause
from ..jobs.views import QueueDepth, ScheduleBrief
from .failing_names import failing_names, is_failing
from .reasons import no_instance_runs

MOST_CONCERNS: Final = 5

LATE_AFTER: Final = 60.0
"""Seconds that a job may be due in any case, before its name counts as late."""

LATE_BY_TIMES: Final = 10.0
"""A name whose jobs usually wait for long is late when one waits this number of times as long."""

FAILED_WITHIN: Final = timedelta(hours=1)
"""How long a job that failed for good is a concern. Without an end, one old job would hide what is new."""


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that needs an operator.

    Attributes:
        kind: Such as "late"; the page on browsing jobs lists all.
        values: What the kind names; lengths of time are seconds, moments are in UTC.
    """

    kind: str
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class FleetFacts:
    """What an overview is made of.

    Attributes:
        now: The server's time.
        depths: The jobs of each name.
        is_capped: There may be more names.
        instances: All that have an entry, dead ones too.
        paused: The pauses, by name.
        recent: What became of the runs of each name in the last ten minutes.
        failed_for_good: How many jobs of each name failed for good in the last hour.
        usual_wait: The median of the seconds that jobs of a name were due before they ran, in the last hour.
        schedules: The recurring jobs, next run first.
        has_more_schedules: There may be more.
    """

    now: datetime
    depths: Mapping[str, QueueDepth] = field(default_factory=dict)
    is_capped: bool = False
    instances: Sequence[Instance] = ()
    paused: Mapping[str, NamePause] = field(default_factory=dict)
    recent: Mapping[str, Figures] = field(default_factory=dict)
    failed_for_good: Mapping[str, int] = field(default_factory=dict)
    usual_wait: Mapping[str, float] = field(default_factory=dict)
    schedules: Sequence[ScheduleBrief] = ()
    has_more_schedules: bool = False


def concerns_of(facts: FleetFacts, most: int = MOST_CONCERNS) -> tuple[Sequence[Concern], int]:
    """Return what needs an operator, the worst first, and how many more there are.

    If there are more than `most`, each kind has its worst one among them before any has a second one.
    """
    found = [(place, rank, one) for rank, judge in enumerate(WORST_FIRST) for place, one in enumerate([*judge(facts)])]
    chosen = sorted(found, key=lambda one: one[:2])[:most]
    return [one for _, _, one in sorted(chosen, key=lambda one: (one[1], one[0]))], len(found) - len(chosen)


def is_served(name: str, facts: FleetFacts) -> bool:
    """Return whether an instance runs the name, as far as is known.

    Processes of Monque for Node have no entry, but while jobs of the name are claimed and not stuck, something runs it.
    """
    depth = facts.depths.get(name, QueueDepth())
    return depth.processing > depth.stuck or no_instance_runs(name, facts.instances) is None


def is_late(name: str, facts: FleetFacts) -> bool:
    """Return whether the oldest due job of the name waits for too long."""
    age = facts.depths[name].oldest_due_age
    return age is not None and age > max(LATE_AFTER, LATE_BY_TIMES * facts.usual_wait.get(name, 0.0))


# --- Each judgement yields the worst one first ---


def not_served(facts: FleetFacts) -> Iterator[Concern]:
    """Yield the names that have due jobs and that no instance runs; where none is alive, that, and not each name."""
    names = [name for name in _by_age(facts) if name not in facts.paused and not is_served(name, facts)]
    waiting = [_waiting(name, facts) for name in names]
    if len(waiting) > 1 and not any(one.is_live for one in facts.instances):
        of_all = {
            "names": len(waiting),
            "due": sum(one["due"] for one in waiting),
            "is_capped": any(one["is_capped"] for one in waiting),
            "seconds": waiting[0]["seconds"],
        }
        yield Concern("no_instance", of_all)
        return
    for one in waiting:
        yield Concern("not_served", one)


def failing(facts: FleetFacts) -> Iterator[Concern]:
    """Yield the names whose attempts fail often."""
    for values in failing_names(facts.recent):
        yield Concern("failing", values)


def stuck(facts: FleetFacts) -> Iterator[Concern]:
    """Yield the names with running jobs whose holders are silent."""
    for name, depth in sorted(facts.depths.items(), key=lambda one: -one[1].stuck):
        if depth.stuck:
            yield Concern("stuck", {"name": name, "count": depth.stuck})


def silent_instances(facts: FleetFacts) -> Iterator[Concern]:
    """Yield the instances that are not alive and held jobs, those with the most jobs first."""
    for one in sorted(facts.instances, key=lambda one: (-one.held, one.id)):
        if not one.is_live and one.held:
            silent = (facts.now - one.last_heartbeat) / timedelta(seconds=1)
            yield Concern(
                "silent_instance",
                {"instance": one.id, "host": one.host, "pid": one.pid, "seconds": max(0.0, silent), "held": one.held},
            )


def late(facts: FleetFacts) -> Iterator[Concern]:
    """Yield the names whose jobs wait for too long although an instance runs them."""
    for name in _by_age(facts):
        if name not in facts.paused and is_late(name, facts) and is_served(name, facts):
            yield Concern("late", {**_waiting(name, facts), "usual": facts.usual_wait.get(name)})


def failed_schedules(facts: FleetFacts) -> Iterator[Concern]:
    """Yield the schedules that failed for good, so that they do not recur, the last one first."""
    live = {_key(one) for one in facts.schedules if one.status in (JobStatus.PENDING, JobStatus.PROCESSING)}
    failed = [one for one in facts.schedules if one.status == JobStatus.FAILED]
    # A schedule that was declared again is a new job with the same key.
    for one in sorted(failed, key=lambda one: one.at, reverse=True):
        if one.unique_key is None or _key(one) not in live:
            yield Concern(
                "schedule_failed", {"job": str(one.id), "name": one.name, "key": one.unique_key, "at": one.at}
            )


def failed_jobs(facts: FleetFacts) -> Iterator[Concern]:
    """Yield the names with jobs that failed for good in the last hour and are still there as failed.

    A name that is failing, and a schedule that failed for good, have lines of their own.
    """
    schedules = Counter(one.values["name"] for one in failed_schedules(facts))
    for name, number in sorted(facts.failed_for_good.items(), key=lambda one: (-one[1], one[0])):
        if name in facts.recent and is_failing(facts.recent[name]):
            continue
        depth = facts.depths.get(name, QueueDepth())
        # Those that were retried, cancelled or deleted since are not failed any more.
        if number and (depth.failed > schedules[name] or JobStatus.FAILED in depth.capped):
            yield Concern("failed_jobs", {"name": name, "failed": number, "seconds": FAILED_WITHIN.total_seconds()})


def paused_names(facts: FleetFacts) -> Iterator[Concern]:
    """Yield the paused names whose jobs wait."""
    for name in _by_age(facts):
        if (pause := facts.paused.get(name)) is not None:
            yield Concern("paused", {**_waiting(name, facts), **pause.facts})


def silent_without_jobs(facts: FleetFacts) -> Iterator[Concern]:
    """Yield how many instances are not alive and held no jobs, if any: as one concern, as no job waits for them."""
    if number := sum(not one.is_live and not one.held for one in facts.instances):
        yield Concern("silent_without_jobs", {"instances": number})


WORST_FIRST: Final[Sequence[Callable[[FleetFacts], Iterator[Concern]]]] = (
    not_served,
    failing,
    stuck,
    silent_instances,
    late,
    failed_schedules,
    failed_jobs,
    paused_names,
    silent_without_jobs,
)


def _by_age(facts: FleetFacts) -> Sequence[str]:
    """Return the names with due jobs, that with the oldest one first."""
    ages = {name: depth.oldest_due_age for name, depth in facts.depths.items() if depth.oldest_due_age is not None}
    return sorted(ages, key=lambda name: (-ages[name], name))


def _waiting(name: str, facts: FleetFacts) -> dict[str, Any]:
    depth = facts.depths[name]
    return {
        "name": name,
        "due": depth.due,
        "is_capped": JobStatus.PENDING in depth.capped and depth.due == depth.pending,
        "seconds": depth.oldest_due_age,
    }


def _key(one: ScheduleBrief) -> tuple[str, str | None]:
    return one.name, one.unique_key
