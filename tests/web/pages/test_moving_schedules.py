"""Schedules are run now and moved from their screen: who may, what the field begins with, and what is refused."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from starlette.types import ASGIApp

from tests.web.http import LOOPS
from tests.web.pages.fetching import get
from tests.web.pages.job_documents import job_document
from tests.web.pages.posting import failed, post, sent
from trio_monque import Monque
from trio_monque.store.driver.types import Database
from trio_monque.web import allow_all, create_app

DUE: Final = datetime(2040, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def app(db: Database) -> ASGIApp:
    return create_app(Monque(db), authorize=allow_all)


def put(db: Database, name: str = "report", **fields: Any) -> str:
    document = job_document(name, **{"next_run_at": DUE, "repeatInterval": "0 6 * * *", "unique_key": name, **fields})
    return str(db["monque_jobs"].insert_one(document).inserted_id)


def due(db: Database) -> datetime:
    (found,) = db["monque_jobs"].find()
    assert found["repeatInterval"] == "0 6 * * *"
    moment: datetime = found["nextRunAt"]
    return moment


def offered(app: ASGIApp) -> dict[str, list[str]]:
    """The buttons of each row."""
    rows = re.findall(r'<tr data-id.*?class="strong"[^>]*>([^<]*)<.*?s-acts">(.*?)</td></tr>', _text(app), re.DOTALL)
    return {name: re.findall(r'class="btn"[^>]*>([^<]*)<', cell) for name, cell in rows}


def _text(app: ASGIApp) -> str:
    return get(app, "/schedules").text


def test_each_schedule_offers_what_its_state_and_the_caller_allow(db: Database, app: ASGIApp) -> None:
    put(db, "later")
    put(db, "due", next_run_at=datetime.now(UTC) - timedelta(seconds=5))
    for status in ("processing", "failed", "cancelled"):
        put(db, status, status=status)
    monque = Monque(db)
    monque.sync.schedule("0 0 1 1 *", "yearly", unique_key="y")  # Makes the index.
    both, none = ["Run now", "Move…"], list[str]()
    assert offered(app) == {
        "later": both, "due": ["Move…"], "processing": none, "failed": none, "cancelled": none, "yearly": both,
    }  # fmt: skip
    own = create_app(monque, authorize=lambda action, _context, job: action == "read" or (job and job.name == "yearly"))
    assert {name: buttons for name, buttons in offered(own).items() if buttons} == {"yearly": both}
    for reading in (create_app(monque), create_app(monque, authorize=allow_all, read_only=True)):
        assert not any(offered(reading).values())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_schedule_is_run_now_without_a_question(db: Database, app: ASGIApp, loop: str) -> None:
    put(db)
    answer = sent(app, get(app, "/schedules", loop=loop).text)
    assert answer.headers["location"] == "/schedules?done=run-now&n=1"
    assert due(db) <= datetime.now(UTC)
    assert "1 job is due now." in get(app, answer.headers["location"], loop=loop).text


@pytest.mark.parametrize(
    ("at", "moment"),
    [
        ("2040-02-03T04:05", datetime(2040, 2, 3, 4, 5, tzinfo=UTC)),  # Browsers leave out seconds that are 0.
        ("2040-02-03T04:05:06", datetime(2040, 2, 3, 4, 5, 6, tzinfo=UTC)),
        ("2040-02-03T04:05:06.000Z", datetime(2040, 2, 3, 4, 5, 6, tzinfo=UTC)),
        ("2020-02-03T04:05", datetime(2020, 2, 3, 4, 5, tzinfo=UTC)),
    ],
)
def test_a_schedule_is_moved_to_the_moment_that_was_chosen(
    db: Database, app: ASGIApp, caplog: pytest.LogCaptureFixture, at: str, moment: datetime
) -> None:
    job_id = put(db)
    (path,) = re.findall(r'href="(/confirm[^"]*do=move[^"]*)"', _text(app))
    asked = get(app, path.replace("&amp;", "&")).text
    assert "Move 1 job?" in asked
    assert 'name="at" value="2040-01-02T03:04:05"' in asked
    with caplog.at_level(logging.INFO, "trio_monque.web.audit"):
        answer = sent(app, asked, at=at)
    assert answer.headers["location"] == "/schedules?done=move&n=1"
    assert due(db) == moment
    assert "1 job is moved." in get(app, answer.headers["location"]).text
    (line,) = (one.getMessage() for one in caplog.records if one.name == "trio_monque.web.audit")
    assert line.startswith("reschedule by")
    assert f"{job_id}, answered 200" in line


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"at": "2041-01-01T00:00"}, 400),
        ({"ok": "1"}, 400),
        ({"ok": "1", "at": ""}, 400),
        ({"ok": "1", "at": "tomorrow"}, 400),
        ({"ok": "1", "at": "2041-02-30T00:00"}, 400),
        ({"ok": "1", "at": "2041-01-01T00:00+01:00"}, 400),
        ({"ok": "1", "at": "2041-01-01T00:00", "id": ["0" * 24, "1" * 24]}, 400),
        ({"ok": "1", "at": "2041-01-01T00:00", "id": [], "all": "1", "status": "later"}, 400),
        ({"ok": "1", "at": "2041-01-01T00:00", "id": "0" * 24}, 404),
    ],
)
def test_any_other_move_changes_nothing(db: Database, app: ASGIApp, fields: Any, status: int) -> None:
    job_id = put(db)
    assert post(app, **{"do": "move", "id": job_id, **fields}).status_code == status
    assert due(db) == DUE


def test_who_may_not_move_is_not_asked_when(db: Database) -> None:
    app = create_app(Monque(db), authorize=lambda action, _context, _job: action in ("read", "cancel"))
    job_id = put(db)
    assert get(app, f"/confirm?do=move&id={job_id}").status_code == 403
    assert post(app, do="move", id=job_id, ok="1", at="2041-01-01T00:00").status_code == 403
    assert due(db) == DUE


def test_a_job_that_no_longer_waits_is_not_moved(db: Database, app: ASGIApp) -> None:
    (job_id,) = failed(db, 1)
    assert post(app, do="move", id=job_id, ok="1", at="2041-01-01T00:00").status_code == 409


def test_a_due_job_can_be_moved_from_its_page(db: Database, app: ASGIApp) -> None:
    job_id = Monque(db).sync.enqueue("mail").id
    text = get(app, f"/jobs/{job_id}").text
    assert re.findall(r'class="btn[^"]*"[^>]*>([^<]*)<', text)[:3] == ["Move…", "Cancel", "Delete…"]
