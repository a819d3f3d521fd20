"""Documents that no answer was made for: of 16 MiB, of types that JSON does not have, broken, or of another library."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import bson
import pytest
from bson import Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp

from tests.support.store import handle, insert
from tests.web.http import Ask, asking
from trio_monque import Monque
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web import allow_all, create_app

MOMENT: Final = datetime(2030, 1, 2, tzinfo=UTC)


async def answer(ask: Ask, method: str, path: str) -> tuple[int, Any]:
    found = await ask(method, path)
    return found.status_code, json.loads(found.content, parse_constant=pytest.fail)


@pytest.mark.full
def test_document_of_sixteen_mebibytes_is_one_row(db: Database, jobs: Collection) -> None:
    small, large = insert(handle(db)), insert(handle(db))
    jobs.update_one({"_id": large.id}, {"$set": {"data": {"text": "x" * ((16 << 20) - 1000)}}})

    async def work(ask: Ask) -> None:
        for query in ("", "?view=full"):
            _, page = await answer(ask, "GET", "/jobs" + query)
            assert {one["id"] for one in page["jobs"]} == {str(small.id), str(large.id)}
        _, found = await answer(ask, "GET", f"/jobs/{large.id}")
        assert len(found["payload"]["text"]) == (16 << 20) - 1000

    asking("trio", create_app(Monque(db)), work)


VALUES: Final[dict[str, Any]] = {
    "code": [Code("f()"), Code("f()", {"x": 1})],
    "regular expression": Regex("a(", "i"),
    "reference": DBRef("other", ObjectId("0" * 24)),
    "least and most": [MinKey(), MaxKey()],
    "numbers": [Int64(2**63 - 1), Decimal128("NaN"), float("nan"), float("-inf"), 1e308],
    "moments": [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC), Timestamp(1, 2)],
    "binary": [b"\x00\xff", bson.Binary(b"12", 7), ObjectId("0" * 24)],
    "keys": {"": 1, "a.b": 2, "$a": 3, "__proto__": 4, "\u202e": "\x1b[31m"},
}


@pytest.mark.parametrize("kind", VALUES)
def test_payload_of_any_type_is_valid_json(db: Database, jobs: Collection, kind: str) -> None:
    job = insert(handle(db))
    fields = ("data", "result", "progress", "saved")
    document = {**(jobs.find_one({"_id": job.id}) or {}), **dict.fromkeys(fields, VALUES[kind])}
    jobs.replace_one({"_id": job.id}, document)

    async def work(ask: Ask) -> None:
        for path in ("/jobs", "/jobs?view=full", f"/jobs/{job.id}", f"/jobs/{job.id}?view=full"):
            status, found = await answer(ask, "GET", path)
            assert status == 200
            assert str(job.id) in json.dumps(found)

    asking("trio", create_app(Monque(db)), work)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [90, 99])
def test_deep_payload_is_shown(db: Database, depth: int) -> None:
    job = insert(handle(db), data=nested(depth))

    async def work(ask: Ask) -> Any:
        return (await answer(ask, "GET", f"/jobs/{job.id}"))[1]["payload"]

    assert asking("trio", create_app(Monque(db)), work) == nested(depth)


BROKEN: Final[dict[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "no name": lambda job: {key: value for key, value in job.items() if key != "name"},
    "status of another version": lambda job: {**job, "status": "archived"},
    "count as text": lambda job: {**job, "failCount": "three"},
    "moment as text": lambda job: {**job, "nextRunAt": "tomorrow"},
    "history as a number": lambda job: {**job, "errors": 5},
    "meta as a list": lambda job: {**job, "meta": [1]},
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_document_is_a_clear_error_and_no_other_job_is_lost(db: Database, jobs: Collection, kind: str) -> None:
    job = insert(handle(db))
    broken = jobs.insert_one({**BROKEN[kind](jobs.find_one() or {}), "_id": ObjectId()}).inserted_id

    async def work(ask: Ask) -> None:
        for path in ("/jobs", "/jobs?view=full"):
            status, page = await answer(ask, "GET", path)
            assert status == 200
            assert str(job.id) in [one["id"] for one in page["jobs"]]
        for method, path in (
            ("GET", f"/jobs/{broken}"),
            ("GET", f"/jobs/{broken}?view=full"),
            ("POST", f"/jobs/{broken}/actions/cancel"),
            ("POST", f"/jobs/{broken}/actions/retry"),
        ):
            status, found = await answer(ask, method, path)
            assert status in (200, 409), found
            if status == 409:
                assert str(broken) in found["error"]
        assert (await answer(ask, "GET", "/jobs/stats"))[0] == 200
        assert (await answer(ask, "GET", "/queue-views"))[0] == 200

    asking("trio", create_app(Monque(db), authorize=allow_all), work)


def test_broken_document_can_be_deleted(db: Database, jobs: Collection) -> None:
    """The library can do that, and nothing else removes it over HTTP."""
    broken = jobs.insert_one({"name": "greet"}).inserted_id

    async def work(ask: Ask) -> Any:
        return await answer(ask, "DELETE", f"/jobs/{broken}")

    assert asking("trio", create_app(Monque(db), authorize=allow_all), work) == (200, {"deleted": True})
    assert jobs.count_documents({}) == 0
