"""One screen, and how a request for it becomes a page: permission, facts, template; every error is a page, too."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import quote, urlencode

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from ...client.monque import Monque, collection_of, server_time_of
from ...error_types import MonqueConnectionError
from ...log import logger_of
from ..answers import READ_DENIED, RefusedRequestError, refusal_of
from ..api.route import Surface
from ..guard.requests import LONGEST_QUERY, root_path_of
from ..hooks import READ, Hooks
from ..live.hub import KEPT_FOR
from .assets import assets
from .form import place_in
from .last_result_cache import LastResultCache
from .page_actions import notice_of
from .rendering import rendered

logger = logger_of("web")

SCREENS: Final[Sequence[tuple[str, str]]] = (
    ("Overview", ""),
    ("Jobs", "jobs"),
    ("Errors", "errors"),
    ("Schedules", "schedules"),
    ("Instances", "instances"),
    ("Claims", "claims"),
    ("Health", "health"),
)
"""The tabs: each with its path below the dashboard."""


FRESH: Final = KEPT_FOR
"""Seconds for which pages show the same counts: after them, the hub calls what has changed stale once more."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """What all screens of one application share.

    Attributes:
        surface: What the pages and the API share: whose jobs are shown, and what the host decides.
        title: What the pages are called; None for "Monque".
        environment: Which of several installations this is, such as "production".
        tabs: The paths of the screens that there are.
        hours: What was drawn of the last hour.
    """

    surface: Surface
    title: str | None
    environment: str | None
    tabs: frozenset[str]
    hours: LastResultCache[Any] = field(default_factory=LastResultCache)

    @property
    def monque(self) -> Monque:
        """The client."""
        return self.surface.monque

    @property
    def hooks(self) -> Hooks:
        """What the host decides."""
        return self.surface.hooks


@dataclass(frozen=True, slots=True)
class View:
    """What a screen shows.

    Attributes:
        template: Its template.
        title: Of the window; it begins with the news.
        values: What the template prints.
        status: Of the answer.
    """

    template: str
    title: str
    values: Mapping[str, Any]
    status: int = 200


@dataclass(frozen=True, slots=True)
class PageCall:
    """One request for a page.

    Attributes:
        dashboard: The application.
        request: As Starlette has it.
        context: What the host says of the request.
        now: The server's time when the request came.
    """

    dashboard: Dashboard
    request: Request
    context: Any
    now: datetime

    @property
    def monque(self) -> Monque:
        """The client."""
        return self.dashboard.monque

    def query(self, key: str) -> str | None:
        """Return the last value of the key in the query; None without one, or for an empty one."""
        return self.request.query_params.get(key) or None

    async def may(self, action: str, target: Any = None) -> bool:
        """Return whether the caller may do this."""
        if action != READ and self.dashboard.surface.is_read_only:
            return False
        return await self.dashboard.hooks.may(action, self.context, target)


class RedirectTo(Exception):  # noqa: N818  # No error.
    """The answer is on another page.

    Attributes:
        path: Below the dashboard, with its query.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


Facts = Callable[[PageCall], Awaitable[View]]


def root_of(request: Request) -> str:
    """Return where the dashboard is mounted, without a slash at the end. Raises RefusedRequestError (400)."""
    root = root_path_of(request.scope)
    if root is None:
        raise RefusedRequestError(400, "Invalid root path")
    return root


def links_from(root: str) -> Callable[..., str]:
    """Return what makes the link to a path below the dashboard; values of None are left out of the query.

    No page is found by a longer value than a query may have: it is cut, so that the pages with such links stay small.
    """

    def link(*parts: object, **query: object) -> str:
        path = "/".join(quote(str(part)[:LONGEST_QUERY], safe="", errors="replace") for part in parts)
        given = {key: str(value)[:LONGEST_QUERY] for key, value in query.items() if value is not None}
        return f"{root}/{path}" + (f"?{urlencode(given, errors='replace')}" if given else "")

    return link


async def posted(
    request: Request, dashboard: Dashboard, do: Callable[[Request, Dashboard], Awaitable[Response]]
) -> Response:
    """Answer a form; every error is a page."""
    try:
        return await do(request, dashboard)
    except Exception as error:  # noqa: BLE001  # Every error is a page.
        return await _error_page(request, dashboard, error)


async def page(request: Request, dashboard: Dashboard, active: str, facts: Facts) -> Response:
    """Answer with the page of a screen, whatever happens."""
    began, root = time.perf_counter(), ""
    try:
        root = root_of(request)
        context = await dashboard.hooks.context_of(request)
        if not await dashboard.hooks.may(READ, context):
            raise RefusedRequestError(403, READ_DENIED)
        now = await server_time_of(dashboard.monque)
        call = PageCall(dashboard, request, context, now)
        view = await facts(call)
        frame = {**_frame(dashboard, root, active, view, now, began), **_of_request(request)}
        # In a thread: a payload may have megabytes.
        html = await anyio.to_thread.run_sync(_rendered, view, frame)
    except RedirectTo as redirect:
        return RedirectResponse(f"{root}/{redirect.path}", 303)
    except Exception as error:  # noqa: BLE001  # Every error is a page.
        return await _error_page(request, dashboard, error)
    return HTMLResponse(html, view.status)


def _rendered(view: View, frame: Mapping[str, Any]) -> str:
    return rendered(view.template, {**frame, **view.values})


def _of_request(request: Request) -> dict[str, Any]:
    """Return what a page prints of its own URL: what was done before it, and where forms lead back to."""
    asked = request.query_params
    root = request.scope.get("root_path") or ""
    path = request.scope["path"].removeprefix(root).strip("/")
    return {
        "notice": notice_of(asked.get("done"), asked.get("n"), asked.get("not")),
        "here": place_in(f"{path}?{request.scope['query_string'].decode('latin-1')}"),
    }


def _frame(
    dashboard: Dashboard, root: str, active: str, view: View, now: datetime | None, began: float
) -> dict[str, Any]:
    """Return what every page prints around its content."""
    return {
        "link": links_from(root),
        "asset": {name: f"{root}/{one.path}" for name, one in assets().items()},
        "tabs": [one for one in SCREENS if one[1] in dashboard.tabs],
        "active": active,
        "title": view.title,
        "product": dashboard.title or "Monque",
        "environment": dashboard.environment,
        "collection": collection_of(dashboard.monque),
        "now": now,
        "version": _version(),
        "milliseconds": round(1000 * (time.perf_counter() - began)),
    }


@cache
def _version() -> str:
    return version("trio_monque")  # It reads a file, and understands all of it: for each page, that is too much.


async def _error_page(request: Request, dashboard: Dashboard, error: Exception) -> Response:
    """Return the page for an error; it tells nothing of the inside."""
    try:
        root = root_of(request)
    except RefusedRequestError:
        root = ""
    if isinstance(error, MonqueConnectionError):
        logger.warning("the database did not answer the dashboard", exc_info=error)
        shown = RefusedRequestError(503, "The database does not answer. Reload the page to try again.")
    else:
        shown = refusal_of(error)
    view = View(
        "refused.html",
        shown.message,
        {"message": shown.message, "status": shown.status, "back": place_in(request.query_params.get("back", ""))},
        shown.status,
    )
    frame = {**_frame(dashboard, root, "none", view, None, time.perf_counter()), "notice": None, "here": ""}
    html = await anyio.to_thread.run_sync(_rendered, view, frame)
    return HTMLResponse(html, view.status, shown.headers)
