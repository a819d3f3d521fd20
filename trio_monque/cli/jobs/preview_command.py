"""`trio-monque preview`: it needs no database, so this file imports neither pymongo nor trio."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo

import click

from ...jobs import schedule_preview
from ...jobs.cron import MOST_OCCURRENCES
from ...jobs.schedule_preview import SchedulePreview
from ...store.jobs.job_json import iso
from ..exit_statuses import SUCCEEDED
from ..output import moment, print_columns, print_json, warn
from ..parameters import FROM_NOW, When

_PREVIEW_EXAMPLES: Final = """\b
Examples:
  trio-monque preview '0 9 * * 1-5' --timezone Europe/Berlin
  trio-monque preview @monthly --count 3
  trio-monque preview '30 2 * * *' --timezone Europe/Berlin --after 2027-03-26
"""


@click.command(short_help="Explain a cron expression.", epilog=_PREVIEW_EXAMPLES)
@click.argument("cron")
@click.option("--timezone", default="UTC", metavar="ZONE", help="The time zone of CRON. (default: UTC)")
@click.option(
    "--count", type=click.IntRange(1, MOST_OCCURRENCES), default=5, metavar="N", help="Show N runs. (default: 5)"
)
@click.option(
    "--after",
    type=FROM_NOW,
    default="0s",
    metavar="WHEN",
    help="Show the runs after WHEN: a length of time from now, or a date or moment, in UTC unless it has an offset, "
    "whatever --timezone is. (default: now)",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def preview(cron: str, *, timezone: str, count: int, after: When, as_json: bool) -> int:
    """Say what CRON means, in words and as its next runs, by the clock of this machine. Needs no database."""
    found = schedule_preview.preview(cron, timezone, count, after(datetime.now(UTC)))
    if as_json:
        runs = [iso(run) for run in found.runs]
        print_json(
            {
                "expression": found.expression,
                "timezone": found.timezone,
                "description": found.description,
                "runs": runs,
                "warnings": list(found.warnings),
            }
        )
    else:
        click.echo(found.description)
        print_runs(found)
        for warning in found.warnings:
            warn(f"warning: {warning}")
    return SUCCEEDED


def print_runs(found: SchedulePreview) -> None:
    """Print the runs of a schedule, in UTC and in its own time zone."""
    if found.timezone == "UTC":
        print_columns([["UTC"], *([moment(run)] for run in found.runs)])
        return
    zone = ZoneInfo(found.timezone)
    rows = [[moment(run), f"{run.astimezone(zone):%Y-%m-%d %H:%M:%S%z}"] for run in found.runs]
    print_columns([["UTC", found.timezone], *rows])
