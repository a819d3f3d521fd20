"""`trio-monque enqueue` and `schedule`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from ...client import enqueue as enqueuing
from ...client import schedules
from ...client.operation import Operation
from ...error_types import InvalidCronError
from ...jobs import schedule_preview
from ...jobs.enqueued import ON_CONFLICT
from ...jobs.job import Job
from ...jobs.new_job import ON_EXHAUSTED
from ...store.jobs.job_json import job_as_json, value_from_json
from ..exit_statuses import SUCCEEDED
from ..output import due, print_json, warn
from ..parameters import FROM_NOW, JSON, LENGTH, PAIR, When
from .access import JobsAccess, invalid_options, jobs_options
from .name_warnings import warn_about
from .preview_command import print_runs

R = TypeVar("R")

_RUNS_SHOWN: Final = 3

_ENQUEUE_EXAMPLES: Final = """\b
Examples:
  trio-monque enqueue send '{"to": "ada@example.org"}'
  trio-monque enqueue report --at 2h --unique-key daily --meta tenant=acme
  trio-monque enqueue index --unique-key index --on-conflict debounce --at 10s --max-wait 5m
  trio-monque enqueue import --data-file order.json
"""
_SCHEDULE_EXAMPLES: Final = """\b
Examples:
  trio-monque schedule '0 9 * * 1-5' report --unique-key report --timezone Europe/Berlin
  trio-monque schedule @hourly sync '{"source": "crm"}' --unique-key sync:crm --on-conflict update
