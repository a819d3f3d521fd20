"""The routes that change all jobs that a selector selects."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from starlette.responses import Response

from ...client.monque import Monque
from ...error_types import PartialBulkError
from ...jobs.bulk_changes import CANCELLABLE, DELETABLE, RETRIABLE, BulkResult
from ...jobs.job import JobStatus
from ...jobs.job_selector import JobSelector, Selection
from ...store.reads.selection_counts import SelectionCount
from ..answers import DENIED, RefusedRequestError
from ..live.background_actions import BackgroundAction
from .cancel_runs import RUNNING, cancel_runs
from .job_shapes import bulk_as_json
from .long_actions import OnProgress, begin, is_long
from .route import Call
from .selectors import selection_of, selector_in


@dataclass(frozen=True, slots=True)
class _Bulk:
    """What is done to a selection.

    Attributes:
        action: What `authorize` is asked for.
        possible: The statuses in which it can be done.
        act: Does it.
    """

    action: str
    possible: Collection[JobStatus]
    act: Callable[[Monque, Selection, OnProgress | None], Awaitable[BulkResult]]


def _cancel(monque: Monque, selection: Selection, on_progress: OnProgress | None) -> Awaitable[BulkResult]:
    return monque.cancel_jobs(on_progress=on_progress, **selection)


def _retry(monque: Monque, selection: Selection, on_progress: OnProgress | None) -> Awaitable[BulkResult]:
    return monque.retry_jobs(on_progress=on_progress, **selection)


def _delete(monque: Monque, selection: Selection, on_progress: OnProgress | None) -> Awaitable[BulkResult]:
    return monque.delete_jobs(everything=not selection, on_progress=on_progress, **selection)


_CANCEL: Final = _Bulk("cancelBulk", CANCELLABLE, _cancel)
_CANCEL_RUNNING: Final = _Bulk("cancelRunningBulk", RUNNING, cancel_runs)
_RETRY: Final = _Bulk("retryBulk", RETRIABLE, _retry)
_DELETE: Final = _Bulk("deleteBulk", DELETABLE, _delete)


async def cancel_jobs(call: Call) -> dict[str, Any] | Response:
    """Cancel the selected jobs that are pending."""
    return await _in_bulk(call, _CANCEL)


async def cancel_running_jobs(call: Call) -> dict[str, Any] | Response:
    """Ask the runs of the selected jobs to end."""
    return await _in_bulk(call, _CANCEL_RUNNING)


async def retry_jobs(call: Call) -> dict[str, Any] | Response:
    """Make the selected jobs that are failed or cancelled pending again."""
    return await _in_bulk(call, _RETRY)


async def delete_jobs(call: Call) -> dict[str, Any] | Response:
    """Delete the selected jobs."""
    return await _in_bulk(call, _DELETE)


async def _in_bulk(call: Call, bulk: _Bulk) -> dict[str, Any] | Response:
    selector = selector_in(call.body)
    call.audit.target = json.dumps(selector, sort_keys=True)
    if not await call.may(bulk.action, selector):
        raise RefusedRequestError(403, DENIED)
    call.take_turn()
    selection = selection_of(selector, call.surface.hooks)
    if selection is None:
        call.audit.count = 0
        return bulk_as_json(BulkResult())
    monque = call.surface.monque
    if call.prefers_early and is_long(counted := await count_possible(monque, selection, bulk.possible)):
        long = BackgroundAction(
            action=bulk.action, selector=selector, count=counted.number, is_capped=counted.is_capped
        )
        return begin(call, long, partial(bulk.act, monque, selection))
    try:
        result = await bulk.act(monque, selection, None)
    except PartialBulkError as error:
        call.audit.count = error.count
        raise
    call.audit.count = result.count
    return bulk_as_json(result)


async def count_possible(monque: Monque, selection: Selection, possible: Collection[JobStatus]) -> SelectionCount:
    """Return how many of the jobs can be changed."""
    statuses = JobSelector(**selection).among(possible)
    if not statuses:
        return SelectionCount(0)
    asked = selection.copy()
    asked["status"] = None if set(statuses) == set(JobStatus) else statuses
    return await monque.count_jobs(**asked)
