"""The page that asks before something is done to many jobs, or that cannot be undone; and how far a long action is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from ...error_types import BrokenDocumentError
from ...jobs.bulk_changes import CANCELLABLE, DELETABLE, RETRIABLE
from ...jobs.job import Job
from ..answers import DENIED, RefusedRequestError
from ..api.cancel_runs import RUNNING
from ..api.long_actions import UNKNOWN_ACTION
from ..api.selected_jobs import count_possible
from ..api.selectors import selection_of
from ..hooks import READ
from ..live.background_actions import State
from .form import Form, form_in, packed
from .jobs_asked import SPANS, jobs_asked
from .page_actions import MOVE, PAGE_ACTIONS, READMIT, jobs_in_words
from .posted_forms import selector_of
from .screen import PageCall, View

MOST_NAMED = 5
"""Chosen jobs that the question names."""

_POSSIBLE = {"cancel": CANCELLABLE, "cancel-run": RUNNING, "retry": RETRIABLE, "delete": DELETABLE}


async def confirm_facts(call: PageCall) -> View:
    """Ask how many jobs it would be, now."""
    form = form_in(call.request.query_params.multi_items())
    query = dict(form.query)
    if query.get("since") in SPANS:
        # The moment itself: what is confirmed is what was counted, however long the page stays open.
        selector = selector_of(query, call.now)
        query["since"] = selector["updatedAtFrom"]
    number, is_capped = await _number_of(call, form)
    what = jobs_in_words(number, is_capped=is_capped)
    if form.target is not None:
        what = f"all dead letters of {form.target}" if form.action is READMIT else f"name {form.target}"
    title = f"{form.action.label} {form.action.of}{what}?"
    if not number and form.target is None:
        title = "None of these jobs is left to change"
    named = await _named(call, form)
    return View(
        "confirm.html",
        title,
        {
            "form": form,
            "question": title,
            "action": form.action,
            "what": what,
            "number": number,
            "named": named,
            "more": max(0, len(form.ids) - MOST_NAMED),
            "asked": packed([*form.fields, *query.items()]),
            "chips": jobs_asked(query.items(), call.now).chips if form.is_all else [],
            "tab": query.get("status"),
            "due": _due_of(named, call) if form.action is MOVE else None,
        },
    )


async def _named(call: PageCall, form: Form) -> Sequence[Job]:
    """Return the first of the chosen jobs that the caller may see."""
    found = []
    for job_id in form.ids[:MOST_NAMED]:
        try:
            job = await call.monque.get_job(job_id)
        except BrokenDocumentError:
            continue
        # Asked in any case: a job that the caller may not see is as good as none.
        if await call.may(READ, job) and job is not None:
            found.append(job)
    return found


def _due_of(named: Sequence[Job], call: PageCall) -> datetime:
    """Return what the field for another moment begins with."""
    return named[0].next_run_at if named else call.now


async def _number_of(call: PageCall, form: Form) -> tuple[int, bool]:
    action = form.action
    if not form.is_all:
        source = {"source": form.target, "everything": True}
        if not await call.may(action.permission, source if action is READMIT else None):
            raise RefusedRequestError(403, DENIED)
        return len(form.ids), False
    selector = selector_of(form.query, call.now)
    if action.bulk_permission is None or not await call.may(action.bulk_permission, selector):
        raise RefusedRequestError(403, DENIED)
    selection = selection_of(selector, call.dashboard.hooks)
    if selection is None:
        return 0, False
    found = await count_possible(call.monque, selection, _POSSIBLE[action.key])
    return found.number, found.is_capped


async def action_progress_facts(call: PageCall) -> View:
    """Ask how far a long action is. For a caller who may not do the same, there is none."""
    running = call.dashboard.surface.background.get(call.request.path_params["id"])
    if running is None or not await call.may(running.action, running.selector):
        raise RefusedRequestError(404, UNKNOWN_ACTION)
    action = next(one for one in PAGE_ACTIONS.values() if one.bulk_permission == running.action)
    done = running.result.count
    of_all = jobs_in_words(running.count, is_capped=running.is_capped)
    return View(
        "action_progress.html",
        f"{action.label}: {jobs_in_words(done)} of {of_all}",
        {
            "action": action,
            "progress": running,
            "is_running": running.state is State.RUNNING,
            "done": done,
            "done_words": jobs_in_words(done),
            "all_words": of_all,
        },
    )
