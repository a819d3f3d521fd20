"""The screen Health: findings by severity, what is hidden, where each leads."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from tests.cli.doctor_support import enter
from tests.web.finding_values import EVERY_VALUE
from tests.web.http import LOOPS
from tests.web.pages.fetching import get
from tests.web.pages.job_documents import job_document
from trio_monque import Monque, NewJob
from trio_monque.diagnosis import Finding
from trio_monque.diagnosis.findings import SEVERITIES, Severity
from trio_monque.store.driver.types import Database
from trio_monque.web import create_app
from trio_monque.web.pages.health_screen import MOST_FINDINGS, groups_of, where_of

HOSTILE: Final = "<script>alert('x')</script>\u202e"


def words(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


@pytest.mark.parametrize("loop", LOOPS)
def test_findings_come_by_severity_with_advice_and_a_link(db: Database, loop: str) -> None:
    monque = Monque(db)
    monque.sync.enqueue_many([NewJob(name="mail"), NewJob(name="nothing-runs-this")])
    monque.sync.pause("mail")
    enter(db, "w<1>", "mail", heartbeat_ago=100)
    enter(db, "alive", "mail")
    db["monque_jobs"].insert_one(job_document("mail", status="failed", fail_reason=f"secret {HOSTILE}"))
    db["monque_jobs"].insert_one(job_document(HOSTILE))
    answer = get(create_app(monque), "/health", loop=loop)
    assert answer.status_code == 200
    text = words(answer.text)
    assert text.index("Problems") < text.index("Warnings")
    assert "The name mail is paused" in text
    assert 'href="/instances/w%3C1%3E">See the instance' in answer.text
    assert 'href="/jobs?name=nothing-runs-this">See its jobs' in answer.text
    assert 'href="/jobs?status=failed&amp;name=mail">See its failed jobs' in answer.text
    assert 'href="/health">Check again' in answer.text
    assert re.search(r"<title>\d+ problems?, health", answer.text)
    assert "secret" in text
    assert "<script>alert" not in answer.text
    assert "\u202e" not in answer.text
    hidden = get(create_app(monque, show_errors=lambda _job, _text, _context: "x"), "/health", loop=loop).text
    assert "secret" not in hidden
    assert "one of them with: (hidden)" in hidden


def test_a_look_is_kept_and_shared(db: Database) -> None:
    monque = Monque(db)
    monque.sync.enqueue("mail")
    app = create_app(monque)
    first, second = (re.findall(r'checked <time datetime="([^"]*)"', get(app, "/health").text) for _ in range(2))
    assert first == second
    assert abs(datetime.now(UTC) - datetime.fromisoformat(first[0])).total_seconds() < 60


@pytest.mark.parametrize("kind", SEVERITIES)
def test_each_kind_has_a_row_and_leads_to_a_page_that_there_is(kind: str) -> None:
    finding = Finding(kind, SEVERITIES[kind], EVERY_VALUE)
    (group,) = groups_of([finding])
    assert group.rows[0].sentence
    assert group.rows[0].advice
    label, parts, query = where_of(finding)
    assert label is None or parts[0] in ("jobs", "instances")
    assert query.keys() <= {"name", "status"}


def test_more_findings_than_a_group_shows_are_counted() -> None:
    values: dict[str, Any] = {"name": "x", "due": 1, "since": None, "by": None}
    group, others = groups_of(
        [Finding("paused-name", Severity.WARNING, values)] * (MOST_FINDINGS + 7)
        + [Finding("no-such-name", Severity.NOTE, {"name": "x", "similar": None})]
    )
    assert (group.heading, len(group.rows), group.more) == ("Warnings", MOST_FINDINGS, 7)
    assert (others.heading, others.more) == ("Notes", 0)


def test_without_findings_it_says_what_was_examined(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_monque.client.findings_and_overview.judge", lambda _facts: [])
    text = get(create_app(Monque(db)), "/health").text
    assert "Nothing needs attention." in text
    assert "trio-monque doctor" in text
    assert "<title>All well, health · Monque</title>" in text
