"""Bulk actions that are answered before they are done: their progress, their end, and who may see them."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
import httpx
import pytest
from pymongo.errors import OperationFailure, PyMongoError, ServerSelectionTimeoutError
from starlette.types import ASGIApp, Message

from tests.support.store import handle, insert
from tests.web.http import LOOPS
from trio_monque import Monque
from trio_monque.client import bulk
from trio_monque.events import DashboardActed, Event, JobsDeleted
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import fail_next
from trio_monque.web import allow_all, create_app
from trio_monque.web.answers import RefusedRequestError
from trio_monque.web.api import long_actions
from trio_monque.web.api.schema_check import is_valid
from trio_monque.web.api.schemas import ref
from trio_monque.web.live.background_actions import MOST_KEPT, MOST_RUNNING, BackgroundAction, BackgroundActions, State
from trio_monque.web.live.hub import Hub

EARLY: Final = {"prefer": "wait=5, Respond-Async; x=1"}
NUMBER: Final = 20


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_actions, "MOST_AT_ONCE", 2)
    monkeypatch.setattr(bulk, "MOST_IN_A_BATCH", 2)


@pytest.fixture
def monque(db: Database) -> Monque:
    for _ in range(NUMBER):
        insert(handle(db))
    return Monque(db)


class Peer:
    """A client that asks for a bulk action, without a server in between.

    Attributes:
        status, headers, body: Of the answer.
        may_be_answered: Until then, the end of the answer waits.
        is_answered: The answer was sent.
    """

    def __init__(self, app: ASGIApp, *, is_gone: bool = False) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body: Any = None
        self.may_be_answered = anyio.Event()
        self.is_answered = anyio.Event()
        self._app = app
        self._is_gone = is_gone
        self._content = b""

    async def ask(self, action: str, selector: Mapping[str, Any], root_path: str = "") -> None:
        """Return when the request is over, which is when the action is."""
        self._content = json.dumps(selector).encode()
        headers = {"content-type": "application/json", **EARLY}
        await self._app(
            {
                "type": "http",
                "method": "POST",
                "path": f"{root_path}/api/v1/jobs/actions/{action}",
                "root_path": root_path,
                "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
                "query_string": b"",
                "scheme": "http",
            },
            self._receive,
            self._send,
        )

    async def _receive(self) -> Message:
        return {"type": "http.request", "body": self._content, "more_body": False}

    async def _send(self, message: Message) -> None:
        if self._is_gone:
            raise OSError("gone")
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        self.body = json.loads(message["body"])
        self.is_answered.set()
        await self.may_be_answered.wait()


def run(loop: str, work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with anyio.fail_after(30):
            await work()

    anyio.run(bounded, backend=loop)


async def asked(app: ASGIApp, method: str, path: str, **options: Any) -> tuple[int, Any]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://jobs.test") as client:
        found = await client.request(method, f"/api/v1{path}", **options)
        return found.status_code, found.json()


@pytest.mark.parametrize("loop", LOOPS)
def test_answer_comes_first_and_progress_is_asked_for(
    monque: Monque, jobs: Collection, caplog: pytest.LogCaptureFixture, loop: str
) -> None:
    reported: list[Event] = []
    monque.on(Event, reported.append)
    app = create_app(monque, authorize=allow_all)

    async def work() -> None:
        peer = Peer(app)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.ask, "delete", {"name": "greet"}, "/ops/jobs")
            await peer.is_answered.wait()
            action = peer.body["action"]
            assert (peer.status, peer.body) == (202, {"action": action, "count": NUMBER, "isCapped": False})
            assert is_valid(peer.body, ref("ActionStarted"))
            assert peer.headers["location"] == f"/ops/jobs/api/v1/actions/{action}"
            assert peer.headers["preference-applied"] == "respond-async"
            assert peer.headers["cache-control"] == "no-store"
            status, found = await asked(app, "GET", f"/actions/{action}")
            assert (status, found["state"], found["done"]) == (200, "running", 0)
            peer.may_be_answered.set()
        status, found = await asked(app, "GET", f"/actions/{action}")
        assert is_valid(found, ref("ActionProgress"))
        assert found == {
            "id": action,
            "action": "delete",
            "state": "done",
            "count": NUMBER,
            "isCapped": False,
            "done": NUMBER,
            "refused": 0,
            "unknown": 0,
            "errors": [],
            "error": None,
        }

    with caplog.at_level(logging.INFO, "trio_monque.web.audit"):
        run(loop, work)
    assert jobs.count_documents({}) == 0
    acts = [one for one in reported if isinstance(one, DashboardActed) and one.action == "deleteBulk"]
    assert [(one.count, one.outcome) for one in acts] == [(NUMBER, 202)]
    assert [one.count for one in reported if isinstance(one, JobsDeleted)] == [NUMBER]
    (line,) = [line for line in caplog.messages if line.startswith("deleteBulk")]
    assert line.endswith(f"answered 202 (jobs: {NUMBER})")


@pytest.mark.parametrize("loop", LOOPS)
def test_second_bulk_action_of_the_caller_is_refused_until_the_first_one_is_done(monque: Monque, loop: str) -> None:
    app = create_app(monque, authorize=allow_all, context=lambda request: DANA)

    async def work() -> None:
        peer = Peer(app)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.ask, "cancel", {"name": "greet"})
            await peer.is_answered.wait()
            for headers in (EARLY, {}):
                body = {"name": "greet"}
                assert (await asked(app, "POST", "/jobs/actions/delete", json=body, headers=headers))[0] == 429
            peer.may_be_answered.set()
        assert (await asked(app, "POST", "/jobs/actions/delete", json={"name": "other"}))[0] == 200

    run(loop, work)


class User:
    """A context of a host."""

    def __init__(self, user: str) -> None:
        self.user = user


DANA: Final = User("dana")


def test_few_jobs_or_no_preference_have_the_answer_of_the_contract(monque: Monque, jobs: Collection) -> None:
    app = create_app(monque, authorize=allow_all)

    async def work() -> None:
        cases: list[tuple[dict[str, str], dict[str, str], Any]] = [
            ({}, {"name": "greet"}, {"count": NUMBER, "errors": []}),
            ({"prefer": "wait=5"}, {"name": "greet", "status": "pending"}, {"count": 0, "errors": []}),
            # Of these, none can be cancelled any more.
            (EARLY, {"name": "greet"}, {"count": 0, "errors": []}),
            (EARLY, {"name": "greet", "status": "cancelled"}, {"count": 0, "errors": []}),
            (EARLY, {"name": ""}, {"count": 0, "errors": []}),
        ]
        for headers, body, expected in cases:
            found = await asked(app, "POST", "/jobs/actions/cancel", json=body, headers=headers)
            assert found == (200, expected), body
        for wrong in ({"name": "greet", "key": "k"}, {"name": "greet", "due": True}):
            assert (await asked(app, "POST", "/jobs/actions/retry", json=wrong, headers=EARLY))[0] == 400

    run("trio", work)
    assert jobs.count_documents({"status": "cancelled"}) == NUMBER


def test_action_goes_on_if_the_client_is_gone_before_the_answer(monque: Monque, jobs: Collection) -> None:
    app = create_app(monque, authorize=allow_all)

    async def work() -> None:
        with pytest.raises(OSError, match="gone"):
            await Peer(app, is_gone=True).ask("cancel", {"name": "greet"})
        assert (await asked(app, "POST", "/jobs/actions/delete", json={"name": "other"}))[0] == 200

    run("trio", work)
    assert jobs.count_documents({"status": "cancelled"}) == NUMBER


@pytest.mark.parametrize("loop", LOOPS)
def test_viewers_learn_of_progress_and_a_cancelled_action_ends_after_a_whole_batch(
    monque: Monque, jobs: Collection, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    """As a server cancels it that shuts down."""
    boards: list[Hub] = []
    monkeypatch.setattr("trio_monque.web.application.BackgroundActions", lambda board: _kept(board, boards))
    app = create_app(monque, authorize=allow_all, context=lambda request: DANA)

    async def work() -> None:
        peer = Peer(app)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.ask, "cancel", {"name": "greet"})
            await peer.is_answered.wait()
            region = f"action:{peer.body['action']}"
            async with boards[0].viewing(frozenset({region})) as viewer, boards[0].viewing() as other:
                viewer.take()
                other.take()
                peer.may_be_answered.set()
                await viewer.wait()
                assert viewer.take() == [region]
                assert other.take() == []
                tasks.cancel_scope.cancel()
        status, found = await asked(app, "GET", f"/actions/{peer.body['action']}")
        assert (status, found["state"]) == (200, "stopped")
        done = jobs.count_documents({"status": "cancelled"})
        assert 2 <= found["done"] <= done < NUMBER
        assert done % 2 == 0
        # The turn is over, and what is left can be asked for again.
        status, found = await asked(app, "POST", "/jobs/actions/cancel", json={"name": "greet"})
        assert (status, found["count"]) == (200, NUMBER - done)

    run(loop, work)


def _kept(board: Hub, boards: list[Hub]) -> BackgroundActions:
    boards.append(board)
    return BackgroundActions(board)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ServerSelectionTimeoutError("s3cret host"), long_actions.SILENT),
        (OperationFailure("not authorized on s3cret", 13), "Internal server error"),
    ],
    ids=["silent", "refused"],
)
def test_action_that_fails_says_what_was_done(
    monque: Monque, jobs: Collection, monkeypatch: pytest.MonkeyPatch, error: PyMongoError, shown: str
) -> None:
    boards: list[Hub] = []
    monkeypatch.setattr("trio_monque.web.application.BackgroundActions", lambda board: _kept(board, boards))
    app = create_app(monque, authorize=allow_all)
    left: list[int] = []

    async def work() -> None:
        peer = Peer(app)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(peer.ask, "delete", {"name": "greet"})
            await peer.is_answered.wait()
            async with boards[0].viewing(frozenset({f"action:{peer.body['action']}"})) as viewer:
                viewer.take()
                peer.may_be_answered.set()
                await viewer.wait()
                with fail_next(monque, error, times=None):
                    viewer.take()
                    while (found := (await asked(app, "GET", f"/actions/{peer.body['action']}"))[1])[
                        "state"
                    ] == "running":
                        await viewer.wait()
                        viewer.take()
        assert (found["state"], found["error"]) == ("failed", shown)
        assert 2 <= found["done"] < NUMBER
        left.append(NUMBER - found["done"])

    run("trio", work)
    assert [jobs.count_documents({})] == left


def test_action_of_others_is_unknown_to_those_who_may_not_do_the_same(monque: Monque) -> None:
    allowed = {"dana": {"read", "cancelBulk"}, "kim": {"read", "deleteBulk"}, "lee": set[str](), "max": {"cancelBulk"}}

    questions: list[str] = []

    def authorize(action: str, context: User, target: Any) -> bool:
        questions.append(action)
        return action in allowed[context.user]

    app = create_app(monque, authorize=authorize, context=lambda request: User(request.headers.get("x-user", "dana")))

    async def work() -> None:
        peer = Peer(app)
        peer.may_be_answered.set()
        await peer.ask("cancel", {"name": "greet"})
        path = f"/actions/{peer.body['action']}"
        assert (await asked(app, "GET", path))[0] == 200
        for one in (path, f"/actions/{'0' * 24}", "/actions/x", "/actions/%00"):
            questions.clear()
            assert await asked(app, "GET", one, headers={"x-user": "kim"}) == (404, {"error": "Action not found"})
            assert questions == ["read", "cancelBulk"]
            for user in ("lee", "max"):
                found = await asked(app, "GET", one, headers={"x-user": user})
                assert found == (403, {"error": "Read access denied"})

    run("trio", work)


def test_few_run_at_once_and_few_are_remembered() -> None:
    known = BackgroundActions(Hub(lambda _: pytest.fail("not opened")))

    def begin() -> BackgroundAction:
        action = BackgroundAction(action="cancelBulk", selector={}, count=3, is_capped=False)
        known.add(action)
        return action

    running = [begin() for _ in range(MOST_RUNNING)]
    with pytest.raises(RefusedRequestError) as refused:
        begin()
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "10")
    known.end(running[-1], State.DONE)
    later = []
    for _ in range(2 * MOST_KEPT):
        later.append(begin())
        known.end(later[-1], State.DONE)
    assert len(vars(known)["_known"]) == MOST_KEPT
    assert all(known.get(one.id) is one for one in [*running[:-1], later[-1]])
    assert known.get(running[-1].id) is None


@pytest.mark.full
@pytest.mark.parametrize("root_path", ["//evil.test", "/a\r\nx: y", '/"><script>'])
def test_location_does_not_repeat_a_root_path_that_is_not_a_path(monque: Monque, root_path: str) -> None:
    async def work() -> None:
        peer = Peer(create_app(monque, authorize=allow_all))
        peer.may_be_answered.set()
        await peer.ask("cancel", {"name": "greet"}, root_path)
        assert peer.status == 202
        assert "location" not in peer.headers

    run("trio", work)
