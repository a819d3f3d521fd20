"""The screen Schedules: what expressions mean, what is unusual, strange documents, empty states."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tests.cli.doctor_support import enter
from tests.web.http import LOOPS
from tests.web.pages.fetching import get
from tests.web.pages.job_documents import job_document
from trio_monque import Monque
from trio_monque.store.driver.types import Database
from trio_monque.web import create_app

HOSTILE: Final = "<script>alert('x')</script>\u202e"


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def put(db: Database, name: str, cron: str = "0 6 * * *", **fields: Any) -> None:
    document = job_document(name, next_run_at=fields.pop("next_run_at", now() + timedelta(hours=2)))
    db["monque_jobs"].insert_one({**document, "repeatInterval": cron, "uniqueKey": f"key of {name}", **fields})


def row_of(text: str, name: str) -> str:
    """The text of one row."""
    rows = re.findall(r"<tr data-id.*?</tr>", text, re.S)
    found = [re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", row)) for row in rows]
    (one,) = [row for row in found if name in row]
    return one


@pytest.mark.parametrize("loop", LOOPS)
def test_schedules_say_what_they_mean_and_how_they_are(db: Database, loop: str) -> None:
    monque = Monque(db)
    monque.sync.schedule("0 6 * * MON-FRI", "report", timezone="Europe/Berlin", unique_key="daily")
    put(
        db, "ran", "*/90 * * * *", next_run_at=now() + timedelta(minutes=20, seconds=30),
        startedAt=now() - timedelta(minutes=40), finishedAt=now() - timedelta(minutes=38),
    )  # fmt: skip
    put(db, "running", status="processing", claimedBy="w", lockedAt=now(), lastHeartbeat=now())
    text = get(create_app(monque), "/schedules", loop=loop).text
    report = row_of(text, "report")
    assert "At 06:00 on Monday through Friday" in report
    assert "Europe/Berlin" in report
    assert "time" not in report
    assert "daily" in report
    assert "in 20 m" in row_of(text, "ran")
    assert "38 m" in row_of(text, "ran")
    assert "ran 2 m" in row_of(text, "ran")
    assert "write 0 if you mean that" in row_of(text, "ran")
    assert "running" in row_of(text, "key of running")
    assert "<title>3, schedules · Monque</title>" in text


@pytest.mark.parametrize(
    ("timezone", "shown"),
    [("Europe/Berlin", "Mon Jan 2 04:04"), (None, "Mon Jan 2 03:04"), ("Nowhere/Land", None), ("../etc", None)],
)
def test_next_time_is_that_of_the_clock_of_the_zone_beside_it(
    db: Database, timezone: str | None, shown: str | None
) -> None:
    put(db, "report", next_run_at=datetime(2040, 1, 2, 3, 4, tzinfo=UTC), timezone=timezone)
    assert re.findall(r"Mon Jan 2 \d\d:\d\d", row_of(get(create_app(Monque(db)), "/schedules").text, "report")) == (
        [] if shown is None else [shown]
    )


def test_what_is_unusual_is_marked(db: Database) -> None:
    enter(db, "worker", "late", "failing")
    put(db, "late", next_run_at=now() - timedelta(minutes=5))
    put(db, "alone", next_run_at=now() - timedelta(seconds=5))
    put(db, "paused", next_run_at=now() - timedelta(minutes=5))
    put(db, "failing", failCount=2, failReason="E: twice")
    put(db, "broken", status="failed", failCount=5, failReason="E: for good", nextRunAt=now() - timedelta(days=1))
    put(db, "stopped", status="cancelled", nextRunAt=now() - timedelta(days=2))
    put(db, "over", status="completed", nextRunAt=now() - timedelta(days=3))
    monque = Monque(db)
    monque.sync.pause("paused")
    monque.sync.schedule("0 0 1 1 *", "yearly", unique_key="key of yearly")  # Makes the index.
    text = get(create_app(monque), "/schedules").text
    marks = {}
    for row in re.findall(r"<tr data-id.*?</tr>", text, re.DOTALL):
        (name,) = re.findall(r"key of (\w+)", row)
        marks[name] = re.findall(r'class="chip[^"]*">([^<]*)<', row)
    assert marks == {
        "late": ["late"], "alone": ["no worker"], "paused": ["paused", "late"], "failing": ["2 failures in a row"],
        "broken": ["failed for good"], "stopped": ["cancelled"], "over": ["completed"], "yearly": [],
    }  # fmt: skip
    assert "E: for good" in row_of(text, "broken")
    assert next(iter(marks)) == "broken"
    assert set(list(marks)[-2:]) == {"stopped", "over"}
    assert "<title>1 failed, schedules · Monque</title>" in text
    hidden = get(create_app(monque, show_errors=False), "/schedules").text
    assert "E: for good" not in hidden


ENDED: Final[list[tuple[dict[str, Any], str | None]]] = [
    ({"status": "cancelled"}, None),
    ({"status": "cancelled", "finishedAt": timedelta(minutes=38)}, "38 m"),
    ({"status": "failed"}, None),  # The server refused to have it claimed.
    ({"status": "failed", "failCount": 3}, "9 m"),
    ({"status": "failed", "failCount": 3, "finishedAt": timedelta(minutes=38)}, "38 m"),
    ({"status": "completed"}, "9 m"),
    ({"finishedAt": timedelta(minutes=38)}, "38 m"),
    ({}, None),
]


@pytest.mark.full
@pytest.mark.parametrize(("fields", "shown"), ENDED, ids=str)
def test_last_end_is_that_of_a_run_and_not_of_a_schedule_that_never_ran(
    db: Database, fields: dict[str, Any], shown: str | None
) -> None:
    at = {name: now() - value for name, value in fields.items() if isinstance(value, timedelta)}
    put(db, "report", **{**fields, **at, "updatedAt": now() - timedelta(minutes=9)})
    monque = Monque(db)
    monque.sync.schedule("0 0 1 1 *", "yearly", unique_key="key of yearly")  # Makes the index.
    rows = re.findall(r"<tr data-id.*?</tr>", get(create_app(monque), "/schedules").text, re.DOTALL)
    (row,) = [one for one in rows if "key of report" in one]
    (cell,) = re.findall(r'<td class="num muted s-end">(.*?)</td>', row)
    words = re.sub(r"<[^>]+>", "", cell)
    if shown is None:
        assert words == "\N{EN DASH}"
    else:
        assert words.startswith(f"last end {shown}")


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"cron": "99 * * * *"}, "its minute"),
        ({"cron": HOSTILE}, "&lt;script&gt;"),
        ({"cron": ""}, "cron expression"),
        ({"timezone": "Mars/Olympus"}, "is unknown"),
        ({"timezone": HOSTILE}, "is unknown"),
        ({"uniqueKey": HOSTILE, "failCount": 1, "failReason": HOSTILE}, "⟨U+202E⟩"),
        ({"startedAt": now(), "finishedAt": now() - timedelta(hours=1)}, "At 06:00"),
    ],
)
def test_a_strange_schedule_is_one_row(db: Database, fields: dict[str, Any], shown: str) -> None:
    put(db, "strange", **fields)
    put(db, "good")
    answer = get(create_app(Monque(db)), "/schedules")
    assert answer.status_code == 200
    assert answer.text.count("<tr data-id") == 2
    assert shown in answer.text
    assert "<script>alert" not in answer.text
    assert "\u202e" not in answer.text


def test_many_schedules_are_cut_with_a_sentence(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_monque.web.pages.schedules_screen.MOST_SCHEDULES", 3)
    monque = Monque(db)
    for place in range(5):
        monque.sync.schedule("0 6 * * *", "report", unique_key=f"key {place}")
    text = get(create_app(monque), "/schedules").text
    assert text.count("<tr data-id") == 3
    assert "3 schedules were read, and there may be more." in text


def test_empty_states_say_how_a_schedule_is_declared(db: Database) -> None:
    app = create_app(Monque(db))
    none_at_all = get(app, "/schedules").text
    assert "await scheduler.schedule(" in none_at_all
    assert "were searched" not in none_at_all
    Monque(db).sync.enqueue("mail")
    assert "were searched" in get(create_app(Monque(db)), "/schedules").text
