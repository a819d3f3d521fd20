"""The documentation as it is built: its links lead somewhere, its search knows the words of readers, each page fits a
phone and a desk, and the main pages can be read in light and in dark.

To build it takes half a minute, for all tests of this file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import unquote

import pytest

from tests.browser.looks import IS_TOO_WIDE
from tests.support.browser import Visit, Visits, axe_core
from tests.support.pages import DOCS
from tests.support.programs import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

WIDTHS: Final = {"phone": 390, "desk": 1440}
MAIN_PAGES: Final = ("index", "tutorial/first-steps", "how-to/enqueue", "how-to/dashboard", "reference/command-line")
SHOWN_IMAGES: Final = """[...document.images].filter((one) => one.checkVisibility())
    .map((one) => one.src.split("/").pop())"""
UNREADABLE: Final = """async () => (await axe.run(document, {
    preload: false, resultTypes: ["violations"],
    runOnly: {type: "rule", values: ["color-contrast", "image-alt", "link-name", "heading-order"]},
})).violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(" ")}`)"""
"""Of what axe-core examines, what a page's text and pictures decide; the rest is the theme's."""

BROKEN_IMAGES: Final = "[...document.images].filter((one) => !one.complete || !one.naturalWidth).map((one) => one.src)"
FIRST_FOUND: Final = """(words) => words.map((word) => {
    const found = Search._performSearch(...Search._parseQuery(word)).at(-1);
    return found ? found[0] : null;
})"""
"""Sphinx shows its last result first."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site. A warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    ended = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return folder


class QuietFiles(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    """Where the site is served: its search reads pages, which a browser refuses for files."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietFiles, directory=str(site))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def visit(browser: Browser, url: str) -> Iterator[Visit]:
    """A page of the site. Messages of the console, files that are missing and requests to others fail the test."""
    visits = Visits(browser, url)
    try:
        yield (one := visits())
        assert one.faults == []
    finally:
        visits.close()


def pages(site: Path) -> list[str]:
    """The paths of all pages."""
    found = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if "_static" not in path.parts)
    assert len(found) > 80
    return found


class Links(HTMLParser):
    """What a page links to, and the anchors that it has.

    Attributes:
        targets: Of links, images, scripts and style sheets, as they are written.
        anchors: Each id.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name == "id" and value:
                self.anchors.add(value)


def test_every_link_within_the_site_leads_to_a_file_and_an_anchor(site: Path) -> None:
    found = {site / page: Links(site / page) for page in pages(site)}
    missing = []
    for page, links in found.items():
        for target in links.targets:
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            # "#" alone is the top of a page.
            if not file.is_file() or (anchor and file in found and unquote(anchor) not in found[file].anchors):
                missing.append(f"{page.relative_to(site)}: {target}")
    assert missing == []


def test_no_page_is_too_wide_or_lacks_an_image(site: Path, visit: Visit) -> None:
    faults = {}
    for page in pages(site):
        visit.go(page)
        for name, width in WIDTHS.items():
            visit.page.set_viewport_size({"width": width, "height": 844})
            if visit.evaluate(IS_TOO_WIDE):
                faults[page, name] = "it scrolls sideways"
        if broken := visit.evaluate(BROKEN_IMAGES):
            faults[page, "any"] = f"it does not show {broken}"
    assert faults == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_main_pages_can_be_read_in_the_colors_of_the_reader(visit: Visit, scheme: Literal["light", "dark"]) -> None:
    visit.page.emulate_media(color_scheme=scheme)
    visit.page.add_init_script(path=axe_core())
    found = {}
    for page in MAIN_PAGES:
        visit.go(f"{page}.html")
        found[page] = visit.evaluate(UNREADABLE)
        if page == "index":
            assert visit.evaluate(SHOWN_IMAGES) == [f"at-a-glance-{scheme}.svg", f"overview-{scheme}.png"]
    assert found == {page: [] for page in MAIN_PAGES}


def test_search_shows_the_page_first_that_a_word_is_meant_for(site: Path, visit: Visit) -> None:
    meant = tomllib.loads((DOCS / "search-words.toml").read_text(encoding="utf-8"))
    page_of = {word: page for page, words in meant.items() for word in words}
    assert len(page_of) > 100
    visit.go("search.html?q=visibility%20timeout")
    visit.expect("ul.search li:first-child > a").to_have_attribute("href", re.compile(r"explanation/leases\.html"))
    found = dict(zip(page_of, visit.evaluate(FIRST_FOUND, list(page_of)), strict=True))
    assert found == page_of
