"""What can be found wrong with a database of jobs: facts, without words. The terminal and HTTP have their own. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final


class Severity(StrEnum):
    """How much a finding matters."""

    PROBLEM = "problem"
    """Jobs do not run, or may be lost, until it is repaired."""
    WARNING = "warning"
    """Jobs run, but late, at a higher price, or with less safety; or they soon will not."""
    NOTE = "note"
    """Good to know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found, with the values of this case.

    Attributes:
        kind: Such as "no-instance"; the page on troubleshooting lists all.
        severity: See Severity.
        values: What the kind names. Lengths of time are seconds, moments are in UTC, and numbers of jobs have
            `number` and `is_capped`.
    """

    kind: str
    severity: Severity
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What one look at the server, the indexes, the instances and the jobs found.

    Attributes:
        at: When it was made, by the server's clock, UTC.
        findings: The worst first; none if nothing needs attention.
    """

    at: datetime
    findings: Sequence[Finding]


SEVERITIES: Final[Mapping[str, Severity]] = {
    # --- The server ---
    "old-server": Severity.PROBLEM,
    "standalone-server": Severity.WARNING,
    "no-primary": Severity.PROBLEM,
    "no-majority": Severity.PROBLEM,
    "member-down": Severity.WARNING,
    "members-hidden": Severity.NOTE,
    "direct-connection": Severity.WARNING,
    "clock-off": Severity.WARNING,
    "member-clock-off": Severity.WARNING,
    "small-pool": Severity.PROBLEM,
    "server-full": Severity.PROBLEM,
    "no-change-stream": Severity.WARNING,
    "many-streams": Severity.NOTE,
    "jobs-elsewhere": Severity.NOTE,
    # --- Indexes ---
    "no-collection": Severity.PROBLEM,
    "unsafe-collection": Severity.PROBLEM,
    "validator": Severity.NOTE,
    "missing-index": Severity.PROBLEM,
    "other-index-definition": Severity.PROBLEM,
    "index-under-other-name": Severity.PROBLEM,
    "node-indexes": Severity.NOTE,
    "surplus-index": Severity.NOTE,
    "unique-index": Severity.WARNING,
    "expiring-index": Severity.WARNING,
    "unserved-query": Severity.PROBLEM,
    "costly-query": Severity.WARNING,
    # --- The fleet ---
    "no-instance": Severity.PROBLEM,
    "dead-instance": Severity.WARNING,
    "overdue-threads": Severity.WARNING,
    "blocked-loop": Severity.WARNING,
    "stuck-jobs": Severity.PROBLEM,
    "no-holder": Severity.PROBLEM,
    "stuck-node-jobs": Severity.WARNING,
    "node-peer": Severity.NOTE,
    # --- Jobs ---
    "unknown-name": Severity.PROBLEM,
    "no-such-name": Severity.WARNING,
    "paused-name": Severity.WARNING,
    "slots-taken": Severity.WARNING,
    "long-runs": Severity.WARNING,
    "backlog": Severity.WARNING,
    "not-starting": Severity.WARNING,
    "poison-job": Severity.PROBLEM,
    "failing-name": Severity.WARNING,
    "failing-job": Severity.WARNING,
    "failed-jobs": Severity.WARNING,
    "rescued-jobs": Severity.NOTE,
    "not-started-in-time": Severity.WARNING,
    "owed-follow-ups": Severity.WARNING,
    "bad-schedule": Severity.PROBLEM,
    "unknown-time-zone": Severity.WARNING,
    "ended-schedule": Severity.NOTE,
    "changed-schedule": Severity.NOTE,
    "put-off-key": Severity.NOTE,
    "broken-document": Severity.PROBLEM,
    "oversized-document": Severity.PROBLEM,
    "nearly-full-document": Severity.WARNING,
    # --- The doctor itself ---
    "unanswered": Severity.WARNING,
}
"""All kinds of findings, with how much each matters."""


def found(kind: str, **values: Any) -> Finding:
    """Return a finding of this kind."""
    return Finding(kind, SEVERITIES[kind], values)
