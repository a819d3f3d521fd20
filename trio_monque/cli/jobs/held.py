"""`trio-monque jobs --held-by INSTANCE`: the running jobs of one instance."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches

from ...jobs.claim_stamps_and_fences import claimed_at, last_sign_of_life
from ...jobs.job import Job
from ...safe_text import one_line
from ...store.jobs.job_json import job_as_json
from ...store.reads.diagnosis.held_jobs import jobs_held_by
from ..exit_statuses import CHECK_FAILED, SUCCEEDED
from ..output import print_json, print_records, since, warn
from .access import JobsAccess


def list_held(access: JobsAccess, instance_id: str, limit: int) -> int:
    """Print the running jobs that the instance holds, and return the exit status."""
    found = jobs_held_by(access.jobs, instance_id, limit + 1)
    # A process that died may hold jobs without an entry, and one of Monque for Node never has an entry.
    entries = [] if found else [one.id for one in access.client.instances()]
    is_known = bool(found) or instance_id in entries
    if access.as_json:
        print_json({"jobs": [job_as_json(job, is_light=True) for job in found[:limit]], "cursor": None})
    elif is_known:
        _print(access, instance_id, found[:limit])
    if not is_known:
        near = get_close_matches(instance_id, entries, n=1)
        meant = f"; did you mean {one_line(near[0])}?" if near else ""
        warn(
            f"unknown instance {one_line(instance_id)}: no instance of {access.name} has this id, and no running job "
            f"is claimed by it. `trio-monque instances` lists the instances{meant}"
        )
        return CHECK_FAILED
    if len(found) > limit:
        warn(f"more: --limit {limit} showed those that have been held longest")
    return SUCCEEDED


def _print(access: JobsAccess, instance_id: str, held: Sequence[Job]) -> None:
    now = access.now()
    records = [
        {
            "id": job.id,
            "name": job.name,
            "claimed": _since(claimed_at(job), now),
            "renewed": _since(last_sign_of_life(job), now),
            "attempts": job.attempts,
        }
        for job in held
    ]
    print_records(records, f"{one_line(instance_id)} holds no job of {access.name}", kept=2)


def _since(moment: datetime | None, now: datetime) -> str | None:
    return None if moment is None else since(moment, now)
