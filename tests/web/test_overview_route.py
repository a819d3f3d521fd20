"""The route of the overview, and the words of HTTP for each concern."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from tests.cli.doctor_support import enter
from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque
from trio_monque.diagnosis import Concern
from trio_monque.diagnosis.concerns import WORST_FIRST
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web import create_app
from trio_monque.web.api.schema_check import is_valid
from trio_monque.web.api.schemas import ref
from trio_monque.web.words import concern_sentences

AT: Final = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
WAITING: Final = {"name": "mail", "due": 1204, "is_capped": False, "seconds": 184.0}
SENTENCES: Final[list[tuple[str, dict[str, Any], str]]] = [
    ("not_served", WAITING, "mail has 1,204 due jobs, and no instance runs this name."),
    ("not_served", {**WAITING, "due": 1}, "mail has 1 due job, and no instance runs this name."),
    (
        "no_instance",
        {"names": 302, "due": 1204, "is_capped": True, "seconds": 5.0},
        "No instance is alive: 302 names have more than 1,204 due jobs.",
    ),
    (
        "failing",
        {"name": "mail", "failed": 214, "attempts": 1285, "failed_for_good": 0, "seconds": 600.0},
        "mail fails: 214 of 1,285 attempts in the last 10 m.",
    ),
    (
        "failing",
        {"name": "mail", "failed": 214, "attempts": 1285, "failed_for_good": 2, "seconds": 600.0},
        "mail fails: 214 of 1,285 attempts in the last 10 m; 2 jobs failed for good.",
    ),
    (
        "failed_jobs",
        {"name": "mail", "failed": 3, "seconds": 3600.0},
        "3 jobs of mail failed for good in the last hour.",
    ),
    ("stuck", {"name": "mail", "count": 1}, "1 job of mail is stuck: the holder gives no sign of life."),
    ("stuck", {"name": "mail", "count": 2}, "2 jobs of mail are stuck: the holder gives no sign of life."),
    (
        "silent_instance",
        {"instance": "w1", "pid": 4711, "host": "web-1", "seconds": 48.0, "held": 4},
        "Instance w1 (process 4711 on web-1) has been silent for 48 s. It held 4 jobs.",
    ),
    ("silent_without_jobs", {"instances": 1}, "1 instance is silent, and held no jobs."),
    ("silent_without_jobs", {"instances": 4}, "4 instances are silent, and held no jobs."),
    (
        "late",
        {**WAITING, "usual": 1.5, "is_capped": True},
        "mail is late: more than 1,204 due jobs. The oldest has waited for 3 m 4 s, where 1.5 s is usual.",
    ),
    ("late", {**WAITING, "usual": None}, "mail is late: 1,204 due jobs. The oldest has waited for 3 m 4 s."),
    (
        "schedule_failed",
        {"name": "mail", "key": "nightly", "at": AT},
        "The schedule nightly of mail failed for good at the run of 2030-01-02 03:04:05 UTC.",
    ),
    ("paused", {**WAITING, "since": None, "by": None}, "mail is paused, with 1,204 due jobs."),
    (
        "paused",
        {**WAITING, "since": AT, "by": "dana"},
        "mail is paused since 2030-01-02 03:04:05 UTC by dana, with 1,204 due jobs.",
    ),
]


@pytest.mark.parametrize(("kind", "values", "sentence"), SENTENCES)
def test_each_concern_has_a_sentence(kind: str, values: dict[str, Any], sentence: str) -> None:
    assert concern_sentences.sentence_for(Concern(kind, values)) == sentence


def test_every_judgement_has_a_sentence() -> None:
    # One of them finds two kinds: names without an instance, and no instance at all.
    assert len({kind for kind, _, _ in SENTENCES}) == len(WORST_FIRST) + 1


@pytest.mark.parametrize("loop", LOOPS)
def test_overview_has_names_and_concerns(db: Database, jobs: Collection, loop: str) -> None:
    now = jobs.database.command("hello")["localTime"].replace(tzinfo=UTC)
    monque = Monque(db)
    monque.sync.schedule("0 0 1 1 *", "yearly", unique_key="next")
    monque.sync.enqueue("mail", run_at=now - timedelta(minutes=5))
    monque.sync.pause("mail", by="dana\ud800")
    enter(db, "w1", "mail", "yearly")

    async def work(ask: Ask) -> None:
        answer = await ask("GET", "/overview")
        found = answer.json()
        assert answer.status_code == 200
        assert is_valid(found, ref("Overview")), found
        mail, yearly = found["names"]
        assert (mail["name"], mail["due"], mail["isPaused"], mail["isLate"]) == ("mail", 1, True, True)
        assert mail["oldestDueAge"] >= 300_000
        assert (yearly["name"], yearly["later"], yearly["isServed"]) == ("yearly", 1, True)
        (upcoming,) = found["upcoming"]
        assert (upcoming["name"], upcoming["uniqueKey"]) == ("yearly", "next")
        assert re.fullmatch(r"\d{4}-01-01T00:00:00.000Z", upcoming["nextRunAt"])
        (concern,) = found["concerns"]
        since = mail["pausedSince"]
        assert (concern["kind"], mail["pausedBy"], concern["values"]["by"]) == ("paused", "dana\\ud800", "dana\\ud800")
        assert concern["values"]["since"] == since
        shown = since[:19].replace("T", " ")
        assert concern["sentence"] == f"mail is paused since {shown} UTC by dana\\ud800, with 1 due job."
        assert (yearly["pausedSince"], yearly["pausedBy"]) == (None, None)
        assert concern["values"]["isCapped"] is False
        assert found["instances"] == {"alive": 1, "silent": 0}

    asking(loop, create_app(monque), work)
