"""What an open page costs: one reader for all tabs, nothing behind a hidden tab or without one, no growing memory."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import pytest
from pymongo import MongoClient

from tests.browser.conftest import DATABASE
from tests.browser.places import APP_NAME
from tests.support.browser import Visit, Visits
from tests.support.waiting import wait_until
from tests.web.pages.job_documents import job_document
from trio_monque.store.driver.types import Collection

pytestmark = pytest.mark.full

VITAL: Final = ".vitals > a:first-child .v"


class Questions:
    """What the dashboard asks the server of MongoDB."""

    def __init__(self, client: MongoClient[Any]) -> None:
        self._client = client
        self._db = client[DATABASE]

    def streams(self) -> int:
        """How many change streams it has open."""
        stages: list[dict[str, Any]] = [
            {"$currentOp": {"allUsers": True, "idleCursors": True}},
            {"$match": {"appName": APP_NAME, "cursor.originatingCommand.pipeline.0.$changeStream": {"$exists": True}}},
            {"$group": {"_id": "$cursor.cursorId"}},
        ]
        return len(list(self._client.admin.aggregate(stages)))

    def noted(self) -> list[str]:
        """The commands since `note`, but for reads of a stream."""
        asked = self._db["system.profile"].find({"appName": APP_NAME, "op": {"$ne": "getmore"}})
        return [f"{next(iter(one['command']))} {one['ns']}" for one in asked]

    def note(self) -> None:
        self.forget()
        self._db.command("profile", 2)

    def forget(self) -> None:
        self._db.command("profile", 0)
        self._db.drop_collection("system.profile")


@pytest.fixture
def questions(client: MongoClient[Any], jobs: Collection) -> Any:
    asked = Questions(client)
    yield asked
    asked.forget()


def hide(visit: Visit) -> None:
    visit.evaluate(
        """() => {
            Object.defineProperty(document, "hidden", {get: () => true, configurable: true});
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )


def test_all_tabs_share_one_reader_and_a_hidden_one_asks_nothing(
    visit: Visits, jobs: Collection, questions: Questions
) -> None:
    wait_until(lambda: questions.streams() == 0, "the viewers of other tests are gone")
    jobs.insert_one(job_document("mail"))
    tabs = [visit() for _ in range(3)]
    for one in tabs:
        one.page.clock.install()
        one.go()
        one.expect_live()
    jobs.insert_one(job_document("mail"))
    for one in tabs:
        one.expect(VITAL).to_have_text("2")
    # None is seen at a moment in which it is read.
    wait_until(lambda: max(questions.streams() for _ in range(5)) == 1, "all have one stream")
    for one in tabs[1:]:
        hide(one)
        one.let_pass(31)
    wait_until(lambda: all(one.evaluate("1") for one in tabs) and questions.streams() == 1, "one still looks")
    hide(tabs[0])
    tabs[0].let_pass(31)
    wait_until(lambda: tabs[0].evaluate("1") and questions.streams() == 0, "no stream is open without a viewer")
    questions.note()
    for number in range(3):
        jobs.insert_one(job_document(f"other-{number}"))
    for one in tabs:
        one.let_pass(60)
    assert questions.noted() == []
    visit().go()  # By then, what the tabs had asked for would have been noted.
    assert questions.noted() != []


MOST_ROUNDS: Final = 6


def test_many_changes_leave_nothing_in_the_memory_of_a_page(visit: Visits, jobs: Collection) -> None:
    """Elements and listeners that the page keeps, also those that are no longer shown."""
    one = visit()
    one.page.clock.install()
    one.go()
    one.expect_live()
    protocol = one.page.context.new_cdp_session(one.page)

    def kept() -> dict[str, int]:
        protocol.send("HeapProfiler.collectGarbage")
        counts: dict[str, int] = protocol.send("Memory.getDOMCounters")
        return counts

    def is_shown(error: str) -> bool:
        """In all its parts: one of them may be from before the change at first, and is read once more."""
        texts = [one.page.locator(f"[data-part={part}").all_inner_texts() for part in ("errors] .m", "names] td.bad")]
        return texts == [[error], ["1"]]

    def change(times: int) -> None:
        for number in range(times):
            error = "E: " + "x" * (number + 1)
            jobs.delete_many({})
            jobs.insert_one(job_document("mail", status="failed", fail_reason=error))
            one.let_pass_until(partial(is_shown, error), "the page shows the change")

    def kept_after(times: int) -> dict[str, int]:
        change(times)
        # What was fetched is an element no more once it is merged, perhaps a moment later.
        wait_until(lambda: kept()["documents"] == 1, "one document is left", pause=0.1)
        return kept()

    # The first changes of a part add to it, and the minutes of the chart move on meanwhile. What is left behind by each
    # change adds up in every round.
    rounds = [kept_after(6), kept_after(6)]
    while any(rounds[-1][what] > rounds[-2][what] for what in rounds[-1]):
        assert len(rounds) < MOST_ROUNDS, rounds
        rounds.append(kept_after(6))
