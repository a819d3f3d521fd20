"""What a viewer sees first, without scrolling, and what only this dashboard has: judgements, reasons, leases, waits."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from tests.browser.sample_fleet import fill
from tests.support.browser import Visits
from tests.web.pages.job_documents import job_document
from trio_monque.store.driver.types import Collection

HEIGHT: Final = 1000
BOTTOM: Final = "(one) => one.getBoundingClientRect().bottom + scrollY"


@pytest.mark.full
def test_done_a_minute_and_the_last_hour_are_on_the_first_screen(visit: Visits, jobs: Collection) -> None:
    fill(jobs.database)
    one = visit(viewport={"width": 1440, "height": HEIGHT})
    one.go()
    labels, values = (one.page.locator(f".vitals > a > .{part}").all_inner_texts() for part in ("l", "v"))
    vitals = dict(zip(labels, values, strict=True))
    assert int(vitals["Done a minute"].replace(",", "")) > 1000
    assert re.fullmatch(r"[\d.,]+ (ms|s|m)( \d+ s)?", vitals["Waits, 95 of 100"]), vitals
    bars = one.page.locator("[data-part=hour] svg.wide path.c-ok").get_attribute("d")
    assert bars is not None
    assert bars.count("M") == 60
    for part in (".vitals", "[data-part=needs]", "[data-part=hour]"):
        assert one.page.locator(part).evaluate(BOTTOM) <= HEIGHT, part
    # Four of the errors, the instances and the first names besides.
    for part in (".err >> nth=2", "[data-part=instances] tbody tr >> nth=6", "[data-part=names] tbody tr >> nth=5"):
        assert one.page.locator(part).evaluate(BOTTOM) <= HEIGHT, part


@pytest.mark.full
def test_what_needs_someone_has_the_button_that_mends_it(visit: Visits, jobs: Collection) -> None:
    fill(jobs.database)
    one = visit()
    needs = one.page.locator("[data-part=needs] li")
    places = {
        r"export\.accounts .*no instance runs": ("See instances", "/instances"),
        r"Instance media-2 .*silent": ("See the instance", "/instances/media-2"),
        r"mail\.send fails": ("See its errors", "/errors?name=mail.send&since=1h"),
        r"jobs of mail\.send failed for good": (
            "See its failed jobs",
            "/jobs?status=failed&name=mail.send&since=1h",
        ),
        r"mail\.send is late": ("See its due jobs", "/jobs?status=due&name=mail.send"),
        r"webhook\.deliver is paused .*by dana": ("See its due jobs", "/jobs?status=due&name=webhook.deliver"),
    }
    seen = set()
    one.go()
    for text in needs.locator(".what").all_inner_texts():
        for begin, (label, place) in places.items():
            if re.search(begin, text):
                needs.filter(has_text=re.compile(begin)).get_by_role("link", name=label).click()
                assert one.page.url == f"{visit.url}{place}", text
                one.expect("h1").to_be_attached()
                one.go()
                seen.add(place)
    assert {"/instances", "/instances/media-2", "/jobs?status=due&name=webhook.deliver"} <= seen
    needs.filter(has_text="webhook.deliver is paused").get_by_role("button", name="Resume").click()
    one.expect(".notice").to_have_text("The name is resumed.")
    one.expect("[data-part=needs]").not_to_contain_text("is paused")


@pytest.mark.full
def test_a_job_says_why_it_does_not_run_and_who_runs_it(visit: Visits, jobs: Collection) -> None:
    ids = fill(jobs.database)
    now = datetime.now(UTC)
    names = ("webhook.deliver", "export.accounts")
    paused, lonely = (jobs.find_one({"name": name, "status": "pending"}) for name in names)
    later = job_document("mail.send", next_run_at=now + timedelta(hours=2))
    jobs.insert_one(later)
    assert paused is not None
    assert lonely is not None
    one = visit()
    for job, words in ((paused, "paused"), (lonely, "instance"), (later, r"due in 1 h 59 m|not due")):
        one.go(f"jobs/{job['_id']}")
        one.expect("[data-part=banner]").to_have_text(re.compile(words))
    one.go(f"jobs/{paused['_id']}")
    one.page.locator("[data-part=banner]").get_by_role("button", name="Resume").click()
    one.expect(".notice").to_have_text("The name is resumed.")
    one.expect("[data-part=banner]").not_to_contain_text("paused")
    one.go(f"jobs/{ids['running']}")
    facts = one.page.locator("[data-part=now]")
    lease = re.compile(r"Lease until\s*[\d:]+\s*renewed (now|\d+ s ago), every 30 s")
    one.expect("[data-part=now]").to_contain_text(lease)
    facts.get_by_role("link", name="worker-4").click()
    one.page.wait_for_url("**/instances/worker-4")
    one.expect("[data-part=running] tbody tr").to_have_count(3)
