"""Questions before actions: what they name, what is offered, and what is done after them."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest
from bson import ObjectId
from starlette.types import ASGIApp

from tests.web.pages.fetching import get
from tests.web.pages.job_documents import job_document
from tests.web.pages.posting import failed, hidden_fields, post, sent
from trio_monque import Monque
from trio_monque.store.driver.types import Database
from trio_monque.web import allow_all, create_app


@pytest.fixture
def app(db: Database) -> ASGIApp:
    return create_app(Monque(db), authorize=allow_all)


def statuses(db: Database) -> list[str]:
    return sorted(one["status"] for one in db["monque_jobs"].find())


def test_question_about_nothing_offers_nothing(app: ASGIApp) -> None:
    text = get(app, "/confirm?do=retry&all=1&status=failed&back=errors").text
    assert "None of these jobs is left to change" in text
    assert "becomes due" not in text
    assert "btn primary" not in text


def test_the_question_names_the_first_chosen_jobs(db: Database, app: ASGIApp) -> None:
    ids = [*failed(db, 1), *failed(db, 6, "other")]
    text = get(app, f"/confirm?do=delete&{urlencode([('id', one) for one in ids])}").text
    assert [one in text.partition("<form method")[0] for one in ids] == [True] * 5 + [False] * 2
    assert re.search(rf"mail</span> <span[^>]*>{ids[0]}<.*other<.* and 2 more", text)
    seeing_none = create_app(Monque(db), authorize=lambda action, _context, target: action != "read" or target is None)
    assert "mail" not in get(seeing_none, f"/confirm?do=delete&id={ids[0]}").text


@pytest.mark.parametrize(("back", "place"), [("jobs/{}", "/jobs?"), ("jobs?status=failed", "/jobs?status=failed&")])
def test_what_follows_a_deletion_is_a_page_that_there_is(db: Database, app: ASGIApp, back: str, place: str) -> None:
    (job_id,) = failed(db, 1)
    answer = post(app, do="delete", id=job_id, ok="1", back=back.format(job_id))
    assert answer.headers["location"] == f"{place}done=delete&n=1"
    shown = get(app, answer.headers["location"])
    assert (shown.status_code, "1 job is deleted." in shown.text) == (200, True)


def test_all_that_match_are_due_within_the_time_that_the_question_names(db: Database, app: ASGIApp) -> None:
    (first, _) = failed(db, 2)
    asked = get(app, "/confirm?do=retry&all=1&status=failed&back=errors")
    assert "They become due evenly over 30 seconds" in asked.text
    assert "at once" in get(app, f"/confirm?do=retry&id={first}&back=errors").text
    began = datetime.now(UTC)
    assert "2 jobs are requeued." in get(app, sent(app, asked.text).headers["location"]).text
    times = sorted(one["nextRunAt"] for one in db["monque_jobs"].find())
    assert began + timedelta(seconds=10) < times[1] < datetime.now(UTC) + timedelta(seconds=31)


def test_all_that_match_are_those_of_the_filter_at_the_moment_of_the_question(db: Database, app: ASGIApp) -> None:
    failed(db, 3)
    failed(db, 2, "other")
    failed(db, 1, updated_at=datetime.now(UTC) - timedelta(hours=3))
    asked = get(app, "/confirm?do=retry&all=1&status=failed&name=mail&since=1h&back=jobs%3Fstatus%3Dfailed")
    assert "Retry 3 jobs?" in asked.text
    fields = dict(hidden_fields(asked.text))
    assert fields["name"] == "mail"
    assert datetime.fromisoformat(fields["since"]) < datetime.now(UTC) - timedelta(minutes=59)
    failed(db, 1, "third")
    answer = sent(app, asked.text)
    assert answer.headers["location"] == "/jobs?status=failed&done=retry&n=3"
    assert statuses(db) == ["failed"] * 4 + ["pending"] * 3


@pytest.mark.full
@pytest.mark.parametrize("state", ["", "due", "later", "failed", "done", "cancelled"])
def test_what_is_offered_for_all_that_match_can_be_done(db: Database, app: ASGIApp, state: str) -> None:
    """No button leads to a refusal, with any filter."""
    status = {"": "failed", "due": "pending", "later": "pending", "done": "completed"}.get(state, state)
    at = datetime.now(UTC) + timedelta(hours=1 if state == "later" else -1)
    job = job_document("mail", status=status, fail_reason="no", unique_key="k/1", next_run_at=at)
    job_id, offered = ObjectId(), 0
    for filters in ("name=mail", "key=k/1", "prefix=k/", "since=1h", "name=mail&key=k/1", "error=no", "text=n"):
        db["monque_jobs"].replace_one({"_id": job_id}, job, upsert=True)
        shown = get(app, f"/jobs?status={state}&{filters}")
        for link in re.findall(r'href="(/confirm[^"]*all=1[^"]*)"', shown.text):
            asked = get(app, html.unescape(link))
            if not state and "None of these jobs is left to change" in asked.text:
                continue  # Of all states, there are others.
            offered += 1
            assert "1 job?" in asked.text, (link, asked.text)
            answer = sent(app, asked.text)
            assert "n=1" in answer.headers.get("location", ""), (link, answer.text)
            db["monque_jobs"].replace_one({"_id": job_id}, job, upsert=True)
    assert offered > 3


def test_what_was_chosen_is_confirmed_with_its_number_and_done_once(db: Database, app: ASGIApp) -> None:
    ids = failed(db, 3)
    asked = get(app, "/confirm?do=delete&back=jobs&" + "&".join(f"id={one}" for one in ids[:2]))
    assert "Delete 2 jobs?" in asked.text
    assert statuses(db) == ["failed"] * 3
    assert post(app, do="delete", id=ids[:2]).status_code == 400
    answer = post(app, do="delete", id=ids[:2], back="jobs", ok="1")
    assert answer.headers["location"] == "/jobs?done=delete&n=2"
    again = post(app, do="delete", id=ids[:2], back="jobs", ok="1")
    assert again.headers["location"] == "/jobs?done=delete&n=0&not=2"
    assert "2 jobs could not be changed" in get(app, again.headers["location"]).text
