"""`trio-monque doctor`: looks at a database of jobs, and prints what needs attention."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from ..connection_options import Connection, connection_options
from ..exit_statuses import CHECK_FAILED, SUCCEEDED
from ..jobs.access import invalid_options
from . import findings as kinds
from .about_jobs import judge_jobs
from .about_server import judge_indexes, judge_server
from .examination import Examination
from .facts import Facts
from .findings import Finding, Severity

_EXAMPLES: Final = """\b
Examples:
  trio-monque doctor --uri mongodb://localhost:27017/shop
  trio-monque doctor send-mail
  trio-monque doctor --uri-file /run/secrets/mongodb --json
"""


@click.command(short_help="Say what is wrong, and what to do.", epilog=_EXAMPLES)
@click.argument("name", metavar="[NAME]", required=False)
@connection_options
@click.option(
    "--collection",
    default="monque_jobs",
    metavar="NAME",
    help="The collection that holds the jobs. (default: monque_jobs)",
)
@click.option(
    "--all-documents",
    is_flag=True,
    help="Read every document to find broken ones. Takes its time on a large collection.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(connection: Connection, *, name: str | None, collection: str, all_documents: bool, as_json: bool) -> int:
    """Look at the server, the indexes, the workers and the jobs, and say what is wrong and what to do.

    It connects as a program would, and writes nothing. Each question is bounded, so it may run beside the work of a
    large collection. A number with a plus sign is a lower bound: its question reached its bound. With NAME, it looks
    at the jobs of this name only, and at more of them.

    Exit status: 0 if nothing needs attention, 1 if anything does, 2 if it could not look.
    """
    with invalid_options(), connection.open() as database:
        facts = Examination(connection.uri, database, collection, name).facts(all_documents=all_documents)
        where = f"{database.name}.{collection}"
    findings = judge(facts)
    click.echo(_as_json(where, findings, facts) if as_json else "\n".join(_lines(where, findings)))
    needs_attention = any(one.kind.severity is not Severity.NOTE for one in findings)
    return CHECK_FAILED if needs_attention else SUCCEEDED


def judge(facts: Facts) -> Sequence[Finding]:
    """Return all findings, the worst first."""
    found = [*judge_server(facts.server)]
    if facts.indexes is not None:
        found += judge_indexes(facts.indexes)
    if facts.jobs is not None:
        found += judge_jobs(facts.jobs)
    found += (Finding(kinds.UNANSWERED, {"problem": problem}) for problem in facts.unanswered)
    order = list(Severity)
    return sorted(found, key=lambda one: order.index(one.kind.severity))


def _lines(name: str, findings: Sequence[Finding]) -> Iterator[str]:
    for one in findings:
        yield f"{one.kind.severity}: {one.sentence}"
        yield f"  {one.advice}"
        yield ""
    counted = Counter(one.kind.severity for one in findings)
    numbers = [f"{counted[one]} {one}{'s' if counted[one] > 1 else ''}" for one in Severity if counted[one]]
    yield f"{name}: {', '.join(numbers) or 'nothing needs attention'}."


def _as_json(name: str, findings: Sequence[Finding], facts: Facts) -> str:
    jobs = [] if facts.jobs is None else facts.jobs.backlogs
    found: dict[str, Any] = {
        "collection": name,
        "findings": [
            {
                "kind": one.kind.name,
                "severity": one.kind.severity,
                "sentence": one.sentence,
                "advice": one.advice,
                "fields": one.as_json,
            }
            for one in findings
        ],
        "pending": [
            {
                "name": one.name,
                "pending": one.pending.number,
                "due": one.due.number,
                "oldest": one.oldest.isoformat(),
                "is_capped": one.pending.is_capped,
            }
            for one in jobs
        ],
    }
    return json.dumps(found, indent=2)
