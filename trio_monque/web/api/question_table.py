"""The routes of an operator's questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from . import judgement_answers, minute_answers, question_answers
from .minute_answers import minutes_asked
from .question_answers import errors_asked, schedules_asked
from .route import Route
from .schemas import MOMENT, TEXT
from .table import parameter

_LIMIT: Final = parameter("limit", TEXT)

QUESTIONS: Final[Sequence[Route]] = (
    Route(
        method="GET",
        path="/errors",
        operation_id="listErrors",
        summary="The jobs that failed for good, grouped by their errors",
        act=question_answers.error_groups,
        answer="ErrorGroupList",
        read_query=errors_asked,
        parameters=[parameter("since", MOMENT), parameter("name", TEXT), _LIMIT],
        is_ours=True,
        statuses=(400, 403),
    ),
    Route(
        method="GET",
        path="/minutes",
        operation_id="listMinutes",
        summary="What all schedulers did in each minute of the last hour, or of another span",
        act=minute_answers.minutes,
        answer="MinuteList",
        read_query=minutes_asked,
        parameters=[parameter("from", MOMENT), parameter("to", MOMENT), parameter("name", TEXT)],
        is_ours=True,
        statuses=(400, 403),
    ),
    Route(
        method="GET",
        path="/findings",
        operation_id="listFindings",
        summary="What is wrong with the server, the indexes, the instances and the jobs, the worst first",
        act=judgement_answers.findings,
        answer="FindingList",
        is_ours=True,
        statuses=(400, 403),
    ),
    Route(
        method="GET",
        path="/overview",
        operation_id="getOverview",
        summary="The state of the jobs of each name, and what needs an operator",
        act=judgement_answers.overview,
        answer="Overview",
        is_ours=True,
        statuses=(400, 403),
    ),
    Route(
        method="GET",
        path="/schedules",
        operation_id="listSchedules",
        summary="The recurring jobs, next run first",
        act=question_answers.schedules,
        answer="JobFullList",
        read_query=schedules_asked,
        parameters=[_LIMIT],
        is_ours=True,
        statuses=(400, 403),
    ),
    Route(
        method="GET",
        path="/instances/{id}",
        operation_id="getInstance",
        summary="An instance with the jobs that it holds, the longest running first",
        act=question_answers.instance,
        answer="InstanceWithJobs",
        is_ours=True,
        statuses=(400, 403, 404),
    ),
    Route(
        method="GET",
        path="/jobs/{id}/reasons",
        operation_id="getReasons",
        summary="Why a job is not running, or the state of its run",
        act=question_answers.reasons_of_job,
        answer="ReasonList",
        is_ours=True,
        statuses=(400, 403, 404),
    ),
)
