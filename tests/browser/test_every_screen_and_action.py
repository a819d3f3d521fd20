"""Every screen and every action, clicked through in each look: light, dark, and with fingers on a phone.

That nothing goes wrong meanwhile is seen by the fixture: messages, failed requests, requests to others, broken rules of
the content policy.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.browser.every_screen import fill
from tests.browser.looks import LOOKS, LooksOfPage
from tests.support.browser import Visit, Visits, axe_core
from trio_monque.store.driver.types import Collection

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = pytest.mark.full


def test_every_screen_can_be_used_by_everyone(visit: Visits, jobs: Collection) -> None:
    filled = fill(jobs.database)
    one = visit()
    one.page.add_init_script(path=axe_core())
    looks, faults = LooksOfPage(one), dict[str, Any]()
    for path in filled.screens():
        one.go(path)
        faults |= looks.faults(path)
    one.go()
    one.page.locator(".keys").click()
    assert {**faults, **looks.faults("keys")} == {}


class Person:
    """Someone at a page, with a mouse or with fingers."""

    def __init__(self, visit: Visit, look: str) -> None:
        self.visit = visit
        self._press = "tap" if look == "phone" else "click"

    def press(self, what: Locator) -> None:
        getattr(what, self._press)()

    def button(self, label: str) -> Locator:
        """A button, or a link that looks like one."""
        return self.visit.page.locator("main .btn:visible").filter(has_text=re.compile(f"^{label}$")).first

    def does(self, path: str, label: str, notice: str) -> None:
        """Press a button of a page that acts at once."""
        self.visit.go(path)
        self.press(self.button(label))
        self.visit.expect(".notice").to_have_text(notice)

    def moves(self, path: str, at: str) -> None:
        """Press "Move…" on a page, and choose a moment."""
        self.visit.go(path)
        self.press(self.button("Move…"))
        self.visit.expect("h1").to_have_text("Move 1 job?")
        self.visit.page.get_by_label("Due at").fill(at)
        self.press(self.visit.page.locator("main button.btn"))
        self.visit.expect(".notice").to_have_text("1 job is moved.")

    def is_asked(self, path: str, label: str, question: str, notice: str, *, chosen: int = 0) -> None:
        """Press a button of a page that asks first, and confirm."""
        self.visit.go(path)
        for row in range(chosen):
            self.press(self.visit.page.locator("td.c-box input").nth(row))
        self.press(self.button(label))
        self.visit.expect("h1").to_have_text(question)
        self.press(self.visit.page.locator("main button.btn"))
        self.visit.expect(".notice").to_have_text(notice)


# An action is the same in the dark: there, what can be read is what differs, and the test above sees that.
IN_EACH_LOOK: Final = ["light", pytest.param("dark", marks=pytest.mark.full), "phone"]


@pytest.mark.parametrize("look", IN_EACH_LOOK)
def test_every_action_on_one_job_can_be_done(visit: Visits, jobs: Collection, look: str) -> None:
    filled = fill(jobs.database)
    person = Person(visit(**LOOKS[look]), look)
    page_of = {state: f"jobs/{job}" for state, job in filled.ids.items()}
    person.does(page_of["failed"], "Retry", "1 job is requeued.")
    person.visit.expect("main .st").to_have_text("due")
    person.does(page_of["later"], "Run now", "1 job is due now.")
    person.does(page_of["due"], "Cancel", "1 job is cancelled.")
    person.moves(page_of["schedule"], "2040-01-02T03:04")
    person.does(page_of["schedule"], "Run now", "1 job is due now.")
    person.is_asked(page_of["running"], "Cancel the run…", "Cancel the run of 1 job?", "1 job is asked to end.")
    person.is_asked(page_of["done"], "Delete…", "Delete 1 job?", "1 job is deleted.")


@pytest.mark.parametrize("look", IN_EACH_LOOK)
def test_every_action_on_many_jobs_can_be_done(visit: Visits, jobs: Collection, look: str) -> None:
    fill(jobs.database)
    person = Person(visit(**LOOKS[look]), look)
    person.is_asked("jobs?status=failed", "Retry…", "Retry 1 job?", "1 job is requeued.", chosen=1)
    person.is_asked("errors", "Retry all 2…", "Retry 2 jobs?", "2 jobs are requeued.")
    person.is_asked("jobs?status=due", "Cancel…", "Cancel 2 jobs?", "2 jobs are cancelled.", chosen=2)
    person.is_asked("jobs?status=done", "Delete…", "Delete 1 job?", "1 job is deleted.", chosen=1)
    person.is_asked(
        "jobs?status=running", "Cancel the runs…", "Cancel the run of 2 jobs?", "2 jobs are asked to end.", chosen=2
    )
    person.is_asked(
        "jobs?status=running&name=mail", "Cancel all runs…", "Cancel the run of 5 jobs?", "4 jobs are asked to end."
    )
    person.is_asked("jobs?status=later&name=mail+daily", "Cancel all…", "Cancel 2 jobs?", "2 jobs are cancelled.")
    person.is_asked("jobs?status=cancelled&name=mail", "Delete all…", "Delete 5 jobs?", "5 jobs are deleted.")


@pytest.mark.parametrize("look", IN_EACH_LOOK)
def test_every_action_on_schedules_can_be_done(visit: Visits, jobs: Collection, look: str) -> None:
    fill(jobs.database)
    person = Person(visit(**LOOKS[look], timezone_id="Asia/Kathmandu"), look)
    person.moves("schedules", "2040-01-02T03:04")
    assert jobs.count_documents({"nextRunAt": datetime(2040, 1, 1, 21, 19, tzinfo=UTC)}) == 1
    person.does("schedules", "Run now", "1 job is due now.")
    assert jobs.count_documents({"name": "mail daily", "nextRunAt": {"$lte": datetime.now(UTC)}}) == 1


@pytest.mark.parametrize("look", IN_EACH_LOOK)
def test_every_action_on_names_and_letters_can_be_done(visit: Visits, jobs: Collection, look: str) -> None:
    fill(jobs.database)
    person = Person(visit(**LOOKS[look]), look)
    jobs_of = "jobs?name=mail"
    person.is_asked(jobs_of, "Pause mail…", "Pause name mail?", "The name is paused.")
    person.press(person.button("Resume"))
    person.visit.expect(".notice").to_have_text("The name is resumed.")
    person.is_asked(jobs_of, "Pause mail…", "Pause name mail?", "The name is paused.")
    person.does("", "Resume", "The name is resumed.")
    person.does("claims/orders", "Readmit", "1 document is claimable again.")
    person.is_asked(
        "claims/orders",
        "Readmit all dead letters…",
        "Readmit all dead letters of orders?",
        "2 documents are claimable again.",
    )


@pytest.mark.parametrize("look", IN_EACH_LOOK)
def test_what_changes_no_job_can_be_done(visit: Visits, jobs: Collection, look: str) -> None:
    """Menus, filters, theme, folds, copies, a look again, and a way back from a question."""
    filled = fill(jobs.database)
    one = visit(**LOOKS[look])
    person = Person(one, look)
    page = one.page
    one.go("health")
    with page.expect_navigation(url="**/health"):  # The address stays the same, so wait for the page.
        person.press(person.button("Check again"))
    one.go(f"jobs?status=running&name={filled.name}")
    person.press(page.get_by_role("link", name="Remove the filter Name"))
    page.wait_for_url("**/jobs?status=running")
    person.press(page.get_by_text("+ Filter"))
    page.get_by_label("Held by").fill("node-1")
    person.press(page.get_by_role("button", name="Show"))
    one.expect("table.jobs tbody tr").to_have_count(1)
    one.expect_live()
    for word in ("Paused", "Live"):
        person.press(page.locator("#controls .live"))
        one.expect(".live").to_have_text(word)
    for theme in ("light", "dark", "automatic"):
        person.press(page.locator("#controls .icon"))
        assert page.locator("#controls .icon").get_attribute("title") == f"Theme: {theme}"
    one.go(f"jobs/{filled.ids['running']}")
    person.press(page.locator(".tl summary").first)
    one.copy(page.locator("[data-part=payload] .copy"), "tap" if look == "phone" else "click")
    person.press(page.locator(".keys"))
    person.press(page.get_by_role("button", name="Close"))
    one.expect("dialog").to_be_hidden()
    person.press(person.button("Cancel the run…"))
    person.press(person.button("Back"))
    page.wait_for_url(f"**/jobs/{filled.ids['running']}")


@pytest.mark.parametrize("look", IN_EACH_LOOK)
def test_every_key_can_be_pressed(visit: Visits, jobs: Collection, look: str) -> None:
    fill(jobs.database)
    one = visit(**LOOKS[look])
    one.go()
    press = one.page.keyboard.press
    for place in ("jobs", "errors", "schedules", "instances", "claims", "health", ""):
        press("g")
        press((place or "overview")[0])
        one.page.wait_for_url(f"**/ops/jobs/{place}")
    press("?")
    one.expect("dialog").to_be_visible()
    press("Escape")
    press("/")
    one.page.keyboard.type("mail")
    press("Enter")
    one.page.wait_for_url("**/jobs?name=mail")
    one.go("jobs?status=failed")
    for key in ("j", "x", "j", "x", "k", "x", "r"):  # The second row is chosen, the first one no longer.
        press(key)
    one.expect("h1").to_have_text("Retry 1 job?")
    one.go("jobs?status=failed")
    one.expect_live()
    press(".")
    one.expect(".live").to_have_text("Paused")
    press("j")
    press("Enter")
    one.page.wait_for_url(re.compile("/jobs/[0-9a-f]{24}$"))
    press("r")
    one.expect(".notice").to_have_text("1 job is requeued.")
