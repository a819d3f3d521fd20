"""Pages that stay true: what is merged into them, what they leave alone, and what they say when they cannot."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.browser import Visit, Visits
from tests.support.waiting import wait_until
from tests.web.pages.job_documents import job_document
from trio_monque.store.driver.types import Collection

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.full

VITAL: Final = ".vitals > a:first-child .v"
NAMES: Final = "[data-part=names] tbody tr"
REFUSALS: Final = {
    503: "No answer since",
    403: "You may no longer read this.",
    404: "This is no longer there.",
    302: "Reload the page to log in.",
    None: "No answer since",
}
HIDE: Final = "Object.defineProperty(document, 'hidden', {get: () => window.isAway, configurable: true})"


def enqueue(jobs: Collection, *names: str, **fields: Any) -> None:
    jobs.insert_many([job_document(name, **fields) for name in names])


def fail(jobs: Collection, *names: str) -> None:
    """Each changed a second after the one before."""
    now = datetime.now(UTC)
    for second, name in enumerate(names):
        changed = now + timedelta(seconds=second)
        jobs.insert_one(job_document(name, status="failed", fail_reason=f"error of {name}", updated_at=changed))


def turn_away(visit: Visit, is_away: bool) -> None:
    """Hide the page, or show it again. A browser without windows hides none."""
    event = "document.dispatchEvent(new Event('visibilitychange'))"
    visit.evaluate(f"isAway => {{ window.isAway = isAway; {HIDE}; {event} }}", is_away)


def refuse(status: int | None, body: str, route: Route) -> None:
    if status is None:
        route.abort("connectionrefused")
    else:
        route.fulfill(status=status, headers={"Location": "/login"}, body=body)


def let_pass_until_it_shows(one: Visit, selector: str, words: str) -> None:
    """What the server announces, and what it answers, come in real time: how much of the page's time passes is open."""
    one.let_pass_until(lambda: words in "".join(one.page.locator(selector).all_inner_texts()), f"it shows {words!r}")


def test_numbers_change_in_place_and_focus_folds_and_scroll_stay(visit: Visits, jobs: Collection) -> None:
    enqueue(jobs, "mail", "mail", "report")
    one = visit()
    one.go()
    one.expect_live()
    one.expect(VITAL).to_have_text("3")
    one.evaluate(
        """() => {
            document.querySelector("[data-part=names] tbody a").focus();
            document.querySelector("[data-part=names]").mark = "the same";
        }"""
    )
    enqueue(jobs, "mail", "another")
    one.expect(VITAL).to_have_text("5")
    one.expect(f"{NAMES}:first-child td:nth-child(2)").to_have_text("3")
    assert one.evaluate("document.querySelector('[data-part=names]').mark") == "the same"
    assert one.evaluate("document.activeElement.textContent") == "mail"
    # While someone is at a row, no other row takes its place, and none comes in between.
    assert one.page.locator(NAMES).count() == 2
    one.evaluate("document.activeElement.blur()")
    enqueue(jobs, "another", "another", "another")
    one.expect(f"{NAMES}:first-child a.strong").to_have_text("another")
    one.expect(NAMES).to_have_count(3)
    assert one.evaluate("document.querySelector('[data-part=names]').mark") == "the same"


def test_an_empty_page_fills_and_a_full_one_empties(visit: Visits, jobs: Collection) -> None:
    one = visit()
    one.go()
    one.expect_live()
    one.expect("[data-part=names] .empty").to_contain_text("No job has been enqueued yet")
    enqueue(jobs, "mail")
    one.expect(NAMES).to_have_count(1)
    jobs.delete_many({})
    one.expect("[data-part=names] .empty").to_be_visible()
    one.expect(NAMES).to_have_count(0)


