"""Forms of pages: what they do, what they ask first, and what they refuse."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

import pytest
from starlette.types import ASGIApp

from tests.web.http import LOOPS
from tests.web.pages.fetching import get
from tests.web.pages.job_documents import job_document
from tests.web.pages.posting import failed, post, sent
from trio_monque import Monque
from trio_monque.locks_and_dead_letters import dead_letter_lock
from trio_monque.store.driver.types import Database
from trio_monque.web import ClaimRules, allow_all, create_app
from trio_monque.web.pages.form import after, place_in


@pytest.fixture
def app(db: Database) -> ASGIApp:
    return create_app(Monque(db), authorize=allow_all)


def statuses(db: Database) -> list[str]:
    return sorted(one["status"] for one in db["monque_jobs"].find())


@pytest.mark.parametrize("loop", LOOPS)
def test_retry_of_one_job_is_done_at_once_and_leads_back(db: Database, app: ASGIApp, loop: str) -> None:
    (job_id,) = failed(db, 1)
    answer = post(app, loop, do="retry", id=job_id, back="jobs?status=failed&name=mail")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/jobs?status=failed&name=mail&done=retry&n=1"
    assert statuses(db) == ["pending"]
    assert "1 job is requeued." in get(app, answer.headers["location"]).text


def test_page_after_it_shows_the_numbers_and_the_button_of_now(db: Database) -> None:
    app = create_app(Monque(db, stats_cache_ttl=3600), authorize=allow_all)
    ids = failed(db, 3)
    assert "Pause mail…" in get(app, "/jobs?name=mail&status=failed").text
    post(app, do="pause", target="mail", ok="1")
    assert "mail is paused" in get(app, "/jobs?name=mail&status=failed").text
    post(app, do="delete", id=ids[0], ok="1")
    assert "2 match" in get(app, "/jobs?name=mail&status=failed").text


@pytest.mark.parametrize(
    ("do", "status", "becomes"),
    [("cancel", "pending", "cancelled"), ("delete", "failed", None), ("run-now", "pending", "pending")],
)
def test_each_action_changes_its_job(db: Database, app: ASGIApp, do: str, status: str, becomes: str | None) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    job_id = db["monque_jobs"].insert_one(job_document("mail", status=status, next_run_at=later)).inserted_id
    assert post(app, do=do, id=str(job_id), ok="1").status_code == 303
    found = db["monque_jobs"].find_one({"_id": job_id})
    assert (None if found is None else found["status"]) == becomes
    if do == "run-now":
        assert found is not None
        assert found["nextRunAt"] < later


@pytest.mark.parametrize("do", ["delete", "cancel-run"])
def test_what_cannot_be_undone_is_not_done_without_a_question(db: Database, app: ASGIApp, do: str) -> None:
    (job_id,) = failed(db, 1)
    assert post(app, do=do, id=job_id).status_code == 400
    assert statuses(db) == ["failed"]


def test_a_run_is_asked_to_end_after_a_question(db: Database, app: ASGIApp) -> None:
    job_id = str(db["monque_jobs"].insert_one(job_document("mail", status="processing")).inserted_id)
    assert post(app, do="cancel-run", id=job_id).status_code == 400
    asked = get(app, f"/confirm?do=cancel-run&id={job_id}")
    assert "Cancel the run of 1 job?" in asked.text
    assert post(app, do="cancel-run", id=job_id, ok="1").status_code == 303
    found = db["monque_jobs"].find_one()
    assert found is not None
    assert any("cancel" in key.lower() for key in found)


def test_what_another_tab_has_done_already_is_said(db: Database, app: ASGIApp) -> None:
    failed(db, 2)
    asked = {"do": "retry", "all": "1", "status": "failed", "back": "errors", "ok": "1"}
    assert "2 jobs are requeued." in get(app, post(app, **asked).headers["location"]).text
    assert "No job was left to change." in get(app, post(app, **asked).headers["location"]).text


def test_action_without_a_choice_leads_back(app: ASGIApp) -> None:
    answer = get(app, "/confirm?do=delete&back=jobs%3Fstatus%3Dfailed")
    assert answer.status_code == 400
    assert re.search(r'Choose at least one job.*href="/jobs\?status=failed">Back<', answer.text, re.DOTALL)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_long_action_has_a_page_with_its_progress(db: Database, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_monque.web.api.long_actions.MOST_AT_ONCE", 2)
    app = create_app(Monque(db), authorize=allow_all)
    failed(db, 5)
    answer = post(app, loop, do="retry", all="1", status="failed", ok="1")
    assert answer.status_code == 303
    page = get(app, answer.headers["location"], loop=loop)
    assert "5 jobs" in page.text
    assert "Done." in page.text
    assert statuses(db) == ["pending"] * 5


def test_names_are_paused_after_a_question_and_resumed_at_once(db: Database, app: ASGIApp) -> None:
    name = "<b>/x?&"
    Monque(db).sync.enqueue(name)
    assert post(app, do="pause", target=name).status_code == 400
    assert post(app, do="pause", target=name, ok="1", back="jobs").status_code == 303
    assert [*Monque(db).sync.paused()] == [name]
    assert "Resume" in get(app, "/").text
    assert post(app, do="resume", target=name).headers["location"] == "/?done=resume&n=1"
    assert [*Monque(db).sync.paused()] == []


def test_dead_letters_are_readmitted_one_by_one_and_all_after_a_question(db: Database) -> None:
    app = create_app(Monque(db), authorize=allow_all, claims={"orders": (db["orders"], ClaimRules({}))})
    db["orders"].insert_many([{"_id": number, "lock": dead_letter_lock(3, "no")} for number in range(3)])
    page = get(app, "/claims/orders").text
    one = sent(app, page)
    assert one.headers["location"] == "/claims/orders?done=readmit&n=1"
    assert "1 document is claimable again." in get(app, one.headers["location"]).text
    assert post(app, do="readmit", target="orders").status_code == 400
    assert (
        "Readmit all dead letters of orders?" in get(app, "/confirm?do=readmit&target=orders&back=claims/orders").text
    )
    every = post(app, do="readmit", target="orders", ok="1", back="claims/orders")
    assert every.headers["location"] == "/claims/orders?done=readmit&n=2"
    assert post(app, do="readmit", target="nothing", ok="1").status_code == 404
    assert "Readmit" not in get(app, "/claims/orders").text


UNSEEN: Final = "a\u202eb\u200bc&=%+"
"""A name with characters that a page shows as symbols. An error may have others, too, that a browser changes."""


def test_what_is_changed_is_what_was_asked_for_also_if_it_cannot_be_seen(db: Database, app: ASGIApp) -> None:
    monque, error = Monque(db), f"{UNSEEN}\x1b[31m\r\n\tend"
    db["monque_jobs"].insert_one(job_document(UNSEEN))
    failed(db, 2, "mail")
    db["monque_jobs"].update_many({"name": "mail"}, {"$set": {"failReason": error}})
    sent(app, get(app, f"/confirm?{urlencode({'do': 'pause', 'target': UNSEEN})}").text)
    assert [*monque.sync.paused()] == [UNSEEN]
    sent(app, get(app, f"/jobs?{urlencode({'name': UNSEEN})}").text)
    assert [*monque.sync.paused()] == []
    query = {"do": "retry", "all": "1", "status": "failed", "error": error, "back": "jobs"}
    answer = sent(app, get(app, f"/confirm?{urlencode(query)}").text)
    assert answer.headers["location"] == "/jobs?done=retry&n=2"


@pytest.mark.parametrize(
    "fields",
    [
        {"do": "retry"},
        {"do": "nonsense", "id": "0" * 24},
        {"do": "retry", "id": "x"},
        {"do": "retry", "all": "1", "ok": "1"},
        {"do": "retry", "id": "0" * 24, "all": "1", "ok": "1"},
        {"do": "run-now", "all": "1", "status": "later", "ok": "1"},
        {"do": "retry", "all": "1", "status": "failed", "meta.tenant": "acme", "ok": "1"},
        {"do": "delete", "all": "1", "nonsense": "1", "ok": "1"},
        {"do": "retry", "id": ["0" * 23 + f"{one:x}" for one in range(8)]},
    ],
)
def test_any_other_form_changes_nothing(db: Database, app: ASGIApp, fields: Any) -> None:
    failed(db, 2)
    assert post(app, **fields).status_code == 400
    assert statuses(db) == ["failed"] * 2


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "null"},
        {"Origin": "http://evil.test"},
    ],
)
def test_a_form_of_another_site_is_refused(db: Database, app: ASGIApp, headers: Any) -> None:
    (job_id,) = failed(db, 1)
    assert post(app, headers=headers, do="retry", id=job_id).status_code == 403
    assert statuses(db) == ["failed"]


@pytest.mark.parametrize(
    "make",
    [lambda monque: create_app(monque), lambda monque: create_app(monque, authorize=allow_all, read_only=True)],
    ids=["no hook", "read only"],
)
def test_who_may_only_read_is_shown_no_button(db: Database, make: Callable[[Monque], ASGIApp]) -> None:
    monque = Monque(db)
    (job_id,) = failed(db, 1)
    monque.sync.enqueue("mail")
    monque.sync.pause("mail")
    app = make(monque)
    for path in ("/", "/jobs?status=failed", "/jobs?name=mail"):
        assert "/act" not in get(app, path).text
        assert "/confirm?" not in get(app, path).text
        assert 'name="id"' not in get(app, path).text
    assert post(app, do="retry", id=job_id).status_code == 403
    assert get(app, "/confirm?do=delete&all=1&status=failed").status_code == 403
    assert statuses(db) == ["failed", "pending"]


def test_a_denied_form_is_answered_alike_whether_the_job_exists(db: Database) -> None:
    app = create_app(Monque(db), authorize=lambda action, _context, _target: action == "read")
    (job_id,) = failed(db, 1)
    there, gone = (post(app, do="retry", id=one) for one in (job_id, "0" * 24))
    assert there.status_code == gone.status_code == 403
    assert re.sub(r"\d+ ms", "", there.text) == re.sub(r"\d+ ms", "", gone.text)


def test_each_form_that_was_tried_is_a_line_of_the_audit(
    db: Database, app: ASGIApp, caplog: pytest.LogCaptureFixture
) -> None:
    (job_id,) = failed(db, 1)
    with caplog.at_level(logging.INFO, "trio_monque.web.audit"):
        post(app, do="retry", id=job_id)
        post(app, do="retry", id=job_id)
    lines = [one.getMessage() for one in caplog.records if one.name == "trio_monque.web.audit"]
    assert len(lines) == 2
    assert f"{job_id}, answered 200 (jobs: 1)" in lines[0]
    assert "answered 409" in lines[1]


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("jobs?status=failed&name=a%26b", "jobs?status=failed&name=a%26b"),
        ("", ""),
        ("jobs/" + "a" * 24, "jobs/" + "a" * 24),
        ("//evil.test", ""),
        ("/jobs", ""),
        ("https://evil.test", ""),
        ("javascript:alert(1)", ""),
        ("jobs\r\nX: y", ""),
        ("jobs?done=delete&n=5", "jobs"),
        ("\\evil", ""),
        ("jobs/../x", ""),
        ("jobs?a=\r\nSet-Cookie: b", "jobs?a=%0D%0ASet-Cookie%3A+b"),
    ],
)
def test_a_form_leads_back_to_pages_of_the_dashboard_only(given: str, place: str) -> None:
    assert place_in(given) == place


def test_the_page_after_it_says_what_was_done() -> None:
    assert after("jobs?status=failed", "retry", 3, 1) == "jobs?status=failed&done=retry&n=3&not=1"
    assert after("", "resume", 1, 0) == "?done=resume&n=1"


@pytest.mark.parametrize("query", ["done=<script>&n=1", "done=retry&n=<b>", "done=retry&n=99999999999999999999", "n=1"])
def test_a_link_cannot_make_a_page_say_something_else(app: ASGIApp, query: str) -> None:
    text = get(app, f"/?{query}").text
    assert "<script>" not in text.replace("<script type=", "")
    assert "99999" not in text
