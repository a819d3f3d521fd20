"""The description of the API is what the application does: schemathesis sends what it allows, and what it does not."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies
from jsonschema_rs import Draft202012Validator, meta
from schemathesis import GenerationMode

from docs import http_api
from tests.support.store import claim, handle, insert
from tests.support.thoroughly import FULL
from tests.web.http import asking
from trio_monque import Monque
from trio_monque.store.driver.types import Database
from trio_monque.web import ClaimRules, allow_all, create_app
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
    "cancelRunningJobs",
    "countJobs",
    "actByIds",
    "pauseName",
    "resumeName",
    "getPermissions",
    "listInstances",
    "getInstance",
    "getOverview",
    "listErrors",
    "listFindings",
    "listSchedules",
    "getReasons",
    "listMinutes",
    "getAction",
    "watchRegions",
    "getMetrics",
    "listClaimSources",
    "listDeadLetters",
    "readmitDeadLetters",
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


# Without the time to shrink and to repeat: what fails shows its request in any case.
SETTINGS: Final = settings(
    max_examples=200 if FULL else 12,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
OPERATIONS_OF_ALL: Final = sorted((OPERATIONS | OURS) - {"watchRegions"})  # Whose answer does not end.


@pytest.mark.full
@pytest.mark.larger_in_full
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
@pytest.mark.parametrize("operation_id", OPERATIONS_OF_ALL)
def test_nothing_that_schemathesis_sends_has_an_answer_that_is_not_described(
    db: Database, operation_id: str, mode: GenerationMode
) -> None:
    (running,) = claim(handle(db), 1, name="runs")
    ids = [str(one) for one in (insert(handle(db)).id, insert(handle(db)).id, running.id)]
    app = create_app(
        Monque(db, stats_cache_ttl=0),
        authorize=allow_all,
        allow_enqueue=True,
        claims={"orders": (db["orders"], ClaimRules())},
    )
    operation: Any = schemathesis.openapi.from_dict(DOCUMENT).find_operation_by_id(operation_id)
    if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query):
        return  # Nothing in its request can be wrong but the path.

    @SETTINGS
    @given(case=operation.as_strategy(generation_mode=mode), job_id=strategies.sampled_from([*ids, "f" * 24]))
    def check(case: Any, job_id: str) -> None:
        answer = _answer_to(app, case, job_id)
        assert answer.status_code != 500, (case, answer.text)
        described = operation.definition.raw["responses"]
        assert str(answer.status_code) in described, (case, answer.text)
        ((media_type, content),) = described[str(answer.status_code)]["content"].items()
        said = answer.json() if media_type == "application/json" else answer.text
        assert is_valid(said, content["schema"]), answer.text

    check()


def _answer_to(app: Any, case: Any, job_id: str) -> Any:
    async def work(ask: Any) -> Any:
        options: dict[str, Any] = {"params": case.query or None}
        if type(case.body).__name__ != "NotSet":
            is_raw = isinstance(case.body, bytes)
            options["content"] = case.body if is_raw else json.dumps(case.body).encode()
            options["headers"] = {"content-type": case.media_type or "application/json"}
        path = case.operation.path.removeprefix("/api/v1").replace("{id}", job_id).replace("{source}", "orders")
        return await ask(case.method, path, **options)

    return asking("asyncio", app, work)


def test_page_of_the_reference_is_written_from_the_same_tables() -> None:
    text = http_api.PAGE.read_text(encoding="utf-8")
    assert text == http_api.updated(text), "run python -m docs.http_api"
    for route in ALL_ROUTES:
        assert f"| `{route.method} {route.path}` | {route.summary} |" in text
