"""Judges all facts of an examination. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .facts import Facts
from .findings import Finding, Severity, found
from .judging_jobs import judge_jobs
from .judging_server import judge_indexes, judge_server


def judge(facts: Facts) -> Sequence[Finding]:
    """Return all findings, the worst first."""
    findings = [*judge_server(facts.server)]
    if facts.indexes is not None:
        findings += judge_indexes(facts.indexes)
    if facts.jobs is not None:
        findings += judge_jobs(facts.jobs)
    findings += (found("unanswered", problem=problem) for problem in facts.unanswered)
    order = list(Severity)
    return sorted(findings, key=lambda one: order.index(one.severity))
