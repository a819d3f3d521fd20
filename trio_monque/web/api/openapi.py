"""The description of the API as OpenAPI 3.1.1, made from the table of routes and that of schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from .route import Route
from .schemas import ID, SCHEMAS, ref
from .table import PREFIX

TITLE = "Monque Management API"


def openapi(routes: Sequence[Route], server: str, version: str) -> dict[str, Any]:
    """Return the document.

    Args:
        routes: Of the application.
        server: The path under which the application is mounted; "/" at the root.
        version: Of the library.
    """
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(PREFIX + route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.1",
        "info": {"title": TITLE, "version": version},
        "servers": [{"url": server}],
        "paths": paths,
        "components": {"schemas": dict(SCHEMAS)},
    }


def _operation(route: Route) -> Mapping[str, Any]:
    parameters = [*route.parameters]
    if "{id}" in route.path:
        parameters.append({"name": "id", "in": "path", "required": True, "schema": ID})
    operation: dict[str, Any] = {
        "operationId": route.operation_id,
        "summary": route.summary,
        "responses": {
            "200": _answer("The answer", route.answer),
            **{str(status): _answer(HTTPStatus(status).phrase, "ManagementError") for status in (*route.statuses, 500)},
        },
    }
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": ref(route.body)}}
        operation["requestBody"] = {"required": route.needs_body, "content": content}
    return operation


def _answer(description: str, schema: str) -> Mapping[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": ref(schema)}}}
