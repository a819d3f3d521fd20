"""`trio-monque repair`: makes jobs of documents that are not, instead of deleting them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
from ..exit_statuses import CHECK_FAILED, INTERRUPTED, SUCCEEDED
from ..output import due, print_json, print_records, warn
from .access import JobsAccess, jobs_options
from .field_assignments import ASSIGNMENT, JOB_FIELD, Assignment

LONGEST_SHOWN: Final = 200
"""Characters of a value in the table."""

_CHANGED: Final = "it has changed in the meantime; look at it again"

_STATUS: Final = FIELD["status"]
_UPDATED: Final = FIELD["updated_at"]

_EXAMPLES: Final = """\b
Examples:
  trio-monque repair 65f1c0ffee0123456789abcd --set nextRunAt=now
  trio-monque repair 65f1c0ffee0123456789abcd --set status=failed --set 'data={"order": 17}' --dry-run
  trio-monque repair 65f1c0ffee0123456789abcd 65f1c0ffee0123456789abce --unset claimedBy --yes
"""


class _RefusedError(Exception):
    """A document is not repaired; the text says why."""


@dataclass(frozen=True, slots=True)
class _Repairs:
    """What became of the documents.

    Attributes:
        trials: Of each document that can be repaired, by its id as it was given.
        done: Those that were written; in a dry run, those that would be.
        refused: Why the others are not repaired, by their ids as they were given.
    """

    trials: dict[str, Trial] = field(default_factory=dict)
    done: list[Trial] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def refuse(self, text: str, reason: str) -> None:
        self.refused[text] = reason
        warn(f"trio-monque: cannot repair document {one_line(text)}: {reason}")


@click.command(short_help="Repair documents that are not valid jobs.", epilog=_EXAMPLES)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option(
    "--set",
    "assignments",
    type=ASSIGNMENT,
    multiple=True,
    metavar="FIELD=VALUE",
    help="Set a field of each document, such as nextRunAt=now. May be repeated.",
)
@click.option(
    "--unset", "removed", type=JOB_FIELD, multiple=True, metavar="FIELD", help="Remove a field. May be repeated."
)
@click.option("--yes", is_flag=True, help="Change the documents without asking.")
@click.option("--dry-run", is_flag=True, help="Show what the documents would become, and change nothing.")
@jobs_options
def repair(
    access: JobsAccess,
    *,
    ids: tuple[str, ...],
    assignments: tuple[Assignment, ...],
    removed: tuple[str, ...],
    yes: bool,
    dry_run: bool,
) -> int:
    """Set and remove fields of the documents with these IDs, which are not jobs, so that they are. An ID may be JSON.

    `show --raw ID` prints a document, and the doctor names what is wrong with it. FIELD is a field as it is stored. A
    date is now, a length of time from now, or a moment, in UTC unless it has an offset. Data and other values of the
    program are extended JSON. The updatedAt of each document becomes now.

    It shows the fields of all documents before and after, and asks once. It refuses a document that is a job, one that
    would still not be a job, and one that changes meanwhile; the others are repaired. A document in `processing` stays
    in it: its run may go on, and if not, an instance rescues the job after its lease.

    Exit status: 0 if it was done, 1 if a document was refused or does not exist, 2 if it could not be done, 130 if it
    was interrupted, or if the answer was no.
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
    repairs = _try_out_all(access, ids, Repair(values, removed))
    if not access.as_json:
        _print_changes(list(repairs.trials.values()), fields)
    if repairs.trials and not dry_run:
        number = len(repairs.trials)
        confirm("repair it?" if number == 1 else f"repair these {number} documents?", yes=yes)
    try:
        are_all_tried = _write_all(access, repairs, dry_run=dry_run)
    finally:
        # Also after an outage in the middle: what was done by then.
        if access.as_json:
            print_json(_as_json(access, repairs, fields, dry_run=dry_run))
        else:
            for trial in repairs.done:
                click.echo(_result(trial, now, dry_run=dry_run))
    if not are_all_tried:
        return INTERRUPTED
    return CHECK_FAILED if repairs.refused else SUCCEEDED


def _try_out_all(access: JobsAccess, ids: Sequence[str], repair: Repair) -> _Repairs:
    repairs = _Repairs()
    for text in dict.fromkeys(ids):
        try:
            trial = _tried_out(access, text, repair)
            # One document may be named in two ways.
            if all(trial.before["_id"] != one.before["_id"] for one in repairs.trials.values()):
                repairs.trials[text] = trial
        except _RefusedError as error:
            repairs.refuse(text, str(error))
    return repairs


def _tried_out(access: JobsAccess, text: str, repair: Repair) -> Trial:
    trial = try_out(access.jobs, _id_of_one(access, text), repair)
    if trial is None:
        raise _RefusedError(_CHANGED)
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


def _write_all(access: JobsAccess, repairs: _Repairs, *, dry_run: bool) -> bool:
    """Write the repairs, and return whether all were tried: False if it was interrupted."""
    text = ""
    try:
        for text, trial in repairs.trials.items():
            try:
                if dry_run or repair_if_unchanged(access.jobs, trial):
                    repairs.done.append(trial)
                else:
                    repairs.refuse(text, _CHANGED)
            except (KeyInUseError, DocumentRefusedError) as error:
                repairs.refuse(text, str(error))
    except KeyboardInterrupt:
        warn(f"interrupted at {one_line(text)}, which may be done too")
        return False
    return True


# --- What is printed ---


def _print_changes(trials: Sequence[Trial], fields: Sequence[str]) -> None:
    for place, trial in enumerate(trials):
        if place:
            click.echo()
        click.echo(f"document {_id(trial)} is not a job: {trial.problem}")
        print_records(
            [{"field": one, "before": _value(trial.before, one), "after": _value(trial.after, one)} for one in fields],
            "",
        )


def _id(trial: Trial) -> str:
    return one_line(text_of_id(trial.before["_id"]))


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
    named = f"{one_line(job.name)} {job.id}"
    return f"repaired {named}, {state}; schedulers look at it again soon, at the latest in a minute"


def _as_json(access: JobsAccess, repairs: _Repairs, fields: Sequence[str], *, dry_run: bool) -> dict[str, object]:
    return {
        "action": "repair",
        "collection": access.name,
        "dry_run": dry_run,
        "count": len(repairs.done),
        "jobs": [job_as_json(trial.job) for trial in repairs.done if trial.job is not None],
        "changes": [
            {
                "id": _id(trial),
                "problem": trial.problem,
                "before": {one: value_as_json(trial.before[one]) for one in fields if one in trial.before},
                "after": {one: value_as_json(trial.after[one]) for one in fields if one in trial.after},
            }
            for trial in repairs.done
        ],
        "errors": [{"id": one_line(text), "reason": reason} for text, reason in repairs.refused.items()],
    }
