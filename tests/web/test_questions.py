"""The routes of an operator's questions: errors in groups, schedules, the jobs of an instance, and reasons."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from bson import ObjectId

from tests.support.store import claim, handle, insert
from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque
from trio_monque.diagnosis import Reason
from trio_monque.jobs.minutes import DONE, ROW, RUN_BUCKETS, RUN_MS, Part
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import minutes_written
from trio_monque.web import create_app
from trio_monque.web.api.schema_check import is_valid
from trio_monque.web.api.schemas import ref
from trio_monque.web.words.lengths import moment
from trio_monque.web.words.reason_sentences import sentence_of

INVALID: Final = (400, {"error": "Input validation failed"})
READ_DENIED: Final = (403, {"error": "Read access denied"})
AT: Final = datetime(2030, 1, 2, 3, 4, 5, 678_000, UTC)
ISO: Final = "2030-01-02T03:04:05.678Z"
UNKNOWN: Final = "f" * 24
QUESTIONS: Final = {
    "/errors": "ErrorGroupList",
    "/schedules": "JobFullList",
    "/instances/worker-1": "InstanceWithJobs",
    f"/jobs/{UNKNOWN}/reasons": "ReasonList",
    "/minutes": "MinuteList",
    "/findings": "FindingList",
    "/overview": "Overview",
}


def document(status: str, **fields: Any) -> dict[str, Any]:
    dates = dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), AT)
    return {"name": "mail", "data": {"to": "a"}, "status": status, "failCount": 0, **dates, **fields}


async def answer(ask: Ask, path: str) -> tuple[int, Any]:
    found = await ask("GET", path)
    return found.status_code, found.json()


async def right(ask: Ask, path: str, schema: str) -> Any:
    """The answer, which is as its schema says."""
    status, found = await answer(ask, path)
    assert status == 200, found
    assert is_valid(found, ref(schema)), found
    return found


@pytest.mark.parametrize("loop", LOOPS)
def test_errors_are_grouped(db: Database, jobs: Collection, loop: str) -> None:
    jobs.insert_many([document("failed", failReason=f"no mailbox {number}") for number in range(3)])
    jobs.insert_one(document("failed", failReason="gone", name="letter", updatedAt=AT + timedelta(hours=1)))
    last = jobs.find_one({"name": "letter"}) or {}

    async def work(ask: Ask) -> None:
        found = await right(ask, "/errors", "ErrorGroupList")
        assert [(one["error"], one["prefix"], one["count"]) for one in found["groups"]] == [
            ("no mailbox …", "no mailbox ", 3),
            ("gone", "gone", 1),
        ]
        assert (found["lookedAt"], found["isCapped"]) == (4, False)
        assert found["groups"][1]["names"] == {"letter": 1}
        assert found["groups"][1]["example"] == str(last["_id"])
        assert found["groups"][0]["firstAt"] == found["groups"][0]["lastAt"] == ISO
        since = await right(ask, "/errors?since=2030-01-02T04:00:00Z", "ErrorGroupList")
        assert [one["error"] for one in since["groups"]] == ["gone"]
        assert [one["count"] for one in (await right(ask, "/errors?name=mail", "ErrorGroupList"))["groups"]] == [3]
        assert (await right(ask, "/errors?name=", "ErrorGroupList"))["groups"] == []
        assert (await right(ask, "/errors?limit=1", "ErrorGroupList"))["isCapped"]

    asking(loop, create_app(Monque(db)), work)


@pytest.mark.parametrize("show", [False, lambda job, text, context: "something"])
def test_errors_in_groups_are_hidden_where_a_hook_decides_about_each(db: Database, jobs: Collection, show: Any) -> None:
    jobs.insert_one(document("failed", failReason="the password is 12345"))

    async def work(ask: Ask) -> None:
        response = await ask("GET", "/errors")
        assert "password" not in response.text
        (group,) = response.json()["groups"]
        assert (group["error"], group["prefix"], group["count"]) == (None, None, 1)

    asking("trio", create_app(Monque(db), show_errors=show), work)


@pytest.mark.parametrize("loop", LOOPS)
def test_schedules_are_in_the_order_of_their_next_runs(db: Database, jobs: Collection, loop: str) -> None:
    jobs.insert_many([document("pending", repeatInterval="0 * * * *", data=number) for number in range(3)])
    jobs.insert_one(document("pending"))
    monque = Monque(db)
    monque.sync.schedule("0 0 1 1 *", "yearly", unique_key="yearly")

    async def work(ask: Ask) -> None:
        found = await right(ask, "/schedules", "JobFullList")
        assert sorted(one["name"] for one in found["jobs"]) == ["mail", "mail", "mail", "yearly"]
        assert found["jobs"] == sorted(found["jobs"], key=lambda one: (one["nextRunAt"], one["id"]))
        assert (await right(ask, "/schedules?limit=2", "JobFullList"))["isCapped"]

    asking(loop, create_app(monque), work)


@pytest.mark.parametrize("loop", LOOPS)
def test_instance_has_the_jobs_that_it_holds(db: Database, jobs: Collection, loop: str) -> None:
    for _ in range(2):
        insert(handle(db))
    claim(handle(db), 2)
    jobs.insert_one(document("processing", claimedBy="node 4", lockedAt=AT))

    async def work(ask: Ask) -> None:
        ours = await right(ask, "/instances/us", "InstanceWithJobs")
        assert [one["claimedBy"] for one in ours["jobs"]] == ["us", "us"]
        node = await right(ask, "/instances/node%204", "InstanceWithJobs")
        assert (node["instance"], len(node["jobs"])) == (None, 1)
        assert await answer(ask, "/instances/nobody") == (404, {"error": "Instance not found"})

    asking(loop, create_app(Monque(db)), work)


@pytest.mark.full
@pytest.mark.parametrize("loop", LOOPS)
def test_reasons_have_facts_and_a_sentence(db: Database, jobs: Collection, loop: str) -> None:
    monque = Monque(db)
    late = insert(handle(db))
    later = monque.sync.enqueue("mail", run_at=AT + timedelta(days=3650))
    monque.sync.pause("mail", by="dana")
    failed = jobs.insert_one(document("failed")).inserted_id
    broken = jobs.insert_one({**document("pending"), "failCount": "many"}).inserted_id

    async def work(ask: Ask) -> None:
        async def reasons(job_id: object) -> list[Any]:
            found = await right(ask, f"/jobs/{job_id}/reasons", "ReasonList")
            return [*found["reasons"]]

        assert await reasons(late.id) == [
            {
                "kind": "noInstances",
                "sentence": "No live instance has an entry in the database.",
                "values": {},
            }
        ]
        first, second, _ = await reasons(later.id)
        assert first["kind"] == "notDue"
        assert first["values"]["at"] == "2039-12-31T03:04:05.678Z"
        assert first["values"]["because"] == "first"
        assert first["sentence"].startswith("It is due in ")
        since = second["values"]["since"]
        assert second == {
            "kind": "paused",
            "sentence": f"The name mail is paused since {since[:10]} {since[11:19]} UTC by dana.",
            "values": {"name": "mail", "since": since, "by": "dana"},
        }
        assert [one["kind"] for one in await reasons(failed)] == ["failed"]
        assert (await answer(ask, f"/jobs/{UNKNOWN}/reasons"))[0] == 404
        assert (await answer(ask, "/jobs/7/reasons"))[0] == 400
        assert (await answer(ask, f"/jobs/{broken}/reasons"))[0] != 500

    asking(loop, create_app(monque), work)


@pytest.mark.parametrize("loop", LOOPS)
def test_minutes_have_figures_in_all_and_by_name(db: Database, loop: str) -> None:
    def row(done: int, bucket: int) -> list[int]:
        numbers = [0] * ROW
        numbers[DONE], numbers[RUN_MS], numbers[RUN_BUCKETS + bucket] = done, done * 300, done
        return numbers

    begin = AT.replace(second=0, microsecond=0)
    parts = [
        Part(begin, 3, {"mail": row(2, 9), "letter": row(1, 9)}),
        Part(begin + timedelta(minutes=1), 3, {"mail": row(4, 9)}),
    ]
    for instance in ("one", "two"):
        minutes_written.write(handle(db), instance, "r", parts)
    begin_at = "from=2030-01-02T03:04:05Z"
    span = f"/minutes?{begin_at}&to=2030-01-02T04:00:00Z"

    async def work(ask: Ask) -> None:
        found = await right(ask, span, "MinuteList")
        assert [(one["at"], one["slots"], one["done"]) for one in found["minutes"]] == [
            ("2030-01-02T03:04:00.000Z", 6, 6),
            ("2030-01-02T03:05:00.000Z", 6, 8),
        ]
        assert [(one["name"], one["done"]) for one in found["names"]] == [("letter", 2), ("mail", 12)]
        assert found["names"][0]["run"] == {"mean": 300, "p50": 384, "p95": 499.2, "p99": 509.44}
        assert found["names"][0]["wait"] == {"mean": None, "p50": None, "p95": None, "p99": None}
        of_one = await right(ask, span + "&name=letter", "MinuteList")
        assert [one["done"] for one in of_one["minutes"]] == [2, 0]
        assert [one["name"] for one in of_one["names"]] == ["letter"]
        for query in ("", "?to=0001-01-01T00:00:00Z", "?from=9998-01-01T00:00:00Z"):
            assert await right(ask, "/minutes" + query, "MinuteList") == {"minutes": [], "names": []}
        spans = (f"{begin_at}&to=2030-01-02T03:04:00Z", f"{begin_at}&to=2031-01-01T00:00:00Z")
        for query in ("from=1h", "to=", "x=1", *spans):
            assert await answer(ask, "/minutes?" + query) == INVALID, query

    asking(loop, create_app(Monque(db)), work)


SAMPLE: Final = {
    "ago": 30.0,
    "ahead": 1,
    "at": AT,
    "because": "retry",
    "by": "w1",
    "cut_short": 0,
    "deaths": 2,
    "failures": 1,
    "held": 0,
    "handler": "rude",
    "holder": None,
    "instance": "w1",
    "instances": 1,
    "is_capped": False,
    "is_full": False,
    "is_held": True,
    "is_idle": False,
    "is_late": False,
    "overdue": 0,
    "is_over": False,
    "is_parent": False,
    "is_recurring": False,
    "is_unreadable": False,
    "is_ours": True,
    "lease": 90.0,
    "name": "mail",
    "parent": "65f1c0ffee0123456789abcd",
    "seconds": 75.0,
    "served": ["letter"],
    "silent": 4.25,
    "similar": "mails",
    "since": AT,
    "start_by": AT,
}


def test_each_documented_kind_has_a_sentence() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/browse-jobs.md").read_text(encoding="utf-8")
    rows = page.partition("| Kind | Meaning")[2].partition("\n\n")[0].splitlines()[2:]
    kinds = [row.split("`")[1] for row in rows]
    assert len(kinds) == 19
    for kind in kinds:
        for changed in (
            {},
            {"is_capped": True, "ahead": 0},
            {"similar": None, "is_ours": False, "since": None, "start_by": None},
            {"handler": None, "is_over": True, "is_unreadable": True, "parent": None},
            {"is_held": False, "is_late": True, "overdue": 2, "cut_short": 1, "is_idle": True},
        ):
            sentence = sentence_of(Reason(kind, {**SAMPLE, **changed}))
            assert sentence[0].isupper() or sentence[0].isdigit(), sentence
            assert sentence.endswith((".", "?")), sentence
            assert "None" not in sentence
    assert (
        sentence_of(Reason("is_due", SAMPLE)) == "It has been due for 1 m 15 s, and 1 job of its name is due before it."
    )
    served = Reason("is_served", {**SAMPLE, "held": 2, "is_full": True})
    assert sentence_of(served) == "1 live instance runs its name, with 2 jobs of it running: all slots are taken."


def test_a_thread_that_goes_on_and_a_child_that_failed_have_their_own_sentences() -> None:
    assert sentence_of(Reason("runs", {**SAMPLE, "is_over": True})) == (
        f"It was claimed by w1 at {moment(AT)}, and its time limit is over: the run was cancelled, but its thread "
        "goes on, and holds a slot until it returns; the last sign of life came 4.2 s ago."
    )
    assert sentence_of(Reason("runs", {**SAMPLE, "is_parent": True})) == (
        f"It has been running or waiting for children on w1 since {moment(AT)}; the last sign of life came 4.2 s ago."
    )
    assert sentence_of(Reason("failed", {**SAMPLE, "is_unreadable": True})) == (
        "It has failed for good, and is a child of job 65f1c0ffee0123456789abcd. Unless that has completed, retry that "
        "instead. If it has, it may have undone what this job is a part of: look at it first. Deploy a worker that can "
        "read its data first."
    )


def test_an_ended_job_says_what_a_retry_does() -> None:
    def said(kind: str, *, is_recurring: bool = False, start_by: datetime | None = None) -> str:
        values = {"is_recurring": is_recurring, "start_by": start_by, "is_unreadable": False, "parent": None}
        return sentence_of(Reason(kind, values))

    again, by_schedule = (f"A retry runs it {one}, with all its attempts" for one in ("again", BY_SCHEDULE))
    assert said("failed") == f"It has failed for good. {again}."
    assert said("failed", is_recurring=True) == f"It has failed for good. {by_schedule}."
    assert said("cancelled") == f"It was cancelled. {again}."
    assert said("cancelled", is_recurring=True) == f"It was cancelled. {by_schedule}."
    moment = f"{AT:%Y-%m-%d %H:%M:%S} UTC"
    assert said("cancelled", start_by=AT) == (
        f"No run began by {moment} (start_by), so it was cancelled. {again}, without that limit."
    )


BY_SCHEDULE: Final = "now, and then on its schedule"


@pytest.mark.parametrize("path", QUESTIONS)
def test_question_is_a_read(db: Database, path: str) -> None:
    async def work(ask: Ask) -> None:
        assert await answer(ask, path) == READ_DENIED
        assert await answer(ask, path + "?x=1") == INVALID

    asking("trio", create_app(Monque(db), authorize=lambda *_: False), work)


@pytest.mark.parametrize(
    "query",
    ["since=1h", "since=", "since=2030-01-02", "name=a&name=b", "name[$ne]=a", "status=failed", "limit=1&limit=2"],
)
def test_malformed_query_of_errors_is_refused(db: Database, query: str) -> None:
    async def work(ask: Ask) -> None:
        assert await answer(ask, "/errors?" + query) == INVALID

    asking("trio", create_app(Monque(db)), work)


@pytest.mark.parametrize("path", ["/errors", "/schedules"])
@pytest.mark.parametrize("limit", ["0", "-1", "1.5", "many", ""])
def test_invalid_limit_is_refused(db: Database, path: str, limit: str) -> None:
    async def work(ask: Ask) -> None:
        assert await answer(ask, f"{path}?limit={limit}") == (400, {"error": "Invalid limit"})

    asking("trio", create_app(Monque(db)), work)


def test_broken_documents_harm_no_question(db: Database, jobs: Collection) -> None:
    jobs.insert_many(
        [
            {"_id": ObjectId(), "name": 7, "status": "failed", "failReason": 7, "updatedAt": AT, "nextRunAt": AT},
            {"name": ["mail"], "status": "failed", "failReason": "gone", "updatedAt": "soon", "nextRunAt": AT},
            {"name": "mail", "status": "processing", "claimedBy": "w1", "lockedAt": 7},
            {"name": "mail", "status": "pending", "repeatInterval": 7, "nextRunAt": AT, "uniqueKey": "k"},
            {"_id": "text", "name": "mail", "status": "failed", "failReason": "gone", "updatedAt": AT, "nextRunAt": AT},
        ]
    )
    monque = Monque(db)
    monque.sync.schedule("0 0 1 1 *", "yearly", unique_key="yearly")

    async def work(ask: Ask) -> None:
        assert sum(one["count"] for one in (await right(ask, "/errors", "ErrorGroupList"))["groups"]) == 2
        assert len((await right(ask, "/schedules", "JobFullList"))["jobs"]) == 1
        assert (await answer(ask, "/instances/w1"))[0] == 404

    asking("trio", create_app(monque), work)
