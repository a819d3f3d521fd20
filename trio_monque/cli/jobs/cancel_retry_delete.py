"""`trio-monque cancel`, `retry`, `delete` and `reschedule`: on jobs by their ids, or on a selection."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import click

from ...client.bulk import DEFAULT_SPREAD
from ...jobs.bulk_changes import CANCELLABLE, DELETABLE, RETRIABLE
from ...jobs.job import Job, JobStatus
from ...safe_text import one_line
from ..output import due
from ..parameters import FROM_NOW, LENGTH, When
from .access import JobsAccess, invalid_options, jobs_options
from .acting_by_id import IdAction, act_on_ids
from .acting_in_bulk import BulkAction, act_on_selection
from .selection import GivenSelection, selection_options, selection_without_keys

_CANCEL_EXAMPLES: Final = """\b
Examples:
  trio-monque cancel 65f1c0ffee0123456789abcd
  trio-monque cancel --name send --older-than 2d --dry-run
"""
_RETRY_EXAMPLES: Final = """\b
Examples:
  trio-monque retry 65f1c0ffee0123456789abcd
  trio-monque retry --status failed --fail-reason-prefix TimeoutError --spread 10m
"""
_DELETE_EXAMPLES: Final = """\b
Examples:
  trio-monque delete 65f1c0ffee0123456789abcd
  trio-monque delete --status completed --older-than 30d --yes
"""
_RESCHEDULE_EXAMPLES: Final = """\b
Examples:
  trio-monque reschedule 65f1c0ffee0123456789abcd now
  trio-monque reschedule 65f1c0ffee0123456789abcd 2h
  trio-monque reschedule 65f1c0ffee0123456789abcd 2030-01-31T12:00+01:00
