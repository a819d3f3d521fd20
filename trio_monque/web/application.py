"""The ASGI application."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as PathOf
from starlette.types import ASGIApp

from ..checks import check_flag
from ..claims.claimed_collection import ClaimedCollection, ClaimRules
from ..client.monque import Monque, regions_of
from ..error_types import InvalidOptionError
from ..jobs.field_conditions import checked_path
from .answers import RefusedRequestError, as_json, refused
from .api.added_table import routes_with
from .api.openapi import TITLE, openapi
from .api.route import PREFIX, Route, Surface
from .guard.gate import Gate
from .guard.limits_per_caller import Rates
from .guard.requests import root_path_of
from .hooks import Authorize, ContextOf, ErrorTextOf, Hooks, SerializePayload
from .live.background_actions import BackgroundActions
from .live.hub import Hub
from .live.metrics_page import MetricsPage
from .pages.dashboard_routes import PagePath, dashboard_paths
from .pages.screen import Dashboard

ENDS: Final = ("", "/")
"""A trailing slash makes no difference. Litestar adds one to each path of what it mounts."""

_SOURCE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_NOTHING: Final[Mapping[str, SerializePayload]] = {}
_NO_CLAIMS: Final[Mapping[str, tuple[Any, ClaimRules]]] = {}


def create_app(
    monque: Monque,
    *,
    authorize: Authorize | None = None,
    context: ContextOf | None = None,
    read_only: bool = False,
    serialize_payload: SerializePayload | None = None,
    serialize_payload_by_name: Mapping[str, SerializePayload] = _NOTHING,
    show_errors: bool | ErrorTextOf = True,
    filters: Collection[str] = (),
    claims: Mapping[str, tuple[Any, ClaimRules]] = _NO_CLAIMS,
    allowed_hosts: Collection[str] | None = None,
    trusted_origins: Collection[str] = (),
    allow_enqueue: bool = False,
    openapi_path: str | None = "/openapi.json",
    dashboard: bool = True,
    title: str | None = None,
    environment: str | None = None,
) -> ASGIApp:
    """Make an ASGI application with which jobs are managed over HTTP. It runs on asyncio and on trio.

    It has a dashboard, and the routes of Monque's management API below `/api/v1`. Mount it where you like, behind your
    own login.

    Args:
        monque: A client, or a scheduler; it must be open for as long as the application is used.
        authorize: Who may do what; sync or async. Without it all callers may read, and none may change anything. Pass
            `allow_all` if only those reach the application who may do everything.
        context: Makes what the hooks get as context, from the request. `str(context.user)` names the caller in the log.
        read_only: Refuse all changes.
        serialize_payload: Makes what is shown of the data of a job. By default the data are shown as they are, as
            extended JSON.
        serialize_payload_by_name: The same for jobs of these names.
        show_errors: False to hide the messages and tracebacks of errors, or a function that returns what is shown of
            one: `(job, text, context) -> str | None`. With either, jobs cannot be searched by their errors.
        filters: Fields by which lists may be filtered, such as "meta.tenant" and "data.order.id": dotted paths of
            letters, digits and `_`. A list looks through the newest jobs only, unless the field has an index:
            `trio-monque indexes --create --filter meta.tenant`.
        claims: Claims on other collections to show, by names for their paths: each a collection of pymongo, and which
            of its documents are claimed. Dead letters can be readmitted by those whom `authorize` allows "readmit".
        allowed_hosts: The hosts, with their ports, that requests may name; None for any. Set it if nothing in front of
            the application checks that, or a page of another site may point a name of its own at your address.
        trusted_origins: Origins of other sites whose pages may send changes, such as "https://admin.example.com".
        allow_enqueue: Whether jobs may be enqueued: by those whom `authorize` allows "enqueue".
        openapi_path: Where the description of the API is; None for nowhere.
        dashboard: Whether there are pages for people, at the root of the application.
        title: What the pages and the description are called, instead of "Monque" and "Monque Management API".
        environment: Which of several installations this is, such as "production"; shown on every page.

    Raises:
        InvalidOptionError: An argument is invalid; the message names it.
        InvalidDatabaseError: A collection of `claims` is not one of pymongo.
    """
    if not isinstance(monque, Monque):
        raise InvalidOptionError("monque", monque, "must be a Monque client or a scheduler")
    _check_kinds(
        {"read_only": read_only, "allow_enqueue": allow_enqueue, "dashboard": dashboard},
        {"authorize": authorize, "context": context, "serialize_payload": serialize_payload},
        {"allowed_hosts": allowed_hosts, "trusted_origins": trusted_origins, "filters": filters},
        {"openapi_path": openapi_path, "title": title, "environment": environment},
    )
    if not isinstance(show_errors, bool) and not callable(show_errors):
        raise InvalidOptionError("show_errors", show_errors, "must be True, False or a function")
    if openapi_path is not None and not openapi_path.startswith("/"):
        raise InvalidOptionError("openapi_path", openapi_path, "must begin with a slash")
    wanted = tuple(dict.fromkeys(checked_path("filters", path) for path in filters))
    hooks = Hooks(authorize, context, serialize_payload, dict(serialize_payload_by_name), show_errors)
    hub = Hub(regions_of(monque))
    surface = Surface(
        monque,
        hooks,
        read_only,
        Rates(),
        hub,
        BackgroundActions(hub),
        MetricsPage(monque),
        allow_enqueue,
        wanted,
        _sources_of(claims),
    )
    pages = dashboard_paths(partial(Dashboard, surface, title, environment)) if dashboard else ()
    return Gate(_inner(surface, pages, openapi_path, title or TITLE), allowed_hosts, tuple(trusted_origins))


def _inner(surface: Surface, pages: Sequence[PagePath], openapi_path: str | None, title: str) -> Starlette:
    """Return the application behind the gate."""
    routes = routes_with(surface.filters)
    paths = [path for route in routes for path in _paths_of(route, surface)]
    paths += [_path(spelling, one.endpoint, one.method) for one in pages for spelling in one.spellings]
    if openapi_path is not None:
        describe = partial(_describe, routes, title)
        paths += [_path(openapi_path + end, describe, "GET") for end in ENDS]
    inner = Starlette(routes=paths, exception_handlers={HTTPException: _unmatched})
    inner.router.redirect_slashes = False
    return inner


def _check_kinds(
    flags: Mapping[str, object], hooks: Mapping[str, object], lists: Mapping[str, object], texts: Mapping[str, object]
) -> None:
    for option, given in flags.items():
        check_flag(option, given)  # `read_only="no"` would be true.
    for option, given in hooks.items():
        if given is not None and not callable(given):
            raise InvalidOptionError(option, given, "must be a function")
    for option, given in lists.items():
        if isinstance(given, str):
            raise InvalidOptionError(option, given, "must be a list of strings")
    for option, given in texts.items():
        if given is not None and not isinstance(given, str):
            raise InvalidOptionError(option, given, "must be a string")


def _sources_of(claims: object) -> Mapping[str, ClaimedCollection]:
    if not isinstance(claims, Mapping):
        raise InvalidOptionError("claims", claims, "must be a dict from names to collections with their rules")
    sources: dict[str, ClaimedCollection] = {}
    for name, given in claims.items():
        if not isinstance(name, str) or not _SOURCE.fullmatch(name):
            raise InvalidOptionError("claims", name, "a name must have 1 to 100 letters, digits, '_', '-' or '.'")
        if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[1], ClaimRules):  # A pair.
            raise InvalidOptionError(
                "claims", given, "must be a collection and its ClaimRules, for example (db.orders, ClaimRules({}))"
            )
        sources[name] = ClaimedCollection(*given)
    return sources


def _paths_of(route: Route, surface: Surface) -> list[PathOf]:
    async def endpoint(request: Request) -> Response:
        return await route.answer_to(request, surface)

    return [_path(PREFIX + route.path + end, endpoint, route.method) for end in ENDS]


def _path(path: str, endpoint: object, method: str) -> PathOf:
    made = PathOf(path, endpoint, methods=[method])  # type: ignore[arg-type]
    if made.methods is not None:
        made.methods.discard("HEAD")  # Which Starlette adds to each GET.
    return made


async def _describe(routes: Sequence[Route], title: str, request: Request) -> Response:
    root_path = root_path_of(request.scope)
    if root_path is None:
        return refused(RefusedRequestError(400, "Invalid root path"))
    return as_json(openapi(routes, root_path or "/", version("trio_monque"), title))


async def _unmatched(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code != 405:
        return refused(RefusedRequestError(404, "Not found"))
    return refused(RefusedRequestError(405, "Method not allowed", {"Allow": ", ".join(_methods_of(request))}))


def _methods_of(request: Request) -> list[str]:
    """The methods of all routes that have this path; Starlette knows only those of the first."""
    router: Starlette = request.scope["app"]
    found = {
        method
        for path in router.routes
        if isinstance(path, PathOf) and path.matches(request.scope)[0].value and path.methods
        for method in path.methods
    }
    return sorted(found)
