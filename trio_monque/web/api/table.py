"""All routes: how requests find them, and what OpenAPI says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from . import actions, reads, selected_jobs
from .query import OF_LIST, OF_STATS, listing_in, single_values
from .route import Pairs, Route, any_query
from .schemas import MOMENT, STATUS, TEXT, JsonSchema, list_of
from .selectors import check_selector

_SORTS: Final = {
    "sortBy": {"type": "string", "enum": ["identifier", "createdAt", "updatedAt", "nextRunAt"]},
    "sortDirection": {"type": "string", "enum": ["asc", "desc"]},
}


def parameter(name: str, schema: JsonSchema) -> Mapping[str, Any]:
    """Return a parameter of a query, for OpenAPI."""
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _of_list(key: str) -> JsonSchema:
    return MOMENT if key.endswith(("From", "To")) else _SORTS.get(key, TEXT)


_LIST_PARAMETERS: Final = [
    *(parameter(key, _of_list(key)) for key in sorted(OF_LIST)),
    parameter("status", list_of(STATUS, minItems=1)),
]


def _stats_query(pairs: Pairs) -> Mapping[str, str]:
    return single_values(pairs, OF_STATS)


_ONE: Final = (400, 403, 404, 409, 413, 415, 429)
_MANY: Final = (400, 403, 413, 415, 429, 503)

ROUTES: Final[Sequence[Route]] = (
    Route(
        method="GET",
        path="/health",
        operation_id="getSchedulerHealth",
        summary="Whether the scheduler works",
        act=reads.health,
        answer="SchedulerHealth",
        read_query=any_query,
        is_open=True,
    ),
    Route(
        method="GET",
        path="/capabilities",
        operation_id="getCapabilities",
        summary="What the caller may do",
        act=reads.capabilities,
        answer="Capabilities",
        read_query=any_query,
        is_open=True,
    ),
    Route(
        method="GET",
        path="/queue-views",
        operation_id="listQueueViews",
        summary="The jobs and the worker of each name",
        act=reads.queue_views,
        answer="QueueViewSummaryList",
        read_query=any_query,
        statuses=(403,),
    ),
    Route(
        method="GET",
        path="/jobs",
        operation_id="listJobs",
        summary="A page of jobs",
        act=reads.list_jobs,
        answer="JobCursorPage",
        read_query=listing_in,
        parameters=_LIST_PARAMETERS,
        statuses=(400, 403),
    ),
    Route(
        method="GET",
        path="/jobs/stats",
        operation_id="getJobStats",
        summary="The number of jobs in each status",
        act=reads.job_stats,
        answer="QueueStats",
        read_query=_stats_query,
        parameters=[parameter("name", TEXT)],
        statuses=(400, 403),
    ),
    Route(
        method="GET",
        path="/jobs/{id}",
        operation_id="getJob",
        summary="One job",
        act=reads.get_job,
        answer="Job",
        statuses=(400, 403, 404, 409),
    ),
    Route(
        method="DELETE",
        path="/jobs/{id}",
        operation_id="deleteJob",
        summary="Delete a job",
        act=actions.delete_job,
        answer="DeleteJob",
        action="delete",
        statuses=_ONE,
    ),
    *(
        Route(
            method="POST",
            path=f"/jobs/{{id}}/actions/{action}",
            operation_id=f"{action}Job",
            summary=summary,
            act=act,
            answer="Job",
            body=body,
            needs_body=action == "reschedule",
            action=action,
            statuses=_ONE,
        )
        for action, summary, act, body in (
            (
                "cancel",
                "Cancel a pending job, or a running one if the body asks for that",
                actions.cancel_job,
                "CancelRequest",
            ),
            ("retry", "Make a failed or cancelled job pending again", actions.retry_job, None),
            ("reschedule", "Move a pending job", actions.reschedule_job, "RescheduleJobRequest"),
        )
    ),
    *(
        Route(
            method="POST",
            path=f"/jobs/actions/{action}",
            operation_id=f"{action}Jobs",
            summary=summary,
            act=act,
            answer="BulkActionResult",
            body="JobSelector",
            needs_body=True,
            check_body=check_selector,
            action=f"{action}Bulk",
            long_answer="ActionStarted",
            statuses=_MANY,
        )
        for action, summary, act in (
            ("cancel", "Cancel the selected jobs that are pending", selected_jobs.cancel_jobs),
            ("retry", "Make the selected jobs that are failed or cancelled pending again", selected_jobs.retry_jobs),
            ("delete", "Delete the selected jobs", selected_jobs.delete_jobs),
        )
    ),
)
