"""The description of the API as OpenAPI 3.1.1, made from the table of routes and that of schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from .added_schemas import ALL_SCHEMAS
from .route import PREFIX, Route
from .schemas import ID, TEXT, ref

OF_ALL: Final = (414, 421, 500)
"""A query that is too long, a host that is not served, and a failure."""

TITLE: Final = "Monque Management API"
OURS: Final = "trio_monque"
"""The tag of the routes that the contract does not have."""


_PREFER: Final = {
    "name": "Prefer",
    "in": "header",
    "required": False,
    "description": "`respond-async` for an answer before an action on more than 1,000 jobs is done",
    "schema": {"type": "string"},
}


def openapi(routes: Sequence[Route], server: str, version: str, title: str = TITLE) -> dict[str, Any]:
    """Return the document.

    Args:
        routes: Of the application.
        server: The path under which the application is mounted; "/" at the root.
        version: Of the library.
        title: What the document is called.
    """
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(PREFIX + route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.1",
        "info": {"title": title, "version": version},
        "servers": [{"url": server}],
        "paths": paths,
        "components": {"schemas": dict(ALL_SCHEMAS)},
    }


def _operation(route: Route) -> Mapping[str, Any]:
    parameters = [*route.parameters]
    for name, schema in (("id", ID), ("source", TEXT)):
        if f"{{{name}}}" in route.path:
            parameters.append({"name": name, "in": "path", "required": True, "schema": schema})
    operation: dict[str, Any] = {
        "operationId": route.operation_id,
        "summary": route.summary,
        "responses": {
            "200": _answers(route),
            **{str(status): _answer(HTTPStatus(status).phrase, "ManagementError") for status in statuses_of(route)},
        },
    }
    if route.long_answer is not None:
        operation["responses"]["202"] = _answer(
            "The action continues in the background: see `GET /actions/{id}`", route.long_answer
        )
        parameters.append(_PREFER)
    if route.is_ours:
        operation["tags"] = [OURS]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": ref(route.body)}}
        operation["requestBody"] = {"required": route.needs_body, "content": content}
    return operation


def statuses_of(route: Route) -> Sequence[int]:
    """Return the statuses of errors: those of the route, and what every request may get."""
    return sorted({*route.statuses, *OF_ALL})


def _answers(route: Route) -> Mapping[str, Any]:
    if route.full_answer is None:
        return {"description": "The answer", "content": {route.media_type: {"schema": ref(route.answer)}}}
    either = [ref(route.answer), ref(route.full_answer)]
    return {"description": "The answer", "content": {"application/json": {"schema": {"anyOf": either}}}}


def _answer(description: str, schema: str) -> Mapping[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": ref(schema)}}}
