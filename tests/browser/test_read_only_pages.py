"""Those who may only read are shown no button that changes something, on no screen."""

from __future__ import annotations

from typing import Final

import pytest

from tests.browser.every_screen import fill
from tests.browser.places import PREFIX, READ_ONLY, READS_ONLY
from tests.support.browser import Visits
from trio_monque import Monque
from trio_monque.store.driver.types import Collection

pytestmark = pytest.mark.full

CHANGES: Final = "main form[method=post], main a[href*='/confirm'], td.c-box, .bulk, main .danger"


PLACES: Final = [
    pytest.param(READS_ONLY, id="without authorize"),
    pytest.param(READ_ONLY, id="read_only", marks=pytest.mark.full),
]


@pytest.mark.parametrize("place", PLACES)
def test_no_screen_shows_a_button(visit: Visits, jobs: Collection, place: str) -> None:
    filled = fill(jobs.database)
    Monque(jobs.database).sync_in_loop.pause("mail", by="dana")
    one = visit.at(visit.url.replace(PREFIX, place))()
    for path in [*filled.one_of_each(), *(f"jobs/{job}" for job in filled.ids.values())]:
        one.go(path)
        one.expect("h1").to_be_attached()
        assert one.page.locator(CHANGES).all_inner_texts() == [], path
    one.expect_fault("403")
    one.go(f"confirm?do=delete&id={filled.ids['failed']}")
    one.expect("h1").to_have_text("Action denied")
    # The same screens have them for those who may do all.
    other = visit()
    for path in (
        "",
        "jobs?status=failed",
        "jobs?name=mail",
        "errors",
        "schedules",
        "claims/orders",
        f"jobs/{filled.ids['failed']}",
    ):
        other.go(path)
        assert other.page.locator(CHANGES).count() > 0, path
