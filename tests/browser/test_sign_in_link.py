"""The one-time link of `trio-monque dashboard` in a browser: one button, the page without its token, once."""

from __future__ import annotations

import re

import pytest

from tests.browser.looks import LooksOfPage
from tests.cli.dashboard_process import served
from tests.support.browser import Visit, Visits, axe_core
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection


def assert_usable(one: Visit) -> None:
    assert LooksOfPage(one).faults(one.page.url) == {}


@pytest.mark.full
def test_the_link_is_one_button_that_opens_the_page_without_its_token_once(
    visit: Visits, jobs: Collection, mongod: EmbeddedServer
) -> None:
    with served(mongod, jobs.database) as (_, link):
        url, _, token = link.partition("/?token=")
        assert token
        first, second = visit.at(url)(), visit.at(url)()
        for one in (first, second):
            one.page.add_init_script(path=axe_core())
            one.expect_fault("40[13]")
        first.go("jobs")
        first.expect("h1").to_have_text("This dashboard is closed")
        first.expect("main").to_contain_text("Open the link that the command has printed.")
        first.expect("button").to_have_count(0)
        assert_usable(first)
        for one in (first, second):
            one.page.goto(link)
            one.expect("h1").to_have_text("Open the dashboard")
            one.expect("a, button, input:not([type=hidden])").to_have_count(1)
            one.expect("button").to_be_focused()
        assert_usable(first)
        first.page.keyboard.press("Enter")
        first.page.wait_for_url(f"{url}/")
        first.expect("nav.tabs a").not_to_have_count(0)
        first.expect_live()
        assert token not in first.page.content() + first.evaluate("document.referrer")
        (cookie,) = first.page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
        assert token not in cookie["value"]
        first.go("jobs")
        first.expect("h1").to_have_text("Jobs")
        second.page.get_by_role("button", name="Open").click()
        second.expect("h1").to_have_text("This link was already used, or is older than ten minutes")
        second.expect("button").to_have_count(0)
        assert_usable(second)
        second.go()
        second.expect("h1").to_have_text(re.compile("closed"))
        assert second.page.context.cookies() == []
