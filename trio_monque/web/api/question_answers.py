"""What the routes of an operator's questions do: errors in groups, schedules, the jobs of an instance, and reasons."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ...diagnosis.reasons import Reason
from ...jobs.failure_groups import ErrorGroup
from ...jobs.instance import Instance, LastBlock
from ...jobs.views import JobList
from ...store.jobs.job_json import iso
from ..answers import INVALID_INPUT, NOT_FOUND, RefusedRequestError
from ..words.reason_sentences import sentence_of
from .full_view import full_jobs_as_json
from .job_shapes import plain_number
from .moments import moment_in
from .query import is_possible_name, limit_in, single_values
from .route import Call, Pairs

OF_ERRORS = frozenset({"since", "name", "limit"})
OF_SCHEDULES = frozenset({"limit"})


def errors_asked(pairs: Pairs) -> Mapping[str, Any]:
    """Return the conditions on failed jobs. Raise RefusedRequestError (400) for a query that has another shape."""
    given = dict(single_values(pairs, OF_ERRORS))
    since = moment_in(given["since"]) if "since" in given else None
    if "since" in given and since is None:
        raise RefusedRequestError(400, INVALID_INPUT)
    return {**given, "since": since}


def schedules_asked(pairs: Pairs) -> Mapping[str, Any]:
    """Return how many schedules are asked for."""
    return single_values(pairs, OF_SCHEDULES)


async def error_groups(call: Call) -> dict[str, Any]:
    """Return the failed jobs, grouped by their errors."""
    limit, name = limit_in(call.query.get("limit")), call.query.get("name")
    if name is not None and not is_possible_name(name):
        return {"groups": [], "lookedAt": 0, "isCapped": False}
    found = await call.surface.monque.get_error_groups(since=call.query["since"], name=name, limit=limit)
    # A hook changes the text of one job. What many have in common would show what it hides.
    is_shown = call.surface.hooks.show_errors is True
    return {
        "groups": [_group_as_json(group, is_shown) for group in found.groups],
        "lookedAt": found.looked_at,
        "isCapped": found.is_capped,
    }


def _group_as_json(group: ErrorGroup, is_shown: bool) -> dict[str, Any]:  # noqa: FBT001
    return {
        "error": group.error if is_shown else None,
        "prefix": group.prefix if is_shown else None,
        "names": dict(group.names),
        "count": group.count,
        "example": str(group.example),
        "firstAt": iso(group.first),
        "lastAt": iso(group.last),
        "byMinute": list(group.by_minute),
    }


async def schedules(call: Call) -> dict[str, Any]:
    """Return the recurring jobs, next run first."""
    return await _list_as_json(await call.surface.monque.get_schedules(limit=limit_in(call.query.get("limit"))), call)


async def instance(call: Call) -> dict[str, Any]:
    """Return an instance with the jobs that it holds. One of Monque for Node has no entry, and is known by its jobs."""
    monque, instance_id = call.surface.monque, call.id_text
    entries = {one.id: one for one in await monque.instances()}
    held = await monque.get_running(instance=instance_id)
    if instance_id not in entries and not held.jobs:
        raise RefusedRequestError(404, NO_INSTANCE)
    entry = entries.get(instance_id)
    return {"instance": None if entry is None else instance_as_json(entry), **await _list_as_json(held, call)}


NO_INSTANCE = "Instance not found"


def instance_as_json(one: Instance) -> dict[str, Any]:
    """Return the entry of an instance."""
    return {
        "id": one.id,
        "host": one.host,
        "pid": one.pid,
        "version": one.version,
        "names": list(one.names),
        "startedAt": iso(one.started_at),
        "lastHeartbeat": iso(one.last_heartbeat),
        "heartbeatInterval": plain_number(one.heartbeat_interval * 1000),
        "isLive": one.is_live,
        "isDraining": one.draining,
        "held": one.held,
        "parked": one.parked,
        "slots": one.slots,
        "heldByName": dict(one.held_by_name),
        "overdueByName": dict(one.overdue_by_name),
        "fullNames": list(one.full_names),
        "timeLimits": {name: plain_number(limit * 1000) for name, limit in one.time_limits.items()},
        "loopBlocked": one.loop_blocked,
        "lastBlock": None if one.last_block is None else _block_as_json(one.last_block),
    }


def _block_as_json(block: LastBlock) -> dict[str, Any]:
    return {"name": block.name, "at": iso(block.at), "duration": plain_number(block.seconds * 1000)}


async def _list_as_json(found: JobList, call: Call) -> dict[str, Any]:
    jobs = await full_jobs_as_json(found.jobs, call.surface.hooks, call.context)
    return {"jobs": jobs, "isCapped": found.is_capped}


async def reasons_of_job(call: Call) -> dict[str, Any]:
    """Return why a job does not run now, or how its run is."""
    found = await call.surface.monque.why_not_now(call.job_id)
    if not found:
        raise RefusedRequestError(404, NOT_FOUND)
    return {"reasons": [_reason_as_json(one) for one in found]}


def _reason_as_json(reason: Reason) -> dict[str, Any]:
    values = {camel_case(name): plain_value(value) for name, value in reason.values.items()}
    return {"kind": camel_case(reason.kind), "sentence": sentence_of(reason), "values": values}


def camel_case(name: str) -> str:
    """Return a name as HTTP spells it."""
    first, *others = name.split("_")
    return first + "".join(one.capitalize() for one in others)


def plain_value(value: Any) -> Any:
    """Return a value of a fact as JSON has it: moments in ISO 8601, seconds to the millisecond."""
    if isinstance(value, datetime):
        return iso(value)
    return plain_number(round(value, 3)) if isinstance(value, float) else value
