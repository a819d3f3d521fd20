"""Judges the facts of the jobs and of the instances that run them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Final

from ...jobs.instance import MOST_NAMES, Instance
from ...jobs.rescue_policy import SUSPECT_FROM
from ...safe_text import one_line, shown
from ...store.diagnosis.backlog import Backlog
from ...store.diagnosis.claims import Holder
from ...store.diagnosis.jobs import MANY_FAILURES
from . import findings as kinds
from .about_server import found
from .facts import JobFacts
from .findings import Finding

MOST_OF_ONE_KIND: Final = 20
"""Findings of one kind that are listed. For more, another look after the first ones are repaired."""

LATE: Final = 60.0
"""Seconds that a job may be due before its name counts as one with a backlog."""

_ALIKE: Final = 0.7
"""How alike two names are, by difflib, if one may be the other misspelt."""


def judge_jobs(facts: JobFacts) -> Iterator[Finding]:
    """Yield what is wrong with the instances and the jobs."""
    live = [one for one in facts.instances if one.is_live]
    pending = sum(one.pending for one in facts.backlogs)
    # Processes of another library have no entry.
    works_elsewhere = any(not one.is_ours and not one.silent for one in facts.holders)
    if not live and pending and not works_elsewhere:
        yield found(kinds.NO_INSTANCE, pending=pending)
    for instance in facts.instances:
        if not instance.is_live:
            ago = _ago(facts.now, instance.last_heartbeat)
            yield found(kinds.DEAD_INSTANCE, instance=instance.id, pid=instance.pid, host=instance.host, ago=ago)
    for holder in facts.holders:
        yield from _judge_holder(holder, facts)
    for backlog in facts.backlogs:
        yield from _judge_backlog(backlog, facts, live)
    yield from _judge_troubled(facts)
    for owed in facts.owed[:MOST_OF_ONE_KIND]:
        yield found(kinds.OWED_FOLLOW_UPS, name=owed.name, count=owed.count, ago=_ago(facts.now, owed.since))
    for bad in facts.schedules[:MOST_OF_ONE_KIND]:
        kind = kinds.UNKNOWN_ZONE if bad.is_unknown_here else kinds.BAD_SCHEDULE
        yield found(kind, job=str(bad.id), name=bad.name, status=bad.status, problem=bad.problem)
    yield from _judge_documents(facts)


def _judge_documents(facts: JobFacts) -> Iterator[Finding]:
    for one in facts.full[:MOST_OF_ONE_KIND]:
        kind = kinds.NEARLY_FULL_DOCUMENT if one.is_claimable else kinds.OVERSIZED_DOCUMENT
        yield found(kind, job=str(one.id), name=one.name, size=f"{one.size:,}")
    # A document without room for a claim may be among the broken ones, too.
    full = {repr(one.id) for one in facts.full}
    broken = [one for one in facts.broken if repr(one.document_id) not in full]
    for document in broken[:MOST_OF_ONE_KIND]:
        yield found(kinds.BROKEN_DOCUMENT, document=shown(document.document_id), problem=document.reason)


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
    name, more = backlog.name, "+" if backlog.is_capped else ""
    if name in facts.paused:
        if backlog.due:
            yield found(kinds.PAUSED_NAME, name=name, due=f"{backlog.due}{more}")
        return
    if not live:
        return
    # A process of another library has no entry, and an entry lists a thousand names.
    is_all_known = not any(not one.is_ours for one in facts.holders) and all(
        len(one.names) < MOST_NAMES for one in live
    )
    known = {one for instance in live for one in instance.names}
    if name not in known and is_all_known:
        near = get_close_matches(name, known, n=1, cutoff=_ALIKE)
        suggestion = f"; one runs {near[0]!r}" if near else ""
        yield found(kinds.UNKNOWN_NAME, name=name, pending=f"{backlog.pending}{more}", suggestion=suggestion)
    elif backlog.due and backlog.oldest is not None and (facts.now - backlog.oldest).total_seconds() > LATE:
        ago = _ago(facts.now, backlog.oldest)
        yield found(kinds.BACKLOG, name=name, due=f"{backlog.due}{more}", ago=ago)


def _judge_troubled(facts: JobFacts) -> Iterator[Finding]:
    poison = [one for one in facts.troubled if one.deaths >= SUSPECT_FROM or (one.deaths and one.status == "failed")]
    for one in poison[:MOST_OF_ONE_KIND]:
        yield found(kinds.POISON_JOB, job=str(one.id), name=one.name, status=one.status, deaths=one.deaths)
    failing = [one for one in facts.troubled if one.failures >= MANY_FAILURES and one not in poison]
    for one in failing[:MOST_OF_ONE_KIND]:
        reason = one_line(one.reason or "an unknown error")
        yield found(
            kinds.FAILING_JOB, job=str(one.id), name=one.name, status=one.status, failures=one.failures, reason=reason
        )
    if rescued := sum(one.deaths > 0 for one in facts.troubled):
        yield found(kinds.RESCUED_JOBS, count=rescued)


def _ago(now: datetime, moment: datetime) -> str:
    return f"{max((now - moment) / timedelta(seconds=1), 0):.0f}"
