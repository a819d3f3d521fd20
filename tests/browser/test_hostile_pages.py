"""What jobs hold stays text in a browser, and a page that was tampered with brings nothing that acts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from tests.support.browser import Visit, Visits
from tests.web.pages.job_documents import job_document
from trio_monque.store.driver.types import Collection

if TYPE_CHECKING:
    from playwright.sync_api import Route

HOSTILE: Final = (
    "</script><script>alert('x')</script>\"'><img src=x onerror=alert(1)><svg onload=alert(2)>"
    "<a href=javascript:alert(3)>x</a>{{7*7}}\u202e\x07"
)
PATHS: Final = [
    "",
    "jobs",
    *(f"jobs?status={one}" for one in ("due", "later", "running", "failed", "done", "cancelled")),
]
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


def hostile_jobs() -> list[dict[str, Any]]:
    """One in each state, with such a text in every field that a page shows."""
    now = datetime.now(UTC)
    fields: dict[str, Any] = {
        "data": {HOSTILE: [HOSTILE]}, "unique_key": HOSTILE, "fail_reason": HOSTILE, "claimed_by": HOSTILE,
        "meta": {"tenant": HOSTILE}, "result": {HOSTILE: HOSTILE}, "progress": HOSTILE,
        "errors": [{"at": now, "error": HOSTILE, "traceback": HOSTILE, "attempt": 1}],
    }  # fmt: skip
    made = [
        job_document(HOSTILE, status=status, **{**fields, "unique_key": HOSTILE + status})
        for status in ("pending", "processing", "failed", "completed", "cancelled")
    ]
    return [*made, job_document(HOSTILE, next_run_at=now + timedelta(hours=1), **fields)]


def assert_harmless(one: Visit) -> None:
    assert one.evaluate(FOREIGN) == []
    assert one.evaluate("window.ran") is None


def test_hostile_jobs_stay_text_on_each_page_also_when_they_come_later(visit: Visits, jobs: Collection) -> None:
    overview = visit()
    overview.go()
    overview.expect_live()
    jobs.insert_many(hostile_jobs())
    overview.expect("[data-part=names] tbody tr").to_have_count(1)
    overview.expect("[data-part=names] tbody").to_contain_text("<script>alert('x')</script>")
    assert_harmless(overview)
    others = visit()
    for path in PATHS:
        others.go(path)
        others.expect("main").to_contain_text("<script>alert('x')</script>")
        assert_harmless(others)
    ids = [str(one["_id"]) for one in jobs.find({}, {"_id": True})]
    for path in [f"jobs/{ids[0]}", f"jobs/{ids[2]}", f"search?q={HOSTILE}", f"jobs?status=failed&text={HOSTILE}"]:
        others.go(path)
        assert_harmless(others)


def test_a_page_that_was_tampered_with_brings_nothing_that_acts(visit: Visits, jobs: Collection) -> None:
    one = visit()
    one.expect_fault("Applying inline style violates|base URI")  # A browser looks at these where it only parses.
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
