"""The screen Health: what is wrong with the server, the indexes, the instances and the jobs, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...diagnosis.findings import Finding, Severity
from ..api.judgement_answers import without_errors
from ..words.finding_sentences import advice_about, sentence_about
from ..words.lengths import counted
from .screen import PageCall, View

HEADINGS: Final[Mapping[Severity, tuple[str, str, str]]] = {
    Severity.PROBLEM: ("Problems", "Jobs do not run, or may be lost, until these are fixed.", "bad"),
    Severity.WARNING: ("Warnings", "Jobs run, but late, at a higher cost, or with less safety.", "due"),
    Severity.NOTE: ("Notes", "Good to know.", "off"),
}
"""The groups of the screen, the worst first: each with its heading, what it means, and the class of its sign."""

MOST_FINDINGS: Final = 200
"""Findings of one group: there may be one for each of thousands of names."""


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One finding.

    Attributes:
        kind: Such as "no-instance".
        sentence: What is wrong.
        advice: What to do.
        label: Of the link to what it is about; None for none.
        parts, query: Where that leads.
    """

    kind: str
    sentence: str
    advice: str
    label: str | None = None
    parts: Sequence[str] = ()
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """The findings of one severity."""

    heading: str
    meaning: str
    look: str
    rows: Sequence[FindingRow]
    more: int


async def health_facts(call: PageCall) -> View:
    """Ask for what the screen shows."""
    diagnosis = await call.monque.findings()
    # A hook changes the text of one job, and a finding has that of many.
    is_shown = call.dashboard.hooks.show_errors is True
    groups = groups_of([one if is_shown else without_errors(one) for one in diagnosis.findings])
    return View("health.html", _title(diagnosis.findings), {"groups": groups, "at": diagnosis.at})


def _title(findings: Sequence[Finding]) -> str:
    for severity, noun in ((Severity.PROBLEM, "problem"), (Severity.WARNING, "warning")):
        if number := sum(one.severity is severity for one in findings):
            return f"{counted(number, noun)}, health"
    return "All well, health"


def groups_of(findings: Sequence[Finding]) -> Sequence[FindingGroup]:
    """Return the findings by their severity, the worst first."""
    groups = []
    for severity, (heading, meaning, look) in HEADINGS.items():
        found = [one for one in findings if one.severity is severity]
        if found:
            rows = [_row(one) for one in found[:MOST_FINDINGS]]
            groups.append(FindingGroup(heading, meaning, look, rows, max(0, len(found) - MOST_FINDINGS)))
    return groups


def _row(finding: Finding) -> FindingRow:
    label, parts, query = where_of(finding)
    return FindingRow(finding.kind, sentence_about(finding), advice_about(finding), label, parts, query)


def where_of(finding: Finding) -> tuple[str | None, Sequence[str], Mapping[str, str]]:
    """Return the link to what a finding is about: its label, the path, and the query. The label is None for none."""
    values: Mapping[str, Any] = finding.values
    if finding.kind == "no-instance":
        return "See instances", ("instances",), {}
    if finding.kind in _OF_INSTANCES:
        return "See the instance", ("instances", str(values["instance"])), {}
    if finding.kind in _TABS:
        tab = _TABS[finding.kind]
        return f"See its {tab} jobs", ("jobs",), {"status": tab, "name": str(values["name"])}
    if "job" in values:
        return "See the job", ("jobs", str(values["job"])), {}
    if finding.kind in _OF_NAMES:
        return "See its jobs", ("jobs",), {"name": str(values["name"])}
    return None, (), {}


_OF_INSTANCES: Final = frozenset(
    {"dead-instance", "overdue-threads", "blocked-loop", "stuck-jobs", "stuck-node-jobs", "node-peer"}
)
_OF_NAMES: Final = frozenset({"unknown-name", "owed-follow-ups", "failing-name"})
_TABS: Final[Mapping[str, str]] = {
    "paused-name": "due",
    "backlog": "due",
    "slots-taken": "due",
    "not-starting": "due",
    "failed-jobs": "failed",
}
"""Kinds of findings by what they are about; the rest name a job, or nothing that has a page."""
