"""Judges the facts of the jobs and of the instances that run them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from shlex import quote
from typing import Final

from ...jobs.failure_groups import error_kind, group_by
from ...jobs.instance import MOST_NAMES, Instance
from ...jobs.job import JobStatus
from ...jobs.rescue_policy import SUSPECT_FROM
from ...safe_text import one_line, shown
from ...store.reads.diagnosis.backlog import MOST_NAMES as MOST_BACKLOGS
from ...store.reads.diagnosis.backlog import Backlog
from ...store.reads.diagnosis.caps import Count
from ...store.reads.diagnosis.documents import MOST_FOUND as MOST_DOCUMENTS
from ...store.reads.diagnosis.held_jobs import Holder
from ...store.reads.diagnosis.jobs import MANY_FAILURES, TroubledJob
from . import findings as kinds
from .about_server import found
from .facts import JobFacts
from .findings import Finding, FindingKind

LATE: Final = 60.0
"""Seconds that a job may be due before its name counts as one with a backlog."""

_ALIKE: Final = 0.7
"""How alike two names are, by difflib, if one may be the other misspelt."""


def judge_jobs(facts: JobFacts) -> Iterator[Finding]:
    """Yield what is wrong with the instances and the jobs."""
    live = [one for one in facts.instances if one.is_live]
    pending = sum((one.pending for one in facts.backlogs), Count(0, len(facts.backlogs) >= MOST_BACKLOGS))
    # Processes of another library have no entry.
    works_elsewhere = any(not one.is_ours and not one.silent for one in facts.holders)
    if not live and pending and not works_elsewhere:
        yield found(kinds.NO_INSTANCE, pending=pending)
    for instance in facts.instances:
        if not instance.is_live:
            ago = _ago(facts.now, instance.last_heartbeat)
            yield found(kinds.DEAD_INSTANCE, instance=instance.id, pid=instance.pid, host=instance.host, ago=ago)
    yield from _judge_overdue(facts, live)
    for holder in facts.holders:
        yield from _judge_holder(holder, facts)
    for backlog in facts.backlogs:
        yield from _judge_backlog(backlog, facts, live)
    if facts.unused is not None and not any(facts.unused in one.names for one in live):
        yield found(kinds.NO_SUCH_NAME, name=facts.unused, suggestion=_suggestion(facts.unused, live))
    yield from _judge_troubled(facts)
    for owed in facts.owed:
        yield found(kinds.OWED_FOLLOW_UPS, name=owed.name, count=owed.count, ago=_ago(facts.now, owed.since))
    for bads in group_by(
        facts.schedules, lambda one: (one.name, one.status, one.is_unknown_here, error_kind(one.problem))
    ):
        yield found(
            kinds.UNKNOWN_ZONE if bads[0].is_unknown_here else kinds.BAD_SCHEDULE,
            count=Count(len(bads)),
            job=str(bads[0].id),
            name=bads[0].name,
            status=bads[0].status,
            problem=bads[0].problem,
        )
    yield from _judge_documents(facts)


def _judge_overdue(facts: JobFacts, live: Sequence[Instance]) -> Iterator[Finding]:
    names = {name for one in live for name in one.overdue_by_name if facts.name in (None, name)}
    for name in sorted(names):
        most = max(live, key=lambda one: one.overdue_by_name.get(name, 0))
        count = Count(sum(one.overdue_by_name.get(name, 0) for one in live))
        yield found(kinds.OVERDUE_THREADS, name=name, count=count, instance=most.id)


def _judge_documents(facts: JobFacts) -> Iterator[Finding]:
    is_capped = len(facts.full) >= MOST_DOCUMENTS
    for group in group_by(facts.full, lambda one: (one.name, one.is_claimable)):
        kind = kinds.NEARLY_FULL_DOCUMENT if group[0].is_claimable else kinds.OVERSIZED_DOCUMENT
        largest = max(group, key=lambda one: one.size)
        count = Count(len(group), is_capped)
        yield found(kind, count=count, job=str(largest.id), name=largest.name, size=f"{largest.size:,}")
    # A document without room for a claim may be among the broken ones, too.
    full = {repr(one.id) for one in facts.full}
    broken = [one for one in facts.broken if repr(one.document_id) not in full]
    for some in group_by(broken, lambda one: error_kind(one.reason)):
        yield found(
            kinds.BROKEN_DOCUMENT,
            count=Count(len(some), len(facts.broken) >= MOST_DOCUMENTS),
            document=shown(some[0].document_id),
            problem=some[0].reason,
        )


# --- Running jobs ---


def _judge_holder(holder: Holder, facts: JobFacts) -> Iterator[Finding]:
    silent = "0" if holder.silent_since is None else _ago(facts.now, holder.silent_since)
    if holder.instance_id is None:
        yield found(kinds.NO_HOLDER, count=holder.held, job=str(holder.example))
    elif holder.is_ours and holder.silent:
        yield found(
            kinds.STUCK_JOBS,
            count=holder.silent,
            instance=holder.instance_id,
            silent=silent,
            reason=_reason(holder, facts),
            job=str(holder.example),
            lease=f"{holder.lease:g}",
        )
    elif holder.silent:
        yield found(
            kinds.STUCK_NODE_JOBS,
            count=holder.silent,
            instance=holder.instance_id,
            silent=silent,
            job=str(holder.example),
        )
    elif not holder.is_ours:
        yield found(kinds.NODE_PEER, instance=holder.instance_id, count=holder.held)


def _reason(holder: Holder, facts: JobFacts) -> str:
    entry = next((one for one in facts.instances if one.id == holder.instance_id), None)
    if entry is None:
        return "it has no entry among the instances: it has ended"
    where = f"its process {entry.pid} on {entry.host}"
    if entry.is_live:
        return f"{where} is alive, and does not renew them"
    return f"{where} has sent no heartbeat for {_ago(facts.now, entry.last_heartbeat)} s: it died or is frozen"


# --- Pending jobs ---


def _judge_backlog(backlog: Backlog, facts: JobFacts, live: Sequence[Instance]) -> Iterator[Finding]:
    name = backlog.name
    if name in facts.paused:
        if backlog.due:
            yield found(kinds.PAUSED_NAME, name=name, quoted=quote(name), due=backlog.due)
        return
    if not live:
        return
    # A process of another library has no entry, and an entry lists a thousand names.
    is_all_known = not any(not one.is_ours for one in facts.holders) and all(
        len(one.names) < MOST_NAMES for one in live
    )
    known = {one for instance in live for one in instance.names}
    if name not in known and is_all_known:
        suggestion = _suggestion(name, live)
        yield found(kinds.UNKNOWN_NAME, name=name, quoted=quote(name), pending=backlog.pending, suggestion=suggestion)
    elif backlog.due and (facts.now - backlog.oldest).total_seconds() > LATE:
        ago = _ago(facts.now, backlog.oldest)
        yield found(kinds.BACKLOG, name=name, due=backlog.due, ago=ago)


def _suggestion(name: str, live: Sequence[Instance]) -> str:
    known = {one for instance in live for one in instance.names}
    near = get_close_matches(name, known, n=1, cutoff=_ALIKE)
    return f"; one runs {near[0]!r}" if near else ""


def _judge_troubled(facts: JobFacts) -> Iterator[Finding]:
    jobs = facts.troubled.jobs
    poison = [one for one in jobs if one.deaths >= SUSPECT_FROM or (one.deaths and one.status == JobStatus.FAILED)]
    for group in group_by(poison, lambda one: (one.name, one.status)):
        deaths = max(one.deaths for one in group)
        yield _of_group(kinds.POISON_JOB, group, facts, status=group[0].status, deaths=deaths)
    known = set(map(id, poison))
    others = [one for one in jobs if id(one) not in known]
    for group in group_by(others, lambda one: (one.status == JobStatus.FAILED, one.name, error_kind(one.reason))):
        reason = one_line(group[0].reason or "an unknown error")
        if group[0].status == JobStatus.FAILED:
            yield _of_group(kinds.FAILED_JOBS, group, facts, reason=reason)
        elif group := [one for one in group if one.failures >= MANY_FAILURES]:
            yield _of_group(kinds.FAILING_JOB, group, facts, reason=reason, failures=MANY_FAILURES)
    if rescued := sum(one.deaths > 0 for one in jobs):
        yield found(kinds.RESCUED_JOBS, count=Count(rescued, facts.troubled.is_capped))


def _of_group(kind: FindingKind, group: Sequence[TroubledJob], facts: JobFacts, **fields: object) -> Finding:
    first = group[0]
    count = Count(len(group), facts.troubled.is_capped)
    return found(kind, count=count, name=first.name, quoted=quote(first.name), job=str(first.id), **fields)


def _ago(now: datetime, moment: datetime) -> str:
    return f"{max((now - moment) / timedelta(seconds=1), 0):.0f}"
