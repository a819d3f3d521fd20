"""The screen Jobs: a list by tab and filters, page by page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from ...diagnosis.overview import Overview
from ...error_types import InvalidOptionError
from ...jobs.job import Job, JobStatus
from ...jobs.views import CursorPage
from ..answers import RefusedRequestError
from ..api.field_filters import check_fields
from ..api.full_view import cursors_around
from ..api.selectors import check_error_search
from ..words.lengths import grouped
from .jobs_asked import ON_A_PAGE, SPANS, TABS, TEXTS, JobsAsked, Tab, jobs_asked
from .page_actions import OF_JOBS, PAUSE, RESUME
from .screen import FRESH, PageCall, View
from .shown_values import short_values, shown_text

ENDED: Final = frozenset({JobStatus.COMPLETED, JobStatus.CANCELLED})
COUNTED_ENDED: Final = 1_000
"""Done and cancelled jobs are counted up to this number, or a page would read as many keys as there are jobs."""
COUNTED_MATCHES: Final = 10_000
MOST_READ: Final = 5_000
"""Jobs that are read to count what no index has, such as an error: beside those that the list itself reads."""
LONGEST_CELL: Final = 160
NO_JOBS: Final = CursorPage(jobs=(), cursor=None, has_next_page=False, has_previous_page=False)


@dataclass(frozen=True, slots=True)
class JobRow:
    """One row.

    Attributes:
        job: The job.
        state: As people call it: "due", "running", and so on.
        why: The error of a failed one, as it may be shown; None for none.
        ran: Seconds of its last run, or of its run so far.
        value: Its result, or its progress while it runs, in short.
        field: The value of the first filter of the application.
    """

    job: Job
    state: str
    why: str | None
    ran: float | None
    value: str | None
    field: str | None


@dataclass(frozen=True, slots=True)
class CountedTab:
    """A tab with the number of its jobs, as a text such as "10,000+"; None if that is not known."""

    tab: Tab
    count: str | None
    query: Mapping[str, str]


async def jobs_facts(call: PageCall) -> View:
    """Ask for what the screen shows."""
    asked = jobs_asked(call.request.query_params.multi_items(), call.now)
    surface = call.dashboard.surface
    check_error_search(surface.hooks, bool(asked.conditions.keys() & {"fail_reason", "fail_reason_prefix"}))
    page = NO_JOBS if asked.contradiction else await _page(call, asked)
    before, behind = cursors_around(page, asked.sort, asked.direction)
    overview = await call.monque.get_overview(max_age=FRESH)
    matching = await _matching(call, asked, overview, page)
    tabs = await _tabs(call, asked, overview)
    shown_field = next((one for one in surface.filters if one.startswith("meta.")), None)
    name = asked.conditions.get("name")
    return View(
        "jobs.html",
        _title(asked, matching, page),
        {
            "asked": asked,
            "tabs_of_jobs": tabs,
            "all_query": {key: value for key, value in asked.query.items() if key != "status"},
            "rows": await _rows(call, page.jobs, asked, shown_field),
            "page": page,
            "newer": before if page.has_previous_page else None,
            "older": behind if page.has_next_page else None,
            "matching": matching,
            "field": shown_field,
            "fields": surface.filters,
            "texts": TEXTS,
            "spans": SPANS,
            "per_page": ON_A_PAGE,
            "is_empty": not overview.names,
            "is_paused": name is not None and name in overview.names and overview.names[name].is_paused,
            "name": name,
            **await _actions(call, asked, name),
        },
    )


async def _page(call: PageCall, asked: JobsAsked) -> CursorPage:
    surface = call.dashboard.surface
    try:
        wanted = asked.filter
    except InvalidOptionError as error:  # The sentence names the condition.
        raise RefusedRequestError(400, str(error)) from None
    check_fields(surface.hooks, surface.filters, wanted)
    return await call.monque.get_jobs_with_cursor(
        cursor=asked.cursor, limit=ON_A_PAGE, direction=asked.direction, filter=wanted, sort=asked.sort
    )


async def _actions(call: PageCall, asked: JobsAsked, name: str | None) -> dict[str, Any]:
    """Return what the caller may do here: to chosen jobs, to all that match, and to the name."""
    fitting = [
        action
        for action in OF_JOBS
        if action.bulk_permission is not None and (asked.tab is None or asked.tab.key in action.states)
    ]
    # Without a tab or a filter, "all that match" would be all jobs that there are.
    can_select_all = bool(asked.selection)
    pauses = None
    if name is not None:
        pauses = {action.key: await call.may(action.permission, {"name": name}) for action in (PAUSE, RESUME)}
    return {
        "actions": [action for action in fitting if await call.may(action.permission)],
        "actions_for_all": [
            action for action in fitting if can_select_all and await call.may(action.bulk_permission or "")
        ],
        "may_pause": pauses is not None and pauses["pause"],
        "may_resume": pauses is not None and pauses["resume"],
    }


# --- Numbers ---


async def _matching(call: PageCall, asked: JobsAsked, overview: Overview, page: CursorPage) -> str | None:
    """Return how many jobs match, for the selection of all of them; None if no bulk action can select them."""
    selection = asked.selection
    if not selection:
        return None
    if not (page.has_next_page or page.has_previous_page or page.is_capped):
        return _number(len(page.jobs), is_capped=False)
    if asked.names_only and asked.tab is not None and (known := _of_overview(asked.tab, asked, overview)) is not None:
        return known
    found = await call.monque.count_jobs(up_to=COUNTED_MATCHES, most_read=MOST_READ, **selection)
    return _number(found.number, is_capped=found.is_capped)


async def _tabs(call: PageCall, asked: JobsAsked, overview: Overview) -> Sequence[CountedTab]:
    found = []
    for tab in TABS:
        count = None
        if asked.names_only:
            count = _of_overview(tab, asked, overview)
            if count is None:
                # Of one name, all of an index; of all names, the overview has everything but those that have ended.
                most = COUNTED_ENDED if tab.status in ENDED else COUNTED_MATCHES
                counted = await call.monque.count_jobs(up_to=most, status=tab.status, due=tab.due, **asked.conditions)
                count = _number(counted.number, is_capped=counted.is_capped)
        found.append(CountedTab(tab, count, {**asked.query, "status": tab.key}))
    return found


def _of_overview(tab: Tab, asked: JobsAsked, overview: Overview) -> str | None:
    """Return the number of a tab from the overview, which all viewers share; None for what it does not count."""
    if tab.status in ENDED:
        return None
    name = asked.conditions.get("name")
    chosen = [one for each, one in overview.names.items() if name in (None, each)]
    is_capped = (overview.is_capped and name is None) or any(tab.key in one.capped for one in chosen)
    if is_capped and name is not None:
        return None  # The names share what an overview counts: one name alone can be counted further.
    return _number(sum(getattr(one, tab.key) for one in chosen), is_capped=is_capped)


def _number(count: int, *, is_capped: bool) -> str:
    return grouped(count) + ("+" if is_capped else "")


def _title(asked: JobsAsked, matching: str | None, page: CursorPage) -> str:
    what = "Jobs" if asked.tab is None else f"{asked.tab.text.lower()} job{'' if matching == '1' else 's'}"
    name = asked.conditions.get("name")
    number = f"{matching} " if matching is not None and asked.tab is not None else ""
    return f"{number}{what}{'' if name is None else f' of {name}'}"


# --- Rows ---


async def _rows(call: PageCall, jobs: Sequence[Job], asked: JobsAsked, shown_field: str | None) -> Sequence[JobRow]:
    hooks, context = call.dashboard.hooks, call.context
    wanted = {"running": "progress", "done": "result"}.get("" if asked.tab is None else asked.tab.key)
    values: Mapping[tuple[Any, str], str] = {}
    if wanted is not None:
        values = await short_values([(job, wanted) for job in jobs], LONGEST_CELL, hooks, context)
    rows = []
    for job in jobs:
        why = None
        if job.status is JobStatus.FAILED or (job.status is JobStatus.PENDING and job.fail_count):
            why = await shown_text(job, job.fail_reason, hooks, context)
        value = values.get((job.id, wanted)) if wanted is not None else None
        rows.append(
            JobRow(
                job,
                state_of(job, call.now),
                why,
                _ran(job, call.now),
                value,
                None if shown_field is None else job.meta.get(shown_field.removeprefix("meta.")),
            )
        )
    return rows


def state_of(job: Job, now: datetime) -> str:
    """Return the state of a job, as people call it."""
    match job.status:
        case JobStatus.PENDING:
            return "due" if job.next_run_at <= now else "later"
        case JobStatus.PROCESSING:
            return "running"
        case JobStatus.COMPLETED:
            return "done"
        case status:
            return status.value


def _ran(job: Job, now: datetime) -> float | None:
    if job.status is JobStatus.PROCESSING:
        since = job.claim.since if job.claim is not None else None
        return None if since is None else max(0.0, (now - since) / timedelta(seconds=1))
    if job.status is JobStatus.COMPLETED and job.started_at is not None and job.finished_at is not None:
        return max(0.0, (job.finished_at - job.started_at) / timedelta(seconds=1))
    last = job.errors[-1].get("ran") if job.errors else None
    return last / 1000 if isinstance(last, int) and last >= 0 else None
