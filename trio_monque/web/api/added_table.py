"""All routes of the application: those of the contract, two of them with a second view, and ours."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from . import additions, selected_jobs
from .claims_answers import CLAIMS
from .full_query import DIRECTIONS, FLAGS, any_view_in, is_full_in
from .long_actions import ACTION
from .metrics_answer import SHOW_METRICS
from .question_table import QUESTIONS
from .route import Route, Surface, any_query
from .schemas import TEXT
from .selectors import check_selector
from .table import ROUTES, parameter
from .watching import WATCH

_VIEW: Final = parameter("view", {"type": "string", "enum": ["full"]})
_OF_FULL_LIST: Final = [
    _VIEW,
    parameter("direction", {"type": "string", "enum": list(DIRECTIONS)}),
    parameter("due", {"type": "string", "enum": list(FLAGS)}),
    *(parameter(key, TEXT) for key in ("errorContains", "errorPrefix", "instance", "key", "keyPrefix", "parent")),
]


def _with_full_view(route: Route) -> Route:
    match route.operation_id:
        case "listJobs":
            return replace(
                route,
                act=additions.list_jobs,
                read_query=any_view_in,
                parameters=[*route.parameters, *_OF_FULL_LIST],
                full_answer="JobFullPage",
            )
        case "getJob":
            return replace(
                route, act=additions.get_job, read_query=is_full_in, parameters=[_VIEW], full_answer="JobFull"
            )
        case _:
            return route


def _allows_enqueue(surface: Surface) -> bool:
    return surface.allows_enqueue


_OF_CHANGES: Final = (400, 403, 413, 415, 429)

ADDED: Final[Sequence[Route]] = (
    Route(
        method="POST",
        path="/jobs",
        operation_id="enqueueJob",
        summary="Enqueue a job",
        act=additions.enqueue_job,
        answer="Job",
        body="EnqueueRequest",
        needs_body=True,
        action="enqueue",
        is_supported=_allows_enqueue,
        is_ours=True,
        statuses=(400, 403, 409, 413, 415, 429),
    ),
    Route(
        method="POST",
        path="/jobs/actions/count",
        operation_id="countJobs",
        summary="The number of jobs that a selector selects",
        act=additions.count_jobs,
        answer="JobCount",
        body="JobSelector",
        needs_body=True,
        check_body=check_selector,
        only_reads=True,
        is_ours=True,
        statuses=(400, 403, 413, 415),
    ),
    Route(
        method="POST",
        path="/jobs/actions/cancel-running",
        operation_id="cancelRunningJobs",
        summary="Request the cancellation of the runs of the selected jobs",
        act=selected_jobs.cancel_running_jobs,
        answer="BulkActionResult",
        body="JobSelector",
        needs_body=True,
        check_body=check_selector,
        action="cancelRunningBulk",
        long_answer="ActionStarted",
        is_ours=True,
        statuses=(*_OF_CHANGES, 503),
    ),
    Route(
        method="POST",
        path="/jobs/actions/by-ids",
        operation_id="actByIds",
        summary="Cancel, retry or delete up to 100 jobs by id, or request the cancellation of their runs",
        act=additions.act_by_ids,
        answer="BulkActionResult",
        body="JobsByIdRequest",
        needs_body=True,
        action="byIds",
        is_ours=True,
        statuses=_OF_CHANGES,
    ),
    *(
        Route(
            method="POST",
            path=f"/names/actions/{action}",
            operation_id=f"{action}Name",
            summary=summary,
            act=act,
            answer="NameState",
            body="NameRequest",
            needs_body=True,
            action=action,
            is_ours=True,
            statuses=_OF_CHANGES,
        )
        for action, summary, act in (
            ("pause", "Pause a name in all instances", additions.pause_name),
            ("resume", "Resume a name", additions.resume_name),
        )
    ),
    Route(
        method="GET",
        path="/permissions",
        operation_id="getPermissions",
        summary="What the caller may do, including actions beyond the contract",
        act=additions.permissions,
        answer="Permissions",
        read_query=any_query,
        is_open=True,
        is_ours=True,
    ),
    Route(
        method="GET",
        path="/instances",
        operation_id="listInstances",
        summary="The scheduler instances of the fleet",
        act=additions.instances,
        answer="InstanceList",
        is_ours=True,
        statuses=(400, 403),
    ),
)

ALL_ROUTES: Final[Sequence[Route]] = (
    *(_with_full_view(route) for route in ROUTES),
    *ADDED,
    *QUESTIONS,
    *CLAIMS,
    ACTION,
    WATCH,
    SHOW_METRICS,
)
"""By method and path, each once."""


def routes_with(filters: Collection[str]) -> Sequence[Route]:
    """Return all routes of an application whose lists can be filtered by these fields."""
    more = [parameter(path, TEXT) for path in filters]
    return [
        replace(route, parameters=[*route.parameters, *more]) if route.operation_id == "listJobs" else route
        for route in ALL_ROUTES
    ]
