"""`trio-monque repair`: makes a job of a document that is not one, instead of deleting it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import click

from ...error_types import DocumentRefusedError, InvalidOptionError
from ...jobs.job import JobStatus
from ...safe_text import one_line
from ...store.broken.repairing import Repair, Trial, repair_if_unchanged, try_out
from ...store.driver.extended_json import text_of_id
from ...store.driver.types import ObjectId
from ...store.fields import FIELD
from ...store.jobs.job_changes import KeyInUseError
from ...store.jobs.job_json import iso, job_as_json, value_as_json, value_from_json
from ...store.reads.queries import raw_documents
from ..confirmation import confirm
from ..exit_statuses import CHECK_FAILED, SUCCEEDED
from ..output import due, print_json, print_records, warn
from .access import JobsAccess, jobs_options
from .field_assignments import ASSIGNMENT, JOB_FIELD, Assignment

LONGEST_SHOWN: Final = 200
"""Characters of a value in the table."""

_STATUS: Final = FIELD["status"]
_UPDATED: Final = FIELD["updated_at"]

_EXAMPLES: Final = """\b
Examples:
  trio-monque repair 65f1c0ffee0123456789abcd --set nextRunAt=now
  trio-monque repair 65f1c0ffee0123456789abcd --set status=failed --set 'data={"order": 17}' --dry-run
  trio-monque repair 65f1c0ffee0123456789abcd --unset claimedBy --yes
