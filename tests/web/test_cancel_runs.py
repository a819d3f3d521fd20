"""Runs of many jobs are asked to end: by a selection, by ids, and from the page of running jobs."""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from starlette.types import ASGIApp

from tests.web.http import LOOPS, Ask, asking
from tests.web.pages.fetching import get
from tests.web.pages.job_documents import job_document
from trio_monque import Monque
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web import allow_all, create_app
from trio_monque.web.api import cancel_runs

ROUTE = "/jobs/actions/cancel-running"
HERE = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def app(db: Database) -> ASGIApp:
    return create_app(Monque(db), authorize=allow_all)


def running(jobs: Collection, number: int, name: str = "mail") -> list[str]:
    made = [job_document(name, status="processing") for _ in range(number)]
    return [str(one) for one in jobs.insert_many(made).inserted_ids]


def asked_to_end(jobs: Collection) -> list[str]:
    return [str(one["_id"]) for one in jobs.find({"cancelRequestedAt": {"$ne": None}}, sort=[("_id", 1)])]


def ask_api(app: ASGIApp, path: str, body: Any, loop: str = "asyncio") -> httpx.Response:
    async def work(ask: Ask) -> httpx.Response:
        return await ask("POST", path, json=body)

    return asking(loop, app, work)


def posted(app: ASGIApp, fields: Sequence[tuple[str, str]]) -> httpx.Response:
    async def work(ask: Ask) -> httpx.Response:
        headers = {**HERE, "Content-Type": "application/x-www-form-urlencoded"}
        return await ask("POST", "/act", content=urlencode(fields), headers=headers)

    return asking("asyncio", app, work, prefix="")


def confirmed(app: ASGIApp, page: str) -> httpx.Response:
    """The answer to the form of a page that asks."""
    form = page.partition('action="/act"')[2].partition("</form>")[0]
    fields = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form)
    return posted(app, [(key, html.unescape(value)) for key, value in fields])


@pytest.mark.parametrize("loop", LOOPS)
def test_runs_of_a_selection_are_asked_to_end_and_nothing_else_changes(
    jobs: Collection, app: ASGIApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, loop: str
) -> None:
    monkeypatch.setattr(cancel_runs, "AT_ONCE", 2)  # Of several pages.
    ids = running(jobs, 5)
    others = running(jobs, 2, "other")
    jobs.insert_one(job_document("mail"))
    with caplog.at_level(logging.INFO, "trio_monque.web.audit"):
        answer = ask_api(app, ROUTE, {"name": "mail"}, loop)
    assert (answer.status_code, answer.json()) == (200, {"count": 5, "errors": []})
    assert asked_to_end(jobs) == ids
    assert jobs.count_documents({"status": "pending"}) == 1
    (line,) = [line for line in caplog.messages if line.startswith("cancelRunningBulk")]
    assert '{"name": "mail"}' in line
    assert "(jobs: 5)" in line
    assert ask_api(app, ROUTE, {"status": "pending"}, loop).json() == {"count": 0, "errors": []}
    assert ask_api(app, ROUTE, {"everything": True}, loop).json()["count"] >= 2
    assert set(asked_to_end(jobs)) == {*ids, *others}


def test_runs_are_asked_to_end_by_their_ids(jobs: Collection, app: ASGIApp) -> None:
    ids = running(jobs, 3)
    done = str(jobs.insert_one(job_document("mail", status="completed")).inserted_id)
    answer = ask_api(app, "/jobs/actions/by-ids", {"action": "cancelRunning", "ids": [*ids[:2], done]})
    assert answer.json()["count"] == 2
    assert [one["jobId"] for one in answer.json()["errors"]] == [done]
    assert asked_to_end(jobs) == ids[:2]


def test_who_may_cancel_waiting_jobs_may_not_end_runs(db: Database, jobs: Collection) -> None:
    def authorize(action: str, context: Any, target: Any) -> bool:
        return action in ("read", "cancel", "cancelBulk")

    (job_id,) = running(jobs, 1)
    app = create_app(Monque(db), authorize=authorize)
    assert ask_api(app, ROUTE, {"name": "mail"}).status_code == 403
    answer = ask_api(app, "/jobs/actions/by-ids", {"action": "cancelRunning", "ids": [job_id]})
    assert (answer.json()["count"], len(answer.json()["errors"])) == (0, 1)
    assert get(app, "/confirm?do=cancel-run&all=1&status=running").status_code == 403
    assert "Cancel all runs" not in get(app, "/jobs?status=running").text
    assert asked_to_end(jobs) == []


def test_page_asks_with_number_and_filter_and_then_ends_all_that_match(jobs: Collection, app: ASGIApp) -> None:
    ids = running(jobs, 3)
    running(jobs, 2, "other")
    page = get(app, "/jobs?status=running&name=mail").text
    assert "Cancel the runs…" in page
    (link,) = re.findall(r'href="([^"]*)">Cancel all runs…', page)
    asked = get(app, html.unescape(link)).text
    assert "Cancel the run of 3 jobs?" in asked
    assert "<b>running</b>" in asked
    assert "<b>mail</b>" in asked
    assert asked_to_end(jobs) == []
    answer = confirmed(app, asked)
    assert "3 jobs are asked to end." in get(app, answer.headers["location"]).text
    assert asked_to_end(jobs) == ids


def test_page_ends_the_runs_that_were_chosen(jobs: Collection, app: ASGIApp) -> None:
    ids = running(jobs, 3)
    chosen = [("do", "cancel-run"), *(("id", one) for one in ids[1:])]
    assert posted(app, chosen).status_code == 400
    assert asked_to_end(jobs) == []
    asked = get(app, f"/confirm?{urlencode(chosen)}").text
    assert "Cancel the run of 2 jobs?" in asked
    assert confirmed(app, asked).status_code == 303
    assert asked_to_end(jobs) == ids[1:]


def test_many_runs_have_a_page_with_the_progress(
    jobs: Collection, app: ASGIApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_monque.web.api.long_actions.MOST_AT_ONCE", 2)
    ids = running(jobs, 5)
    answer = confirmed(app, get(app, "/confirm?do=cancel-run&all=1&status=running").text)
    text = get(app, answer.headers["location"]).text
    assert "5 jobs</span> of 5 jobs asked to end" in text
    assert "Done." in text
    assert asked_to_end(jobs) == ids
