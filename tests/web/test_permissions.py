"""Who may do what: the order of the checks, and that what is refused shows nothing of what exists."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

import anyio
import anyio.to_thread
import pytest
from bson import ObjectId

from tests.support.store import handle, insert
from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web import allow_all, create_app
from trio_monque.web.hooks import MOST_HOOKS

UNKNOWN: Final = "f" * 24
READ_ONLY: Final = (403, {"error": "Management surface is read-only"})
DENIED: Final = (403, {"error": "Action denied"})
READ_DENIED: Final = (403, {"error": "Read access denied"})
INVALID: Final = (400, {"error": "Input validation failed"})

CHANGES: Final[list[tuple[str, str, Any]]] = [
    ("POST", "/jobs/{}/actions/cancel", None),
    ("POST", "/jobs/{}/actions/retry", None),
    ("POST", "/jobs/{}/actions/reschedule", {"nextRunAt": "2030-01-01T00:00:00Z"}),
    ("DELETE", "/jobs/{}", None),
    ("POST", "/jobs/actions/cancel", {"name": "greet"}),
    ("POST", "/jobs/actions/retry", {"name": "greet"}),
    ("POST", "/jobs/actions/delete", {"name": "greet"}),
]
READS: Final = ("/queue-views", "/jobs", "/jobs/stats", "/jobs/{}")


async def answer(ask: Ask, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    found = await ask(method, path, **({} if body is None else {"json": body}))
    return found.status_code, found.json()


def deny_all(action: str, context: Any, target: Any) -> bool:
    return False


@pytest.mark.parametrize("loop", LOOPS)
def test_without_authorize_all_callers_may_read_and_none_may_change(db: Database, jobs: Collection, loop: str) -> None:
    job = insert(handle(db))
    before = list(jobs.find())

    async def work(ask: Ask) -> None:
        for path in READS:
            assert (await answer(ask, "GET", path.format(job.id)))[0] == 200
        for method, path, body in CHANGES:
            for job_id in (job.id, UNKNOWN):
                assert await answer(ask, method, path.format(job_id), body) == DENIED
        allowed = {"read": True} | dict.fromkeys(
            ("cancel", "cancelBulk", "retry", "retryBulk", "reschedule", "delete", "deleteBulk"), False
        )
        assert await answer(ask, "GET", "/capabilities") == (200, {"readOnly": False, "actions": allowed})

    asking(loop, create_app(Monque(db)), work)
    assert list(jobs.find()) == before


def test_order_of_checks_where_all_is_read_only(db: Database) -> None:
    async def work(ask: Ask) -> None:
        assert await answer(ask, "POST", "/jobs/123/actions/cancel") == READ_ONLY
        assert await answer(ask, "POST", "/jobs/123/actions/reschedule", {"nextRunAt": "soon"}) == INVALID
        assert await answer(ask, "POST", "/jobs/actions/delete", {}) == INVALID
        assert await answer(ask, "POST", "/jobs/actions/delete", {"everything": True}) == READ_ONLY
        actions = (await answer(ask, "GET", "/capabilities"))[1]
        assert actions["readOnly"] is True
        assert [action for action, may in actions["actions"].items() if may] == ["read"]

    asking("trio", create_app(Monque(db), authorize=allow_all, read_only=True), work)


def test_order_of_checks_where_nothing_is_allowed(db: Database) -> None:
    async def work(ask: Ask) -> None:
        assert await answer(ask, "GET", "/jobs?limit=0") == READ_DENIED
        assert await answer(ask, "GET", "/jobs?foo=0") == INVALID
        assert await answer(ask, "GET", "/jobs/123") == READ_DENIED
        assert (await answer(ask, "GET", "/health"))[0] == 200
        assert await answer(ask, "POST", "/jobs/123/actions/cancel") == (400, {"error": "Invalid job id"})
        actions = (await answer(ask, "GET", "/capabilities"))[1]["actions"]
        assert not any(actions.values())

    asking("asyncio", create_app(Monque(db), authorize=deny_all), work)


def test_refused_caller_gets_the_same_answer_for_a_job_and_for_none(db: Database, jobs: Collection) -> None:
    job = insert(handle(db))
    broken = jobs.insert_one({"name": "greet", "status": "pending", "data": None}).inserted_id

    async def work(ask: Ask) -> None:
        for method, path, body in CHANGES[:4]:
            found = {await headers(ask, method, path.format(one), body) for one in (job.id, broken, UNKNOWN)}
            assert len(found) == 1

    async def headers(ask: Ask, method: str, path: str, body: Any) -> tuple[int, bytes, tuple[Any, ...]]:
        found = await ask(method, path, **({} if body is None else {"json": body}))
        return found.status_code, found.content, tuple(sorted(found.headers.items()))

    asking("trio", create_app(Monque(db), authorize=deny_all), work)


@pytest.mark.parametrize("may_in_general", [False, True])
def test_refused_caller_is_asked_about_as_often_for_a_job_as_for_none(
    db: Database, jobs: Collection, may_in_general: bool
) -> None:
    """With a slow hook, the time of the answer would show the difference."""
    job = insert(handle(db))
    broken = jobs.insert_one({"name": "greet", "status": "pending", "data": None}).inserted_id
    asked: list[Any] = []

    def authorize(action: str, context: Any, target: Any) -> bool:
        asked.append(target)
        return may_in_general and target is None

    async def work(ask: Ask) -> None:
        for method, path, body in CHANGES[:4]:
            numbers = set()
            for one in (job.id, broken, UNKNOWN):
                asked.clear()
                status, _ = await answer(ask, method, path.format(one), body)
                # Who may do it in general may know of a broken document.
                assert status == 403 or may_in_general
                numbers.add(len(asked))
            assert numbers == {2}

    asking("trio", create_app(Monque(db), authorize=authorize), work)


@pytest.mark.full
def test_many_hooks_that_block_do_not_keep_other_answers_waiting(db: Database) -> None:
    release = threading.Event()
    running = threading.Semaphore(0)

    def authorize(action: str, context: Any, target: Any) -> bool:
        running.release()
        return release.wait(60)

    async def work(ask: Ask) -> None:
        async def read() -> None:
            assert (await ask("GET", "/jobs")).status_code == 200

        async with anyio.create_task_group() as group:
            for _ in range(2 * MOST_HOOKS):
                group.start_soon(read)
            for _ in range(MOST_HOOKS):
                await anyio.to_thread.run_sync(running.acquire)
            assert (await ask("GET", "/health")).status_code == 200
            release.set()

    for loop in LOOPS:
        release.clear()
        asking(loop, create_app(Monque(db), authorize=authorize), work)


def test_caller_who_may_not_change_this_job_but_others_learns_of_no_job(db: Database) -> None:
    job = insert(handle(db))

    async def authorize(action: str, context: Any, target: Any) -> bool:
        return target is None

    async def work(ask: Ask) -> tuple[int, Any]:
        return await answer(ask, "DELETE", f"/jobs/{job.id}")

    assert asking("trio", create_app(Monque(db), authorize=authorize), work) == (404, {"error": "Job not found"})


def test_hook_gets_the_context_and_the_job_or_the_selector(db: Database) -> None:
    job = insert(handle(db))
    asked: list[tuple[str, Any, Any]] = []

    async def authorize(action: str, context: Any, target: Any) -> bool:
        asked.append((action, context, getattr(target, "id", target)))
        return True

    def context(request: Any) -> Any:
        return request.headers["x-user"]

    async def work(ask: Ask) -> None:
        headers = {"x-user": "dana"}
        await ask("GET", "/jobs", headers=headers)
        await ask("POST", f"/jobs/{job.id}/actions/cancel", headers=headers)
        await ask("POST", "/jobs/actions/retry", headers=headers, json={"status": ["failed"]})

    asking("trio", create_app(Monque(db), authorize=authorize, context=context), work)
    assert asked == [
        ("read", "dana", None),
        ("cancel", "dana", job.id),
        ("retryBulk", "dana", {"status": ["failed"]}),
    ]


def raises(*arguments: Any) -> Any:
    raise ZeroDivisionError("secret of the inside")


@pytest.mark.parametrize("truthy", ["yes", 1, [1], None, "raises"])
def test_only_true_allows(db: Database, jobs: Collection, truthy: Any, caplog: pytest.LogCaptureFixture) -> None:
    job = insert(handle(db))
    authorize: Callable[..., Any] = raises if truthy == "raises" else lambda *_: truthy

    async def work(ask: Ask) -> tuple[int, Any]:
        assert (await answer(ask, "GET", "/jobs"))[0] in (403, 500)
        return await answer(ask, "DELETE", f"/jobs/{job.id}")

    found = asking("trio", create_app(Monque(db), authorize=authorize), work)
    assert found == ((500, {"error": "Internal server error"}) if truthy == "raises" else DENIED)
    assert jobs.count_documents({}) == 1
    assert ("a request failed" in caplog.text) == (truthy == "raises")


def test_hook_that_blocks_does_not_keep_other_requests_waiting(db: Database) -> None:
    release = threading.Event()

    def authorize(action: str, context: Any, target: Any) -> bool:
        return release.wait(60)

    async def work(ask: Ask) -> None:
        async def read() -> None:
            assert (await ask("GET", "/jobs")).status_code == 200

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            assert (await ask("GET", "/health")).status_code == 200
            release.set()

    asking("asyncio", create_app(Monque(db), authorize=authorize), work)


def test_each_change_that_was_tried_is_a_line_without_payloads(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    job = insert(handle(db), data={"secret": "s3cret"})
    caplog.set_level(logging.INFO, "trio_monque.web.audit")

    class Context:
        user = "dana\nmallory"

    async def work(ask: Ask) -> None:
        await ask("POST", f"/jobs/{job.id}/actions/cancel")
        await ask("POST", "/jobs/actions/delete", json={"name": "greet"})
        await ask("POST", "/jobs/actions/delete", json={})
        await ask("GET", "/jobs")

    asking("trio", create_app(Monque(db), authorize=allow_all, context=lambda _: Context()), work)
    lines = [record.getMessage() for record in caplog.records if record.name == "trio_monque.web.audit"]
    assert len(lines) == 3
    assert all("\n" not in line and "s3cret" not in line for line in lines)
    assert f"{job.id}, answered 200 (jobs: 1)" in lines[0]
    assert lines[0].startswith("cancel by dana")
    assert '{"name": "greet"}, answered 200 (jobs: 1)' in lines[1]
    assert "answered 400 (jobs: -)" in lines[2]


def test_payload_is_what_the_serializer_of_its_name_makes(db: Database, jobs: Collection) -> None:
    first, second, third = (insert(handle(db), name, data={"card": "4111"}) for name in ("pay", "mail", "odd"))

    async def masked(given: Any) -> Any:
        return {"card": "…" + given["payload"]["card"][-1], "by": given["context"], "of": given["job"].name}

    app = create_app(
        Monque(db),
        context=lambda request: "dana",
        serialize_payload=lambda given: "hidden",
        serialize_payload_by_name={"pay": masked, "odd": lambda given: {1, 2}},
    )

    async def work(ask: Ask) -> list[Any]:
        return [await answer(ask, "GET", f"/jobs/{job.id}") for job in (first, second, third)]

    of_pay, of_mail, of_odd = asking("trio", app, work)
    assert of_pay[1]["payload"] == {"card": "…1", "by": "dana", "of": "pay"}
    assert of_mail[1]["payload"] == "hidden"
    assert of_odd == (500, {"error": "Internal server error"})  # JSON has no sets.


def test_job_that_cannot_be_read_is_a_clear_error_and_leaves_the_list_whole(db: Database, jobs: Collection) -> None:
    job = insert(handle(db))
    broken = jobs.insert_one({**(jobs.find_one() or {}), "_id": ObjectId(), "failCount": "three"}).inserted_id

    async def work(ask: Ask) -> None:
        status, found = await answer(ask, "GET", f"/jobs/{broken}")
        assert status == 409
        assert str(broken) in found["error"]
        assert [one["id"] for one in (await answer(ask, "GET", "/jobs"))[1]["jobs"]] == [str(job.id)]

    asking("trio", create_app(Monque(db)), work)
