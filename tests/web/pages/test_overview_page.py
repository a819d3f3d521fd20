"""The screen Overview, and the shapes of its charts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.doctor_support import enter
from tests.web.pages.fetching import get
from trio_monque import Monque, NewJob
from trio_monque.jobs.minutes import DONE, FAILED_ATTEMPTS, FAILED_FOR_GOOD, ROW, Part
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs.minutes_written import document_of
from trio_monque.web import create_app
from trio_monque.web.pages.charts import hour_chart, nice_maximum, spark

HOSTILE = "<script>alert('x')</script>\u202e"


def test_overview_shows_numbers_needs_names_and_errors(db: Database) -> None:
    monque = Monque(db)
    monque.sync.enqueue_many([NewJob(name="mail") for _ in range(1203)] + [NewJob(name=HOSTILE)])
    monque.sync.enqueue_many([NewJob(name="later", delay=3600.0)])
    monque.sync.pause("mail", by="dana<b>")
    enter(db, "worker<1>", "other")
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    row = [0] * ROW
    row[DONE], row[FAILED_ATTEMPTS] = 4321, 7
    part = Part(now - timedelta(minutes=2), 3, {"mail": row})
    db["monque_jobs.minutes"].insert_one(document_of(part, "worker-1", "abcd"))
    answer = get(create_app(monque, environment="staging"), "/")
    assert answer.status_code == 200
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text))
    assert "Due, not started 1,204" in text
    assert "4,321 in the last hour" in text
    assert re.search(r"mail is paused since [\d-]{10} [\d:]{8} UTC by dana&lt;b&gt;, with 1,203 due jobs\.", text)
    assert "and no instance runs this name." in text
    assert "staging" in text
    assert "<script>alert" not in answer.text
    assert "⟨U+202E⟩" in answer.text
    assert "worker&lt;1&gt;" in answer.text


@pytest.mark.parametrize(
    ("for_good", "done", "href"),
    [
        (0, 0, "/jobs?status=later&amp;name=mail"),  # All of them will be tried again.
        (1, 0, "/errors?name=mail&amp;since=1h"),
        (1, 9, "/jobs?status=failed&amp;name=mail&amp;since=1h"),  # Most attempts succeed.
    ],
)
def test_line_about_failures_leads_to_the_jobs_that_failed(db: Database, for_good: int, done: int, href: str) -> None:
    monque = Monque(db)
    job = monque.sync.enqueue("mail")
    db["monque_jobs"].update_one({"_id": job.id}, {"$set": {"status": "failed"}})
    enter(db, "worker", "mail")
    row = [0] * ROW
    row[DONE], row[FAILED_ATTEMPTS], row[FAILED_FOR_GOOD] = done, 3, for_good
    part = Part(datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=2), 3, {"mail": row})
    db["monque_jobs.minutes"].insert_one(document_of(part, "worker", "abcd"))
    app = create_app(monque)
    needs = get(app, "/").text.partition('<ul class="attention">')[2].partition("</ul>")[0]
    assert re.findall('href="([^"]+)"', needs) == [href]
    assert get(app, href.replace("&amp;", "&")).status_code == 200


def test_silent_instances_are_red_only_if_they_held_jobs(db: Database) -> None:
    for number, held in enumerate((0, 0, 2)):
        enter(db, f"worker-{number}", "mail", heartbeat_ago=3600.0, held=held)
    text = get(create_app(Monque(db)), "/").text
    needs = text.partition('<ul class="attention">')[2].partition("</ul>")[0]
    found = [(one, re.sub(r"<[^>]+>|\s+", " ", one)) for one in needs.split("<li>")[1:]]
    assert len(found) == 2
    (red, about_jobs), (calm, about_none) = found
    assert "Instance worker-2" in about_jobs
    assert "It held 2 jobs." in about_jobs
    assert "bad" in red
    assert "2 instances are silent, and held no jobs." in about_none
    assert 'href="/instances"' in calm
    assert "bad" not in calm


def test_overview_of_an_empty_collection_says_how_a_job_is_enqueued(db: Database) -> None:
    answer = get(create_app(Monque(db)), "/")
    assert answer.status_code == 200
    assert "No job has been enqueued yet" in answer.text
    assert "<title>All well · Monque</title>" in answer.text


@pytest.mark.parametrize(("sort", "first"), [("name", "a"), ("due", "b"), ("nonsense", "b"), ("later", "a")])
def test_names_are_sorted_as_the_url_says(db: Database, sort: str, first: str) -> None:
    monque = Monque(db)
    monque.sync.enqueue_many([NewJob(name="b"), NewJob(name="b"), NewJob(name="a"), NewJob(name="a", delay=3600.0)])
    answer = get(create_app(monque), f"/?sort={sort}")
    names = re.findall(r"<tr><td><a class=\"strong\"[^>]*>([^<]*)<", answer.text)
    assert names[0] == first


@pytest.mark.parametrize(
    ("value", "end"), [(1, 1), (1.5, 2), (2, 2), (3, 4), (5, 6), (7, 10), (61, 100), (0.03, 0.04), (0, 1), (1412, 2000)]
)
def test_scales_end_at_round_numbers(value: float, end: float) -> None:
    assert nice_maximum(value) == pytest.approx(end)


def test_a_chart_has_a_bar_for_each_minute_with_jobs_and_a_gap_where_nothing_waited() -> None:
    last = datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
    done = [0] * 58 + [10, 20]
    failed = [0] * 59 + [5]
    waits = [None] * 57 + [0.5, None, 2.0]
    wide = hour_chart(1040, last, done, failed, waits)
    assert wide.done.count("M") == 2
    assert wide.failed.count("M") == 1
    assert wide.wait.count("M") == 2
    assert [mark.text for mark in wide.grid] == ["0", "20", "40"]
    assert [mark.text for mark in wide.waits] == ["0 s", "1 s", "2 s"]
    assert wide.times[0].text == "02:05"
    narrow = hour_chart(366, last, done, failed, waits, 2)
    assert narrow.done.count("M") == 1
    assert hour_chart(1040, last, [0] * 60, [0] * 60, [None] * 60).done == ""


def test_a_spark_is_as_high_as_its_largest_minute() -> None:
    shape = spark([0, 4], [0, 4], 20, 10)
    assert shape.done == "M10.0 6.0h7.0v4.0h-7.0z"
    assert shape.failed == "M10.0 2.0h7.0v4.0h-7.0z"
    assert spark([0], [0]).done == ""
