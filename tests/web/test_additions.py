"""What the contract does not have: jobs in full, enqueue, counts, changes by id, pauses, permissions and instances."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from bson import ObjectId

from tests.support.store import claim, handle, insert
from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque, RunningJob, Workers, open_scheduler
from trio_monque.jobs.nursery_scopes import child_id
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.reads import queries
from trio_monque.web import allow_all, create_app
from trio_monque.web.api.added_schemas import PERMISSIONS
from trio_monque.web.api.schema_check import is_valid
from trio_monque.web.api.schemas import ref

INVALID: Final = (400, {"error": "Input validation failed"})
DENIED: Final = (403, {"error": "Action denied"})
READ_DENIED: Final = (403, {"error": "Read access denied"})
READ_ONLY: Final = (403, {"error": "Management surface is read-only"})
UNSUPPORTED: Final = (403, {"error": "Unsupported action"})
UNKNOWN: Final = "f" * 24
MOMENT: Final = datetime(2030, 1, 2, 3, 4, 5, 678_000, UTC)
ISO: Final = "2030-01-02T03:04:05.678Z"

MORE: Final = {
    "attempts": 4,
    "maxAttempts": 5,
    "rescues": 1,
    "progress": {"done": 3},
    "result": [1, {"$date": "2030-01-02T03:04:05.678Z"}],
    "saved": "page 7",
    "errors": [
        {"at": ISO, "attempt": 3, "by": "w1", "ran": 75, "error": "ValueError: no", "traceback": "Traceback ..."},
        dict.fromkeys(("at", "attempt", "by", "ran", "error", "traceback")),
    ],
    "timezone": "Europe/Stockholm",
    "timeout": 90_500,
    "startBy": ISO,
    "meta": {"tenant": "acme"},
    "follows": "0" * 23 + "9",
    "parent": "0" * 23 + "8",
    "block": "place",
    "childKey": "first",
    "cancelledByRun": 3,
    "failedBlocks": {"0": ["0" * 23 + "7"]},
    "steps": {"price": 7},
    "cancelRequestedAt": ISO,
    "startedAt": ISO,
    "finishedAt": ISO,
    "leaseUntil": "2030-01-02T03:05:35.678Z",
}


def whole_document() -> dict[str, Any]:
    """A running job in which every field is set that the full view shows."""
    return {
        "_id": ObjectId("0" * 23 + "1"),
        "name": "mail",
        "data": {"to": "a"},
        "status": "processing",
        **dict.fromkeys(("nextRunAt", "createdAt", "updatedAt", "startBy", "startedAt", "finishedAt"), MOMENT),
        **dict.fromkeys(("lockedAt", "lastHeartbeat", "renewedAt", "cancelRequestedAt"), MOMENT),
        "failCount": 3,
        "failReason": "ValueError: no",
        "claimedBy": "worker-1",
        "claimToken": "t",
        "heartbeatInterval": 30_000,
        "attempts": 4,
        "maxRetries": 5,
        "rescues": 1,
        "progress": {"done": 3},
        "result": [1, MOMENT],
        "saved": "page 7",
        "errors": [
            {
                "at": MOMENT,
                "attempt": 3,
                "by": "w1",
                "ran": 75,
                "error": "ValueError: no",
                "traceback": "Traceback ...",
            },
            {},
        ],
        "repeatInterval": "0 * * * *",
        "timezone": "Europe/Stockholm",
        "timeout": 90.5,
        "meta": {"tenant": "acme"},
        "follows": ObjectId("0" * 23 + "9"),
        "scope": ObjectId(),
        "parent": ObjectId("0" * 23 + "8"),
        "block": "place",
        "childKey": "first",
        "scopeCancel": 3,
        "ownScope": ObjectId(),
        "scopeFailed": {"0": [ObjectId("0" * 23 + "7")]},
        "steps": {"price": 7},
    }


async def answer(ask: Ask, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    found = await ask(method, path, **({} if body is None else {"json": body}))
    return found.status_code, found.json()


# --- Jobs in full ---


@pytest.mark.parametrize("loop", LOOPS)
def test_job_in_full_has_the_fields_of_the_contract_and_ours(db: Database, jobs: Collection, loop: str) -> None:
    jobs.insert_one(whole_document())

    async def work(ask: Ask) -> None:
        _, of_contract = await answer(ask, "GET", "/jobs/" + "0" * 23 + "1")
        status, full = await answer(ask, "GET", "/jobs/" + "0" * 23 + "1?view=full")
        assert (status, full) == (200, {**of_contract, **MORE})
        assert not MORE.keys() & of_contract.keys()
        _, page = await answer(ask, "GET", "/jobs?view=full")
        assert page["jobs"] == [full]
        assert is_valid(page, ref("JobFullPage"))
        _, page = await answer(ask, "GET", "/jobs")
        assert page["jobs"] == [of_contract]
        assert is_valid(page, ref("JobCursorPage"))
        assert (await answer(ask, "GET", f"/jobs/{UNKNOWN}?view=full"))[0] == 404

    asking(loop, create_app(Monque(db)), work)


def test_job_of_another_library_in_full(db: Database, jobs: Collection) -> None:
    """Monque for Node writes none of our fields."""
    moments = dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), MOMENT)
    left_over = {"lastHeartbeat": MOMENT, "heartbeatInterval": 30_000}  # It clears these only at times.
    jobs.insert_one({"name": "mail", "data": None, "status": "completed", "failCount": 0, **moments, **left_over})

    async def work(ask: Ask) -> Any:
        (job,) = (await answer(ask, "GET", "/jobs?view=full"))[1]["jobs"]
        return {key: job[key] for key in MORE}

    empty = {"attempts": 0, "rescues": 0, "errors": [], "meta": {}, "failedBlocks": {}}
    assert asking("trio", create_app(Monque(db)), work) == {**dict.fromkeys(MORE), **empty}


SORTS: Final = ("identifier", "createdAt", "nextRunAt")


@pytest.mark.full
@pytest.mark.parametrize("direction", ["asc", "desc"])
@pytest.mark.parametrize("sort", SORTS)
def test_pages_in_full_lead_forward_and_back_again(db: Database, sort: str, direction: str) -> None:
    for _ in range(5):
        insert(handle(db))
    query = f"/jobs?view=full&limit=2&sortBy={sort}&sortDirection={direction}"

    async def work(ask: Ask) -> None:
        async def page(more: str = "") -> Any:
            status, found = await answer(ask, "GET", query + more)
            assert status == 200, found
            return found

        def ids(found: Any) -> list[str]:
            return [one["id"] for one in found["jobs"]]

        first = await page()
        second = await page(f"&cursor={first['cursor']}")
        third = await page(f"&cursor={second['cursor']}")
        assert [len(ids(one)) for one in (first, second, third)] == [2, 2, 1]
        assert (first["previousCursor"], third["hasNextPage"]) == (None, False)
        back = await page(f"&direction=backward&cursor={third['previousCursor']}")
        assert ids(back) == ids(second)
        assert (back["hasNextPage"], back["hasPreviousPage"]) == (True, True)
        assert ids(await page(f"&cursor={back['cursor']}")) == ids(third)
        beginning = await page(f"&direction=backward&cursor={back['previousCursor']}")
        assert ids(beginning) == ids(first)
        assert (beginning["previousCursor"], beginning["hasPreviousPage"]) == (None, False)
        last = await page("&direction=backward")
        assert (ids(last), last["hasNextPage"]) == ([*ids(second)[1:], *ids(third)], False)

    asking("trio", create_app(Monque(db)), work)


@pytest.mark.parametrize("loop", LOOPS)
def test_page_that_is_capped_before_it_is_full_leads_on(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    """Clients of the contract go on by the cursor, also where a page has no job."""
    monkeypatch.setattr(queries, "MOST_EXAMINED", 20)
    monque = Monque(db)
    monque.sync.enqueue("rare")  # The oldest one. It makes the indexes, too.
    at = dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), MOMENT)
    jobs.insert_many({"name": "common", "data": None, "status": "failed", "failCount": 1, **at} for _ in range(50))

    async def work(ask: Ask) -> None:
        cursor, found, pages = "", list[Any](), 0
        while True:
            _, of_contract = await answer(ask, "GET", "/jobs?name=rare&limit=1" + cursor)
            _, full = await answer(ask, "GET", "/jobs?view=full&name=rare&limit=1" + cursor)
            assert [one["id"] for one in full["jobs"]] == [one["id"] for one in of_contract["jobs"]]
            assert full["isCapped"] == (not full["jobs"])
            found += of_contract["jobs"]
            pages += 1
            if not of_contract["hasNextPage"]:
                break
            cursor = f"&cursor={of_contract['cursor']}"
        assert [one["name"] for one in found] == ["rare"]
        assert pages > 1

    asking(loop, create_app(monque), work)


def test_lists_in_full_are_searched_by_error_key_and_parent(db: Database, jobs: Collection) -> None:
    keyed, other = insert(handle(db), unique_key="order-7"), insert(handle(db), unique_key="invoice-7")
    failed, scope = insert(handle(db)), ObjectId()
    jobs.update_one({"_id": failed.id}, {"$set": {"status": "failed", "failReason": "550 mailbox (full)"}})
    jobs.update_one({"_id": keyed.id}, {"$set": {"ownScope": scope}})
    of_child = {"_id": child_id(scope, "0", "x"), "scope": scope, "parent": keyed.id, "block": "0"}
    child = jobs.insert_one({**(jobs.find_one({"name": "greet", "status": "failed"}) or {}), **of_child}).inserted_id
    jobs.update_one({"_id": child}, {"$set": {"failReason": "no"}})

    async def work(ask: Ask) -> None:
        async def found(query: str) -> Any:
            status, page = await answer(ask, "GET", "/jobs?view=full&" + query)
            return status if status != 200 else [one["id"] for one in page["jobs"]]

        assert await found("errorContains=(full") == [str(failed.id)]
        assert await found("errorPrefix=550") == [str(failed.id)]
        assert await found("errorPrefix=mailbox") == []
        assert await found("errorContains=.*") == []  # Not a pattern.
        assert await found("name=greet&key=order-7") == [str(keyed.id)]
        assert await found("name=greet&keyPrefix=invoice") == [str(other.id)]
        assert await found("name=&key=order-7") == []
        assert await found(f"parent={keyed.id}") == [str(child)]
        assert await found(f"parent={keyed.id}&status=failed") == [str(child)]
        assert await found(f"parent={keyed.id}&status=pending") == []
        assert await found(f"parent={other.id}") == []
        for refused in (
            "key=order-7",
            "parent=nonsense",
            f"parent={keyed.id}&instance=w1",
            "name=greet&key=a&keyPrefix=b",
            "errorContains=",
            "errorPrefix=a&errorContains=b",
        ):
            assert await found(refused) == 400, refused

    asking("trio", create_app(Monque(db)), work)


@pytest.mark.parametrize(
    "query",
    [
        "view=all",
        "view=",
        "view=full&view=full",
        "view=full&direction=up",
        "direction=backward",
        "key=a",
        "view=full&x=1",
    ],
)
def test_query_that_no_view_has_is_refused(db: Database, query: str) -> None:
    async def work(ask: Ask) -> None:
        assert await answer(ask, "GET", "/jobs?" + query) == INVALID
        if "direction" not in query and "key" not in query:
            assert await answer(ask, "GET", f"/jobs/{UNKNOWN}?" + query) == INVALID

    asking("trio", create_app(Monque(db)), work)


def test_values_of_a_job_in_full_go_through_its_serializer(db: Database, jobs: Collection) -> None:
    jobs.insert_one(whole_document())
    app = create_app(Monque(db), serialize_payload=lambda given: f"hidden {given['field']}")

    async def work(ask: Ask) -> Any:
        return (await answer(ask, "GET", "/jobs?view=full"))[1]["jobs"][0]

    full = asking("trio", app, work)
    assert [full[key] for key in ("payload", "result", "progress", "saved", "steps")] == [
        "hidden payload",
        "hidden result",
        "hidden progress",
        "hidden saved",
        "hidden steps",
    ]


# --- Errors that are hidden ---


@pytest.mark.parametrize("loop", LOOPS)
def test_error_texts_are_hidden_or_changed_in_each_answer(db: Database, jobs: Collection, loop: str) -> None:
    jobs.insert_one(whole_document())

    async def masked(job: Any, text: str, context: Any) -> str | None:
        return None if "Traceback" in text else text.replace("no", "…")

    async def work(ask: Ask) -> Any:
        contract = (await answer(ask, "GET", "/jobs"))[1]["jobs"][0]
        full = (await answer(ask, "GET", "/jobs?view=full"))[1]["jobs"][0]
        return (
            contract["failureReason"],
            full["failureReason"],
            full["errors"][0]["error"],
            full["errors"][0]["traceback"],
        )

    assert asking(loop, create_app(Monque(db), show_errors=False), work) == (None, None, None, None)
    changed = "ValueError: …"
    assert asking(loop, create_app(Monque(db), show_errors=masked), work) == (changed, changed, changed, None)


def test_hidden_error_texts_cannot_be_guessed_by_a_search(db: Database, jobs: Collection) -> None:
    jobs.insert_one(whole_document())

    async def work(ask: Ask) -> None:
        for method, path, body in (
            ("GET", "/jobs?view=full&errorPrefix=V", None),
            ("GET", "/jobs?view=full&errorContains=V", None),
            ("POST", "/jobs/actions/count", {"errorPrefix": "V"}),
            ("POST", "/jobs/actions/delete", {"errorContains": "V"}),
        ):
            status, found = await answer(ask, method, path, body)
            assert (status, found["error"][:23]) == (400, "Error texts are hidden ")

    asking("trio", create_app(Monque(db), authorize=allow_all, show_errors=False), work)
    assert jobs.count_documents({}) == 1


# --- Enqueue ---


@pytest.mark.parametrize("loop", LOOPS)
def test_job_is_enqueued(db: Database, jobs: Collection, loop: str) -> None:
    app = create_app(Monque(db), authorize=allow_all, allow_enqueue=True)
    order = {
        "name": "mail",
        "data": {"at": {"$date": "2030-01-01T00:00:00Z"}, "n": 1},
        "runAt": "2030-01-02T03:04:05.678Z",
        "uniqueKey": "one",
        "meta": {"tenant": "acme"},
    }

    async def work(ask: Ask) -> None:
        status, job = await answer(ask, "POST", "/jobs", order)
        assert (status, job["nextRunAt"], job["uniqueKey"], job["payload"]) == (200, ISO, "one", order["data"])
        assert is_valid(job, ref("Job"))
        _, kept = await answer(ask, "POST", "/jobs", {**order, "data": 5})
        assert (kept["id"], kept["payload"]) == (job["id"], order["data"])
        _, replaced = await answer(ask, "POST", "/jobs", {**order, "data": 5, "onConflict": "replace"})
        assert (replaced["id"], replaced["payload"]) == (job["id"], 5)
        assert (await answer(ask, "POST", "/jobs", {"name": "plain"}))[1]["payload"] is None

    asking(loop, app, work)
    assert jobs.count_documents({"name": "mail", "meta": {"tenant": "acme"}}) == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"data": 1},
        {"name": ""},
        {"name": "has space"},
        {"name": "a", "runAt": "tomorrow"},
        {"name": "a", "delay": 5},
        {"name": "a", "uniqueKey": ""},
        {"name": "a", "onConflict": "debounce"},
        {"name": "a", "meta": {"n": 1}},
        {"name": "a", "data": {"$date": "never"}},
        {"name": "a", "data": {"$oid": "12"}},
        {"name": "a", "data": {"$numberLong": "x"}},
        {"name": "a", "data": {"$binary": {"base64": "=", "subType": "zz"}}},
        {"name": "a", "data": {"$regularExpression": 1}},
        {"name": "a", "data": {"$uuid": "1"}},
        {"name": "a", "data": {"$numberDecimal": "x"}},
        {"name": "a", "data": {"$binary": 5, "$type": "00"}},
        {"name": "a", "data": {"$regularExpression": {"pattern": 1}}},
        {"name": "a", "data": {"\u0000": 1}},
        None,
        [],
        "a",
    ],
    ids=repr,
)
def test_job_that_cannot_be_enqueued_is_a_clear_error(db: Database, jobs: Collection, body: Any) -> None:
    async def work(ask: Ask) -> Any:
        return await ask("POST", "/jobs", json=body)

    found = asking("trio", create_app(Monque(db), authorize=allow_all, allow_enqueue=True), work)
    assert found.status_code == 400, found.text
    assert found.json().keys() == {"error"}
    assert jobs.count_documents({}) == 0


def test_payload_over_its_limit_is_too_large(db: Database) -> None:
    app = create_app(Monque(db, max_payload_size=1000), authorize=allow_all, allow_enqueue=True)

    async def work(ask: Ask) -> int:
        return (await answer(ask, "POST", "/jobs", {"name": "a", "data": "x" * 2000}))[0]

    assert asking("trio", app, work) == 413


# --- Counts, and changes by id ---


def test_selected_jobs_are_counted(db: Database) -> None:
    for _ in range(3):
        insert(handle(db))
    insert(handle(db), "other", unique_key="k")

    async def work(ask: Ask) -> None:
        for body, expected in (
            ({"name": "greet"}, (200, {"count": 3, "isCapped": False})),
            ({"everything": True}, (200, {"count": 4, "isCapped": False})),
            ({"name": "greet", "status": ["failed"]}, (200, {"count": 0, "isCapped": False})),
            ({"name": "other", "key": "k"}, (200, {"count": 1, "isCapped": False})),
            ({"name": ""}, (200, {"count": 0, "isCapped": False})),
            ({}, INVALID),
            ({"key": "k"}, INVALID),
            ({"name": "a", "key": "k", "keyPrefix": "k"}, INVALID),
            ({"errorPrefix": ""}, INVALID),
            (None, INVALID),
        ):
            assert await answer(ask, "POST", "/jobs/actions/count", body) == expected, body

    # It only reads.
    asking("asyncio", create_app(Monque(db), read_only=True), work)


def test_jobs_are_changed_by_their_ids(db: Database, jobs: Collection) -> None:
    first, second = insert(handle(db)), insert(handle(db))
    (running,) = claim(handle(db), 1, name="runs")
    broken = jobs.insert_one({**(jobs.find_one() or {}), "_id": ObjectId(), "failCount": "three"}).inserted_id
    ids = [str(one) for one in (first.id, running.id, UNKNOWN, "nonsense", broken, second.id, first.id)]

    async def work(ask: Ask) -> None:
        status, found = await answer(ask, "POST", "/jobs/actions/by-ids", {"action": "cancel", "ids": ids})
        assert (status, found["count"]) == (200, 2)
        errors = {one["jobId"]: one["error"] for one in found["errors"]}
        assert errors.pop(str(broken)).startswith(f"document {broken} is not a job")
        assert errors == {
            str(running.id): f"cannot cancel job {running.id}: its status is 'processing'",
            UNKNOWN: "Job not found",
            "nonsense": "Invalid job id",
        }
        both = [str(first.id), str(second.id)]
        found = await answer(ask, "POST", "/jobs/actions/by-ids", {"action": "retry", "ids": both})
        assert found == (200, {"count": 2, "errors": []})
        found = await answer(ask, "POST", "/jobs/actions/by-ids", {"action": "delete", "ids": both})
        assert found == (200, {"count": 2, "errors": []})

    asking("trio", create_app(Monque(db), authorize=allow_all), work)
    assert {one["status"] for one in jobs.find({"failCount": 0})} == {"processing"}


def test_ids_that_the_caller_may_not_change_are_listed_like_those_that_do_not_exist(db: Database) -> None:
    job = insert(handle(db))

    async def work(ask: Ask) -> Any:
        body = {"action": "delete", "ids": [str(job.id), UNKNOWN]}
        return await answer(ask, "POST", "/jobs/actions/by-ids", body)

    _, found = asking("trio", create_app(Monque(db)), work)
    assert found == {"count": 0, "errors": [{"jobId": one, "error": "Action denied"} for one in (str(job.id), UNKNOWN)]}


# --- Names, permissions and instances ---


def test_names_are_paused_and_resumed(db: Database) -> None:
    monque = Monque(db)

    async def work(ask: Ask) -> None:
        for action, is_paused, has_changed in (
            ("pause", True, True),
            ("pause", True, False),
            ("resume", False, True),
            ("resume", False, False),
        ):
            found = await answer(ask, "POST", f"/names/actions/{action}", {"name": "a/b"})
            assert found == (200, {"name": "a/b", "isPaused": is_paused, "hasChanged": has_changed})
            assert await monque.paused() == (["a/b"] if is_paused else [])
        for body in ({}, {"name": 5}, {"name": "a", "x": 1}, None):
            assert await answer(ask, "POST", "/names/actions/pause", body) == INVALID
        assert (await answer(ask, "POST", "/names/actions/pause", {"name": "has space"}))[0] == 400

    asking("trio", create_app(monque, authorize=allow_all), work)


@pytest.mark.parametrize(("user", "by"), [("dana", "dana"), (None, None), ("x" * 500, "x" * 199 + "…")])
def test_pause_keeps_the_user_of_the_request(db: Database, user: str | None, by: str | None) -> None:
    monque = Monque(db)

    class Context:
        def __init__(self) -> None:
            self.user = user

    async def work(ask: Ask) -> None:
        assert (await answer(ask, "POST", "/names/actions/pause", {"name": "a"}))[0] == 200

    asking("trio", create_app(monque, authorize=allow_all, context=lambda _: Context()), work)
    this_process = f"process {os.getpid()} on {socket.gethostname()}"
    assert [(one.name, one.by) for one in monque.sync.pauses()] == [("a", by or this_process)]


CHANGES: Final = [
    ("/jobs", {"name": "a"}),
    ("/names/actions/pause", {"name": "a"}),
    ("/names/actions/resume", {"name": "a"}),
]


def test_changes_are_refused_in_the_order_of_the_contract(db: Database, jobs: Collection) -> None:
    async def refused(ask: Ask) -> list[Any]:
        found = [await answer(ask, "POST", path, {"x": 1}) for path, _ in CHANGES]
        assert found == [INVALID] * len(CHANGES)
        return [await answer(ask, "POST", path, body) for path, body in CHANGES]

    read_only = create_app(Monque(db), authorize=allow_all, read_only=True)
    assert asking("trio", read_only, refused) == [READ_ONLY] * 3
    assert asking("trio", create_app(Monque(db)), refused) == [UNSUPPORTED, DENIED, DENIED]
    assert asking("trio", create_app(Monque(db), allow_enqueue=True), refused) == [DENIED] * 3
    assert jobs.count_documents({}) == 0


def test_reads_are_refused_to_those_who_may_not_read(db: Database) -> None:
    async def work(ask: Ask) -> None:
        for path in ("/instances", "/jobs?view=full&limit=0", f"/jobs/{UNKNOWN}?view=full"):
            assert await answer(ask, "GET", path) == READ_DENIED
        assert await answer(ask, "POST", "/jobs/actions/count", {"name": "a"}) == READ_DENIED

    asking("trio", create_app(Monque(db), authorize=lambda action, context, target: False), work)


@pytest.mark.parametrize("loop", LOOPS)
def test_permissions_are_those_of_the_caller(db: Database, loop: str) -> None:
    allowed = {"read", "enqueue", "pause"}

    def authorize(action: str, context: Any, target: Any) -> bool:
        return action in allowed

    async def work(ask: Ask) -> Any:
        return (await answer(ask, "GET", "/permissions"))[1]

    def expected(*actions: str, read_only: bool = False) -> Any:
        return {"readOnly": read_only, "actions": {action: action in actions for action in PERMISSIONS}}

    app = create_app(Monque(db), authorize=authorize, allow_enqueue=True)
    assert asking(loop, app, work) == expected("read", "enqueue", "pause")
    assert asking(loop, create_app(Monque(db), authorize=authorize), work) == expected("read", "pause")
    app = create_app(Monque(db), authorize=authorize, allow_enqueue=True, read_only=True)
    assert asking(loop, app, work) == expected("read", read_only=True)


async def test_instances_are_those_of_the_fleet(db: Database) -> None:
    workers = Workers()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None: ...

    async with open_scheduler(db, workers, instance_id="worker-1") as scheduler:
        seen: list[Any] = []

        async def work(ask: Ask) -> Any:
            return (await answer(ask, "GET", "/instances"))[1]

        from trio import to_thread

        seen.append(await to_thread.run_sync(asking, "asyncio", create_app(Monque(db)), work))
        assert scheduler.is_healthy()
    (found,) = seen[0]["instances"]
    assert is_valid(seen[0], ref("InstanceList"))
    assert (found["id"], found["names"], found["isLive"], found["held"]) == ("worker-1", ["greet"], True, 0)
