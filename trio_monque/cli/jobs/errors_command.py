"""`trio-monque errors`: the failures of jobs, grouped by name and error."""

from __future__ import annotations

from typing import Final

import click

from ...safe_text import one_line
from ...store.jobs.job_json import iso, value_as_json
from ...store.reads.diagnosis.caps import Count
from ...store.reads.diagnosis.jobs import MOST_READ
from ..exit_statuses import SUCCEEDED
from ..output import print_json, print_records, since
from .access import JobsAccess, jobs_options

_EXAMPLES: Final = """\b
Examples:
  trio-monque errors
  trio-monque errors --name send-mail --json
"""


@click.command(short_help="Group failed jobs by their error.", epilog=_EXAMPLES)
@click.option("--name", metavar="NAME", help="Only jobs of this name.")
@jobs_options
def errors(access: JobsAccess, *, name: str | None) -> int:
    """Group the failed jobs by name and error, the most frequent first, each group with its latest job as an example.

    Errors that differ only in numbers and ids count as one. It reads the 5,000 jobs that failed last, or with --name
    those that were due last; a plus sign means that there may be more.

    With --json: {"errors": [...], "is_capped": false}.
    """
    errors_found = access.client.get_error_groups(name=name, limit=MOST_READ)
    is_capped = errors_found.is_capped
    of_names = (one for group in errors_found.groups for one in group.by_name)
    groups = sorted(of_names, key=lambda one: (one.count, one.last), reverse=True)
    if access.as_json:
        found = [
            {**vars(one), "example": _id(one.example), "first": iso(one.first), "last": iso(one.last)} for one in groups
        ]
        print_json({"errors": found, "is_capped": is_capped})
        return SUCCEEDED
    now = access.now()
    # In a narrow terminal the times are cut first, so that the error is left.
    records = [
        {
            "example": _id(one.example),
            "jobs": str(Count(one.count, is_capped)),
            "name": one_line(one.name),
            "error": one.error,
            "last": since(one.last, now),
            "first": since(one.first, now),
        }
        for one in groups
    ]
    print_records(records, f"no failed job in {access.name}", kept=3)
    return SUCCEEDED


def _id(found: object) -> str:
    shown = value_as_json(found)
    return shown["$oid"] if isinstance(shown, dict) and "$oid" in shown else str(shown)
