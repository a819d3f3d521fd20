"""What jobs hold stays text in a browser, and a page that was tampered with brings nothing that acts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.browser.every_screen import fill
from tests.support.browser import Visit, Visits
from tests.web.pages.job_documents import job_document
from trio_monque.store.driver.types import Collection

if TYPE_CHECKING:
    from playwright.sync_api import Route

HOSTILE: Final = (
    "</script><script>alert('x')</script>\"'><img src=x onerror=alert(1)><svg onload=alert(2)>"
    "<a href=javascript:alert(3)>x</a>{{7*7}}\u202e\x07"
)
SHOWN: Final = "<script>alert('x')</script>"
WITHOUT_TEXT: Final = ("claims", "search", "jobs?name=none", "errors?name=none", "instances/node-1", "confirm", "?")
"""Screens that have none to show."""

FOREIGN: Final = r"""() => [...document.querySelectorAll("*")].filter((one) =>
    one.matches("img, iframe, style, script:not([src^='/ops/jobs/static/'])")
    || [...one.attributes].some(({name, value}) => /^on|^style$/.test(name) || /^\s*javascript:/i.test(value))
).map((one) => one.outerHTML)"""
"""What is not of our pages."""

TAMPERED: Final = """<section class="panel" data-part="tampered">
<script>window.ran = 1</script><style>body { display: none }</style>
<p id="there" onclick="window.ran = 2" style="color: red">there</p>
<a id="link" href="javascript:window.ran = 3">link</a> <a id="far" href="https://other.example/">far</a>
<form id="form" action="https://other.example/"><button formaction="javascript:0">b</button></form>
<img src="https://other.example/x" onerror="window.ran = 4"><iframe srcdoc="<script>top.ran = 5</script>"></iframe>
<meta http-equiv="refresh" content="0;url=/login"><base href="https://other.example/">
<svg onload="window.ran = 6"><a xlink:href="javascript:window.ran = 7"><text>t</text>
<animate attributeName="href" values="javascript:0"/></a><foreignObject><b>b</b></foreignObject></svg>
<template><script>window.ran = 8</script></template></section>"""
OF_IT: Final = "[data-part=tampered] :is(script, style, iframe, meta, base, template, animate, foreignObject)"
NAMES_OF_ATTRIBUTES: Final = """[...document.querySelectorAll("[data-part=tampered] *")].flatMap(
    (one) => [...one.attributes].map(({name}) => name)).filter((name) => name !== "id")"""


def assert_harmless(one: Visit) -> None:
    assert one.evaluate(FOREIGN) == []
    assert one.evaluate("window.ran") is None


@pytest.mark.full
def test_a_hostile_text_in_every_field_stays_text_on_every_screen(visit: Visits, jobs: Collection) -> None:
    """Of jobs, schedules, instances, holders, claims and questions; the overview also learns of them later."""
    overview = visit()
    overview.go()
    overview.expect_live()
    filled = fill(jobs.database, HOSTILE)
    overview.expect("[data-part=names] tbody tr").to_have_count(2)
    overview.expect("[data-part=names] tbody").to_contain_text(SHOWN)
    assert_harmless(overview)
    others = visit()
    for path in [*filled.screens(), *filled.questions_with_its_text()]:
        others.go(path)
        others.expect("h1").to_be_attached()
        assert_harmless(others)
        if not path.startswith(WITHOUT_TEXT):
            assert SHOWN in others.page.locator("main").inner_text(), path


@pytest.mark.full
def test_a_page_that_was_tampered_with_brings_nothing_that_acts(visit: Visits, jobs: Collection) -> None:
    one = visit()
    # A browser looks at these where it only parses.
    one.expect_fault("Applying inline style|Executing inline event handler|base URI")
    one.go()
    one.expect_live()

    def tamper(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(
            response=answer, body=answer.text().replace('<footer class="foot">', f'{TAMPERED}<footer class="foot">')
        )

    one.page.route(f"{visit.url}/", tamper)
    jobs.insert_one(job_document("mail"))
    one.expect("#there").to_have_text("there")
    assert one.evaluate(NAMES_OF_ATTRIBUTES) == []
    assert one.page.locator(OF_IT).count() == 0
    one.page.locator("#there").click()
    one.page.locator("#link").click()
    assert one.evaluate("window.ran") is None
    assert one.evaluate("location.href") == f"{visit.url}/"


@pytest.mark.full
def test_no_other_way_leads_from_text_to_elements(visit: Visits, jobs: Collection) -> None:
    one = visit()
    one.expect_fault("TrustedHTML|Trusted Type|trusted-types|Content Security Policy|Refused to")
    one.go()
    attempts = [
        "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
        "document.body.innerHTML = '<b>x</b>'",
        "trustedTypes.createPolicy('another', {createHTML: (text) => text})",
        "trustedTypes.createPolicy('monque', {createHTML: (text) => text})",
    ]
    for attempt in attempts:
        assert (
            one.evaluate(f"() => {{ try {{ {attempt}; return 'done' }} catch (error) {{ return error.name }} }}")
            == "TypeError"
        )
