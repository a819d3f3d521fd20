"""An action on jobs by their ids: each is tried, and one that cannot be changed does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import click

from ...error_types import DocumentRefusedError, InvalidOptionError, MonqueConnectionError, MonqueError
from ...jobs.job import Job
from ...safe_text import one_line
from ...store.driver.types import ObjectId
from ...store.jobs.job_json import job_as_json
from ..exit_statuses import CHECK_FAILED, INTERRUPTED, SUCCEEDED
from ..output import print_json, warn
from .access import JobsAccess


@dataclass(frozen=True, slots=True)
class IdAction:
    """What is done to one job.

    Attributes:
        verb: Such as "cancel".
        act: Does it to the job of an id. Returns the job as it is now, or True; None or False if no job has that id.
        describe: Returns what became of the job, for people. Its arguments are the id and the job, if there is one.
    """

    verb: str
    act: Callable[[str], Job | bool | None]
    describe: Callable[[str, Job | None], str]


@dataclass(slots=True)
class _Outcome:
    done: dict[str, Job | None] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def act_on_ids(access: JobsAccess, ids: Sequence[str], action: IdAction) -> int:
    """Do it to each job, print what became of them, and return the exit status.

    Raises:
        MonqueConnectionError: The database does not answer. What was done by then is printed.
    """
    outcome = _Outcome()
    job_id = ""
    try:
        for job_id in dict.fromkeys(ids):
            _act(access, job_id, action, outcome)
    except KeyboardInterrupt:
        warn(f"interrupted at {job_id}, which may be done too")
        return INTERRUPTED
    finally:
        _report(access, action, outcome)
    return CHECK_FAILED if outcome.refused else SUCCEEDED


def _act(access: JobsAccess, job_id: str, action: IdAction, outcome: _Outcome) -> None:
    try:
        found = action.act(job_id)
    except InvalidOptionError:
        raise  # The option is wrong, not one job.
    except MonqueError as error:
        if isinstance(error, MonqueConnectionError) and not isinstance(error, DocumentRefusedError):
            raise  # The others would fail for the same reason, each after its timeout.
        outcome.refused[job_id] = " ".join(str(error).split())
    else:
        if isinstance(found, Job):
            outcome.done[job_id] = found
        elif found:
            outcome.done[job_id] = None
        else:
            outcome.refused[job_id] = f"cannot {action.verb} job {one_line(job_id)}: {_missing(access, job_id, action)}"


def _missing(access: JobsAccess, job_id: str, action: IdAction) -> str:
    if ObjectId.is_valid(job_id):
        return f"{access.name} has no job with this id"
    by_name = "" if action.verb == "reschedule" else f"; by a name they are selected with --name {one_line(job_id)}"
    return f"an id has 24 hexadecimal digits{by_name}"


def _report(access: JobsAccess, action: IdAction, outcome: _Outcome) -> None:
    if access.as_json and (outcome.done or outcome.refused):
        print_json(
            {
                "action": action.verb,
                "collection": access.name,
                "count": len(outcome.done),
                "jobs": [{"id": job_id} if job is None else job_as_json(job) for job_id, job in outcome.done.items()],
                "errors": [{"id": one_line(job_id), "reason": reason} for job_id, reason in outcome.refused.items()],
            }
        )
    else:
        for job_id, job in outcome.done.items():
            click.echo(action.describe(job_id, job))
    for problem in outcome.refused.values():
        warn(f"trio-monque: {problem}")
