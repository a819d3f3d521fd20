"""What our own routes do: jobs in full, enqueue, counts, changes by id, pauses, permissions and instances."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ...error_types import MonqueConnectionError
from ...jobs.new_job import JobOptions
from ...jobs.views import CursorPage
from ...store.jobs.job_json import value_from_json
from ..answers import DENIED, NOT_FOUND, RefusedRequestError, refusal_of
from ..guard.audit import Audit
from ..guard.body import NO_BODY
from ..hooks import METRICS, READ
from . import reads
from .actions import changed_job, delete_one
from .added_schemas import PERMISSIONS
from .field_filters import check_fields
from .full_query import FullListing
from .full_view import full_job_as_json, full_page_as_json
from .job_shapes import EMPTY_PAGE, job_as_json
from .metrics_answer import has_metrics
from .moments import moment_in
from .query import limit_in
from .question_answers import instance_as_json
from .route import Call
from .selectors import check_error_search, selection_of, selector_in

# --- Jobs in full ---


async def list_jobs(call: Call) -> dict[str, Any]:
    """Return a page of jobs, in the view that the query asks for."""
    asked = call.query
    if not isinstance(asked, FullListing):
        return await reads.list_jobs(call)
    limit = limit_in(asked.limit)
    check_error_search(call.surface.hooks, asked.searches_errors)
    check_fields(call.surface.hooks, call.surface.filters, asked.filter)
    page: CursorPage = EMPTY_PAGE
    if asked.filter is not None:
        page = await call.surface.monque.get_jobs_with_cursor(
            cursor=asked.cursor, limit=limit, direction=asked.direction, filter=asked.filter, sort=asked.sort
        )
    return await full_page_as_json(page, asked.sort, asked.direction, call.surface.hooks, call.context)


async def get_job(call: Call) -> dict[str, Any]:
    """Return one job, in the view that the query asks for."""
    if not call.query:
        return await reads.get_job(call)
    job = await call.surface.monque.get_job(call.job_id)
    if job is None:
        raise RefusedRequestError(404, NOT_FOUND)
    return await full_job_as_json(job, call.surface.hooks, call.context)


async def count_jobs(call: Call) -> dict[str, Any]:
    """Return how many jobs a selector selects, as a question before a bulk action."""
    selection = selection_of(selector_in(call.body), call.surface.hooks)
    if selection is None:
        return {"count": 0, "isCapped": False}
    counted = await call.surface.monque.count_jobs(**selection)
    return {"count": counted.number, "isCapped": counted.is_capped}


# --- Changes ---


async def enqueue_job(call: Call) -> dict[str, Any]:
    """Enqueue a job, and return it; with a unique key that is in use, the job that has it."""
    asked = call.body
    call.audit.target = json.dumps({"name": asked["name"]})
    if not await call.may("enqueue", {"name": asked["name"]}):
        raise RefusedRequestError(403, DENIED)
    options: JobOptions = {}
    if "runAt" in asked:
        options["run_at"] = moment_in(asked["runAt"])
    if "uniqueKey" in asked:
        options["unique_key"] = asked["uniqueKey"]
    if "onConflict" in asked:
        options["on_conflict"] = asked["onConflict"]
    if "meta" in asked:
        options["meta"] = asked["meta"]
    data = value_from_json(json.dumps(asked.get("data")))
    job = await call.surface.monque.enqueue(asked["name"], data, **options)
    call.audit.target, call.audit.count = str(job.id), 1
    return await job_as_json(job, call.surface.hooks, call.context)


async def act_by_ids(call: Call) -> dict[str, Any]:
    """Do to each of the jobs what the route of one job does. The answer lists what was refused; the others go on."""
    action, ids = call.body["action"], list(dict.fromkeys(call.body["ids"]))
    call.audit.target = f"{len(ids)} ids"
    call.take_turn()
    count, errors = 0, list[dict[str, str]]()
    has_database = True
    for job_id in ids:
        one = replace(call, id_text=job_id, body=NO_BODY, audit=Audit.nothing())
        try:
            if not has_database:
                raise RefusedRequestError(503, "The database does not answer")
            await (delete_one(one) if action == "delete" else changed_job(one, action))
            count += 1
        except Exception as error:  # noqa: BLE001  # The jobs before it are changed: the answer has to list them.
            # Each further one would wait for the database as long as this one did.
            has_database = has_database and not isinstance(error, MonqueConnectionError)
            errors.append({"jobId": job_id, "error": refusal_of(error).message})
    call.audit.target, call.audit.count = f"{action} of {len(ids)} ids", count
    return {"count": count, "errors": errors}


async def pause_name(call: Call) -> dict[str, Any]:
    """Pause a name in the whole fleet."""
    return await _set_pause(call, "pause", partial(call.surface.monque.pause, by=call.audit.user), is_paused=True)


async def resume_name(call: Call) -> dict[str, Any]:
    """Resume a name."""
    return await _set_pause(call, "resume", call.surface.monque.resume, is_paused=False)


async def _set_pause(
    call: Call, action: str, change: Callable[[str], Awaitable[bool]], *, is_paused: bool
) -> dict[str, Any]:
    name = call.body["name"]
    call.audit.target = json.dumps({"name": name})
    if not await call.may(action, {"name": name}):
        raise RefusedRequestError(403, DENIED)
    return {"name": name, "isPaused": is_paused, "hasChanged": await change(name)}


# --- Who may what, and who works ---


async def permissions(call: Call) -> dict[str, Any]:
    """Return all that the caller may do, ours too."""
    read_only = call.surface.is_read_only
    actions: dict[str, bool] = {}
    for action in PERMISSIONS:
        is_possible = action in (READ, METRICS) or not read_only
        if action == "enqueue":
            is_possible = is_possible and call.surface.allows_enqueue
        if action == "readmit":
            is_possible = is_possible and bool(call.surface.claims)
        if action == METRICS:
            is_possible = has_metrics(call.surface)
        actions[action] = is_possible and await call.may(action)
    return {"readOnly": read_only, "actions": actions}


async def instances(call: Call) -> dict[str, Any]:
    """Return the scheduler instances of the fleet."""
    return {"instances": [instance_as_json(one) for one in await call.surface.monque.instances()]}