"""


def _target_options(
    command: Callable[..., Any], select: Callable[[Callable[..., Any]], Callable[..., Any]] = selection_options
) -> Callable[..., Any]:
    """Add ids or a selection, to act on."""
    for add in (
        click.option("--yes", is_flag=True, help="Change a selection without asking."),
        click.option(
            "--dry-run", is_flag=True, help="Show how many are selected, and some of them, and change nothing."
        ),
        select,
        click.argument("ids", metavar="[ID]...", nargs=-1),
        jobs_options,
    ):
        command = add(command)
    return command


@click.command(short_help="Cancel jobs.", epilog=_CANCEL_EXAMPLES)
@_target_options
def cancel(given: GivenSelection, access: JobsAccess, *, ids: tuple[str, ...], yes: bool, dry_run: bool) -> int:
    """Cancel the jobs with these IDs, or the pending jobs of a selection.

    A running job that is named by its ID is asked to end; a selection does not touch running jobs. Before it changes a
    selection, it asks.

    Exit status: 0 if it was done, 1 if a job could not be changed, 2 if it could not be done, 130 if it was
    interrupted, or if the answer was no.
    """
    if _is_by_id(given, ids, dry_run=dry_run, everything="--status pending"):
        return act_on_ids(access, ids, IdAction("cancel", access.client.cancel_job, _cancelled))
    action = BulkAction(verb="cancel", done="cancelled", possible=CANCELLABLE, call=access.client.cancel_jobs)
    return act_on_selection(access, given.at(access.now), action, is_confirmed=yes, is_dry=dry_run)


@click.command(short_help="Requeue failed and cancelled jobs.", epilog=_RETRY_EXAMPLES)
@partial(_target_options, select=selection_without_keys)
@click.option(
    "--spread",
    type=LENGTH,
    metavar="LENGTH",
    help="Spread the due times of a selection evenly over this time. (default: 30s)",
)
def retry(
    given: GivenSelection,
    access: JobsAccess,
    *,
    ids: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    spread: float | None,
) -> int:
    """Let the jobs with these IDs run again, or the failed and cancelled jobs of a selection, with all their attempts.

    Before it changes a selection, it asks.

    Exit status: 0 if it was done, 1 if a job could not be changed, 2 if it could not be done, 130 if it was
    interrupted, or if the answer was no.
    """
    if _is_by_id(given, ids, dry_run=dry_run, everything="--status failed --status cancelled"):
        if spread is not None:
            raise click.UsageError("--spread is for a selection: jobs given by id are due at once")
        return act_on_ids(access, ids, IdAction("retry", access.client.retry_job, _retried))
    spread = DEFAULT_SPREAD if spread is None else spread
    call = partial(access.client.retry_jobs, spread=spread)
    action = BulkAction(verb="retry", done="requeued", possible=RETRIABLE, call=call, spread=spread)
    return act_on_selection(access, given.at(access.now), action, is_confirmed=yes, is_dry=dry_run)


@click.command(short_help="Delete jobs.", epilog=_DELETE_EXAMPLES)
@_target_options
@click.option("--everything", is_flag=True, help="Select all jobs.")
def delete(
    given: GivenSelection, access: JobsAccess, *, ids: tuple[str, ...], yes: bool, dry_run: bool, everything: bool
) -> int:
    """Delete the jobs with these IDs, or those of a selection, whatever their status.

    A run of a deleted job is cancelled at its next heartbeat. Before it changes a selection, it asks.

    Exit status: 0 if it was done, 1 if a job could not be deleted, 2 if it could not be done, 130 if it was
    interrupted, or if the answer was no.
    """
    if everything and (ids or not given.is_everything):
        raise click.UsageError("--everything cannot be combined with ids or a selection: leave one of them out")
    if not everything and _is_by_id(given, ids, dry_run=dry_run, everything="--everything"):
        return act_on_ids(access, ids, IdAction("delete", access.client.delete_job, _deleted))
    call = partial(access.client.delete_jobs, everything=everything)
    action = BulkAction(verb="delete", done="deleted", possible=DELETABLE, call=call)
    return act_on_selection(access, given.at(access.now), action, is_confirmed=yes, is_dry=dry_run)


@click.command(short_help="Change when a pending job is due.", epilog=_RESCHEDULE_EXAMPLES)
@jobs_options
@click.argument("job_id", metavar="ID")
@click.argument("when", type=FROM_NOW)
def reschedule(access: JobsAccess, *, job_id: str, when: When) -> int:
    """Let the pending job ID be due at WHEN: now, a length of time from now, or a moment.

    A moment is in UTC unless it has an offset, such as 2030-01-31T12:00+01:00.

    Exit status: 0 if it was done, 1 if the job is not pending or does not exist, 2 if it could not be done.
    """
    with invalid_options(run_at="when"):
        now = access.now()
        at = when(now)

        def is_due(_id: str, job: Job | None) -> str:
            return f"{_named(job)} is {due(at, now)}"

        change = partial(access.client.reschedule_job, run_at=at)
        return act_on_ids(access, [job_id], IdAction("reschedule", change, is_due))


def _is_by_id(given: GivenSelection, ids: tuple[str, ...], *, dry_run: bool, everything: str) -> bool:
    """Return whether the jobs are named by their ids, and not selected."""
    if ids and not given.is_everything:
        raise click.UsageError("give the ids of jobs or a selection, not both")
    if ids and dry_run:
        raise click.UsageError("--dry-run is for a selection: `trio-monque show ID` shows a job")
    if not ids and given.is_everything:
        raise click.UsageError(
            f"give the ids of jobs, or select some, for example with --name, or all with {everything}"
        )
    return bool(ids)


# --- What became of one job ---


def _named(job: Job | None) -> str:
    assert job is not None
    return f"{one_line(job.name)} {job.id}"


def _cancelled(_id: str, job: Job | None) -> str:
    assert job is not None
    if job.status is JobStatus.CANCELLED:
        return f"cancelled {_named(job)}"
    return f"asked the run of {_named(job)} to end: `trio-monque show` has how far it is"


def _retried(_id: str, job: Job | None) -> str:
    return f"requeued {_named(job)}"


def _deleted(job_id: str, _job: Job | None) -> str:
    return f"deleted {job_id}"
