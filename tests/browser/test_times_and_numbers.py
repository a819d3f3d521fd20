"""Times by the server's clock in the viewer's zone, numbers to the last digit, and copies without the clipboard."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tests.support.browser import Visits
from tests.web.pages.job_documents import job_document
from trio_monque.store.driver.types import Collection

pytestmark = pytest.mark.full

BIG = 2**63 - 1
DIGITS = f'"n": {BIG}'


@pytest.mark.parametrize("hours", [-9, 5])
def test_now_is_the_clock_of_the_server(visit: Visits, jobs: Collection, hours: int) -> None:
    """The clock of the browser is wrong by hours."""
    now = datetime.now(UTC)
    job = job_document("report", next_run_at=now + timedelta(hours=3, minutes=1), updated_at=now - timedelta(hours=2))
    jobs.insert_one(job)
    one = visit(timezone_id="America/New_York")
    one.page.clock.install(time=now + timedelta(hours=hours))
    one.go("jobs?status=later")
    one.expect_live()
    one.expect("td.c-more time").to_have_text(re.compile("^in 3 h"))
    one.expect("td.c-changed time").to_have_text(re.compile("^2 h .*ago$"))
    one.go(f"jobs/{job['_id']}")
    one.expect("#zone").to_have_text("America/New_York")
    shown = one.page.locator("[data-part=facts] time[data-clock]").first
    stated = datetime.fromisoformat(shown.get_attribute("datetime") or "")
    assert stated.tzinfo is not None
    local = stated.astimezone(ZoneInfo("America/New_York"))
    assert f"{local:%H:%M}" in shown.inner_text()


def test_numbers_are_shown_to_the_last_digit(visit: Visits, jobs: Collection) -> None:
    """In the payload, the result, the progress, and in lists; also where they came live."""
    job = job_document("sum", status="processing", data={"n": BIG}, progress={"n": BIG})
    jobs.insert_one(job)
    one = visit()
    one.go(f"jobs/{job['_id']}")
    one.expect_live()
    one.expect("[data-part=payload] pre").to_contain_text(DIGITS)
    one.expect("[data-part=progress] pre").to_contain_text(DIGITS)
    now = datetime.now(UTC)
    jobs.update_one({"_id": job["_id"]}, {"$set": {"status": "completed", "completedAt": now, "result": {"n": BIG}}})
    one.expect("[data-part=result] pre").to_contain_text(DIGITS)
    one.go("jobs?status=done")
    one.expect("table.jobs tbody").to_contain_text(DIGITS)


def test_a_payload_is_copied_on_plain_http(visit: Visits, jobs: Collection) -> None:
    """At a name of another machine, where a browser offers no clipboard."""
    job = job_document("mail", data={"n": BIG})
    jobs.insert_one(job)
    elsewhere = visit.at(visit.url.replace("127.0.0.1", "jobs.test"))
    one = elsewhere()
    one.expect_fault("Cross-Origin-Opener-Policy header has been ignored")  # Which only HTTPS can have.
    one.go(f"jobs/{job['_id']}")
    assert one.evaluate("[isSecureContext, typeof navigator.clipboard]") == [False, "undefined"]
    one.copy(one.page.locator("[data-part=payload] .copy"))
    one.page.keyboard.press("/")
    one.page.keyboard.press("Control+v")
    assert DIGITS in one.page.locator(".find input").input_value()
