"""`trio-monque jobs`, `show`, `stats` and `instances` show what is stored, and change nothing."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from functools import partial, partialmethod
from typing import Any

import pytest
import trio
from bson import Decimal128, ObjectId

from tests.support.store import PAST, claim_due, handle, insert, stamp
from trio_monque import Monque, RunningJob, Workers, open_scheduler
from trio_monque.client.sync_monque import SyncMonque
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs.job import JobStatus
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs.job_json import value_as_json, value_from_json
from trio_monque.store.reads.diagnosis import jobs as of_jobs

from .command_support import Command, command_of
from .doctor_support import enter, now

HOUR = timedelta(hours=1)


@pytest.fixture
def command(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(mongod, db, capsys)


@pytest.fixture
def monque(db: Database) -> Monque:
    return Monque(db)


def fail(jobs: Collection, job_id: ObjectId, reason: str = "OSError: no route", **fields: Any) -> None:
    changed = {"status": "failed", "failReason": reason, "failCount": 1, "updatedAt": now(), **fields}
    assert jobs.update_one({"_id": job_id}, {"$set": changed}).modified_count == 1


# --- jobs ---


def test_list_shows_jobs_with_the_latest_first(command: Command, monque: Monque, jobs: Collection) -> None:
    first, second = (monque.sync.enqueue("mail", number) for number in range(2))
    fail(jobs, first.id, "OSError: no\nroute")
    ended = command("jobs")
    assert ended.status == 0
    assert ended.lines[0].split() == ["id", "name", "status", "due", "changed", "attempts", "failure"]
    assert [line.split()[:3] for line in ended.lines[1:]] == [
        [str(second.id), "mail", "pending"],
        [str(first.id), "mail", "failed"],
    ]
    assert ended.lines[2].endswith(r"OSError: no\nroute")
    assert ended.err == ""


def test_list_marks_running_jobs_whose_holder_gives_no_sign_of_life(command: Command, db: Database) -> None:
    for name, ago in (("dead", 3600.0), ("alive", 0.0)):
        insert(handle(db), name)
        claim_due(handle(db), {name: 1}, stamp("w1", now() - timedelta(seconds=ago), 300.0))
    found = {line.split()[1]: " ".join(line.split()[2:4]) for line in command("jobs").lines[1:]}
    assert found["dead"] == "processing (stuck)"
    assert re.match(r"processing \d", found["alive"])
    assert {one["status"] for one in command("jobs", "--json").json["jobs"]} == {"processing"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), [4, 3, 2, 1, 0]),
        (("--status", "pending"), [3, 4, 1]),
        (("--status", "failed"), [2, 0]),
        (("--status", "failed", "--status", "pending"), [2, 0, 4, 3, 1]),
        (("--name", "mail"), [1, 4, 0]),
        (("--name", "mail", "--name", "report"), [1, 4, 0, 2, 3]),
        (("--name", "mail", "--status", "pending"), [4, 1]),
        (("--name", "mail", "--unique-key", "k.4"), [4]),
        (("--name", "mail", "--unique-key-prefix", "k."), [1, 4]),
        (("--fail-reason", "route"), [0]),
        (("--fail-reason-prefix", "Value"), [2]),
        (("--sort", "created_at"), [0, 1, 2, 3, 4]),
        (("--sort", "-id", "--limit", "2"), [4, 3]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_selection_and_order(
    command: Command, monque: Monque, jobs: Collection, options: tuple[str, ...], expected: list[int]
) -> None:
    names = ["mail", "mail", "report", "report", "mail"]
    delays = [10.0, 30.0, 5.0, 1.0, 20.0]
    ids = [
        monque.sync.enqueue(name, delay=delay, unique_key=f"k.{place}").id
        for place, (name, delay) in enumerate(zip(names, delays, strict=True))
    ]
    fail(jobs, ids[0], updatedAt=now() + timedelta(milliseconds=500))
    fail(jobs, ids[2], "ValueError: bad", updatedAt=now() + timedelta(seconds=1))
    found = [ids.index(ObjectId(one["id"])) for one in command("jobs", *options, "--json").json["jobs"]]
    assert found == expected


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--data", "order.id=17"), [0, 1]),  # A text and a number.
        (("--data", "order.id=17", "--name", "mail"), [0]),
        (("--data", "order.id=17", "--data", "order.id=18"), [0, 1, 2]),
        (("--data", "order.id=17", "--data", "order.paid=true"), [1]),
        (("--data", "order.paid=1", "--data", "order.paid=true"), [1, 2]),
        (("--data", "order.paid=null"), [0]),
        (("--data", "to=a=b"), [3]),
        (("--data", "tags=new"), [3]),
        (("--meta", "tenant=acme"), [2, 3]),
        (("--meta", "tenant=acme", "--data", "order.id=18"), [2]),
        (("--data", "order=17"), []),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_conditions_on_fields(command: Command, monque: Monque, options: tuple[str, ...], expected: list[int]) -> None:
    given: list[tuple[str, Any, dict[str, str]]] = [
        ("mail", {"order": {"id": 17, "paid": None}}, {}),
        ("report", {"order": {"id": "17", "paid": True}}, {"tenant": "other"}),
        ("mail", {"order": {"id": 18, "paid": 1}}, {"tenant": "acme"}),
        ("mail", {"to": "a=b", "tags": ["new", "urgent"]}, {"tenant": "acme"}),
    ]
    ids = [monque.sync.enqueue(name, data, meta=meta).id for name, data, meta in given]
    found = [ids.index(ObjectId(one["id"])) for one in command("jobs", *options, "--sort", "id", "--json").json["jobs"]]
    assert found == expected


def test_ages_are_lengths_of_time_or_moments(command: Command, monque: Monque, jobs: Collection) -> None:
    old, new = monque.sync.enqueue("mail"), monque.sync.enqueue("mail")
    jobs.update_one({"_id": old.id}, {"$set": {"createdAt": now() - timedelta(hours=2)}})
    boundary = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    for age in ("1h", "1h ago", "1h 30m  Ago ", "90m", "3600", boundary, boundary.replace("+00:00", "Z")):
        assert [one["id"] for one in command("jobs", "--older-than", age, "--json").json["jobs"]] == [str(old.id)]
        assert [one["id"] for one in command("jobs", "--newer-than", age, "--json").json["jobs"]] == [str(new.id)]


def test_pages_continue_where_the_one_before_ended(command: Command, monque: Monque) -> None:
    ids = [str(monque.sync.enqueue("mail").id) for _ in range(5)]
    found, cursor = [], None
    for _ in range(3):
        page = command("jobs", "--sort", "id", "--limit", "2", "--json", *(["--cursor", cursor] if cursor else [])).json
        found += [one["id"] for one in page["jobs"]]
        cursor = page["cursor"]
    assert found == ids
    assert cursor is None
    first = command("jobs", "--sort", "id", "--limit", "2")
    assert re.fullmatch(r"more: --cursor \S+\n", first.err)
    second = command("jobs", "--sort", "id", "--limit", "2", "--cursor", first.err.split()[-1])
    assert [line.split()[0] for line in second.lines[1:]] == ids[2:4]


def test_list_has_the_large_values_only_if_asked_for(command: Command, monque: Monque, jobs: Collection) -> None:
    monque.sync.enqueue("mail", {"to": "a@example.com", "at": PAST})
    jobs.update_one({}, {"$set": {"progress": 0.5, "errors": [{"error": "OSError", "attempt": 1}]}})
    (light,) = command("jobs", "--json").json["jobs"]
    (whole,) = command("jobs", "--json", "--with-data").json["jobs"]
    assert not light.keys() & {"data", "progress", "saved", "result", "errors"}
    assert whole["data"] == {"to": "a@example.com", "at": {"$date": "2026-01-01T00:00:00Z"}}
    assert (whole["progress"], whole["errors"][0]["error"]) == (0.5, "OSError")


def test_empty_list_says_where_it_looked(command: Command, db: Database) -> None:
    ended = command("jobs", "--collection", "typo")
    assert (ended.status, ended.out) == (0, f"no job in {db.name}.typo matches\n")
    assert command("jobs", "--collection", "typo", "--json").json == {"jobs": [], "cursor": None}
    assert db.list_collection_names() == []


def test_document_that_is_not_a_job_is_left_out(command: Command, monque: Monque, jobs: Collection) -> None:
    job = monque.sync.enqueue("mail")
    jobs.insert_one({"name": "mail", "status": "pending", "createdAt": "yesterday"})
    assert [one["id"] for one in command("jobs", "--json").json["jobs"]] == [str(job.id)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["jobs", "--status", "done"], "'done' is not one of"),
        (["jobs", "--older-than", "soon"], "'soon' is neither a length of time before now, such as 2h, nor a moment"),
        (["jobs", "--older-than", "ago"], "'ago' is neither a length of time before now, such as 2h, nor a moment"),
        (["jobs", "--older-than", "2026-01-01 ago"], "'2026-01-01 ago' is neither a length of time"),
        (["reschedule", "0" * 24, "2h ago"], "'2h ago' is neither a length of time from now, such as 2h, nor a moment"),
        (["jobs", "--older-than", "9999999999d"], "'9999999999d' is too long"),
        (["jobs", "--newer-than", "9999999d"], "does not exist"),
        (["jobs", "--name", ""], "--name='': is empty"),
        (["jobs", "--cursor", "x"], "cursor"),
        (["jobs", "--older-than", "2h", "--newer-than", "1h"], "--newer-than="),
        (
            ["jobs", "--fail-reason", "a", "--fail-reason-prefix", "b"],
            "--fail-reason-prefix='b': cannot be combined with",
        ),
        (["jobs", "--limit", "0"], "--limit"),
        (["jobs", "--data", "order"], "'order' must be KEY=VALUE"),
        (["jobs", "--data", "a.$ne=1"], "'a.$ne' is not a key of letters, digits and '_', with dots"),
        (["jobs", "--meta", "a.b=1"], "'a.b' is not a key of letters, digits and '_'"),
        (["jobs", *(part for n in range(11) for part in ("--data", f"f{n}=1"))], "--data={"),
        (["jobs", "--with-data"], "--with-data is for --json, without --held-by"),
        (["jobs", "--with-data", "--json", "--held-by", "w1"], "--with-data is for --json, without --held-by"),
        (["jobs", "--held-by", "w1", "--data", "a=1"], "--held-by takes no other selection"),
        (["jobs", "--operation-timeout", "0"], "--operation-timeout="),
        (["jobs", "--collection", "a$b"], "--collection="),
        (["stats", "--watch", "1s"], "--watch must be at least 2s"),
        (["show"], "Missing argument 'ID'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_arguments_are_named_as_they_were_spelled(command: Command, arguments: list[str], said: str) -> None:
    ended = command(*arguments)
    assert ended.status == 2
    assert said in ended.err
    assert "Traceback" not in ended.err


# --- show ---


def test_page_of_a_job_has_its_data_timeline_failures_and_why_it_waits(
    command: Command, monque: Monque, jobs: Collection
) -> None:
    job = monque.sync.enqueue("mail", {"to": "a@example.com", "at": PAST}, unique_key="k", meta={"tenant": "acme"})
    errors = [
        {"at": PAST, "attempt": 1, "error": "ValueError: x", "traceback": "Traceback\n  File x\x1b[31m\nValueError"},
        {"at": PAST, "attempt": 2, "error": "ValueError: x", "by": "w1", "ran": 75_000},
    ]
    jobs.update_one({"_id": job.id}, {"$set": {"errors": errors, "failCount": 1, "failReason": "ValueError: x"}})
    ended = command("show", str(job.id))
    assert ended.status == 0
    shown = ended.out
    assert re.search(rf"^id +{job.id}$", shown, re.MULTILINE)
    assert re.search(r"^unique key +k$", shown, re.MULTILINE)
    assert re.search(r"^meta +tenant=acme$", shown, re.MULTILINE)
    assert '"to": "a@example.com"' in shown
    assert "2026-01-01T00:00:00Z" in shown
    assert re.search(r"^  2026-01-01 00:00:00Z +\S.* ago +attempt 1 failed$", shown, re.MULTILINE)
    assert re.search(r" attempt 2 failed on w1, ran 1m 15s$", shown, re.MULTILINE)
    assert "failure of attempt 1 at 2026-01-01 00:00:00Z\n  Traceback\n    File x\\x1b[31m\n  ValueError\n" in shown
    assert "why it is not running\n  No live instance has an entry in this database." in shown


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_timeline_of_an_ended_job_has_its_end_and_no_date_after_it(
    command: Command, monque: Monque, jobs: Collection, status: str
) -> None:
    job = monque.sync.enqueue("mail", delay=18_000)
    jobs.update_one({"_id": job.id}, {"$set": {"status": status, "updatedAt": PAST}})
    shown = command("show", str(job.id)).out
    assert " due\n" not in shown
    assert bool(re.search(r"^  2026-01-01 00:00:00Z +\S.* ago +cancelled$", shown, re.MULTILINE)) == (
        status == "cancelled"
    )
    assert (" last change\n" in shown) == (status != "cancelled")
    jobs.update_one({"_id": job.id}, {"$set": {"nextRunAt": PAST}})
    assert re.search(r"^  2026-01-01 00:00:00Z +\S.* ago +due$", command("show", str(job.id)).out, re.MULTILINE)


def test_page_of_a_job_as_json_has_all_of_it(command: Command, monque: Monque) -> None:
    data = {"n": 2**40, "d": PAST, "b": b"\0\1", "c": Decimal128("1.10"), "t": "ä\n", "id": ObjectId("0" * 24)}
    job = monque.sync.enqueue("mail", data, delay=60)
    found = command("show", str(job.id), "--json").json
    assert value_from_json(json.dumps(found["data"])) == data
    assert found["id"] == str(job.id)
    assert found["next_run_at"] == job.next_run_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert found["errors"] == []
    assert len(found["why"]) == 2
    assert not found.keys() & {"claim_token", "receipt", "rev"}


@pytest.mark.parametrize("job_id", ["0" * 24, "not-an-id", "ä\n"])
def test_missing_job_is_said(command: Command, db: Database, job_id: str) -> None:
    ended = command("show", job_id)
    assert ended.status == 1
    assert ended.out == ""
    assert ended.err.endswith(f" in {db.name}.monque_jobs\n")
    assert len(ended.err.splitlines()) == 1


def test_document_that_is_not_a_job_is_named_with_its_problem(command: Command, jobs: Collection) -> None:
    broken = jobs.insert_one({"name": "mail", "status": "pending"}).inserted_id
    ended = command("show", str(broken))
    assert ended.status == 2
    assert ended.err == (
        f"trio-monque: document {broken} is not a job: it has no nextRunAt. Repair it (`trio-monque repair {broken} "
        "--set nextRunAt=now --set createdAt=now --set updatedAt=now`) or delete it\n"
    )
    shown = re.search("`trio-monque (.*)`", ended.err)
    assert shown is not None
    assert command(*shown[1].split(), "--yes").status == 0
    assert command("show", str(broken)).status == 0


def test_document_whose_repair_is_not_evident_is_named_with_its_problem(command: Command, jobs: Collection) -> None:
    broken = jobs.insert_one({"name": "mail", "status": "waiting"}).inserted_id
    ended = command("show", str(broken))
    assert ended.status == 2
    assert ended.err == (
        f"trio-monque: document {broken} is not a job: it has no nextRunAt. Repair it (`trio-monque repair ID --set "
        "FIELD=VALUE`) or delete it\n"
    )


def test_long_values_leave_the_timeline_on_the_screen(command: Command, monque: Monque, jobs: Collection) -> None:
    job = monque.sync.enqueue("mail", list(range(161)))
    lines = {"progress": list(range(38)), "saved": list(range(39))}
    jobs.update_one({"_id": job.id}, {"$set": lines})
    page = command("show", str(job.id)).out
    data = page[page.index("\ndata\n") : page.index("\nprogress\n")].splitlines()[2:]
    assert data == ["  [", *(f"    {n}," for n in range(39)), "  … 123 more lines (in full: --json)", ""][:-1]
    assert "\n    37\n  ]\n\nsaved\n" in page
    assert "\n    38\n  … 1 more line (in full: --json)\n\ntimeline\n" in page


def test_ahead_of_a_job_are_the_due_ones_of_its_name(command: Command, db: Database, monque: Monque) -> None:
    for name in ("mail", "mail", "report"):
        insert(handle(db), name)
    job = monque.sync.enqueue("mail")
    insert(handle(db), "mail")
    enter(db, "w1", "mail")
    (first, *_) = command("show", str(job.id), "--json").json["why"]
    assert first.endswith("and 3 jobs of its name are due before it.")


def test_value_that_has_no_json_is_shown_as_text() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "Odd()"

    assert value_as_json(Odd()) == "Odd()"


# --- stats ---


def test_statistics_count_jobs_by_name_and_status(command: Command, monque: Monque, jobs: Collection) -> None:
    ids = [monque.sync.enqueue(name).id for name in ("mail", "mail", "report")]
    fail(jobs, ids[0])
    jobs.update_one({"_id": ids[1]}, {"$set": {"nextRunAt": now() - timedelta(minutes=61)}})
    ended = command("stats")
    assert ended.lines[0].split("  ")[-1].strip() == "oldest due"
    assert ended.lines[0].split()[:5] == ["name", "pending", "due", "processing", "completed"]
    assert ended.lines[1].split()[:8] == ["mail", "1", "1", "0", "0", "1", "0", "0"]
    assert ended.lines[1].endswith("1h 1m ago")
    assert ended.lines[2].split()[0] == "report"
    found = command("stats", "--json")
    assert len(found.lines) == 1
    assert found.json["mail"] | {"oldest_due_age": 0} == {
        "pending": 1,
        "processing": 0,
        "completed": 0,
        "failed": 1,
        "cancelled": 0,
        "due": 1,
        "stuck": 0,
        "capped": [],
        "oldest_due_age": 0,
    }


def test_due_jobs_are_counted_beside_the_pending_ones(command: Command, monque: Monque, jobs: Collection) -> None:
    for delay in (0, 0, 3600):
        monque.sync.enqueue("mail", delay=delay)
    assert command("stats").lines[1].split()[:3] == ["mail", "3", "2"]
    assert command("stats", "--json").json["mail"]["due"] == 2


@pytest.mark.parametrize(("delays", "expected"), [((0, 0, 0), ["2+", "2+"]), ((0, 60, 60), ["2+", "1"])])
def test_number_of_due_jobs_has_a_plus_sign_only_if_there_may_be_more(
    command: Command, monque: Monque, monkeypatch: pytest.MonkeyPatch, delays: tuple[int, ...], expected: list[str]
) -> None:
    for delay in delays:
        monque.sync.enqueue("mail", delay=delay)
    monkeypatch.setattr(SyncMonque, "get_queue_depths", partialmethod(SyncMonque.get_queue_depths, most_pending=2))
    assert command("stats").lines[1].split()[1:3] == expected


def test_document_whose_due_time_is_not_a_date_is_counted_only_while_it_runs(
    command: Command, monque: Monque, jobs: Collection
) -> None:
    for status in JobStatus:
        monque.sync.enqueue("mail")
        jobs.update_many({"nextRunAt": {"$type": "date"}}, {"$set": {"nextRunAt": "tomorrow", "status": status}})
    found = command("stats", "--json").json["mail"]
    assert [found[status] for status in JobStatus] == [0, 1, 0, 0, 0]
    left_out = "documents whose nextRunAt is not a date are left out: `trio-monque doctor` names them\n"
    assert command("stats").err == left_out
    jobs.delete_many({"status": {"$ne": "processing"}})
    assert command("stats").err == ""


def test_pending_document_with_an_owner_is_marked_in_the_list(
    command: Command, monque: Monque, jobs: Collection
) -> None:
    owned, free = (monque.sync.enqueue("mail") for _ in range(2))
    jobs.update_one({"_id": owned.id}, {"$set": {"claimedBy": "a person"}})
    lines = {line.split()[0]: line for line in command("jobs").lines[1:]}
    assert "pending (broken)" in lines[str(owned.id)]
    assert "broken" not in lines[str(free.id)]


def test_statistics_without_jobs(command: Command, db: Database) -> None:
    assert command("stats").out == f"no jobs in {db.name}.monque_jobs\n"
    assert command("stats", "--json").json == {}


def test_watch_counts_again_until_it_is_interrupted(
    command: Command, monque: Monque, monkeypatch: pytest.MonkeyPatch
) -> None:
    monque.sync.enqueue("mail")
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        monque.sync.enqueue("mail")
        if len(waits) >= 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("trio_monque.cli.jobs.jobs_and_stats.sleep", wait)
    ended = command("stats", "--watch", "--json")
    assert ended.status == 130
    assert waits == [2.0, 2.0, 2.0]
    assert [value_from_json(line)["mail"]["pending"] for line in ended.lines] == [1, 2, 3]
    waits.clear()
    shown = command("stats", "--watch", "5s")
    assert waits == [5.0, 5.0, 5.0]
    assert sum(line.startswith("mail ") for line in shown.lines) == 3


# --- instances ---


def test_instances_are_listed_with_their_state_and_the_paused_names(
    command: Command, db: Database, monque: Monque
) -> None:
    enter(db, "worker-1", "mail", "report", held_by_name={"mail": 5, "report": 1}, held=6, full_names=("mail",))
    enter(db, "worker-2", "mail", heartbeat_ago=3600)
    monque.sync.pause("report", by="dana\n")
    ended = command("instances")
    assert ended.status == 0
    assert [line.split()[:2] for line in ended.lines[1:3]] == [["worker-1", "live"], ["worker-2", "dead"]]
    assert ended.lines[0].split()[-2:] == ["library", "names"]
    assert ended.lines[1].endswith("mail (5, no free slot), report (1)")
    assert re.fullmatch(r"paused: report since \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ by dana\\n", ended.lines[-1])
    found = command("instances", "--json").json
    assert [(one["id"], one["state"], one["names"]) for one in found["instances"]] == [
        ("worker-1", "live", ["mail", "report"]),
        ("worker-2", "dead", ["mail"]),
    ]
    assert [one["version"] for one in found["instances"]] == ["1", "1"]
    assert found["paused"] == ["report"]


def test_numbers_behind_the_names_are_those_of_live_instances(command: Command, db: Database) -> None:
    enter(db, "alive", "mail", held=2, held_by_name={"mail": 2})
    enter(db, "dead", "mail", heartbeat_ago=600, held=2, held_by_name={"mail": 2})
    lines = {line.split()[0]: line for line in command("instances").lines[1:]}
    assert lines["alive"].endswith("mail (2)")
    assert lines["dead"].rstrip().endswith(" mail")


def test_no_instances(command: Command, db: Database) -> None:
    assert command("instances").out == f"no instance has an entry in {db.name}.monque_jobs\n"
    assert command("instances", "--json").json == {"instances": [], "paused": [], "pauses": []}
    assert db.list_collection_names() == []


async def test_commands_beside_a_scheduler_that_runs_a_job(command: Command, db: Database) -> None:
    workers, has_begun, may_end = Workers(), trio.Event(), trio.Event()

    @workers.register("mail")
    async def mail(job: RunningJob[None]) -> None:
        has_begun.set()
        await may_end.wait()

    in_thread = partial(trio.to_thread.run_sync)
    async with open_scheduler(db, workers, instance_id="w1") as scheduler:
        job = await scheduler.enqueue("mail")
        with trio.fail_after(10):
            await has_begun.wait()
        shown = await in_thread(lambda: command("show", str(job.id)))
        assert "state\n  It has been running since" in shown.out
        assert " on w1 (process " in shown.out
        assert (await in_thread(lambda: command("stats", "--json"))).json["mail"]["processing"] == 1
        assert (await in_thread(lambda: command("jobs", "--status", "processing", "--json"))).json["jobs"][0][
            "id"
        ] == str(job.id)
        may_end.set()


# --- Failures, holders and documents that are not jobs ---


def test_failures_are_grouped_by_their_error(
    command: Command, monque: Monque, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [monque.sync.enqueue("mail").id for _ in range(4)]
    first = now() - timedelta(minutes=5)
    for place, job_id in enumerate(ids[:3]):
        at = first + timedelta(minutes=place)
        fail(jobs, job_id, f"ValueError: order {place} of 65f1c0ffee0123456789abc{place} is gone", updatedAt=at)
    fail(jobs, ids[3], "OSError: no route")
    found = command("errors", "--json").json
    assert [(one["error"], one["count"]) for one in found["errors"]] == [
        ("ValueError: order … of … is gone", 3),
        ("OSError: no route", 1),
    ]
    assert (found["errors"][0]["example"], found["is_capped"]) == (str(ids[2]), False)
    assert found["errors"][0]["first"] < found["errors"][0]["last"]
    assert command("errors", "--name", "other", "--json").json["errors"] == []
    table = command("errors")
    assert table.lines[0].split() == ["example", "jobs", "name", "error", "last", "first"]
    assert table.lines[1].split()[:5] == [str(ids[2]), "3", "mail", "ValueError:", "order"]
    monkeypatch.setattr(of_jobs, "MOST_READ", 2)
    capped = command("errors")
    assert {line.split()[1] for line in capped.lines[1:]} == {"1+"}


def test_failures_are_grouped_before_any_program_has_created_the_indexes(command: Command, jobs: Collection) -> None:
    jobs.insert_one(
        {
            **dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), now()),
            "name": "mail",
            "status": "failed",
            "failReason": "OSError: no route",
        }
    )
    for options in ((), ("--name", "mail")):
        (group,) = command("errors", "--json", *options).json["errors"]
        assert (group["name"], group["error"], group["count"]) == ("mail", "OSError: no route", 1)


def test_held_jobs_are_counted_although_no_heartbeat_came(command: Command, monque: Monque, db: Database) -> None:
    enter(db, "worker-1", "mail")
    enter(db, "worker-2", "mail")
    for _ in range(3):
        monque.sync.enqueue("mail")
    claim_due(handle(db), {"mail": 3}, stamp("worker-1", now()), now() + timedelta(seconds=5))
    numbers = {one["id"]: one["held"] for one in command("instances", "--json").json["instances"]}
    assert numbers == {"worker-1": 3, "worker-2": 0}


def test_jobs_that_an_instance_holds(command: Command, monque: Monque, db: Database) -> None:
    enter(db, "worker-1", "mail")
    enter(db, "worker-2", "mail")
    for number in range(6):
        monque.sync.enqueue("mail", number)
    # The second two are held for a shorter time, the third by another instance; the last one is pending.
    first = claim_due(handle(db), {"mail": 2}, stamp("worker-1", now() - timedelta(minutes=5)), now() + HOUR)
    second = claim_due(handle(db), {"mail": 2}, stamp("worker-1", now()), now() + HOUR)
    claim_due(handle(db), {"mail": 1}, stamp("worker-10", now()), now() + HOUR)
    held = [*(job.id for job in first), *(job.id for job in second)]
    listed = command("jobs", "--held-by", "worker-1", "--json")
    assert (listed.status, listed.err) == (0, "")
    assert {one["id"] for one in listed.json["jobs"][:2]} == {str(one) for one in held[:2]}
    assert {one["id"] for one in listed.json["jobs"]} == {str(one) for one in held}
    assert "data" not in listed.json["jobs"][0]
    cut = command("jobs", "--held-by", "worker-1", "--limit", "2")
    assert cut.lines[0].split() == ["id", "name", "claimed", "renewed", "attempts"]
    assert {line.split()[0] for line in cut.lines[1:]} == {str(one) for one in held[:2]}
    assert "5m" in cut.lines[1]
    assert cut.err == "more: --limit 2 showed those that have been held longest\n"
    assert command("jobs", "--held-by", "worker-1", "--limit", "4").err == ""


def test_instance_that_holds_no_job_and_one_that_is_unknown(command: Command, monque: Monque, db: Database) -> None:
    enter(db, "worker-2", "mail")
    empty = command("jobs", "--held-by", "worker-2")
    assert (empty.status, empty.out) == (0, f"worker-2 holds no job of {db.name}.monque_jobs\n")
    for more in ((), ("--json",)):
        unknown = command("jobs", "--held-by", "worker-3", *more)
        assert unknown.status == 1
        assert unknown.err == (
            f"unknown instance worker-3: no instance of {db.name}.monque_jobs has this id, and no running job is "
            "claimed by it. `trio-monque instances` lists the instances; did you mean worker-2?\n"
        )
    # A process that died may hold jobs after another instance removed its entry.
    monque.sync.enqueue("mail")
    claim_due(handle(db), {"mail": 1}, stamp("dead", now()), now() + HOUR)
    assert len(command("jobs", "--held-by", "dead", "--json").json["jobs"]) == 1


@pytest.mark.parametrize("more", [("--name", "mail"), ("--sort", "id"), ("--cursor", "a"), ("--older-than", "2h")])
def test_holder_cannot_be_combined_with_a_selection(command: Command, more: tuple[str, ...]) -> None:
    refused = command("jobs", "--held-by", "worker-1", *more)
    assert refused.status == 2
    assert "--held-by takes no other selection, no --sort and no --cursor: leave them out" in refused.err


@pytest.mark.parametrize(
    ("written", "document_id"),
    [
        ("65f1c0ffee0123456789abcd", ObjectId("65f1c0ffee0123456789abcd")),
        ("order-17", "order-17"),
        ("17", 17),
        ('{"a": 1}', {"a": 1}),
        ("null", None),
    ],
)
def test_raw_document_of_any_id_is_shown(command: Command, jobs: Collection, written: str, document_id: object) -> None:
    jobs.insert_one({"_id": document_id, "name": 3, "nextRunAt": "tomorrow"})
    shown = command("show", "--raw", written)
    assert (shown.status, shown.json["nextRunAt"], shown.json["name"]) == (0, "tomorrow", 3)
    assert command("show", "--raw", "nothing").status == 1