"""


class _RefusedError(Exception):
    """The document is not repaired; the text says why."""


@click.command(short_help="Repair a document that is not a valid job.", epilog=_EXAMPLES)
@click.argument("document_id", metavar="ID")
@click.option(
    "--set",
    "assignments",
    type=ASSIGNMENT,
    multiple=True,
    metavar="FIELD=VALUE",
    help="Set a field of the document, such as nextRunAt=now. May be repeated.",
)
@click.option(
    "--unset", "removed", type=JOB_FIELD, multiple=True, metavar="FIELD", help="Remove a field. May be repeated."
)
@click.option("--yes", is_flag=True, help="Change the document without asking.")
@click.option("--dry-run", is_flag=True, help="Show what the document would become, and change nothing.")
@jobs_options
def repair(
    access: JobsAccess,
    *,
    document_id: str,
    assignments: tuple[Assignment, ...],
    removed: tuple[str, ...],
    yes: bool,
    dry_run: bool,
) -> int:
    """Set and remove fields of the document ID, which is not a job, so that it is one. ID may be JSON.

    `show --raw ID` prints the document, and the doctor names what is wrong with it. FIELD is a field as it is stored. A
    date is now, a length of time from now, or a moment. Data and other values of the program are extended JSON. The
    document's updatedAt becomes now.

    It shows the fields before and after, and asks. It refuses a document that is a job, one that would still not be a
    job, and one that changes meanwhile. A document in `processing` stays in it: its run may go on, and if not, an
    instance rescues the job after its lease.

    Exit status: 0 if it was done, 1 if the document was refused or does not exist, 2 if it could not be done, 130 if
    the answer was no.
    """
    fields = [*(one.field for one in assignments), *removed]
    if not fields:
        raise click.UsageError("give --set FIELD=VALUE or --unset FIELD: `trio-monque show --raw ID` has the fields")
    if len(fields) > len(set(fields)):
        raise click.UsageError("give each field once, to --set or to --unset")
    now = access.now()
    values = {one.field: one.value(now) for one in assignments}
    if _UPDATED not in fields:
        values[_UPDATED] = now
    try:
        trial = _tried_out(access, document_id, Repair(values, removed))
        if not access.as_json:
            _print_changes(trial, fields)
        if not dry_run:
            confirm("repair it?", yes=yes)
            _write(access, trial)
    except _RefusedError as error:
        if access.as_json:
            refused = [{"id": one_line(document_id), "reason": str(error)}]
            print_json({**_heading(access, dry_run=dry_run), "count": 0, "jobs": [], "errors": refused})
        warn(f"trio-monque: cannot repair document {one_line(document_id)}: {error}")
        return CHECK_FAILED
    if access.as_json:
        print_json({**_heading(access, dry_run=dry_run), **_as_json(trial, fields)})
    else:
        click.echo(_result(trial, now, dry_run=dry_run))
    return SUCCEEDED


def _tried_out(access: JobsAccess, text: str, repair: Repair) -> Trial:
    trial = try_out(access.jobs, _id_of_one(access, text), repair)
    if trial is None:
        raise _RefusedError("it has changed in the meantime; look at it again")
    if trial.problem is None:
        raise _RefusedError(
            "it is a job. `trio-monque reschedule`, `cancel`, `retry` and `delete` change jobs; see `trio-monque show`"
        )
    if trial.before.get(_STATUS) == JobStatus.PROCESSING and _STATUS in repair.fields:
        raise _RefusedError(
            "it is in `processing`, so its run may still be active: keep its status. Once it is a job, an instance "
            "makes it pending if its holder does not renew the claim"
        )
    if trial.remaining is not None:
        more = (
            "; the _id cannot be changed: enqueue the job again" if not isinstance(trial.after["_id"], ObjectId) else ""
        )
        raise _RefusedError(f"with this change it would still not be a job: {trial.remaining}{more}")
    return trial


def _id_of_one(access: JobsAccess, text: str) -> object:
    """Return the id of the document that this text names: 24 digits, extended JSON, or the text itself."""
    ids: list[object] = [ObjectId(text)] if ObjectId.is_valid(text) else []
    with suppress(InvalidOptionError):
        ids.append(value_from_json(text))
    found = raw_documents(access.jobs, [*ids, text])
    if not found:
        raise _RefusedError(f"{access.name} has no document with this id")
    if len(found) > 1:
        ids_found = " or ".join(f"'{_shown(one['_id'])}'" for one in found)
        raise _RefusedError(f"documents have this id in several types: give {ids_found}")
    return found[0]["_id"]


def _write(access: JobsAccess, trial: Trial) -> None:
    try:
        if not repair_if_unchanged(access.jobs, trial):
            raise _RefusedError("it has changed in the meantime; look at it again")
    except (KeyInUseError, DocumentRefusedError) as error:
        raise _RefusedError(str(error)) from error


# --- What is printed ---


def _print_changes(trial: Trial, fields: list[str]) -> None:
    click.echo(f"document {one_line(text_of_id(trial.before['_id']))} is not a job: {trial.problem}")
    print_records(
        [{"field": one, "before": _value(trial.before, one), "after": _value(trial.after, one)} for one in fields], ""
    )


def _value(document: Mapping[str, Any], field: str) -> str:
    return _shown(document[field]) if field in document else "(none)"


def _shown(value: object) -> str:
    if isinstance(value, datetime):
        return iso(value)
    return one_line(json.dumps(value_as_json(value), ensure_ascii=False), LONGEST_SHOWN)


def _result(trial: Trial, now: datetime, *, dry_run: bool) -> str:
    assert trial.job is not None
    job = trial.job
    state = due(job.next_run_at, now) if job.status is JobStatus.PENDING else job.status
    if dry_run:
        return f"would be the job {one_line(job.name)} {job.id}, {state}"
    return f"repaired {one_line(job.name)} {job.id}, {state}; schedulers look at it again within a minute"


def _heading(access: JobsAccess, *, dry_run: bool) -> dict[str, object]:
    return {"action": "repair", "collection": access.name, "dry_run": dry_run}


def _as_json(trial: Trial, fields: list[str]) -> dict[str, object]:
    assert trial.job is not None
    return {
        "count": 1,
        "problem": trial.problem,
        "before": {one: value_as_json(trial.before[one]) for one in fields if one in trial.before},
        "after": {one: value_as_json(trial.after[one]) for one in fields if one in trial.after},
        "jobs": [job_as_json(trial.job)],
        "errors": [],
    }
