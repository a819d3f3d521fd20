"""A client of the management contract, written from the contract alone: it refuses any field that it does not know.

It spells its requests as the official client does: lists with numbers, percent-encoded, and changes of one job without
a body and a content type.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

Fetch = Callable[[str, str, Any], Awaitable[tuple[int, Any]]]

STATUSES = {"pending", "processing", "completed", "failed", "cancelled"}
ACTIONS = {"read", "cancel", "cancelBulk", "retry", "retryBulk", "reschedule", "delete", "deleteBulk"}


class ContractError(AssertionError):
    """An answer that the contract does not allow."""


class StrictClient:
    """One method for each operation; each returns the answer if it is as the contract says."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    async def health(self) -> Any:
        return closed(
            await self._ask("GET", "/health"), status=one_of("ok", "unavailable"), scheduler=fields(healthy=flag)
        )

    async def capabilities(self) -> Any:
        actions = fields(None, **dict.fromkeys(ACTIONS, flag))
        return closed(await self._ask("GET", "/capabilities"), readOnly=flag, actions=actions)

    async def queue_views(self) -> Any:
        worker = nullable(fields(concurrency=count, activeCount=count))
        view = fields(name=text, hasPersistedJobs=flag, hasRegisteredWorker=flag, stats=stats, worker=worker)
        return closed(await self._ask("GET", "/queue-views"), queueViews=every(view))

    async def jobs(self, *, status: list[str] | None = None, **given: object) -> Any:
        query = [f"{key}={quote(str(value), safe='')}" for key, value in given.items()]
        if status is not None and len(status) == 1:
            query.append(f"status={status[0]}")
        elif status is not None:
            query += [f"status%5B{number}%5D={one}" for number, one in enumerate(status)]
        answer = await self._ask("GET", "/jobs" + "?" * bool(query) + "&".join(query))
        return closed(answer, jobs=every(job), cursor=nullable(text), hasNextPage=flag, hasPreviousPage=flag)

    async def stats(self, name: str | None = None) -> Any:
        query = "" if name is None else f"?name={quote(name, safe='')}"
        answer = await self._ask("GET", "/jobs/stats" + query)
        stats(answer)
        return answer

    async def job(self, job_id: str) -> Any:
        answer = await self._ask("GET", f"/jobs/{job_id}")
        job(answer)
        return answer

    async def act(self, job_id: str, action: str, body: Any = None) -> Any:
        answer = await self._ask("POST", f"/jobs/{job_id}/actions/{action}", body)
        job(answer)
        return answer

    async def delete(self, job_id: str) -> Any:
        return closed(await self._ask("DELETE", f"/jobs/{job_id}"), deleted=one_of(True))

    async def act_in_bulk(self, action: str, selector: Any) -> Any:
        answer = await self._ask("POST", f"/jobs/actions/{action}", selector)
        return closed(answer, count=count, errors=every(fields(jobId=text, error=text)))

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        status, answer = await self._fetch(method, path, body)
        if status != 200:
            closed(answer, error=text)
            raise ContractError(f"{status}: {answer['error']}")
        return answer


Check = Callable[[Any], None]


def demand(condition: bool, what: str, value: Any) -> None:
    if not condition:
        raise ContractError(f"not {what}: {value!r}")


def text(value: Any) -> None:
    demand(isinstance(value, str), "a text", value)


def flag(value: Any) -> None:
    demand(isinstance(value, bool), "a flag", value)


def count(value: Any) -> None:
    demand(type(value) is int and value >= 0, "a count", value)


def number(value: Any) -> None:
    demand(type(value) in (int, float), "a number", value)


def moment(value: Any) -> None:
    pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    demand(isinstance(value, str) and re.fullmatch(pattern, value) is not None, "a moment", value)


def anything(value: Any) -> None: ...


def nullable(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def every(check: Check) -> Check:
    def each(value: Any) -> None:
        demand(isinstance(value, list), "a list", value)
        for one in value:
            check(one)

    return each


def one_of(*allowed: Any) -> Check:
    return lambda value: demand(value in allowed, f"one of {allowed}", value)


def fields(optional: dict[str, Check] | None = None, **required: Check) -> Check:
    return lambda value: _check_fields(value, required, optional or {})


def closed(value: Any, **required: Check) -> Any:
    _check_fields(value, required, {})
    return value


def _check_fields(value: Any, required: dict[str, Check], optional: dict[str, Check]) -> None:
    demand(isinstance(value, dict), "an object", value)
    demand(required.keys() <= value.keys() <= required.keys() | optional.keys(), f"with {[*required]}", value)
    for key, one in value.items():
        (required.get(key) or optional[key])(one)


stats = fields({"avgProcessingDurationMs": number}, **dict.fromkeys([*STATUSES, "total"], count))
job = fields(
    {"heartbeatInterval": number, "repeatInterval": text, "uniqueKey": text},
    id=lambda value: demand(re.fullmatch(r"[0-9a-f]{24}", value) is not None, "an id", value),
    name=text,
    status=one_of(*STATUSES),
    payload=anything,
    nextRunAt=moment,
    lockedAt=nullable(moment),
    claimedBy=nullable(text),
    lastHeartbeat=nullable(moment),
    failCount=count,
    failureReason=nullable(text),
    createdAt=moment,
    updatedAt=moment,
)
