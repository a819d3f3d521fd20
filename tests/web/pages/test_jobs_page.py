"""The screens Jobs and Search: tabs, filters, pages, empty states."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any, Final
from urllib.parse import quote, urlencode

import pytest

from tests.web.pages.fetching import get
from tests.web.pages.job_documents import job_document
from trio_monque import Monque, NewJob
from trio_monque.store.driver.types import Database
from trio_monque.web import allow_all, create_app
from trio_monque.web.pages.jobs_asked import TABS, TEXTS
from trio_monque.web.pages.search_screen import MOST_FOUND

HOSTILE: Final = "<script>alert('x')</script>\"'&\u202e"


def rows(text: str) -> list[str]:
    return re.findall(r'<tr data-id="([0-9a-f]{24})">', text)


def ids(found: list[Any]) -> list[str]:
    return [str(one["_id"]) for one in found]


@pytest.fixture
def many(db: Database) -> Database:
    """Jobs in every state."""
    now = datetime.now(UTC)  # The server's: a page asks for what has changed since minutes ago.
    documents = [
        job_document(
            "mail", status="failed", fail_reason=f"SMTPError: {number}", updated_at=now - timedelta(hours=number)
        )
        for number in range(3)
    ]
    documents += [job_document("mail", status="completed"), job_document("other", status="cancelled")]
    documents += [job_document("other", next_run_at=now + timedelta(hours=1)), job_document("mail")]
    documents += [job_document("mail", status="processing", claimed_by="w<1>")]
    db["monque_jobs"].insert_many(documents)
    return db


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("", 8), ("status=due", 1), ("status=later", 1), ("status=running", 1), ("status=failed", 3),
        ("status=done", 1), ("status=cancelled", 1), ("name=mail", 6), ("status=failed&name=other", 0),
        ("status=failed&error=SMTPError%3A+1", 1), ("status=failed&text=error", 0), ("status=failed&text=Error: 2", 1),
        ("status=failed&since=10m", 1), ("status=failed&since=7d", 3), ("instance=w%3C1%3E", 1),
    ],
)  # fmt: skip
def test_tabs_and_filters_show_the_jobs_that_match(many: Database, query: str, number: int) -> None:
    answer = get(create_app(Monque(many)), f"/jobs?{query}")
    assert answer.status_code == 200, answer.text
    assert len(rows(answer.text)) == number


@pytest.mark.parametrize(
    "query",
    ["status=pending", "nonsense=1", "since=yesterday", "meta.tenant=acme", "meta.$where=1", "data.__proto__.x=1",
     "cursor=nonsense", "status[$in]=failed"],
)  # fmt: skip
def test_what_cannot_be_asked_is_a_page_that_names_it(many: Database, query: str) -> None:
    answer = get(create_app(Monque(many)), f"/jobs?{query}")
    assert answer.status_code == 400
    assert "<h1>" in answer.text


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("name=a&key=b&prefix=c", "Key and Key begins cannot be combined"),
        ("error=a&text=b", "Error begins and Error has cannot be combined"),
        ("key=a", "A key belongs to a name"), ("status=due&prefix=a", "A key belongs to a name"),
        ("status=done&name=a&key=b", "Jobs are found by their key while"),
        ("status=failed&instance=w", "Only running jobs are held by an instance"),
        ("parent=" + "a" * 24 + "&instance=w", "Children of and Held by cannot be combined"),
        ("name=a&key=b&parent=" + "a" * 24, "Children of and Key cannot be combined"),
    ],
)  # fmt: skip
def test_filters_that_no_job_can_match_leave_the_page_with_its_tabs(many: Database, query: str, why: str) -> None:
    answer = get(create_app(Monque(many), authorize=allow_all), f"/jobs?{query}")
    assert (answer.status_code, why in answer.text) == (200, True)
    assert "Remove the filter" in answer.text
    assert "all=1" not in answer.text


@pytest.mark.full
@pytest.mark.parametrize("tab", ["", *(one.key for one in TABS)])
def test_each_pair_of_filters_is_a_page_in_each_tab(many: Database, tab: str) -> None:
    app = create_app(Monque(many), filters=["meta.tenant"])
    filters = {**dict.fromkeys(TEXTS, "mail"), "parent": "a" * 24, "since": "1h", "meta.tenant": "acme", "by": "due"}
    for pair in combinations(filters, 2):
        query = urlencode({"status": tab, **{one: filters[one] for one in pair}})
        assert get(app, f"/jobs?{query}").status_code == 200, query


def test_pages_lead_to_older_ones_and_back_with_the_filters(db: Database) -> None:
    monque = Monque(db)
    monque.sync.enqueue_many([NewJob(name="mail") for _ in range(120)])
    app = create_app(monque)
    seen, text = [], get(app, "/jobs?status=due&name=mail").text
    for _ in range(3):
        seen.append(rows(text))
        older = re.search(r'<a class="btn" href="([^"]*)">Older', text)
        if older is None:
            break
        assert "name=mail" in older[1]
        text = get(app, older[1].replace("&amp;", "&")).text
    assert [len(page) for page in seen] == [50, 50, 20]
    assert len({one for page in seen for one in page}) == 120
    newer = re.search(r'<a class="btn" href="([^"]*)">Newer', text)
    assert newer is not None
    assert rows(get(app, newer[1].replace("&amp;", "&")).text) == seen[1]


def test_each_chip_is_removed_by_its_link(many: Database) -> None:
    text = get(create_app(Monque(many)), "/jobs?status=failed&name=mail&error=SMTP&since=24h").text
    without = [link.replace("&amp;", "&") for link in re.findall(r'href="([^"]*)" aria-label="Remove', text)]
    assert without == [
        "/jobs?status=failed&error=SMTP&since=24h",
        "/jobs?status=failed&name=mail&since=24h",
        "/jobs?status=failed&name=mail&error=SMTP",
    ]


def test_three_empty_states_are_different(db: Database, many: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(Monque(db, collection_name="empty_jobs"))
    assert "There are no jobs yet" in get(app, "/jobs").text
    app = create_app(Monque(many), filters=["meta.tenant"])
    assert "No job matches these filters" in get(app, "/jobs?name=nothing").text
    monkeypatch.setattr("trio_monque.store.reads.queries.MOST_EXAMINED", 60)
    many["monque_jobs"].insert_many([job_document("mail") for _ in range(100)])
    text = get(app, "/jobs?meta.tenant=acme").text
    assert "jobs that were looked through matches" in text
    assert "Look further" in text


def test_a_hostile_job_is_text_in_every_list(db: Database) -> None:
    documents = [
        job_document(
            HOSTILE, status=status, fail_reason=HOSTILE, unique_key=HOSTILE, claimed_by=HOSTILE,
            meta={"tenant": HOSTILE}, result={HOSTILE: HOSTILE}, progress=HOSTILE,
        )
        for status in ("pending", "processing", "failed", "completed", "cancelled")
    ]  # fmt: skip
    db["monque_jobs"].insert_many(documents)
    app = create_app(Monque(db), filters=["meta.tenant"])
    for state in ("", "due", "running", "failed", "done", "cancelled"):
        text = get(app, f"/jobs?name={quote(HOSTILE)}" + (f"&status={state}" if state else "")).text
        assert rows(text), state
        assert "<script>alert" not in text
        assert "\u202e" not in text


def test_errors_and_values_pass_the_hooks(many: Database, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_given: Any) -> Any:
        raise ValueError("secret")

    many["monque_jobs"].update_many({"status": "completed"}, {"$set": {"result": "hide me"}})
    app = create_app(Monque(many), serialize_payload=broken, show_errors=lambda _job, _text, _context: "redacted")
    assert "hidden (the hook failed)" in get(app, "/jobs?status=done").text
    assert "hide me" not in get(app, "/jobs?status=done").text
    text = get(app, "/jobs?status=failed").text
    assert "SMTPError" not in text
    assert "redacted" in text
    assert get(app, "/jobs?status=failed&text=SMTP").status_code == 400
    assert "hook failed" in caplog.text


@pytest.mark.parametrize(
    ("text", "place"),
    [("mail", "/jobs?name=mail"), ("key-1", "/jobs/{}"), ("{}", "/jobs/{}"), (" {} ", "/jobs/{}")],
)
def test_search_leads_to_the_one_that_is_meant(db: Database, text: str, place: str) -> None:
    job = Monque(db).sync.enqueue("mail", unique_key="key-1")
    answer = get(create_app(Monque(db)), f"/search?q={quote(text.format(job.id))}")
    assert answer.status_code == 303
    assert answer.headers["location"] == place.format(job.id)


@pytest.mark.parametrize("text", ["ai", "nothing", "", "0" * 24, HOSTILE, "x" * 5000, "\x00\ud800"])
def test_search_for_something_else_is_a_page(db: Database, text: str) -> None:
    Monque(db).sync.enqueue("mail", unique_key="key-1")
    answer = get(create_app(Monque(db)), f"/search?q={quote(text, errors='surrogatepass')}")
    assert answer.status_code == 200
    assert ("mail" in answer.text) == (text == "ai")
    assert "<script>alert" not in answer.text


def test_search_finds_keys_by_their_beginning_up_to_a_cap(db: Database) -> None:
    monque = Monque(db)
    monque.sync.enqueue_many(
        [NewJob(name=f"mail-{one % 3}", unique_key=f"order/{one:02}") for one in range(MOST_FOUND)]
    )
    monque.sync.enqueue("report", unique_key="other/1")
    app = create_app(monque)
    text = get(app, "/search?q=order/").text
    assert set(re.findall(r">(order/\d\d)<", text)) == {f"order/{one:02}" for one in range(MOST_FOUND)}
    assert "other/1" not in text
    assert "There may be more jobs" not in text
    monque.sync.enqueue("mail-1", unique_key="order/more")
    text = get(app, "/search?q=order/").text
    assert text.count(">key<") == MOST_FOUND
    assert "There may be more jobs" in text


@pytest.mark.parametrize("name", ["", "x" * 5000])
def test_a_name_that_is_none_does_not_end_the_search(db: Database, name: str) -> None:
    job = Monque(db).sync.enqueue("mail", unique_key="key-1")
    db["monque_jobs"].insert_one(job_document(name))
    answer = get(create_app(Monque(db)), "/search?q=key-1")
    assert (answer.status_code, answer.headers.get("location")) == (303, f"/jobs/{job.id}")


def test_search_finds_no_id_that_the_caller_may_not_see(db: Database) -> None:
    job = Monque(db).sync.enqueue("mail")
    app = create_app(Monque(db), authorize=lambda _action, _context, target: target is None)
    assert get(app, f"/search?q={job.id}").status_code == get(app, f"/search?q={'0' * 24}").status_code == 200
