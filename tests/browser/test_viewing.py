"""What a viewer has beside the pages themselves: zone, theme, keys, copies, and all of it without script as well."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from tests.cli.doctor_support import enter
from tests.support.browser import Visits
from tests.web.pages.job_documents import job_document
from trio_monque.store.driver.types import Collection
from trio_monque.web.words.lengths import ago

pytestmark = pytest.mark.full

LENGTHS: Final = [0, 1, 9, 10, 59, 60, 61, 3599, 3600, 3605, 86_399, 86_400, 86_460, 100_000, -1, -59, -7_300]

BLOCKED: Final = "Object.defineProperty(window, 'localStorage', {get: () => { throw new DOMException('no') }})"
PLAIN: Final = "Object.defineProperty(navigator, 'clipboard', {get: () => undefined})"


def fill(jobs: Collection) -> None:
    """Jobs in each state, a schedule, and two instances: one is silent."""
    now = datetime.now(UTC)
    states = ["pending", "processing", "failed", "completed", "cancelled"]
    made = [job_document("mail", status=one, fail_reason="error", meta={"tenant": "acme"}) for one in states * 3]
    in_a_year = job_document("report", next_run_at=now + timedelta(days=400))
    schedule = job_document("daily", repeatInterval="0 6 * * *", unique_key="d", next_run_at=now + timedelta(hours=1))
    jobs.insert_many([*made, in_a_year, schedule])
    enter(jobs.database, "worker-1", "mail")
    enter(jobs.database, "worker-2", "mail", heartbeat_ago=3600.0)


def test_moments_are_in_the_zone_of_the_viewer(visit: Visits, jobs: Collection) -> None:
    jobs.insert_one(job_document("report", next_run_at=datetime.now(UTC) + timedelta(days=400)))
    one = visit(timezone_id="Asia/Kathmandu")  # Three quarters of an hour off.
    one.go()
    one.expect("#zone").to_have_text(re.compile("^Asia/K"))
    stated = datetime.fromisoformat(one.evaluate("document.querySelector('.foot time').dateTime"))
    assert one.page.locator(".foot time").inner_text() == f"{stated + timedelta(hours=5, minutes=45):%H:%M:%S}"
    hours = one.page.locator("svg.wide text:not([text-anchor])").all_text_contents()
    clocks = [text for text in hours if re.fullmatch(r"\d\d:\d\d", text)]
    first = datetime.strptime(clocks[0], "%H:%M").replace(tzinfo=UTC)
    begin = stated + timedelta(hours=4, minutes=45)
    assert abs((first - first.replace(hour=begin.hour, minute=begin.minute)).total_seconds()) <= 180


@pytest.mark.parametrize(
    ("zone", "begins", "chosen", "becomes"),
    [
        ("Asia/Kathmandu", "2040-07-02T09:19:05", "2040-07-02T10:00", datetime(2040, 7, 2, 4, 15, tzinfo=UTC)),
        ("America/New_York", "2040-07-01T23:34:05", "2040-12-02T10:00:07", datetime(2040, 12, 2, 15, 0, 7, tzinfo=UTC)),
        (None, "2040-07-02T03:34:05", "2040-07-02T10:00", datetime(2040, 7, 2, 10, tzinfo=UTC)),
    ],
    ids=["Kathmandu", "New York in winter", "without script"],
)
def test_a_schedule_is_moved_by_the_clock_of_the_viewer(
    visit: Visits, jobs: Collection, zone: str | None, begins: str, chosen: str, becomes: datetime
) -> None:
    due = datetime(2040, 7, 2, 3, 34, 5, tzinfo=UTC)
    jobs.insert_one(job_document("daily", repeatInterval="0 6 * * *", unique_key="d", next_run_at=due))
    one = visit(java_script_enabled=False) if zone is None else visit(timezone_id=zone)
    one.go("schedules")
    one.page.get_by_role("link", name="Move…").click()
    one.expect(".ask .zone").to_have_text(re.compile("^Asia/K" if zone == "Asia/Kathmandu" else zone or "UTC"))
    field = one.page.get_by_label("Due at")
    assert field.input_value() == begins
    field.fill(chosen)
    one.page.get_by_role("button", name="Move 1 job").click()
    one.expect(".notice").to_have_text("1 job is moved.")
    assert [job["nextRunAt"] for job in jobs.find()] == [becomes]


def test_ages_count_on_in_the_words_of_the_server(visit: Visits, jobs: Collection) -> None:
    one = visit()
    one.page.clock.install()
    # Before it is loaded: the page compares its clock with the server's then, however long the loading takes.
    one.page.clock.pause_at(datetime.now(UTC) + timedelta(hours=1))
    one.go("search")
    at = datetime.fromisoformat(one.page.locator(".foot time").get_attribute("datetime") or "")
    moments = [at + timedelta(seconds=1) - timedelta(seconds=length) for length in LENGTHS]
    one.evaluate(
        """(moments) => document.querySelector("main").append(...moments.map((at) => {
            const time = document.createElement("time");
            time.dateTime = at;
            time.dataset.ago = "";
            return time;
        }))""",
        [moment.isoformat() for moment in moments],
    )
    one.page.clock.run_for(1000)
    # The page counts on each second, but not at the begin of one; and when it is shown again.
    one.evaluate("dispatchEvent(new Event('visibilitychange'))")
    shown = one.page.locator("time[data-ago]").all_inner_texts()
    assert shown == [ago(moment, at + timedelta(seconds=1)) for moment in moments]


@pytest.mark.parametrize("has_clipboard", [True, False], ids=["clipboard", "plain HTTP"])
def test_a_payload_is_copied_to_the_letter(visit: Visits, jobs: Collection, has_clipboard: bool) -> None:
    number = 2**53 + 1 + 2 * has_clipboard  # Both have one clipboard.
    job = job_document("mail", data={"n": number, "text": "a\n<b>"})
    jobs.insert_one(job)
    one = visit(permissions=["clipboard-read", "clipboard-write"])
    if not has_clipboard:
        one.page.add_init_script(PLAIN)
    one.go(f"jobs/{job['_id']}")
    button = one.page.locator("[data-part=payload]").get_by_role("button")
    one.copy(button)
    assert button.evaluate("(one) => one === document.activeElement")
    field = one.page.locator(".find input")
    field.focus()
    one.page.keyboard.press("Control+v")
    assert field.input_value() == f'{{   "n": {number},   "text": "a\\n<b>" }}'
    one.expect("[data-part=payload] .copy").to_have_text("Copy")


@pytest.mark.parametrize("is_blocked", [False, True], ids=["kept", "storage blocked"])
def test_theme_is_automatic_light_or_dark(visit: Visits, jobs: Collection, is_blocked: bool) -> None:
    one = visit(color_scheme="dark")
    if is_blocked:
        one.page.add_init_script(BLOCKED)
    ground = "getComputedStyle(document.body).backgroundColor"
    one.go()
    dark = one.evaluate(ground)
    button = one.page.locator("#controls .icon")
    seen = []
    for _ in range(3):
        button.click()
        seen.append((button.get_attribute("title"), one.evaluate(ground) == dark))
    assert seen == [("Theme: light", False), ("Theme: dark", True), ("Theme: automatic", True)]
    button.click()
    one.go("jobs")
    assert (one.evaluate(ground) == dark) is is_blocked


def test_keys_go_to_screens_and_rows_and_stay_out_of_fields(visit: Visits, jobs: Collection) -> None:
    fill(jobs)
    one = visit()
    one.go()
    press = one.page.keyboard.press
    press("/")
    one.page.keyboard.type("gj?.")
    assert one.page.locator(".find input").input_value() == "gj?."
    press("Escape")
    press("Control+.")
    one.expect_live()
    press("g")
    press("j")
    one.page.wait_for_url("**/jobs")
    one.go("jobs?status=failed")
    at = "[...document.querySelectorAll('table.jobs tbody tr')].indexOf(document.activeElement.closest('tr'))"
    for key, row in (("j", 0), ("j", 1), ("j", 2), ("j", 2), ("k", 1), ("k", 0), ("k", 0), ("j", 1), ("x", 1)):
        press(key)
        assert one.evaluate(at) == row, key
    assert [box.is_checked() for box in one.page.locator("td.c-box input").all()] == [False, True, False]
    one.page.locator("#choose-all").check()
    one.expect("#chosen-count").to_have_text("3 chosen:")
    press("r")
    one.page.wait_for_url("**/confirm?**")
    assert one.page.url.count("id=") == 3
    one.go("jobs?status=failed")
    press("j")
    press("Enter")
    one.page.wait_for_url(re.compile("/jobs/[0-9a-f]{24}$"))


def test_keys_can_be_turned_off(visit: Visits, jobs: Collection) -> None:
    one = visit()
    one.go()
    one.page.keyboard.press("?")
    one.page.get_by_label("Keys are on").uncheck()
    one.page.keyboard.press("Escape")
    one.expect("dialog").to_be_hidden()
    for _ in range(2):
        one.page.keyboard.press("?")
        one.expect("dialog").to_be_hidden()
        one.go("jobs")
    one.page.locator(".keys").click()
    one.page.get_by_label("Keys are on").check()
    one.page.get_by_role("button", name="Close").click()
    one.expect("dialog").to_be_hidden()
    one.page.keyboard.press("?")
    one.expect("dialog").to_be_visible()


def test_all_but_live_works_without_script(visit: Visits, jobs: Collection) -> None:
    fill(jobs)
    one = visit(java_script_enabled=False)
    one.go()
    one.expect("#controls").to_be_hidden()
    one.expect(".keys").to_be_hidden()
    one.expect("dialog").to_be_hidden()
    one.page.get_by_role("link", name="Jobs", exact=True).click()
    one.page.locator("details.more summary").click()
    one.page.get_by_label("Name", exact=True).fill("report")
    one.page.get_by_role("button", name="Show").click()
    one.expect("table.jobs tbody tr").to_have_count(1)
    one.expect("#choose-all").to_be_hidden()
    one.expect("time[data-ago]").not_to_have_count(0)
