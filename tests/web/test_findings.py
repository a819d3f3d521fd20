"""The route of the findings, and the words of HTTP for each of them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
import trio

from tests.cli.doctor_support import enter
from tests.web.finding_values import EVERY_VALUE
from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque
from trio_monque.diagnosis import Finding
from trio_monque.diagnosis.findings import SEVERITIES
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web import create_app
from trio_monque.web.api.schema_check import is_valid
from trio_monque.web.api.schemas import ref
from trio_monque.web.words.finding_sentences import advice_about, sentence_about


async def findings(ask: Ask) -> Any:
    answer = await ask("GET", "/findings")
    assert answer.status_code == 200, answer.text
    assert is_valid(answer.json(), ref("FindingList")), answer.text
    return answer.json()


@pytest.mark.parametrize("kind", SEVERITIES)
def test_each_kind_has_a_sentence_and_advice_without_commands(kind: str) -> None:
    finding = Finding(kind, SEVERITIES[kind], EVERY_VALUE)
    for text in (sentence_about(finding), advice_about(finding)):
        assert re.match(r"[A-Z0-9x]", text)
        assert text.endswith((".", "?", ": x")), text
        assert "None" not in text
        assert "4,711" not in text
        assert "trio-monque" not in text


def test_name_that_is_misspelt_is_named_with_the_one_that_may_be_meant() -> None:
    finding = Finding("unknown-name", SEVERITIES["unknown-name"], {**EVERY_VALUE, "similar": "mail"})
    assert sentence_about(finding) == (
        "No live instance runs jobs named x. Pending jobs: 1,204+; the oldest has waited 1 m 15 s. One runs mail: is "
        "the name misspelt?"
    )


@pytest.mark.parametrize("loop", LOOPS)
def test_findings_are_facts_with_sentences_the_worst_first(db: Database, loop: str) -> None:
    monque = Monque(db)
    monque.sync.pause("mail")
    monque.sync.enqueue("mail")
    monque.sync.enqueue("sned")
    enter(db, "worker-1", "mail", "send")

    async def work(ask: Ask) -> None:
        found = await findings(ask)
        by_kind = {one["kind"]: one for one in found["findings"]}
        severities = [one["severity"] for one in found["findings"]]
        assert severities == sorted(severities, key=["problem", "warning", "note"].index)
        unknown = by_kind["unknown-name"]
        assert unknown["values"].pop("oldestDue") >= 0
        assert unknown["values"] == {"name": "sned", "pending": 1, "isCapped": False, "similar": "send"}
        assert unknown["sentence"].endswith("One runs send: is the name misspelt?")
        assert by_kind["paused-name"]["advice"] == "Resume it when its jobs may run."
        assert by_kind["paused-name"]["severity"] == "warning"

    asking(loop, create_app(monque), work)


def test_errors_of_jobs_are_shown_only_where_a_hook_does_not_change_them(db: Database, jobs: Collection) -> None:
    now = datetime.now(UTC)
    dates = dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), now)
    Monque(db).sync.enqueue("other")
    jobs.insert_one({"name": "mail", "status": "failed", "failCount": 1, "failReason": "password p-12345", **dates})

    async def work(ask: Ask) -> None:
        (failed,) = (one for one in (await findings(ask))["findings"] if one["kind"] == "failed-jobs")
        is_shown.append(("p-12345" in failed["sentence"], failed["values"]["reason"]))
        assert "p-12345" not in failed["advice"]

    is_shown: list[Any] = []
    for show_errors in (True, False, lambda *_: "masked"):
        asking("trio", create_app(Monque(db), show_errors=show_errors), work)
    assert is_shown == [(True, "password p-12345"), (False, None), (False, None)]


def test_diagnosis_is_kept_and_shared(db: Database) -> None:
    monque = Monque(db)
    first = monque.sync.findings()
    monque.sync.enqueue("mail")
    assert monque.sync.findings() is first
    fresh = Monque(db, stats_cache_ttl=0)
    assert fresh.sync.findings() is not fresh.sync.findings()
    assert "no-collection" in {one.kind for one in first.findings}
    assert "no-collection" not in {one.kind for one in fresh.sync.findings().findings}


async def test_caller_waits_without_a_thread_for_the_examination_of_another(db: Database) -> None:
    monque = Monque(db)
    asked: list[object] = []
    async with trio.open_nursery() as nursery:
        for _ in range(40):
            nursery.start_soon(lambda: _note(monque, asked))
        await monque.get_queue_stats()  # More callers than threads would leave it no turn.
    assert len({id(one) for one in asked}) == 1
    assert len(asked) == 40


async def _note(monque: Monque, asked: list[object]) -> None:
    asked.append(await monque.findings())
