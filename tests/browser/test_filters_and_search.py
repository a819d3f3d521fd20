"""What is searched and filtered for: where it leads, how far it looked, what an empty list says, what survives."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.browser.places import MOST_EXAMINED
from tests.support.browser import Visit, Visits
from tests.web.pages.job_documents import job_document
from trio_monque.store.driver.types import Collection

pytestmark = pytest.mark.full

ROWS: Final = "table.jobs tbody tr"
FILTERS: Final = {
    "Name": "mail.send", "Error has": "refused", "meta.tenant": "acme",
}  # fmt: skip
IN_URL: Final = {
    "status": ["failed"], "name": ["mail.send"], "text": ["refused"], "meta.tenant": ["acme"], "since": ["1h"],
}  # fmt: skip


def fail(jobs: Collection, number: int, **fields: Any) -> None:
    now = datetime.now(UTC)
    made = {"fail_reason": "SMTPError: refused", "meta": {"tenant": "acme"}, **fields}
    key = made.pop("key", "tenant/")
    jobs.insert_many([
        job_document(made.get("name", "mail.send"), status="failed", unique_key=f"{key}{one}",
                     updated_at=now - timedelta(seconds=one), **{k: v for k, v in made.items() if k != "name"})
        for one in range(number)
    ])  # fmt: skip


def query_of(one: Visit) -> dict[str, list[str]]:
    return parse_qs(urlsplit(one.page.url).query)


def search(one: Visit, text: str) -> None:
    one.page.keyboard.press("/")
    one.page.keyboard.type(text)
    one.page.keyboard.press("Enter")


def test_one_box_finds_an_id_a_key_and_a_name(visit: Visits, jobs: Collection) -> None:
    keyed = job_document("mail.send", unique_key="order/7")
    jobs.insert_many([keyed, job_document("mail.count"), job_document("report", unique_key="order/7")])
    one = visit()
    one.go("health")
    search(one, str(keyed["_id"]).upper())
    one.page.wait_for_url(f"**/jobs/{keyed['_id']}")
    search(one, "mail.count")
    one.page.wait_for_url("**/jobs?name=mail.count")
    one.expect(ROWS).to_have_count(1)
    search(one, "mail.")
    one.expect("main a.strong").to_have_count(2)
    one.page.locator("main").get_by_role("link", name="mail.send").click()
    one.page.wait_for_url("**/jobs?name=mail.send")
    search(one, "order/7")  # Two names have the key.
    one.expect("main a.strong").to_have_count(2)
    jobs.delete_one({"name": "report"})
    search(one, "order/7")
    one.page.wait_for_url(f"**/jobs/{keyed['_id']}")
    search(one, "order/")
    one.expect("main tbody").to_contain_text("order/7")
    one.expect("main a.strong").to_have_count(1)


def test_a_search_that_finds_nothing_says_where_it_looked(visit: Visits, jobs: Collection) -> None:
    fail(jobs, 1)
    one = visit()
    one.go()
    search(one, "refused")
    one.expect("main .empty").to_contain_text("No id or name is refused, and no key begins with it.")
    assert "There are too many names" not in one.page.locator("main").inner_text()
    one.page.get_by_role("link", name="Error has").click()
    assert query_of(one) == {"status": ["failed"], "text": ["refused"]}
    one.expect(ROWS).to_have_count(1)
    jobs.insert_many([job_document(f"name-{number}") for number in range(101)])
    search(one, "nowhere")
    one.expect("main .empty").to_contain_text("There are too many names to look for the key under each")


def test_an_empty_list_says_which_of_three_things_it_means(visit: Visits, jobs: Collection) -> None:
    one = visit()
    one.go("jobs")
    one.expect("main .empty").to_contain_text("There are no jobs yet.")
    one.expect("main .empty pre").to_contain_text("await scheduler.enqueue(")
    fail(jobs, 3)
    one.go("jobs?status=failed&text=nothing+of+this")
    one.expect("main .empty").to_contain_text("No job matches these filters.")
    one.page.get_by_role("link", name="Remove all filters").click()
    assert query_of(one) == {"status": ["failed"]}
    one.expect(ROWS).to_have_count(3)
    one.go("jobs?status=done")
    one.expect("main .empty").to_contain_text("No job is done.")
    fail(jobs, MOST_EXAMINED + 10)
    one.go("jobs?status=failed&text=nothing+of+this")
    one.expect("main .empty").to_contain_text(f"None of the {MOST_EXAMINED} jobs that were looked through matches.")


@pytest.mark.parametrize("sought", ["text=the+oldest", "meta.tenant=old", "status=failed&text=the+oldest"])
def test_a_search_stops_at_its_cap_and_goes_on_when_it_is_asked_to(
    visit: Visits, jobs: Collection, sought: str
) -> None:
    old = datetime.now(UTC) - timedelta(days=1)
    jobs.insert_one(
        job_document("mail.send", status="failed", fail_reason="the oldest", updated_at=old, meta={"tenant": "old"})
        | {"createdAt": old}
    )
    fail(jobs, 2 * MOST_EXAMINED)
    one = visit()
    one.go(f"jobs?{sought}")
    for place in ("main .empty", "main .pager"):
        one.expect("main .empty").to_contain_text(f"None of the {MOST_EXAMINED} jobs that were looked through")
        one.page.locator(place).get_by_role("link", name="Look further", exact=True).click()
    one.expect(f"{ROWS} a.strong").to_have_count(1)
    assert query_of(one).items() >= parse_qs(sought).items()


def test_all_filters_combine_in_the_url(visit: Visits, jobs: Collection) -> None:
    fail(jobs, 3)
    for different in (
        {"name": "mail.count"}, {"fail_reason": "SMTPError: busy"}, {"meta": {"tenant": "globex"}, "key": "globex/"},
    ):  # fmt: skip
        fail(jobs, 1, **different)
    one = visit()
    one.go("jobs?status=failed")
    one.expect(ROWS).to_have_count(6)
    one.page.get_by_text("+ Filter").click()
    for label, text in FILTERS.items():
        one.page.get_by_label(label, exact=True).fill(text)
    one.page.get_by_label("Changed in the last").select_option("1h")
    one.page.get_by_role("button", name="Show").click()
    one.expect(ROWS).to_have_count(3)
    found = {key: value for key, value in query_of(one).items() if value != [""]}
    assert found == IN_URL
    # Each goes by itself, and the others stay.
    one.page.get_by_role("link", name="Remove the filter meta.tenant").click()
    assert query_of(one) == {key: value for key, value in IN_URL.items() if key != "meta.tenant"}
    one.expect(ROWS).to_have_count(4)
    one.page.get_by_role("link", name=re.compile("^Cancelled")).click()
    assert query_of(one)["name"] == ["mail.send"]


def test_filters_that_no_job_can_match_say_why_and_can_be_removed(visit: Visits, jobs: Collection) -> None:
    jobs.insert_one(job_document("mail", unique_key="k/1"))
    one = visit()
    one.go("jobs?status=due&name=mail&key=k/1")
    one.expect(ROWS).to_have_count(1)
    one.page.get_by_role("link", name=re.compile("^Failed")).click()
    one.expect("main .empty").to_contain_text("Jobs are found by their key while they are due, later or running")
    one.page.get_by_role("link", name=re.compile("^Due")).click()
    one.expect(ROWS).to_have_count(1)
    one.page.get_by_role("link", name="Remove the filter Name").click()
    one.expect("main .empty").to_contain_text("A key belongs to a name: add the name to the filters.")


def test_filters_survive_each_action(visit: Visits, jobs: Collection) -> None:
    fail(jobs, 8)
    fail(jobs, 2, meta={"tenant": "globex"}, key="globex/")
    one = visit()
    filters = {"status": ["failed"], "name": ["mail.send"], "text": ["refused"], "meta.tenant": ["acme"]}
    one.go("jobs?status=failed&name=mail.send&text=refused&meta.tenant=acme")
    page, left = one.page, 8
    for label, chosen in (("Retry…", 1), ("Delete…", 2)):
        for row in range(chosen):
            page.locator("td.c-box input").nth(row).check()
        page.get_by_role("button", name=label, exact=True).click()
        page.locator("main button.btn").click()
        left -= chosen
        one.expect(ROWS).to_have_count(left)
        assert query_of(one).items() >= filters.items()
        one.expect(".notice").to_be_visible()
    page.get_by_role("link", name="Pause mail.send…").click()
    page.locator("main button.btn").click()
    assert query_of(one).items() >= filters.items()
    page.get_by_role("button", name="Resume").click()
    one.expect(".notice").to_have_text("The name is resumed.")
    assert query_of(one).items() >= filters.items()
    page.get_by_role("link", name="Remove the filter meta.tenant").click()
    page.get_by_role("link", name="Retry all…").click()
    one.expect(".chips").to_contain_text("Status failed Name mail.send Error has refused")
    page.locator("main button.btn").click()
    one.expect(".notice").to_have_text("7 jobs are requeued.")
    one.expect("main .empty").to_contain_text("No job matches these filters.")
    assert query_of(one).items() >= {key: filters[key] for key in ("status", "name", "text")}.items()
