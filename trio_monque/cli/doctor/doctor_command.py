"""`trio-monque doctor`: looks at a database of jobs, and prints what needs attention."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import click

from ...client.client_context import ClientContext
from ...diagnosis.examination import MOST_SECONDS_TO_ANSWER, Examination
from ...diagnosis.facts import Facts
from ...diagnosis.findings import Severity
from ...diagnosis.judgement import judge
from ...options_and_defaults import client_config
from ...store.driver.types import Database
from ..connection_options import Connection, connection_options
from ..exit_statuses import CHECK_FAILED, SUCCEEDED
from ..jobs.access import invalid_options
from .shown_finding import ShownFinding, shown

_EXAMPLES: Final = """\b
Examples:
  trio-monque doctor --uri mongodb://localhost:27017/shop
  trio-monque doctor send-mail
  trio-monque doctor --uri-file /run/secrets/mongodb --json
"""


@click.command(short_help="Report what is wrong, and what to do.", epilog=_EXAMPLES)
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
    help="Read every document to find broken ones. Slow on a large collection.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(connection: Connection, *, name: str | None, collection: str, all_documents: bool, as_json: bool) -> int:
    """Look at the server, the indexes, the workers and the jobs, and say what is wrong and what to do.

    It connects as a program would, and writes nothing. Each question is bounded, so it is safe to run on a
    large collection in production. A number with a plus sign is a lower bound: its question reached its bound. With
    NAME, it looks at the jobs of this name only, and at more of them.

    Exit status: 0 if there is no problem or warning, 1 if there is one, 2 if it could not look. Notes do not count.
    """
    with invalid_options(), connection.open() as database:
        facts = examination(connection.uri, database, collection, name).facts(all_documents=all_documents)
        where = f"{database.name}.{collection}"
    findings = [shown(one) for one in judge(facts)]
    click.echo(_as_json(where, findings, facts) if as_json else "\n".join(_lines(where, findings)))
    needs_attention = any(one.kind.severity is not Severity.NOTE for one in findings)
    return CHECK_FAILED if needs_attention else SUCCEEDED


def examination(
    uri: str, database: Database, collection: str, name: str | None = None, **times: Callable[..., Any]
) -> Examination:
    """Return an examination of a collection by a client that writes nothing, and so creates no indexes."""
    config = client_config(
        {"collection_name": collection, "skip_index_creation": True, "operation_timeout": MOST_SECONDS_TO_ANSWER}
    )
    context = ClientContext.of(database, config)
    return Examination(context.jobs, context.now, name, uri=uri, **times)


def _lines(name: str, findings: Sequence[ShownFinding]) -> Iterator[str]:
    for one in findings:
        yield f"{one.kind.severity}: {one.sentence}"
        yield f"  {one.advice}"
        yield ""
    counted = Counter(one.kind.severity for one in findings)
    numbers = [f"{counted[one]} {one}{'s' if counted[one] > 1 else ''}" for one in Severity if counted[one]]
    yield f"{name}: {', '.join(numbers) or 'nothing needs attention'}."


def _as_json(name: str, findings: Sequence[ShownFinding], facts: Facts) -> str:
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
