"""The page that asks before something is done to many jobs, or that cannot be undone; and how far a long action is."""

from __future__ import annotations

from ...jobs.bulk_changes import CANCELLABLE, DELETABLE, RETRIABLE
from ..answers import DENIED, RefusedRequestError
from ..api.long_actions import UNKNOWN_ACTION
from ..api.selected_jobs import count_possible
from ..api.selectors import selection_of
from ..live.background_actions import State
from .acting import selector_of
from .deeds import DEEDS, READMIT, jobs_in_words
from .form import Form, form_in, packed
from .jobs_asked import SPANS, jobs_asked
from .screen import PageCall, View

_POSSIBLE = {"cancel": CANCELLABLE, "retry": RETRIABLE, "delete": DELETABLE}


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
        what = f"all dead letters of {form.target}" if form.deed is READMIT else f"name {form.target}"
    title = f"{form.deed.label} {form.deed.of}{what}?"
    if not number and form.target is None:
        title = "None of these jobs is left to be changed"
    return View(
        "confirm.html",
        title,
        {
            "form": form,
            "question": title,
            "deed": form.deed,
            "what": what,
            "number": number,
            "asked": packed([*form.fields, *query.items()]),
            "chips": jobs_asked(query.items(), call.now).chips if form.is_all else [],
            "tab": query.get("status"),
        },
    )


async def _number_of(call: PageCall, form: Form) -> tuple[int, bool]:
    deed = form.deed
    if not form.is_all:
        source = {"source": form.target, "everything": True}
        if not await call.may(deed.action, source if deed is READMIT else None):
            raise RefusedRequestError(403, DENIED)
        return len(form.ids), False
    selector = selector_of(form.query, call.now)
    if deed.in_bulk is None or not await call.may(deed.in_bulk, selector):
        raise RefusedRequestError(403, DENIED)
    selection = selection_of(selector, call.dashboard.hooks)
    if selection is None:
        return 0, False
    found = await count_possible(call.monque, selection, _POSSIBLE[deed.key])
    return found.number, found.is_capped


async def doing_facts(call: PageCall) -> View:
    """Ask how far a long action is. For a caller who may not do the same, there is none."""
    action = call.dashboard.surface.background.get(call.request.path_params["id"])
    if action is None or not await call.may(action.action, action.selector):
        raise RefusedRequestError(404, UNKNOWN_ACTION)
    deed = DEEDS[action.action.removesuffix("Bulk")]
    done = action.result.count
    return View(
        "doing.html",
        f"{deed.label}: {jobs_in_words(done)} of {jobs_in_words(action.count, is_capped=action.is_capped)}",
        {
            "deed": deed,
            "action": action,
            "is_running": action.state is State.RUNNING,
            "done": done,
            "done_words": jobs_in_words(done),
            "all_words": jobs_in_words(action.count, is_capped=action.is_capped),
        },
    )
