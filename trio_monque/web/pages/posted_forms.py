"""What the forms of pages do: they go the way of the API, with its checks and its line in the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ...client.monque import forget_statistics_of, server_time_of
from ...store.jobs.job_json import iso
from ..answers import RefusedRequestError
from ..api.actions import body_of_reschedule
from ..api.added_table import ALL_ROUTES
from ..api.route import RequestParts, Route
from ..api.selectors import check_selector
from ..guard.body import form_bytes
from ..live.long_answer import LongAnswer
from .form import Form, after, form_in, pairs_in
from .jobs_asked import jobs_asked
from .page_actions import CANCEL_RUN, MOVE, READMIT, RUN_NOW
from .screen import Dashboard, root_of

_ROUTES: Final[Mapping[str, Route]] = {route.operation_id: route for route in ALL_ROUTES}

_IN_API: Final = {CANCEL_RUN.key: "cancelRunning"}
"""What the API calls an action, where its name is another one."""

_SELECTOR: Final = {
    "name": "name",
    "fail_reason_prefix": "errorPrefix",
    "fail_reason": "errorContains",
    "unique_key": "key",
    "unique_key_prefix": "keyPrefix",
}
"""What a bulk action calls the conditions of a list."""


@dataclass(frozen=True, slots=True)
class Step:
    """One request to the API: the route, the id in its path, and its body."""

    route: Route
    asked: RequestParts


async def act(request: Request, dashboard: Dashboard) -> Response:
    """Do what the form asks for, and show the page that it came from.

    Raises:
        RefusedRequestError: It is not a form of ours, or the API refuses it.
    """
    root = root_of(request)
    form = form_in(pairs_in(await form_bytes(request)))
    if form.needs_confirmation and not form.is_confirmed:
        raise RefusedRequestError(400, "This has to be confirmed first")
    step = await step_of(form, dashboard)
    result = await step.route.done_for_page(request, dashboard.surface, step.asked)
    # Or the next page would show the numbers, and the button, of before.
    forget_statistics_of(dashboard.monque)
    if isinstance(result, LongAnswer):
        # The action goes on behind this answer: its page shows how far it is.
        action = result.answer.headers["location"].rpartition("/")[2]
        result.answer = RedirectResponse(f"{root}/actions/{action}", 303)
        return result
    return RedirectResponse(f"{root}/{after(form.place_after, form.action.key, *_numbers(result))}", 303)


def _numbers(result: Any) -> tuple[int, int]:
    if isinstance(result, dict) and "count" in result:
        return int(result["count"]), len(result.get("errors", ()))
    return 1, 0


async def step_of(form: Form, dashboard: Dashboard) -> Step:
    """Return the request of the API that does it.

    Raises:
        RefusedRequestError: It cannot be done to such a target (400).
    """
    action = form.action
    in_api = _IN_API.get(action.key, action.key)
    if action is READMIT:
        body = {"everything": True} if form.letter is None else {"ids": [form.letter]}
        return Step(_ROUTES["readmitDeadLetters"], RequestParts(body=body, id_text=form.target or ""))
    if form.target is not None:
        return Step(_ROUTES[f"{action.key}Name"], RequestParts(body={"name": form.target}))
    if form.is_all:
        if action.bulk_permission is None:
            raise RefusedRequestError(400, f"{action.label} is for single jobs")
        now = await server_time_of(dashboard.monque)
        selector = selector_of(form.query, now)
        check_selector(selector)
        return Step(_ROUTES[f"{in_api}Jobs"], RequestParts(body=selector, prefer=("respond-async",)))
    if len(form.ids) > 1:
        if action.bulk_permission is None:
            raise RefusedRequestError(400, f"{action.label} is for single jobs")
        return Step(_ROUTES["actByIds"], RequestParts(body={"action": in_api, "ids": list(form.ids)}))
    return await _of_one(form, dashboard)


async def _of_one(form: Form, dashboard: Dashboard) -> Step:
    action, (job_id,) = form.action, form.ids
    if action is CANCEL_RUN:
        return Step(_ROUTES["cancelJob"], RequestParts(body={"running": True}, id_text=job_id))
    if action in (RUN_NOW, MOVE):
        at = await server_time_of(dashboard.monque) if action is RUN_NOW else form.at
        if at is None:
            raise RefusedRequestError(400, "Choose when the job is due")
        return Step(_ROUTES["rescheduleJob"], RequestParts(body=body_of_reschedule(at), id_text=job_id))
    return Step(_ROUTES[f"{action.key}Job"], RequestParts(id_text=job_id))


def selector_of(query: Mapping[str, str], now: Any) -> dict[str, Any]:
    """Return the selector of a bulk action for the filters of the screen Jobs.

    Raises:
        RefusedRequestError: A bulk action cannot select by one of them (400).
    """
    asked = jobs_asked(query.items(), now)
    if asked.selection is None:
        raise RefusedRequestError(400, "Jobs cannot be selected by fields or holders: choose them on the page")
    selector: dict[str, Any] = {}
    for condition, value in asked.selection.items():
        if condition in _SELECTOR:
            selector[_SELECTOR[condition]] = value
        elif condition == "updated_from":
            selector["updatedAtFrom"] = iso(value)
        else:
            selector[condition] = value
    return selector
