"""What is done to many jobs at once: asked with the number of the moment, and seen until it is done."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from pymongo import MongoClient

from tests.browser.places import MOST_IN_A_BATCH
from tests.support.browser import Visit, Visits
from tests.support.open_transactions import begin_with
from tests.support.store import handle
from tests.web.pages.job_documents import job_document
from trio_monque.store.driver.types import Collection
from trio_monque.store.jobs import indexes

pytestmark = pytest.mark.full

ROWS: Final = "table.jobs tbody tr"


def fail(jobs: Collection, number: int, name: str = "mail", error: str = "SMTPError: refused") -> None:
    now = datetime.now(UTC)
    jobs.insert_many([
        job_document(name, status="failed", fail_reason=error, updated_at=now - timedelta(seconds=one))
        for one in range(number)
    ])  # fmt: skip


def press(one: Visit, label: str) -> None:
    one.page.locator("main .btn").filter(has_text=re.compile(f"^{label}$")).first.click()


def test_all_that_match_are_one_button_and_counted_again_before_it(visit: Visits, jobs: Collection) -> None:
    fail(jobs, 6)
    fail(jobs, 2, "report")
    one = visit()
    one.go("jobs?status=failed&name=mail&text=refused")
    one.expect(".all").to_contain_text("All 6 that match:")
    fail(jobs, 3)  # Since the page was shown.
    press(one, "Retry all…")
    one.expect("h1").to_have_text("Retry 9 jobs?")
    one.expect(".chips").to_contain_text("Status failed Name mail Error has refused")
    gone = [job["_id"] for job in jobs.find({"name": "mail"}).limit(4)]
    jobs.delete_many({"_id": {"$in": gone}})
    press(one, "Retry 9 jobs")
    one.expect(".notice").to_have_text("5 jobs are requeued.")
    assert jobs.count_documents({"name": "mail", "status": "pending"}) == 5
    assert jobs.count_documents({"name": "report", "status": "failed"}) == 2


def test_what_is_confirmed_is_what_was_asked_and_not_what_became_of_the_filter(visit: Visits, jobs: Collection) -> None:
    """A filter by time is the moment that it was when the page asked."""
    fail(jobs, 3)
    jobs.insert_one(
        job_document("mail", status="failed", fail_reason="old", updated_at=datetime.now(UTC) - timedelta(hours=2))
    )
    one = visit()
    one.go("jobs?status=failed&since=1h")
    press(one, "Delete all…")
    one.expect("h1").to_have_text("Delete 3 jobs?")
    one.expect(".chips").to_contain_text(re.compile(r"Changed since \d{4}-"))
    press(one, "Delete 3 jobs")
    one.expect(".notice").to_have_text("3 jobs are deleted.")
    assert [job["failReason"] for job in jobs.find()] == ["old"]


def test_a_long_action_shows_how_far_it_is_and_goes_on_without_a_viewer(
    visit: Visits, jobs: Collection, client: MongoClient[Any]
) -> None:
    fail(jobs, 3 * MOST_IN_A_BATCH)
    # The first action of a process creates those that are missing: it would wait for the transaction, too.
    indexes.ensure(handle(jobs.database))
    last = jobs.find_one(sort=[("_id", -1)])
    assert last is not None
    one = visit()
    one.go("jobs?status=failed")
    press(one, "Retry all…")
    with client.start_session() as session:
        # Until this ends, the server does not write the last job, and the action does not end.
        begin_with(session, jobs, last["_id"], {"held": True})
        press(one, f"Retry {3 * MOST_IN_A_BATCH} jobs")
        one.page.wait_for_url(re.compile("/actions/[0-9a-f]{24}$"))
        one.expect("main").to_contain_text(f"{2 * MOST_IN_A_BATCH} jobs of {3 * MOST_IN_A_BATCH} jobs requeued.")
        one.expect("main").to_contain_text("It continues if you leave this page.")
        bar = one.page.locator("main progress")
        assert (bar.get_attribute("value"), bar.get_attribute("max")) == ("40", "60")
        place = one.page.url
        press(one, "To the jobs")
        session.abort_transaction()
    one.page.goto(place)
    one.expect("main").to_contain_text("60 jobs of 60 jobs requeued. Done.")
    assert jobs.count_documents({"status": "pending"}) == 3 * MOST_IN_A_BATCH


def test_errors_come_in_groups_with_a_button_to_the_jobs_and_one_for_all(visit: Visits, jobs: Collection) -> None:
    for address in ("ann@example.com", "bob@example.com"):
        fail(jobs, 4, error=f"SMTPError: refused: {address}")
    fail(jobs, 2, "report", "ConnectTimeout: hooks")
    one = visit()
    one.go("errors")
    groups = one.page.locator(".groups > li")
    one.expect(".groups > li").to_have_count(2)
    assert groups.first.locator(".n").inner_text() == "8"
    assert re.search(r"mail · first \d+ s ago, last (now|\d s ago)", groups.first.inner_text())
    one.expect(".groups > li:first-child .gap").to_have_count(1)  # What differs between them.
    groups.first.get_by_role("link", name="See the jobs").click()
    one.expect(ROWS).to_have_count(8)
    one.page.go_back()
    groups.first.get_by_role("link", name="Retry all 8…").click()
    one.expect("h1").to_have_text("Retry 8 jobs?")
    one.page.locator("main button.btn").click()
    one.expect(".notice").to_have_text("8 jobs are requeued.")
    one.expect(".groups > li").to_have_count(1)
    assert jobs.count_documents({"name": "report", "status": "failed"}) == 2


def test_what_cannot_be_undone_asks_and_what_can_does_not(visit: Visits, jobs: Collection) -> None:
    fail(jobs, 2)
    first, second = (job["_id"] for job in jobs.find())
    one = visit()
    one.go(f"jobs/{first}")
    press(one, "Delete…")
    one.expect("h1").to_have_text("Delete 1 job?")
    assert jobs.count_documents({}) == 2
    press(one, "Back")
    press(one, "Retry")
    one.expect(".notice").to_have_text("1 job is requeued.")
    press(one, "Cancel")  # Retry is undone by it, and the other way round.
    one.expect(".notice").to_have_text("1 job is cancelled.")
    press(one, "Retry")
    one.expect(".notice").to_have_text("1 job is requeued.")
    one.go(f"jobs/{second}")
    press(one, "Delete…")
    press(one, "Delete 1 job")
    one.expect(".notice").to_have_text("1 job is deleted.")
    one.expect("h1").to_have_text("Jobs")
    assert [job["_id"] for job in jobs.find()] == [first]


@pytest.mark.parametrize("label", ["Retry…", "Delete…"])
def test_a_choice_of_several_asks_with_their_number(visit: Visits, jobs: Collection, label: str) -> None:
    fail(jobs, 4)
    one = visit()
    one.go("jobs?status=failed")
    for row in range(3):
        one.page.locator("td.c-box input").nth(row).check()
    press(one, label)
    one.expect("h1").to_have_text(f"{label[:-1]} 3 jobs?")
    one.expect("main section").to_contain_text(re.compile(r"(mail [0-9a-f]{24}(, )?){3}"))
    assert jobs.count_documents({"status": "failed"}) == 4
