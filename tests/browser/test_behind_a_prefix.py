"""The dashboard behind nginx, under a prefix that it strips or keeps: every link of every screen leads somewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from tests.browser.conftest import DATABASE, SERVED
from tests.browser.every_screen import fill
from tests.browser.places import PREFIX
from tests.support.browser import Visits
from tests.support.nginx import nginx
from tests.support.web_servers import WebServer
from tests.web.pages.job_documents import job_document
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection

pytestmark = pytest.mark.full

OUTSIDE: Final = "/tools/queue"
LINKS: Final = """[...document.querySelectorAll("[href], [src], form")].map(
    (one) => one.href?.baseVal ?? one.href ?? one.src ?? one.action)"""
REFUSED: Final = """async (links) => (await Promise.all(links.map(
    async (one) => [one, (await fetch(one)).status]))).filter(([one, status]) => status !== 200)"""


@contextmanager
def behind(url: str, inside: str, outside: str, port: int) -> Iterator[str]:
    """A proxy that serves `inside` of that server as `outside`; the block gets where that is."""
    location = f"location {outside}/ {{ proxy_pass {url}{inside}/; proxy_set_header Host $http_host; }}"
    with TemporaryDirectory(prefix="nginx") as folder, nginx(Path(folder), location, port):
        yield f"http://127.0.0.1:{port}{outside}"


def every_link_works(visits: Visits, jobs: Collection) -> None:
    filled = fill(jobs.database)
    one = visits()
    known: set[str] = set()
    for path in filled.one_of_each():
        one.go(path)
        links = {link.partition("#")[0] for link in one.evaluate(LINKS)}
        assert all(link.startswith(f"{visits.url}/") for link in links), (path, links)
        new = [link for link in links - known if not link.endswith(("/act", "/confirm"))]
        assert one.evaluate(REFUSED, new) == [], path
        known |= links
    assert len(known) > 60


@pytest.mark.parametrize("how", ["stripped", pytest.param("kept", marks=pytest.mark.full)])
def test_links_forms_and_the_stream_work_behind_a_proxy(
    visit: Visits, jobs: Collection, mongod: EmbeddedServer, unused_port: int, how: str
) -> None:
    order = {"uri": mongod.uri, "database": DATABASE, "environment": "testing", "is_at_root": True}
    if how == "kept":
        with behind(visit.url.removesuffix(PREFIX), PREFIX, PREFIX, unused_port) as url:
            works(visit.at(url), jobs)
        return
    with WebServer("uvicorn", SERVED, {"ORDER": json.dumps(order)}, ["--root-path", OUTSIDE]) as server:
        server.wait_until_it_serves()
        with behind(server.url, "", OUTSIDE, unused_port) as url:
            works(visit.at(url), jobs)


def works(visits: Visits, jobs: Collection) -> None:
    every_link_works(visits, jobs)
    one = visits()
    one.go("jobs?status=failed")
    one.expect_live()
    jobs.insert_one(job_document("new", status="failed", fail_reason="new"))
    one.expect("#news").to_contain_text("1 new one matches.")
    one.page.locator("table.jobs a.strong").first.click()
    one.page.get_by_role("button", name="Retry").click()
    one.expect(".notice").to_have_text("1 job is requeued.")
    assert one.page.url.startswith(f"{visits.url}/jobs/")
    one.page.locator(".find input").fill("mail")
    one.page.keyboard.press("Enter")
    one.page.wait_for_url(f"{visits.url}/jobs?name=mail")
