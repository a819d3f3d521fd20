"""How often a caller may change something, and that this shows nothing of others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpx
import pytest

from tests.support.store import handle, insert
from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque
from trio_monque.store.driver.types import Database
from trio_monque.web import allow_all, create_app
from trio_monque.web.answers import RefusedRequestError
from trio_monque.web.guard import limits_per_caller as rates_of_callers
from trio_monque.web.guard.limits_per_caller import MOST_CALLERS, Rates

MOVE: Final = {"nextRunAt": "2040-01-01T00:00:00Z"}


@dataclass(frozen=True)
class User:
    """A context of a host."""

    user: str


def test_eleventh_change_of_a_caller_in_a_second_is_refused(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    job = insert(handle(db))
    now = 100.0
    monkeypatch.setattr(rates_of_callers, "MOST_A_SECOND", 10)
    monkeypatch.setattr("trio_monque.web.application.Rates", lambda: Rates(lambda: now))
    app = create_app(Monque(db), authorize=allow_all, context=lambda request: User(request.headers["x-user"]))

    async def work(ask: Ask) -> list[int]:
        nonlocal now

        async def change(user: str) -> Any:
            return await ask("POST", f"/jobs/{job.id}/actions/reschedule", json=MOVE, headers={"x-user": user})

        found = [(await change("dana")).status_code for _ in range(11)]
        refused = await change("dana")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        found.append((await change("other")).status_code)
        now += 1
        found.append((await change("dana")).status_code)
        return found

    assert asking("trio", app, work) == [*[200] * 10, 429, 200, 200]


def test_one_bulk_action_of_a_caller_at_a_time() -> None:
    rates = Rates()
    with rates.one_in_bulk("dana"):
        with pytest.raises(RefusedRequestError, match="Another bulk action"), rates.one_in_bulk("dana"):
            pass
        with rates.one_in_bulk("other"):
            pass
    with rates.one_in_bulk("dana"):
        pass


@pytest.mark.parametrize("loop", LOOPS)
def test_second_bulk_action_is_refused_to_those_who_may_do_it_while_the_first_one_runs(db: Database, loop: str) -> None:
    """A denied caller with the same address does not learn that one runs, and has no turn to take."""
    monque = Monque(db)
    delete = monque.delete_jobs

    async def work() -> None:
        reached, go_on = anyio.Event(), anyio.Event()

        async def slow_delete(**selection: Any) -> Any:
            reached.set()
            await go_on.wait()
            return await delete(**selection)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(monque, "delete_jobs", slow_delete)
            app = create_app(monque, authorize=authorize, context=lambda request: dict(request.headers))
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://jobs.test") as client:

                async def ask(path: str, body: Any, **headers: str) -> httpx.Response:
                    return await client.post(f"/api/v1/jobs/actions/{path}", json=body, headers=headers)

                async with anyio.create_task_group() as group:
                    group.start_soon(ask, "delete", {"name": "greet"})
                    await reached.wait()
                    for path, body in (("delete", {"name": "greet"}), ("by-ids", {"action": "retry", "ids": ["a"]})):
                        refused = await ask(path, body)
                        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
                    denied = await ask("delete", {"name": "greet"}, denied="yes")
                    assert (denied.status_code, denied.json()) == (403, {"error": "Action denied"})
                    go_on.set()
                for headers in ({"denied": "yes"}, {}):
                    expected = 403 if headers else 200
                    assert (await ask("delete", {"name": "greet"}, **headers)).status_code == expected

    anyio.run(work, backend=loop)


async def authorize(action: str, context: dict[str, str], target: Any) -> bool:
    return "denied" not in context


CHANGES: Final[list[tuple[str, str, Any]]] = [
    ("POST", "/jobs/{}/actions/cancel", None),
    ("POST", "/jobs/{}/actions/retry", None),
    ("POST", "/jobs/{}/actions/reschedule", MOVE),
    ("DELETE", "/jobs/{}", None),
    ("POST", "/jobs/actions/delete", {"name": "{}"}),
    ("POST", "/jobs/actions/by-ids", {"action": "delete", "ids": ["{}"]}),
    ("POST", "/names/actions/pause", {"name": "{}"}),
    ("POST", "/jobs", {"name": "{}"}),
]


@pytest.mark.parametrize(("method", "path", "body"), CHANGES, ids=[path for _, path, _ in CHANGES])
def test_denied_caller_is_limited_too_and_learns_nothing_of_what_exists(
    db: Database, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: Any
) -> None:
    job = insert(handle(db), unique_key="k")
    monkeypatch.setattr(rates_of_callers, "MOST_A_SECOND", 2)
    monkeypatch.setattr("trio_monque.web.application.Rates", lambda: Rates(lambda: 100.0))

    async def work(ask: Ask) -> list[tuple[int, bytes]]:
        found = []
        for one in (str(job.id), job.name):
            for exists in (True, False):
                user = f"{one} {exists}"
                named = json.loads(json.dumps(body).replace("{}", one if exists else "f" * len(one)))
                for _ in range(3):
                    options = {} if body is None else {"json": named}
                    answer = await ask(
                        method, path.format(one if exists else "f" * len(one)), headers={"x-user": user}, **options
                    )
                    found.append((answer.status_code, answer.content))
        return found

    app = create_app(
        Monque(db),
        authorize=lambda *_: False,
        context=lambda request: User(request.headers["x-user"]),
        allow_enqueue=True,
    )
    found = asking("trio", app, work)
    of_id, of_name = found[:6], found[6:]
    for one, existing, missing in ((str(job.id), of_id[:3], of_id[3:]), (job.name, of_name[:3], of_name[3:])):
        assert [status for status, _ in existing][2] == 429
        assert 429 not in [status for status, _ in existing[:2]]
        assert existing == [(status, text.replace(b"f" * len(one), one.encode())) for status, text in missing]


def test_user_who_is_called_like_an_address_is_another_caller(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates_of_callers, "MOST_A_SECOND", 1)
    monkeypatch.setattr("trio_monque.web.application.Rates", lambda: Rates(lambda: 100.0))
    app = create_app(
        Monque(db),
        authorize=allow_all,
        context=lambda request: User(request.headers.get("x-user")),
    )

    async def work(ask: Ask) -> list[int]:
        async def pause(**headers: str) -> int:
            return (await ask("POST", "/names/actions/pause", json={"name": "a"}, headers=headers)).status_code

        return [await pause(), await pause(**{"x-user": "127.0.0.1"}), await pause()]

    assert asking("trio", app, work) == [200, 200, 429]


def test_callers_that_are_remembered_are_bounded() -> None:
    rates = Rates(lambda: 1.0)
    for number in range(2 * MOST_CALLERS):
        rates.count(str(number))
    assert len(vars(rates)["_counts"]) == MOST_CALLERS
