"""The screen Job: each state of a job, documents of other programs, and what a viewer may not see."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from html import unescape
from html.parser import HTMLParser
from typing import Any, Final

import pytest
from bson import ObjectId

from tests.cli.doctor_support import enter, now
from tests.support.store import claim, handle, insert, stamp
from tests.web.http import LOOPS
from tests.web.pages.fetching import get
from trio_monque import Monque
from trio_monque.jobs.minutes import DONE, FAILED_ATTEMPTS, ROW, RUN_BUCKETS, Part
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import unstarted_writes
from trio_monque.store.jobs.minutes_written import document_of
from trio_monque.web import create_app

HOSTILE: Final = "<script>alert('x')</script>\u202e\"'><img src=x onerror=alert(1)>\x07"
TRACEBACK: Final = """Traceback (most recent call last):
  File "/srv/shop.py", line 88, in upsert
    raise ValueError("no price")
ValueError: no price
"""


class Elements(HTMLParser):
    """The names of all elements of a page, and of their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.attributes.update(name for name, _ in attrs)


def words_of(page: str) -> str:
    """What a reader sees."""
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page)))


def shown(db: Database, job_id: object, **options: Any) -> str:
    answer = get(create_app(Monque(db), **options), f"/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    return answer.text


def put(jobs: Collection, job_id: ObjectId, fields: Mapping[str, Any]) -> None:
    assert jobs.update_one({"_id": job_id}, {"$set": dict(fields)}).matched_count == 1


def error(attempt: int, **more: Any) -> dict[str, Any]:
    at = now() - timedelta(hours=4 - attempt)
    return {"at": at, "attempt": attempt, "error": f"ValueError: no price {attempt}", "traceback": TRACEBACK, **more}


# --- Each state ---


@pytest.mark.parametrize("loop", LOOPS)
def test_due_job_says_why_it_waits_and_what_it_is(db: Database, loop: str) -> None:
    monque = Monque(db)
    data = {"id": 2**63 - 1, "at": datetime(2030, 1, 2, tzinfo=UTC), "rate": 0.1}
    job = monque.sync.enqueue("greet", data, unique_key="order:1", meta={"tenant": "acme"})
    monque.sync.pause("greet")
    answer = get(create_app(monque, filters=("meta.tenant",)), f"/jobs/{job.id}", loop=loop)
    words = words_of(answer.text)
    assert answer.status_code == 200
    assert "due · greet" in words
    assert "The name greet is paused" in words
    assert "9223372036854775807" in words
    assert "order:1" in words
    assert 'href="/jobs?meta.tenant=acme"' in answer.text
    assert '<span class="j-k">&#34;id&#34;</span>: <span class="j-n">9223372036854775807</span>' in answer.text
    assert f'href="/api/v1/jobs/{job.id}?view=full"' in answer.text


def test_running_job_shows_progress_holder_lease_and_usual_times(db: Database, jobs: Collection) -> None:
    begin = now() - timedelta(seconds=192)
    (job,) = claim(handle(db), 1, stamp("worker-4", begin, 10.0))
    progress = {"done": 37410, "rows": 60233, "now": "supplier 7 of 9"}
    put(jobs, job.id, {"lastHeartbeat": now(), "renewedAt": now(), "timeout": 900.0, "maxRetries": 3})
    put(jobs, job.id, {"progress": progress, "saved": {"row": 37000}})
    enter(db, "worker-4", "greet")
    row = [0] * ROW
    row[DONE], row[FAILED_ATTEMPTS], row[RUN_BUCKETS + 10] = 19, 1, 20
    minute = now().replace(second=0, microsecond=0) - timedelta(minutes=2)
    db["monque_jobs.minutes"].insert_one(document_of(Part(minute, 3, {"greet": row}), "worker-4", "abcd"))
    page = shown(db, job.id)
    words = words_of(page)
    assert "<title>62 % · greet · Monque</title>" in page
    assert '<progress max="100" value="62"' in page
    assert "62 % · 37,410 of 60,233 rows · “supplier 7 of 9”" in words
    assert "runs for 3 m 12 s , about 1 m left" in words or "runs for 3 m 13 s , about 1 m left" in words
    assert "Attempt 1 runs on worker-4" in words
    assert "web-1:4711" in words
    assert "every 10 s" in words
    assert "Time limit 15 m ends at" in words
    assert "again after a delay, with 2 attempts left" in words
    assert re.search(r"Half of them under \d+ ms", words)
    assert "Failed 1 of 20" in words
    assert 'id="saved"' in page
    assert 'href="/instances/worker-4"' in page
    # An earlier attempt may have reported it: then the time that is left is not known.
    put(jobs, job.id, {"attempts": 2})
    assert "left" not in words_of(shown(db, job.id)).split("What happened")[0]


def test_running_job_has_the_time_limit_of_its_worker_unless_it_has_its_own(db: Database, jobs: Collection) -> None:
    (job,) = claim(handle(db), 1, stamp("worker-4", now(), 10.0))
    put(jobs, job.id, {"lastHeartbeat": now(), "renewedAt": now()})
    assert "Time limit that of its worker, if it has one" in words_of(shown(db, job.id))
    enter(db, "worker-4", "greet", time_limits={"greet": 120.0})
    assert "Time limit 2 m ends at" in words_of(shown(db, job.id))
    put(jobs, job.id, {"timeout": 900.0})
    assert "Time limit 15 m ends at" in words_of(shown(db, job.id))


def test_job_of_a_dead_instance_is_not_shown_as_running_well(db: Database, jobs: Collection) -> None:
    (job,) = claim(handle(db), 1, stamp("gone", now() - timedelta(hours=1), 10.0))
    put(jobs, job.id, {"progress": {"done": 1, "total": 2}})
    words = words_of(shown(db, job.id))
    assert "that process died, is frozen or is cut off" in words
    assert "expired" in words
    assert "No other live instance can rescue it." in words


def test_failed_job_shows_its_attempts_from_the_first_to_the_end(db: Database, jobs: Collection) -> None:
    job = insert(handle(db))
    errors = [error(1, by="worker-1", ran=108_000), error(2, by="worker-2", ran=500), error(3)]
    put(jobs, job.id, {"status": "failed", "errors": errors, "failCount": 3, "attempts": 3})
    put(jobs, job.id, {"failReason": "ValueError: no price 3", "finishedAt": errors[-1]["at"]})
    page = shown(db, job.id)
    words = words_of(page)
    at = [words.index(one) for one in ("Enqueued", "Attempt 1 failed on worker-1", "Attempt 2 failed on worker-2",
                                       "Attempt 3 failed", "Failed for good after 3 failures in a row")]  # fmt: skip
    assert at == sorted(at)
    assert "1 m 48 s" in words
    assert "500 ms" in words
    assert page.count("<details") == 3
    assert page.count("<details open") == 1  # The last one, which a reader looks for.
    assert '<span class="own">' in page
    assert "It has failed for good." in words
    assert page.count("ValueError: no price 3") == 1


def test_job_that_killed_its_holders_says_how_often(db: Database, jobs: Collection) -> None:
    job = insert(handle(db), max_rescues=3)
    put(jobs, job.id, {"rescues": 2, "attempts": 2, "resumesAt": job.next_run_at})
    enter(db, "worker-4", "greet")
    words = words_of(shown(db, job.id))
    assert "2 claims in a row were lost" in words
    assert "Attempt 3 is due, and waits" in words
    assert "Lost claims 2 in a row, of 3" in words
    assert "The last 2 claims on it died" in words


def test_done_job_has_its_result_and_no_banner(db: Database, jobs: Collection) -> None:
    job = insert(handle(db))
    begin = now() - timedelta(seconds=10)
    end = begin + timedelta(seconds=1.5)
    put(jobs, job.id, {"status": "completed", "result": {"bytes": 2**62}, "startedAt": begin, "finishedAt": end})
    page = shown(db, job.id)
    assert "banner" not in page
    assert "4611686018427387904" in page
    assert re.search(r"Completed\s+1\.5 s", words_of(page))


def test_schedule_is_said_in_words_with_its_next_times(db: Database) -> None:
    monque = Monque(db)
    job = monque.sync.schedule("0 6 * * *", "report", {}, timezone="Europe/Berlin", unique_key="daily")
    page = shown(db, job.id)
    words = words_of(page)
    assert "At 06:00 every day, Europe/Berlin time." in words
    assert len(re.findall(r"\w{3} \w{3} \d+ 06:00", words)) == 5
    assert "the clock is put" in words
    monque.sync.cancel_job(job.id)
    assert "none of these times will run unless it is retried" in words_of(shown(db, job.id))


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_ended_job_is_due_no_more(db: Database, jobs: Collection, status: str) -> None:
    job = insert(handle(db))
    put(jobs, job.id, {"status": status, "nextRunAt": now() + timedelta(hours=5), "updatedAt": now()})
    assert "due" not in words_of(facts_of(shown(db, job.id)))
    put(jobs, job.id, {"nextRunAt": now() - timedelta(hours=5)})
    assert "Was due" in words_of(facts_of(shown(db, job.id)))


def facts_of(page: str) -> str:
    (found,) = re.findall(r'<section class="panel" id="facts".*?</section>', page, re.DOTALL)
    return str(found)


def test_job_that_was_not_started_in_time_has_that_as_its_reason_and_no_attempt(db: Database) -> None:
    monque = Monque(db)
    limit = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    job = monque.sync.enqueue("greet", start_by=limit)
    assert unstarted_writes.end(handle(db), [job], limit + timedelta(seconds=1), "receipt")
    words = words_of(shown(db, job.id))
    assert "No run began by 2030-01-02 03:04:05 UTC (start_by), so it was cancelled." in words
    assert "Cancelled no run began by 2030-01-02 03:04:05 UTC (start_by)" in words
    assert "attempt failed" not in words
    assert "or it is cancelled" not in words


def test_document_of_another_library_is_a_whole_page(db: Database, jobs: Collection) -> None:
    job_id = ObjectId()
    past = now() - timedelta(days=400)
    plain = {"_id": job_id, "name": "from.node", "data": None, "failCount": 4, "createdAt": past, "updatedAt": past}
    jobs.insert_one({**plain, "status": "failed", "nextRunAt": past, "failReason": "TypeError: x"})
    words = words_of(shown(db, job_id))
    assert "Failed for good after 4 failures in a row TypeError: x" in words
    jobs.replace_one({"_id": job_id}, {**plain, "status": "processing", "nextRunAt": past, "lockedAt": past})
    words = words_of(shown(db, job_id))
    assert "an unknown instance" in words
    assert "unknown: its holder has given no sign of life" in words


# --- What is hostile, huge, or no job ---


def test_whatever_a_document_holds_stays_text(db: Database, jobs: Collection) -> None:
    job = insert(handle(db))
    errors = [
        {"at": "no", "attempt": "x", "by": HOSTILE, "ran": -1, "error": HOSTILE, "traceback": f'File "{HOSTILE}"'},
        {"error": 5, "traceback": {"a": HOSTILE}},
        {"error": HOSTILE, "attempt": -1},
    ]
    values = {one: {HOSTILE: [HOSTILE, {"</pre>": HOSTILE}]} for one in ("data", "result", "saved", "progress")}
    hostile = {
        **values,
        "name": HOSTILE,
        "uniqueKey": HOSTILE,
        "failReason": HOSTILE,
        "errors": errors,
        "meta": {"tenant": HOSTILE, HOSTILE: "x"},
        "repeatInterval": "0 0 * * *",
        "timezone": HOSTILE,
    }
    for status in ("pending", "processing", "failed"):
        put(jobs, job.id, {**hostile, "status": status, "claimedBy": HOSTILE, "lockedAt": now()})
        page = shown(db, job.id, filters=("meta.tenant",), environment=HOSTILE)
        assert not re.search(r"\u202e|\x07", page)
        elements = Elements()
        elements.feed(page)
        assert "img" not in elements.found
        assert page.count("<script") == page.count('<script type="module" src="/static/monque.')
        assert not {one for one in elements.attributes if one.startswith("on") or one == "style"}
        assert page.count("</pre>") == page.count("<pre")
        assert "⟨U+202E⟩" in page
        assert "&lt;script&gt;" in page


FIRST: Final = datetime(1, 1, 1, tzinfo=UTC)
LAST: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
EXTREMES: Final[dict[str, tuple[Any, ...]]] = {
    "errors": (0, "", False, {}, [1], [{"at": LAST, "ran": 2**63 - 1, "attempt": 2**60}]),
    "lastHeartbeat": (FIRST, LAST),
    "lockedAt": (FIRST, LAST),
    "nextRunAt": (FIRST, LAST),
    "createdAt": (FIRST, LAST),
    "startedAt": (FIRST, LAST),
    "timeout": (1e-300, 1e308, 2**53),
    "heartbeatInterval": (float("nan"), float("inf"), -1, 2**62),
    "progress": (
        float("nan"),
        {"done": 1e-320, "total": 1e308},
        {"done": 1, "total": 2**63 - 1},
        {"done": float("inf")},
    ),
    "attempts": (2**53,),
}


@pytest.mark.full
@pytest.mark.parametrize("field", EXTREMES)
def test_extreme_values_are_a_page_and_an_answer(db: Database, jobs: Collection, field: str) -> None:
    (job,) = claim(handle(db), 1, stamp("worker-4", now(), 10.0))
    app = create_app(Monque(db))
    for value in EXTREMES[field]:
        put(jobs, job.id, {field: value})
        for status in ("processing", "pending", "failed"):
            put(jobs, job.id, {"status": status})
            assert get(app, f"/jobs/{job.id}").status_code == 200
            assert get(app, f"/api/v1/jobs/{job.id}?view=full").status_code == 200


@pytest.mark.full
@pytest.mark.parametrize("data", [{"text": "x" * ((16 << 20) - 70_000)}, {"numbers": list(range(700_000))}])
def test_large_value_is_cut_and_linked(db: Database, jobs: Collection, data: Any) -> None:
    job = insert(handle(db))
    put(jobs, job.id, {"data": data})
    page = shown(db, job.id)
    assert len(page) < 400_000
    assert "only the beginning is shown" in page
    assert page.count(f'href="/api/v1/jobs/{job.id}?view=full"') == 2


def test_thousands_of_errors_of_another_program_are_not_all_shown(db: Database, jobs: Collection) -> None:
    job = insert(handle(db))
    put(jobs, job.id, {"errors": [error(one % 4, error="x" * 5000) for one in range(1000)], "failCount": 1000})
    page = shown(db, job.id)
    assert "980 earlier failures: in the JSON of the job" in page
    assert page.count("<details") == 20


def test_document_that_is_no_job_says_how_it_is_repaired(db: Database, jobs: Collection) -> None:
    job = insert(handle(db))
    put(jobs, job.id, {"nextRunAt": HOSTILE})
    answer = get(create_app(Monque(db)), f"/jobs/{job.id}")
    assert answer.status_code == 409
    assert f"trio-monque repair {job.id} --set FIELD=VALUE --dry-run" in answer.text
    assert "nextRunAt" in answer.text
    assert "<script>" not in answer.text


IS_NO_JOB: Final = ("0" * 24, "nothing", "0" * 23, "0" * 23 + "g", "\u0660" * 24, "%00", "a" * 5000, "0" * 24 + "%20")


@pytest.mark.parametrize("text", IS_NO_JOB)
def test_page_of_an_unknown_id_is_not_found(db: Database, text: str) -> None:
    answer = get(create_app(Monque(db)), f"/jobs/{text}")
    assert answer.status_code == 404
    assert "Job not found" in answer.text
    assert text not in answer.text


# --- What a viewer may see ---


def test_job_that_a_caller_may_not_see_looks_like_none(db: Database) -> None:
    mine, theirs = insert(handle(db), meta={"tenant": "acme"}), insert(handle(db), meta={"tenant": "globex"})

    def authorize(_action: str, _context: object, target: Any) -> bool:
        return target is None or target.meta.get("tenant") == "acme"

    app = create_app(Monque(db), authorize=authorize)
    assert get(app, f"/jobs/{mine.id}").status_code == 200
    denied, absent = get(app, f"/jobs/{theirs.id}"), get(app, f"/jobs/{ObjectId()}")
    assert (denied.status_code, absent.status_code) == (404, 404)
    bodies = [re.sub(r"\d+ ms", "", one.text) for one in (denied, absent)]
    assert bodies[0] == bodies[1]


def test_values_are_shown_as_their_serializer_makes_them(db: Database, jobs: Collection) -> None:
    job = insert(handle(db), data={"card": "4242 of Ada"})
    put(jobs, job.id, {"result": "secret", "saved": "secret", "progress": {"done": 1, "secret": 2}})

    def masked(given: Mapping[str, Any]) -> Any:
        return {"masked": given["field"]}

    page = shown(db, job.id, serialize_payload=masked)
    assert "4242 of Ada" not in page
    assert "secret" not in page
    assert [words_of(page).count(f'"{one}"') for one in ("payload", "result", "saved", "progress")] == [1] * 4


@pytest.mark.parametrize("made", [ValueError("secret"), float("nan"), object(), {"a": {1, 2}}])
def test_hook_that_fails_hides_its_value_and_not_the_page(
    db: Database, caplog: pytest.LogCaptureFixture, made: Any
) -> None:
    job = insert(handle(db), data={"card": "4242 of Ada"})

    def broken(_given: Mapping[str, Any]) -> Any:
        if isinstance(made, Exception):
            raise made
        return made

    page = shown(db, job.id, serialize_payload=broken)
    assert "hidden (the hook failed)" in page
    assert "4242 of Ada" not in page
    assert "secret" not in page
    assert "Enqueued" in page
    assert f"a hook failed for the payload of job {job.id}" in caplog.text


def broken_hook(_job: object, _text: str, _context: object) -> str:
    raise ValueError("secret")


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        (False, "hidden"),
        (lambda _job, text, _context: text.replace("price", "***"), "ValueError: no *** 1"),
        (lambda _job, _text, _context: None, "hidden"),
        (broken_hook, "hidden (the hook failed)"),
    ],
)
def test_texts_of_errors_pass_their_hook(db: Database, jobs: Collection, hook: Any, words: str) -> None:
    job = insert(handle(db))
    put(jobs, job.id, {"status": "failed", "errors": [error(1)], "failCount": 1, "failReason": "ValueError: no price"})
    page = shown(db, job.id, show_errors=hook)
    assert words in words_of(page)
    assert "price" not in page
    assert "secret" not in page
    jobs.update_one({"_id": job.id}, {"$unset": {"errors": ""}})
    page = shown(db, job.id, show_errors=hook)
    assert "price" not in page
    assert words.split(" 1")[0] in words_of(page)