"""


def _data_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for add in (
        click.option(
            "--meta",
            type=PAIR,
            multiple=True,
            metavar="KEY=VALUE",
            help="A string stored with the job, next to its data. May be repeated.",
        ),
        click.option(
            "--data-file",
            type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
            metavar="FILE",
            help="Read the data from this file; - for standard input.",
        ),
        click.argument("data", type=JSON, required=False),
    ):
        command = add(command)
    return command


@click.command(short_help="Enqueue a job.", epilog=_ENQUEUE_EXAMPLES)
@jobs_options
@click.argument("name")
@_data_options
@click.option(
    "--at",
    type=FROM_NOW,
    metavar="WHEN",
    help="When it is due: 2h from now, or a date and time, in UTC unless it has an offset. (default: now)",
)
@click.option(
    "--start-by",
    type=FROM_NOW,
    metavar="WHEN",
    help="Cancel it if it has not started by then.",
)
@click.option("--unique-key", metavar="KEY", help="At most one pending or processing job of this name has this key.")
@click.option(
    "--on-conflict",
    type=click.Choice(ON_CONFLICT),
    default="keep",
    help="If a job has the key: keep it, replace its data and when it is due, or debounce it. (default: keep)",
)
@click.option("--max-wait", type=LENGTH, metavar="LENGTH", help="How long debouncing calls may delay it in total.")
@click.option("--max-attempts", type=int, metavar="N", help="How many attempts may fail before the job fails for good.")
@click.option("--max-rescues", type=int, metavar="N", help="How many deaths in a row it may cause.")
@click.option("--timeout", type=LENGTH, metavar="LENGTH", help="How long one run may take.")
def enqueue(
    access: JobsAccess,
    *,
    name: str,
    data: Any,
    data_file: Path | None,
    at: When | None,
    start_by: When | None,
    meta: tuple[tuple[str, str], ...],
    **options: Any,
) -> int:
    """Enqueue a job of NAME with DATA, which is JSON; a text needs its quotation marks too: '"text"'.

    In extended JSON, {"$date": "2026-01-31T12:00:00Z"} is a date. Without DATA the data is null. After `--`, an
    argument may begin with a hyphen.

    It warns if no live instance runs NAME: then the job waits.
    """
    given = _given(data, data_file)
    with invalid_options(run_at="at", delay="at"):
        now = access.now()
        options["run_at"], options["start_by"] = (None if one is None else one(now) for one in (at, start_by))
        if options["on_conflict"] == "debounce" and options["run_at"] is not None:
            options["delay"] = (options.pop("run_at") - now).total_seconds()
        enqueued = _carried_out(
            enqueuing.enqueue_with_outcome(access.producer, name, given, meta=_meta(meta), **options)
        )
    job = enqueued.job
    if access.as_json:
        print_json({**job_as_json(job), "is_new": enqueued.outcome == "created", "outcome": enqueued.outcome})
    elif enqueued.outcome == "created":
        click.echo(f"enqueued {job.name} {job.id}, {due(job.next_run_at, access.now())}")
    elif enqueued.outcome == "replaced":
        click.echo(f"replaced {job.name} {job.id}, {due(job.next_run_at, access.now())}")
    elif enqueued.outcome == "again":
        click.echo(f"{job.name} {job.id} is running: it runs again afterwards, with this data")
    else:
        click.echo(f"{job.name} {job.id} has this key already ({job.status}): nothing was enqueued")
    warn_about(access, [job.name], pauses=True)
    return SUCCEEDED


@click.command(short_help="Enqueue a recurring job.", epilog=_SCHEDULE_EXAMPLES)
@jobs_options
@click.argument("cron")
@click.argument("name")
@_data_options
@click.option("--unique-key", metavar="KEY", help="Declare one schedule: it is safe to repeat the call.")
@click.option("--timezone", default="UTC", metavar="ZONE", help="The time zone of CRON. (default: UTC)")
@click.option(
    "--on-exhausted",
    type=click.Choice(ON_EXHAUSTED),
    default="continue",
    help="What to do after an occurrence has used up its attempts. (default: continue)",
)
@click.option(
    "--on-conflict",
    type=click.Choice(schedules.ON_CONFLICT),
    default="keep",
    help="If a schedule has the key: keep it, or update it. (default: keep)",
)
@click.option("--version", type=int, metavar="N", help="A lower version does not change the schedule of a higher one.")
def schedule(
    access: JobsAccess,
    *,
    cron: str,
    name: str,
    data: Any,
    data_file: Path | None,
    unique_key: str | None,
    on_conflict: str,
    meta: tuple[tuple[str, str], ...],
    **options: Any,
) -> int:
    """Enqueue a job of NAME that recurs by CRON: five fields, or an alias such as @daily.

    Without --unique-key, each call adds another schedule. DATA is JSON, as for `trio-monque enqueue`.
    """
    if unique_key is None and on_conflict == "update":
        raise click.UsageError("--on-conflict update needs --unique-key, which says which schedule to update")
    given = _given(data, data_file)
    with invalid_options():
        operation = schedules.schedule(
            access.producer,
            cron,
            name,
            given,
            unique_key=unique_key,
            on_conflict=on_conflict,
            meta=_meta(meta),
            **options,
        )
        job = _carried_out(operation)
    is_new = job.id == operation.draft.id
    if access.as_json:
        print_json({**job_as_json(job), "is_new": is_new})
    else:
        _print_schedule(job, access.now(), is_new=is_new, is_kept=on_conflict == "keep")
    warn_about(access, [job.name], pauses=True)
    return SUCCEEDED


# --- What was given ---


def _given(data: Any, file: Path | None) -> Any:
    if file is None:
        return data
    if data is not None:
        raise click.UsageError("give DATA or --data-file, not both")
    try:
        text = sys.stdin.buffer.read().decode() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"cannot read --data-file {file}: {error}") from None
    with invalid_options(data="data_file"):
        return value_from_json(text)


def _meta(pairs: tuple[tuple[str, str], ...]) -> dict[str, str] | None:
    keys = [key for key, _ in pairs]
    if twice := {key for key in keys if keys.count(key) > 1}:
        raise click.UsageError(f"--meta was given twice for the key {min(twice)!r}")
    return dict(pairs) or None


def _carried_out(operation: Operation[R]) -> R:
    while not operation.is_over:
        operation.step()
    return operation.result


# --- What is printed ---


def _print_schedule(job: Job, now: datetime, *, is_new: bool, is_kept: bool) -> None:
    if is_new:
        click.echo(f"scheduled {job.name} {job.id}")
    else:
        kept = "it was kept; --on-conflict update changes it" if is_kept else "it is now:"
        click.echo(f"{job.name} {job.id} has this key already ({job.status}); {kept}")
    if job.schedule is None:
        click.echo("It does not recur.")
        return
    try:
        found = schedule_preview.preview(job.schedule.cron, job.schedule.timezone, _RUNS_SHOWN, now)
    except InvalidCronError as error:  # Another program has stored it.
        warn(f"warning: {error}")
        return
    click.echo(found.description)
    print_runs(found)