def test_rows_of_jobs_never_move_by_themselves(visit: Visits, jobs: Collection) -> None:
    fail(jobs, "first", "second")
    one = visit()
    one.go("jobs?status=failed")
    one.expect_live()
    rows = one.page.locator("table.jobs tbody tr")
    rows.nth(1).locator("input").check()
    one.expect("#chosen-count").to_have_text("1 chosen:")
    fail(jobs, "third", "fourth")
    one.expect("#news").to_contain_text("2 new ones match.")
    assert rows.locator("a.strong").all_inner_texts() == ["second", "first"]
    jobs.update_one({"name": "second"}, {"$set": {"status": "pending"}})
    one.expect("tr.gone a.strong").to_have_text("second")
    assert rows.nth(1).locator("input").is_checked()
    one.expect("#chosen-count").to_have_text("1 chosen:")
    one.page.get_by_role("button", name="Show them").click()
    one.expect("table.jobs tbody tr").to_have_count(3)
    assert rows.locator("a.strong").all_inner_texts() == ["fourth", "third", "first"]
    assert rows.nth(2).locator("input").is_checked()
    assert one.evaluate("document.activeElement.className") == "scroll"
    one.expect("#news").to_be_empty()
    jobs.delete_many({"name": {"$in": ["first", "third", "fourth"]}})
    one.expect("tr.gone").to_have_count(3)
    one.page.get_by_role("button", name="Remove them").click()
    one.expect("[data-part=jobs] .empty").to_contain_text("No job is failed.")


@pytest.mark.parametrize("doing", ["a selection of text", "a dialog", "a menu"])
def test_a_page_waits_while_the_viewer_does_something(visit: Visits, jobs: Collection, doing: str) -> None:
    fail(jobs, "first")
    one = visit()
    one.page.clock.install()
    one.go("jobs?status=failed")
    one.expect_live()
    match doing:
        case "a selection of text":
            one.evaluate("getSelection().selectAllChildren(document.querySelector('h1'))")
        case "a dialog":
            one.page.keyboard.press("?")
            one.expect("dialog").to_be_visible()
        case _:
            one.page.locator("details.more summary").click()
    fail(jobs, "second")
    one.let_pass(40)  # It has looked at least once, whatever the stream has said.
    one.expect(".live").to_contain_text(" old")
    one.expect("#news").to_be_empty()
    match doing:
        case "a selection of text":
            one.evaluate("getSelection().removeAllRanges()")
        case "a dialog":
            one.page.keyboard.press("Escape")
        case _:
            one.page.locator("details.more summary").click()
    one.expect("#news").to_contain_text("1 new one matches.")
    one.expect_live()


def test_the_page_of_a_job_follows_it_and_its_folds_stay(visit: Visits, jobs: Collection) -> None:
    now = datetime.now(UTC)
    errors = [
        {"at": now, "attempt": attempt, "error": f"ValueError: {attempt}", "traceback": f"Traceback {attempt}"}
        for attempt in (1, 2)
    ]
    job = job_document("import", status="processing", errors=errors, failCount=2, progress=40)
    jobs.insert_one(job)
    one = visit()
    one.go(f"jobs/{job['_id']}")
    one.expect_live()
    folds = one.page.locator(".tl details")
    before = [fold.get_attribute("open") is not None for fold in folds.all()]
    assert len(before) == 2
    for fold in folds.all():
        fold.locator("summary").click()
    one.expect("main").to_contain_text("40")
    jobs.update_one({"_id": job["_id"]}, {"$set": {"progress": 41}})
    one.expect("main").to_contain_text("41")
    ended = {"status": "completed", "completedAt": now, "result": {"n": 2**62}, "updatedAt": now}
    jobs.update_one({"_id": job["_id"]}, {"$set": ended, "$unset": {"claimedBy": True}})
    one.expect("[data-part=title] .st").to_have_text("done")
    one.expect("[data-part=result] pre").to_contain_text(str(2**62))
    assert [fold.get_attribute("open") is not None for fold in folds.all()] == [not is_open for is_open in before]
    one.expect_fault("404")
    jobs.delete_one({"_id": job["_id"]})
    one.expect(".trouble").to_contain_text("This is no longer there.")
    one.expect("[data-part=result] pre").to_be_visible()


def test_a_paused_page_changes_when_it_goes_on(visit: Visits, jobs: Collection) -> None:
    one = visit()
    one.go()
    one.expect_live()
    one.page.keyboard.press(".")
    one.expect(".live").to_have_text("Paused")
    reads = one.reads
    enqueue(jobs, "mail")
    other = visit()  # By then, the first would have changed too.
    other.go()
    other.expect(VITAL).to_have_text("1")
    assert one.reads == reads
    one.expect(VITAL).to_have_text("0")
    one.page.locator(".live").click()
    one.expect(VITAL).to_have_text("1")
    one.expect_live()


