"""Judges the facts of the jobs and of the instances that run them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ..jobs.failure_groups import error_kind, group_by
from ..jobs.instance import Instance, may_run, similar_name
from ..jobs.job import JobStatus
from ..jobs.rescue_policy import SUSPECT_FROM
from ..jobs.views import BrokenDocument
from ..safe_text import one_line, shown
from ..store.broken.broken_documents import CUT_OFF
from ..store.broken.suggested_repairs import suggested_repair
from ..store.driver.types import ObjectId
from ..store.reads.diagnosis.backlog import MOST_NAMES as MOST_BACKLOGS
from ..store.reads.diagnosis.caps import Count
from ..store.reads.diagnosis.changed_schedules import NotedSchedule
from ..store.reads.diagnosis.documents import MOST_FOUND as MOST_DOCUMENTS
from ..store.reads.diagnosis.held_jobs import Holder
from ..store.reads.diagnosis.jobs import MANY_FAILURES, TroubledJob
from .facts import JobFacts
from .failing_names import failing_names
from .findings import Finding, found
from .judging_backlogs import judge_backlogs
from .reasons import BLOCKED_LATELY

MOST_BROKEN_NAMED: Final = 10
"""Broken documents whose ids a finding has: `trio-monque jobs` does not list them."""


def judge_jobs(facts: JobFacts) -> Iterator[Finding]:
    """Yield what is wrong with the instances and the jobs."""
    live = [one for one in facts.instances if one.is_live]
    pending = sum((one.pending for one in facts.backlogs), Count(0, len(facts.backlogs) >= MOST_BACKLOGS))
    # Processes of another library have no entry.
    works_elsewhere = any(not one.is_ours and not one.silent for one in facts.holders)
    is_alone = not live and not works_elsewhere
    if is_alone and pending:
        yield found("no-instance", pending=pending)
    yield from _judge_dead(facts)
    yield from _judge_overdue(facts, live)
    yield from _judge_loops(facts, live)
    for holder in facts.holders:
        yield from _judge_holder(holder, facts, is_alone=is_alone)
    yield from judge_backlogs(facts, live)
    if facts.unused is not None and not any(facts.unused in one.names for one in live):
        yield found("no-such-name", name=facts.unused, similar=similar_name(facts.unused, live))
    for values in failing_names(facts.recent):
        yield found("failing-name", **values)
    yield from _judge_troubled(facts)
    for unstarted in facts.unstarted:
        obstacle, job = _obstacle(unstarted.name, facts, live), str(unstarted.example)
        values = {"count": unstarted.count, "job": job, "ago": facts.ago(unstarted.at), "obstacle": obstacle}
        yield found("not-started-in-time", name=unstarted.name, **values)
    for owed in facts.owed:
        yield found("owed-follow-ups", name=owed.name, count=owed.count, ago=facts.ago(owed.since))
    yield from _judge_schedules(facts)
    yield from _judge_put_off(facts)
    yield from _judge_documents(facts)


def _judge_dead(facts: JobFacts) -> Iterator[Finding]:
    dead = sorted((one for one in facts.instances if not one.is_live), key=lambda one: one.last_heartbeat, reverse=True)
    if dead:
        last, others = dead[0], [one.id for one in dead[1:]]
        ago = facts.ago(last.last_heartbeat)
        yield found("dead-instance", instance=last.id, pid=last.pid, host=last.host, ago=ago, others=others)


def _obstacle(name: str, facts: JobFacts, live: Sequence[Instance]) -> str | None:
    """What keeps jobs of the name from starting now; None if nothing is known."""
    if name in facts.paused:
        return "paused"
    return None if may_run(name, live) or any(not one.is_ours for one in facts.holders) else "unserved"


def _judge_overdue(facts: JobFacts, live: Sequence[Instance]) -> Iterator[Finding]:
    names = {name for one in live for name in one.overdue_by_name if facts.name in (None, name)}
    for name in sorted(names):
        most = max(live, key=lambda one: one.overdue_by_name.get(name, 0))
        count = Count(sum(one.overdue_by_name.get(name, 0) for one in live))
        yield found("overdue-threads", name=name, count=count, instance=most.id)


def _judge_loops(facts: JobFacts, live: Sequence[Instance]) -> Iterator[Finding]:
    for one in live:
        last = one.last_block
        # It keeps the jobs of every name waiting that the instance runs.
        concerns_it = facts.name in (None, last.name if last else None, *one.names)
        if last is None or facts.ago(last.at) > BLOCKED_LATELY or not concerns_it:
            continue
        times = {"times": one.loop_blocked, "seconds": last.seconds, "ago": facts.ago(last.at)}
        yield found("blocked-loop", instance=one.id, handler=last.name, **times)


def _judge_schedules(facts: JobFacts) -> Iterator[Finding]:
    for bads in group_by(
        facts.bad_schedules, lambda one: (one.name, one.status, one.is_unknown_here, error_kind(one.problem))
    ):
        yield found(
            "unknown-time-zone" if bads[0].is_unknown_here else "bad-schedule",
            count=Count(len(bads)),
            job=str(bads[0].id),
            name=bads[0].name,
            status=bads[0].status,
            problem=bads[0].problem,
        )
    for cancelled in group_by(facts.schedules.cancelled, lambda one: one.name):
        yield _of_schedules("ended-schedule", cancelled)
    for changed in group_by(facts.schedules.changed, lambda one: one.name):
        last = changed[0]
        yield _of_schedules("changed-schedule", changed, before=last.before, after=last.after, declared_by=last.by)


def _of_schedules(kind: str, noted: Sequence[NotedSchedule], **values: Any) -> Finding:
    """Return a finding about schedules of one name, the last one first."""
    last = noted[0]
    count = Count(len(noted))
    return found(kind, count=count, job=str(last.id), name=last.name, key=last.key, at=last.at, **values)


def _judge_put_off(facts: JobFacts) -> Iterator[Finding]:
    for jobs in group_by(facts.put_off, lambda one: one.name):
        last = jobs[0]
        yield found(
            "put-off-key", count=Count(len(jobs)), job=str(last.id), name=last.name, held_key=last.key, at=last.due
        )


def _judge_documents(facts: JobFacts) -> Iterator[Finding]:
    is_capped = len(facts.full) >= MOST_DOCUMENTS
    for group in group_by(facts.full, lambda one: (one.name, one.is_claimable)):
        kind = "nearly-full-document" if group[0].is_claimable else "oversized-document"
        largest = max(group, key=lambda one: one.size)
        count = Count(len(group), is_capped)
        yield found(kind, count=count, job=str(largest.id), name=largest.name, size=largest.size)
    # A document without room for a claim may be among the broken ones, too.
    full = {repr(one.id) for one in facts.full}
    broken = [one for one in facts.broken if repr(one.document_id) not in full]
    for some in group_by(broken, lambda one: (error_kind(one.reason), _repair_of(one))):
        yield found(
            "broken-document",
            count=Count(len(some), len(facts.broken) >= MOST_DOCUMENTS),
            document=_id_of(some[0]),
            others=[_id_of(one) for one in some[1:MOST_BROKEN_NAMED]],
            problem=some[0].reason,
            repair=_repair_of(some[0]),
        )


def _id_of(one: BrokenDocument) -> str:
    """The id as a command takes it, if it is that of a job; otherwise as Python shows it."""
    return str(one.document_id) if isinstance(one.document_id, ObjectId) else shown(one.document_id)


def _repair_of(one: BrokenDocument) -> str | None:
    # A document with very many fields is not shown whole, and what is cut off may be there.
    return None if CUT_OFF in one.document else suggested_repair(one.document)


# --- Running jobs ---


def _judge_holder(holder: Holder, facts: JobFacts, *, is_alone: bool) -> Iterator[Finding]:
    """Yield what is wrong with a holder; `is_alone` if no process is alive that takes its jobs."""
    silent = 0.0 if holder.silent_since is None else facts.ago(holder.silent_since)
    if holder.instance_id is None:
        yield found("no-holder", count=holder.held, job=str(holder.example), is_alone=is_alone)
    elif holder.is_ours and holder.silent:
        yield found(
            "stuck-jobs",
            count=holder.silent,
            instance=holder.instance_id,
            silent=silent,
            job=str(holder.example),
            lease=holder.lease,
            is_alone=is_alone,
            **_state_of(holder, facts),
        )
    elif holder.silent:
        yield found(
            "stuck-node-jobs",
            count=holder.silent,
            instance=holder.instance_id,
            silent=silent,
            job=str(holder.example),
            is_alone=is_alone,
        )
    elif not holder.is_ours:
        yield found("node-peer", instance=holder.instance_id, count=holder.held)


def _state_of(holder: Holder, facts: JobFacts) -> Mapping[str, Any]:
    entry = next((one for one in facts.instances if one.id == holder.instance_id), None)
    if entry is None:
        return {"state": "ended"}
    state = "alive" if entry.is_live else "silent"
    return {"state": state, "pid": entry.pid, "host": entry.host, "ago": facts.ago(entry.last_heartbeat)}


# --- Jobs in trouble ---


def _judge_troubled(facts: JobFacts) -> Iterator[Finding]:
    jobs = facts.troubled.jobs
    poison = [one for one in jobs if one.deaths >= SUSPECT_FROM or (one.deaths and one.status == JobStatus.FAILED)]
    for group in group_by(poison, lambda one: (one.name, one.status)):
        deaths = max(one.deaths for one in group)
        yield _of_group("poison-job", group, facts, status=group[0].status, deaths=deaths)
    known = set(map(id, poison))
    others = [one for one in jobs if id(one) not in known and not one.is_dealt_with]
    for group in group_by(others, lambda one: (one.status == JobStatus.FAILED, one.name, error_kind(one.reason))):
        reason = one_line(group[0].reason or "an unknown error")
        if group[0].status == JobStatus.FAILED:
            yield _of_group("failed-jobs", group, facts, reason=reason)
        elif group := [one for one in group if one.failures >= MANY_FAILURES]:
            yield _of_group("failing-job", group, facts, reason=reason, failures=MANY_FAILURES)
    # One that was given up is a finding above.
    if rescued := sum(one.deaths > 0 and one.status != JobStatus.FAILED for one in jobs):
        yield found("rescued-jobs", count=Count(rescued, facts.troubled.is_capped))


def _of_group(kind: str, group: Sequence[TroubledJob], facts: JobFacts, **values: object) -> Finding:
    first = group[0]
    count = Count(len(group), facts.troubled.is_capped)
    return found(kind, count=count, name=first.name, job=str(first.id), **values)
