"""The pictures of the documentation. They are written with MONQUE_SCREENSHOTS=1; otherwise each page is opened only."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.browser.conftest import IS_WRITING
from tests.browser.sample_fleet import fill
from tests.support.browser import Visits
from tests.support.programs import ROOT
from trio_monque.store.driver.types import Collection

pytestmark = pytest.mark.full

IMAGES: Final = ROOT / "docs" / "images"

WIDE: Final = {"width": 1440, "height": 1000}
PHONE: Final = {"width": 390, "height": 844}
LOOKS: Final[dict[str, dict[str, Any]]] = {
    "light": {"viewport": WIDE, "color_scheme": "light"},
    "dark": {"viewport": WIDE, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light", "has_touch": True},
}


@pytest.mark.parametrize("look", LOOKS)
def test_pictures_of_the_screens(visit: Visits, jobs: Collection, look: str) -> None:
    ids = fill(jobs.database)
    pages = {
        "overview": "", "jobs": "jobs?status=failed&name=mail.send", "job": f"jobs/{ids['failed']}", "errors": "errors",
        "running": f"jobs/{ids['running']}", "schedules": "schedules", "instances": "instances", "health": "health",
    }  # fmt: skip
    one = visit(**LOOKS[look], timezone_id="Europe/Berlin", locale="en-GB")
    for name, path in pages.items():
        one.go(path)
        one.expect("h1").to_be_attached()
        assert one.evaluate("document.documentElement.scrollWidth") <= LOOKS[look]["viewport"]["width"], name
        if IS_WRITING and (look, name) in WRITTEN:
            one.page.screenshot(path=IMAGES / f"{name}-{look}.png")


WRITTEN: Final = {("light", name) for name in ("overview", "jobs", "job", "errors")} | {
    ("dark", "overview"), ("dark", "job"), ("phone", "overview"), ("phone", "jobs"),
}  # fmt: skip


def test_documentation_has_its_pictures() -> None:
    assert {(path.stem.split("-")[1], path.stem.split("-")[0]) for path in Path(IMAGES).glob("*.png")} == WRITTEN