def test_without_a_stream_a_page_looks_every_ten_seconds(visit: Visits, jobs: Collection) -> None:
    one = visit()
    one.expect_fault("503")
    one.page.route("**/api/v1/events*", lambda route: route.fulfill(status=503))
    one.page.clock.install()
    one.go()
    one.expect(".live").to_have_text("Every 10 s")
    enqueue(jobs, "mail")
    one.let_pass(11)
    one.expect(VITAL).to_have_text("1")
    one.page.unroute("**/api/v1/events*")
    one.let_pass(61)
    one.expect_live()


def test_a_hidden_page_ends_its_stream_and_is_true_when_it_is_shown(visit: Visits, jobs: Collection) -> None:
    one = visit()
    ended: list[str] = []
    one.page.on("requestfailed", lambda request: ended.append(request.url) if "events" in request.url else None)
    one.page.clock.install()
    one.go()
    one.expect_live()
    turn_away(one, True)
    one.let_pass(29)
    assert ended == []
    one.let_pass(2)
    wait_until(lambda: one.evaluate("1") and ended, "the stream has ended")
    enqueue(jobs, "mail")
    reads = one.reads
    one.let_pass(60)
    assert one.reads == reads
    turn_away(one, False)
    one.let_pass(11)
    one.expect(VITAL).to_have_text("1")
    one.expect_live()


def test_the_last_good_page_stays_and_says_how_old_it_is(visit: Visits, jobs: Collection) -> None:
    enqueue(jobs, "mail")
    one = visit()
    one.expect_fault("Failed to load resource|^refused|^failed")
    one.page.clock.install()
    one.go()
    one.expect_live()
    one.expect(VITAL).to_have_text("1")
    # From here on, its time passes only where the test lets it, and everything is refused.
    one.page.clock.pause_at(datetime.fromtimestamp(one.evaluate("Date.now()") / 1000 + 5, UTC))
    where, other = f"{visit.url}/", "<html><body><main>other</main></body></html>"
    enqueue(jobs, "mail")
    for status, words in REFUSALS.items():
        one.page.route(where, partial(refuse, status, other))  # It goes before those of the statuses before.
        let_pass_until_it_shows(one, ".trouble", words)
        one.expect(VITAL).to_have_text("1")
    let_pass_until_it_shows(one, ".live", " old")
    one.expect("main").to_have_class("old")
    one.page.unroute(where)
    let_pass_until_it_shows(one, VITAL, "2")
    one.expect(".trouble").to_have_count(0)
    # The page shows that with a beat of its own time, and may have to open its stream again first.
    let_pass_until_it_shows(one, ".live", "Live")


def test_a_page_that_takes_long_is_read_less_often(visit: Visits, jobs: Collection) -> None:
    one = visit()
    one.page.clock.install()
    one.go()
    one.expect_live()
    one.expect("[data-part=names] .empty").to_be_visible()
    held: list[Route] = []

    def hold_the_first(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    one.page.route(f"{visit.url}/", hold_the_first)
    enqueue(jobs, "mail")
    wait_until(lambda: one.evaluate("1") and held, "the page is read")
    one.let_pass(2)
    held[0].continue_()
    one.expect(VITAL).to_have_text("1")
    other = visit()
    other.go()
    other.expect_live()
    reads = one.reads
    enqueue(jobs, "mail")
    other.expect(VITAL).to_have_text("2")  # By then, the first has learned of it as well.
    assert one.reads == reads
    one.let_pass(11)
    one.expect(VITAL).to_have_text("2")


def test_beside_many_changes_a_page_is_read_at_most_once_a_second(visit: Visits, jobs: Collection) -> None:
    one = visit()
    one.go()
    one.expect_live()
    reads, began = one.reads, time.monotonic()
    while one.reads < reads + 4:
        enqueue(jobs, "mail")
        one.evaluate("1")  # Meanwhile, Playwright takes notice of the requests.
    assert time.monotonic() - began >= 3
    one.expect(VITAL).to_have_text(f"{jobs.count_documents({}):,}")
