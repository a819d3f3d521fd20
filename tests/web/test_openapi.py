"""The description of the API is what the application does: schemathesis sends what it allows, and what it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema_rs import Draft202012Validator, meta

from docs import http_api
from tests.support.store import claim, handle, insert
from tests.support.thoroughly import FULL
from tests.web.http import asking
from trio_monque import Monque
from trio_monque.store.driver.types import Database
from trio_monque.web import allow_all, create_app
from trio_monque.web.api.added_schemas import ADDED_SCHEMAS, ALL_SCHEMAS
from trio_monque.web.api.added_table import ALL_ROUTES
from trio_monque.web.api.openapi import openapi
from trio_monque.web.api.schema_check import is_valid
from trio_monque.web.api.schemas import SCHEMAS

DOCUMENT = openapi(ALL_ROUTES, "/", "1")

OPERATIONS = {
    "getSchedulerHealth",
    "getCapabilities",
    "listQueueViews",
    "listJobs",
    "getJobStats",
    "getJob",
    "cancelJob",
    "retryJob",
    "rescheduleJob",
    "deleteJob",
    "cancelJobs",
    "retryJobs",
    "deleteJobs",
}
OURS = {
    "enqueueJob",
    "countJobs",
    "actByIds",
    "pauseName",
    "resumeName",
    "getPermissions",
    "listInstances",
}


def test_operations_and_schemas_have_the_names_of_the_original() -> None:
    found = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]
    assert {one["operationId"] for one in found if "tags" not in one} == OPERATIONS
    assert {one["operationId"] for one in found if one.get("tags") == ["trio_monque"]} == OURS
    assert DOCUMENT["openapi"] == "3.1.1"
    assert DOCUMENT["info"]["title"] == "Monque Management API"
    of_original = {
        "Capabilities",
        "Job",
        "JobCursorPage",
        "JobSelector",
        "BulkActionResult",
        "DeleteJob",
        "ManagementError",
        "QueueStats",
        "QueueViewSummaryList",
        "RescheduleJobRequest",
        "SchedulerHealth",
    }
    assert set(SCHEMAS) == of_original | {"CancelRequest"}
    assert set(DOCUMENT["components"]["schemas"]) == {*SCHEMAS, *ADDED_SCHEMAS}


@pytest.mark.parametrize("name", ALL_SCHEMAS)
def test_schema_is_valid(name: str) -> None:
    meta.validate(json.loads(json.dumps(ALL_SCHEMAS[name])))


VALUES: list[Any] = [
    {},
    [],
    None,
    1,
    {"nextRunAt": "2030-01-01T00:00:00Z"},
    {"nextRunAt": "2030-01-01"},
    {"nextRunAt": 1},
    {"name": "a", "status": "failed"},
    {"status": ["failed", "pending"]},
    {"status": []},
    {"status": ["lost"]},
    {"everything": True},
    {"everything": 1},
    {"deleted": True},
    {"count": 0, "errors": []},
    {"count": True, "errors": []},
    {"count": 0, "errors": [{"jobId": "1", "error": "x", "more": 1}]},
    {"action": "cancel", "ids": ["a"]},
    {"action": "cancel", "ids": []},
    {"action": "cancel", "ids": ["a"] * 101},
    {"action": "reschedule", "ids": ["a"]},
    {"name": "a", "meta": {"tenant": "acme"}},
    {"name": "a", "meta": {"tenant": 5}},
    {"name": "a", "meta": []},
    {"name": "a", "data": [None], "runAt": "2030-01-01T00:00:00Z", "onConflict": "replace"},
    {"name": "a", "onConflict": "debounce"},
    {"name": None},
]


@pytest.mark.parametrize(
    "name", ["JobSelector", "RescheduleJobRequest", "DeleteJob", "BulkActionResult", *ADDED_SCHEMAS]
)
def test_check_of_a_request_agrees_with_a_library(name: str) -> None:
    root = {**ALL_SCHEMAS[name], "components": {"schemas": ALL_SCHEMAS}}
    checker = Draft202012Validator(json.loads(json.dumps(root)), validate_formats=True)
    for value in VALUES:
        assert is_valid(value, ALL_SCHEMAS[name]) == checker.is_valid(value), value


def test_nothing_that_schemathesis_sends_has_an_answer_that_is_not_described(db: Database) -> None:
    for _ in range(3):
        insert(handle(db))
    claim(handle(db), 1, name="runs")
    app = create_app(Monque(db, stats_cache_ttl=0), authorize=allow_all, allow_enqueue=True)
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    for found in schema.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr]  # All of them are valid.

        @settings(
            max_examples=200 if FULL else 15,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        )
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            answer = _answer_to(app, case)
            assert answer.status_code != 500, answer.text
            described = case.operation.definition.raw["responses"]
            assert str(answer.status_code) in described, (case, answer.text)
            content = described[str(answer.status_code)]["content"]["application/json"]
            assert is_valid(answer.json(), content["schema"]), answer.text

        check()


def _answer_to(app: Any, case: Any) -> Any:
    async def work(ask: Any) -> Any:
        options: dict[str, Any] = {"params": case.query or None}
        if case.body is not None and type(case.body).__name__ != "NotSet":
            options["json"] = case.body
        path = case.formatted_path.removeprefix("/api/v1")
        return await ask(case.method, path, **options)

    return asking("asyncio", app, work)


def test_page_of_the_reference_is_written_from_the_same_tables() -> None:
    text = http_api.PAGE.read_text(encoding="utf-8")
    assert text == http_api.updated(text), "run python -m docs.http_api"
    for route in ALL_ROUTES:
        assert f"| `{route.method} {route.path}` | {route.summary} |" in text
