"""Debian's Chromium, driven by Playwright: pages as a person sees them, and all that goes wrong in them.

Playwright's own browsers are not needed: do not run `playwright install`, which downloads them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support.ci_timeouts import is_ci
from tests.support.programs import ROOT
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Request, Response

MISSING: Final = (
    "Chromium, Playwright or axe-core is missing: run apt-get install -y --no-install-recommends chromium fonts-inter "
    "fonts-jetbrains-mono, pip install playwright, and npm install --no-save axe-core"
)
OTHER_NAMES: Final = "--host-resolver-rules=MAP *.test 127.0.0.1"
"""For the browser, this machine is also another one: it trusts that less."""

MILLISECONDS: Final = 20_000
"""Bound of each wait."""


def axe_core() -> Path:
    """Return the script that finds what keeps people from using a page; `.ci/run` has it in a folder of its own."""
    return Path(os.environ.get("MONQUE_TEST_AXE", ROOT / "node_modules" / "axe-core" / "axe.min.js"))


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run the browser. Without it, the test is skipped, and fails in CI."""
    program = shutil.which("chromium")
    if program is None or importlib.util.find_spec("playwright") is None or not axe_core().is_file():
        (pytest.fail if is_ci() else pytest.skip)(MISSING)
        raise AssertionError
    from playwright.sync_api import sync_playwright

    # For one module of tests: while it runs, this thread has a running event loop, which other tests must not have.
    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=program, args=[*sandbox, OTHER_NAMES])
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """One page of a browser, and what went wrong in it.

    Attributes:
        page: Playwright's.
        faults: Messages of the console, requests that failed or were refused, and requests to others.
        reads: How often the script has asked for the page.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.faults: list[str] = []
        self.reads = 0
        self._url = url
        self._expected: list[str] = []
        page.set_default_timeout(MILLISECONDS)
        page.on("console", lambda message: self.faults.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.faults.append(f"not caught: {error}"))
        page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))
        page.on("request", self._note_request)
        page.on("requestfailed", self._note_failure)
        page.on("response", self._note_response)

    def _note_request(self, request: Request) -> None:
        if not request.url.startswith(f"{self._url}/"):
            self.faults.append(f"a request to others: {request.url}")
        if request.resource_type == "fetch":
            self.reads += 1

    def _note_failure(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # What a page has asked for ends with it.
            self.faults.append(f"failed: {request.url} {request.failure}")

    def _note_response(self, response: Response) -> None:
        if response.status >= 400:
            self.faults.append(f"refused: {response.status} {response.url}")

    def expect_fault(self, pattern: str) -> None:
        """Say what goes wrong on purpose."""
        self._expected.append(pattern)

    @property
    def unexpected(self) -> list[str]:
        """What has gone wrong beside that."""
        return [one for one in self.faults if not any(re.search(pattern, one) for pattern in self._expected)]

    def go(self, path: str = "") -> None:
        """Open a page of the dashboard."""
        self.page.goto(f"{self._url}/{path}")

    def expect(self, selector: str) -> Any:
        """Return Playwright's assertions about an element; they wait until they hold."""
        from playwright.sync_api import expect

        expect.set_options(timeout=MILLISECONDS)
        return expect(self.page.locator(selector))

    def expect_live(self) -> None:
        """Wait until the page hears what becomes stale, and has looked since."""
        self.expect(".live").to_have_text("Live")

    def let_pass(self, seconds: int) -> None:
        """Let time pass in a page with a clock of its own; in steps, as what it has asked for comes meanwhile."""
        for _ in range(seconds):
            self.page.clock.run_for(1000)

    def let_pass_until(self, condition: Callable[[], object], what: str) -> None:
        """Let time pass in a page with a clock of its own until something holds."""

        def holds() -> object:
            self.let_pass(1)
            return condition()

        wait_until(holds, what)

    def copy(self, button: Locator, press: str = "click") -> None:
        """Press a button, and wait until it has said "Copied": it does so for two seconds only."""
        button.evaluate(
            """(one) => { one.said = new Promise((done) => new MutationObserver(
                () => one.textContent === "Copied" && done()).observe(one, {childList: true})) }"""
        )
        getattr(button, press)()
        button.evaluate("(one) => one.said")

    def evaluate(self, script: str, argument: object = None) -> Any:
        """Return what an expression or a function of JavaScript returns in the page."""
        return self.page.evaluate(script, argument)


class Visits:
    """Opens pages, each in a profile of its own.

    Args:
        browser: The browser.
        url: Where the dashboard is, without a slash at its end.
    """

    def __init__(self, browser: Browser, url: str) -> None:
        self.url = url
        self.opened: list[Visit] = []
        self._browser = browser
        self._contexts = ExitStack()

    def __call__(self, **options: Any) -> Visit:
        """Open an empty page; the options are those of Playwright's contexts."""
        context = self._browser.new_context(**{"viewport": {"width": 1440, "height": 1000}, **options})
        self._contexts.callback(context.close)
        self.opened.append(Visit(context.new_page(), self.url))
        return self.opened[-1]

    def at(self, url: str) -> Visits:
        """Return what opens pages at another place; what goes wrong there counts, too."""
        other = Visits(self._browser, url)
        other.opened, other._contexts = self.opened, self._contexts
        return other

    def close(self) -> None:
        self._contexts.close()
