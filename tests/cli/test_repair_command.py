"""`trio-monque repair`: a document that is not a job becomes one, and nothing else is changed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson import Int64, ObjectId
from bson.raw_bson import RawBSONDocument

from tests.support.jobs_in_memory import flat
from tests.support.store import claim_due, handle, stamp
from trio_monque import Monque
from trio_monque.cli.jobs import repair_command
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import MonqueConnectionError
from trio_monque.jobs.job import Job
from trio_monque.store.broken.repairing import Repair, Trial, repair_if_unchanged, try_out
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import indexes

from .command_support import Command, command_of
from .doctor_support import now

PAST = datetime(2026, 1, 1, tzinfo=UTC)
JOB: dict[str, Any] = {
    "name": "greet",
    "data": {"n": 1},
    "status": "pending",
    "nextRunAt": PAST,
    "failCount": 0,
    "createdAt": PAST,
    "updatedAt": PAST,
    "note": Int64(3),  # Of another program.
}


@pytest.fixture
def command(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(mongod, db, capsys)


def put_broken(jobs: Collection, **fields: Any) -> ObjectId:
    """A document whose date is text, and with these fields."""
    broken_id = jobs.insert_one({**JOB, "nextRunAt": "tomorrow", **fields}).inserted_id
    assert isinstance(broken_id, ObjectId)
    return broken_id


def claimed(db: Database) -> Sequence[Job]:
    return claim_due(handle(db), {"greet": 5}, stamp("worker-1", now()), now() + timedelta(seconds=1))


def stored(jobs: Collection, document_id: object) -> dict[str, Any]:
    found = jobs.find_one({"_id": {"$eq": document_id}})
    assert found is not None
    return dict(found)


def test_repaired_document_is_a_job_that_is_claimed(command: Command, db: Database, jobs: Collection) -> None:
    job_id = put_broken(jobs)
    began = now()
    ended = command("repair", str(job_id), "--set", "nextRunAt=now", "--yes")
    assert (ended.status, ended.err) == (0, "")
    first, heading, change, last = ended.lines
    assert first == f"document {job_id} is not a job: its nextRunAt is 'tomorrow'"
    assert heading.split() == ["field", "before", "after"]
    assert change.startswith('nextRunAt  "tomorrow"  20')
    assert last == f"repaired greet {job_id}, due now; schedulers look at it again soon, at the latest in a minute"
    (job,) = claimed(db)
    assert (job.id, job.data) == (job_id, {"n": 1})
    assert began - timedelta(seconds=5) < job.next_run_at < now() + timedelta(seconds=5)
    assert jobs.count_documents({"note": {"$type": "long"}, "createdAt": PAST}) == 1


def test_only_the_given_fields_and_the_date_of_the_change_are_written(command: Command, jobs: Collection) -> None:
    job_id = put_broken(jobs, maxRetries="many", progress=[1, None])
    before = stored(jobs, job_id)
    assert command("repair", str(job_id), "--set", "nextRunAt=2h", "--unset", "maxRetries", "--yes").status == 0
    after = stored(jobs, job_id)
    assert after["updatedAt"] == after["nextRunAt"] - timedelta(hours=2)
    assert after == {
        **{field: value for field, value in before.items() if field != "maxRetries"},
        "nextRunAt": after["nextRunAt"],
        "updatedAt": after["updatedAt"],
    }
    other_id = put_broken(jobs)
    given = ("--set", "next_run_at=2031-01-31T12:00+01:00", "--set", "updatedAt=2031-01-01")
    assert command("repair", str(other_id), *given, "--yes").status == 0
    after = stored(jobs, other_id)
    assert f"{after['nextRunAt']:%F %T} {after['updatedAt']:%F %T}" == "2031-01-31 11:00:00 2031-01-01 00:00:00"


@pytest.mark.full
@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("data=17", 17),
        ('data={"$oid": "65f1c0ffee0123456789abcd"}', ObjectId("65f1c0ffee0123456789abcd")),
        ('data="$name"', "$name"),
        ("data=null", None),
        ("name=send=mail", "send=mail"),
        ("status=failed", "failed"),
        ("failCount=3", 3),
        ("max_attempts=5", 5),
        ("maxRescues=1e1", 10),
        ("timeout=0.5", 0.5),
        ("timeout=30", 30),
        ("heartbeatInterval=30000", 30000),
        ("repeatInterval=*/5 * * * *", "*/5 * * * *"),
        ("timezone=Europe/Berlin", "Europe/Berlin"),
        ("uniqueKey=17", "17"),
        ("failReason=", ""),
        ("onExhausted=fail", "fail"),
        ('meta={"tenant": "acme"}', {"tenant": "acme"}),
        ("follows=65f1c0ffee0123456789abcd", ObjectId("65f1c0ffee0123456789abcd")),
        ("errors=[]", []),
    ],
)
def test_value_has_the_type_of_its_field(command: Command, jobs: Collection, given: str, value: object) -> None:
    job_id = put_broken(jobs)
    ended = command("repair", str(job_id), "--set", "nextRunAt=now", "--set", given, "--yes", "--json")
    assert (ended.status, ended.err) == (0, "")
    (change,) = ended.json["changes"]
    (changed,) = change["after"].keys() - {"nextRunAt"}
    after = stored(jobs, job_id)[changed]
    assert (after, type(after)) == (value, type(value))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --set FIELD=VALUE or --unset FIELD: `trio-monque show --raw ID` has the fields"),
        (["--set", "nextRunAt"], "'nextRunAt' must be FIELD=VALUE, such as nextRunAt=now"),
        (["--set", "nextRun=now"], "a job has no field 'nextRun': did you mean nextRunAt?"),
        (["--unset", "zzz"], "a job has no field 'zzz': it has name, data, status, nextRunAt, "),
        (["--set", "_id=17"], "the _id of a document cannot be changed"),
        (["--unset", "id"], "the _id of a document cannot be changed"),
        (["--set", "nextRunAt=soon"], "give now, a length of time from now such as 2h, or a moment such as 2026-"),
        (["--set", "status=done"], "give one of pending, processing, completed, failed, cancelled"),
        (
            ["--set", "status=processing"],
            "only a claim puts a job into this status: give pending, and a scheduler runs it",
        ),
        (["--set", "failCount=2.5"], "give a whole number of at least 0"),
        (["--set", "attempts=-1"], "give a whole number of at least 0"),
        (["--set", "maxRetries=inf"], "give a whole number of at least 0"),
        (["--set", "timeout=5m"], "give a number, such as 30 or 0.5"),
        (["--set", "data={order"], "Invalid value for '--set': data='{order': is not JSON"),
        (["--set", "name=two words"], "must not contain whitespace"),
        (["--set", "name="], "must have 1 to"),
        (["--set", "uniqueKey= "], "not be blank"),
        (["--set", "repeatInterval=daily"], "Five fields are expected"),
        (
            ["--set", "timezone=Middle/Earth"],
            "timezone='Middle/Earth': this machine does not know this time zone: give an IANA name",
        ),
        (["--set", "onExhausted=stop"], "must be one of"),
        (["--set", "meta=[]"], "must be a mapping of strings to strings"),
        (["--set", "follows=17"], "give the 24 hexadecimal digits of an id"),
        (["--set", "nextRunAt=now", "--unset", "next_run_at"], "give each field once, to --set or to --unset"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_field_or_value_is_an_error_that_says_what_to_give(
    command: Command, jobs: Collection, arguments: list[str], said: str
) -> None:
    job_id = put_broken(jobs)
    before = stored(jobs, job_id)
    ended = command("repair", str(job_id), *arguments, "--yes")
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.splitlines()[0] == "Usage: trio-monque repair [OPTIONS] ID..."
    assert said in ended.err
    assert stored(jobs, job_id) == before


def refusal_of(command: Command, jobs: Collection, document_id: object, *arguments: str, given: str = "") -> str:
    """Why this repair is refused. The document stays as it is, and JSON has the same reason."""
    before = stored(jobs, document_id)
    ended = command("repair", given or str(document_id), *arguments, "--yes")
    assert (ended.status, ended.out) == (1, "")
    as_json = command("repair", given or str(document_id), *arguments, "--yes", "--json")
    assert (as_json.status, as_json.json["count"], as_json.json["jobs"], as_json.json["changes"]) == (1, 0, [], [])
    (refused,) = as_json.json["errors"]
    assert refused["id"] == (given or str(document_id))
    assert ended.err == f"trio-monque: cannot repair document {refused['id']}: {refused['reason']}\n"
    assert stored(jobs, document_id) == before
    return str(refused["reason"])


def test_document_that_is_a_job_is_refused_whatever_its_status(
    command: Command, db: Database, jobs: Collection
) -> None:
    jobs.insert_one({**JOB})
    (running,) = claimed(db)
    jobs.insert_many([{**JOB, "_id": ObjectId(), "status": status} for status in ("pending", "completed", "failed")])
    for document in list(jobs.find()):
        reason = refusal_of(command, jobs, document["_id"], "--set", "nextRunAt=now")
        assert reason.startswith("it is a job. `trio-monque reschedule`, `cancel`, ")
    assert stored(jobs, running.id)["status"] == "processing"


def test_document_that_would_still_not_be_a_job_is_refused_with_the_problem(command: Command, jobs: Collection) -> None:
    begun = "with this change it would still not be a job: "
    job_id = put_broken(jobs, failCount=None)
    assert refusal_of(command, jobs, job_id, "--set", "nextRunAt=now") == (
        f"{begun}its failCount is null, to which nothing can be added"
    )
    reason = refusal_of(command, jobs, job_id, "--set", "failCount=0", "--unset", "nextRunAt")
    assert reason == f"{begun}it has no nextRunAt"
    left_over = put_broken(jobs, claimedBy="worker-1")
    assert "still has claimedBy='worker-1'" in refusal_of(command, jobs, left_over, "--set", "nextRunAt=now")
    zero = jobs.insert_one({**JOB, "timeout": "never"}).inserted_id
    assert refusal_of(command, jobs, zero, "--set", "timeout=0") == f"{begun}its timeout is 0"
    jobs.insert_one({**JOB, "_id": "order-17"})
    assert refusal_of(command, jobs, "order-17", "--set", "nextRunAt=now") == (
        f"{begun}its _id is 'order-17'; the _id cannot be changed: enqueue the job again"
    )
    twice = RawBSONDocument(
        bson.encode({**JOB, "_id": ObjectId(), "nextRunBy": PAST}).replace(b"nextRunBy", b"nextRunAt")
    )
    jobs.insert_one(twice)
    assert "two fields called nextRunAt" in refusal_of(command, jobs, twice["_id"], "--set", "failCount=0")


def test_job_that_has_an_owner_although_it_is_pending_is_repaired(
    command: Command, db: Database, jobs: Collection
) -> None:
    job_id = jobs.insert_one({**JOB, "claimedBy": "worker-1"}).inserted_id
    ended = command("repair", str(job_id), "--unset", "claimedBy", "--yes")
    assert ended.status == 0
    assert ended.lines[2].split() == ["claimedBy", '"worker-1"', "(none)"]
    assert [job.id for job in claimed(db)] == [job_id]


def test_text_that_is_not_utf_8_is_repaired_and_text_beside_it_stays(command: Command, jobs: Collection) -> None:
    whole = bson.encode({**JOB, "_id": ObjectId(), "failReason": "why-xx", "other": "why-xx"})
    jobs.insert_one(RawBSONDocument(whole.replace(b"why-xx", b"why-\xff\xfe", 1)))
    job_id = bson.decode(whole)["_id"]
    assert "cannot be decoded" in refusal_of_raw(command, job_id, "--set", "nextRunAt=now")
    ended = command("repair", str(job_id), "--set", "failReason=why", "--yes")
    assert (ended.status, ended.err) == (0, "")
    after = stored(jobs, job_id)
    assert (after["failReason"], after["other"]) == ("why", "why-xx")


def refusal_of_raw(command: Command, job_id: ObjectId, *arguments: str) -> str:
    ended = command("repair", str(job_id), *arguments, "--yes")
    assert ended.status == 1
    return ended.err


def test_document_in_processing_stays_in_it(command: Command, db: Database, jobs: Collection) -> None:
    job_id = jobs.insert_one({**JOB}).inserted_id
    (job,) = claimed(db)
    jobs.update_one({"_id": job_id}, {"$set": {"nextRunAt": "tomorrow"}})
    for change in (("--set", "status=pending"), ("--unset", "status")):
        reason = refusal_of(command, jobs, job_id, "--set", "nextRunAt=now", *change)
        assert reason.startswith("it is in `processing`, so its run may still be active: keep its status. ")
    ended = command("repair", str(job_id), "--set", "nextRunAt=now", "--yes")
    assert ended.lines[-1].startswith(f"repaired greet {job_id}, processing; ")
    after = stored(jobs, job_id)
    assert (after["claimedBy"], after["claimToken"]) == ("worker-1", flat(job).claim_token)


@pytest.mark.parametrize(
    "change",
    [
        {"$set": {"nextRunAt": PAST}},  # Repaired by another program.
        {"$set": {"status": "processing", "claimedBy": "worker-1"}},
        {"$set": {"note": 3.0001}},
        {"$set": {"more": None}},
        {"$unset": {"failCount": ""}},
        {"$set": {"nextRunAt": ["tomorrow"]}},
    ],
    ids=str,
)
def test_document_that_changed_since_it_was_shown_is_not_written(
    command: Command, db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    job_id = put_broken(jobs)

    def agree_late(_question: str, *, yes: bool) -> None:
        jobs.update_one({"_id": job_id}, change)

    monkeypatch.setattr(repair_command, "confirm", agree_late)
    ended = command("repair", str(job_id), "--set", "nextRunAt=2h", "--set", "name=other")
    assert (ended.status, ended.err) == (
        1,
        f"trio-monque: cannot repair document {job_id}: it has changed in the meantime; look at it again\n",
    )
    assert stored(jobs, job_id)["name"] == "greet"


@pytest.mark.full
def test_large_value_is_not_compared_unless_it_is_repaired(db: Database, jobs: Collection) -> None:
    job_id = put_broken(jobs, data="x" * (15 << 20))
    trial = try_out(handle(db), job_id, Repair({"nextRunAt": PAST}, ()))
    assert trial is not None
    assert len(bson.encode(trial.unchanged)) < 5_000
    jobs.update_one({"_id": job_id}, {"$set": {"data": "y"}})
    assert repair_if_unchanged(handle(db), trial)
    assert stored(jobs, job_id)["data"] == "y"
    other = try_out(handle(db), put_broken(jobs), Repair({"nextRunAt": PAST, "data": 2}, ()))
    jobs.update_many({}, {"$set": {"data": "z"}})
    assert other is not None
    assert not repair_if_unchanged(handle(db), other)
    assert try_out(handle(db), ObjectId(), Repair({"nextRunAt": PAST}, ())) is None


def test_key_of_another_job_refuses_the_repair(command: Command, db: Database, jobs: Collection) -> None:
    indexes.ensure(handle(db))
    Monque(db).sync.enqueue("greet", unique_key="k")
    job_id = put_broken(jobs)
    given = ("--set", "nextRunAt=now", "--set", "uniqueKey=k", "--yes", "--json")
    ended = command("repair", str(job_id), *given)
    (refused,) = ended.json["errors"]
    assert (ended.status, refused["reason"]) == (1, "another pending or processing job has its unique key")
    assert "uniqueKey" not in stored(jobs, job_id)


def test_nothing_is_written_without_a_yes(command: Command, jobs: Collection) -> None:
    job_id = put_broken(jobs)
    before = stored(jobs, job_id)
    asked = command("repair", str(job_id), "--set", "nextRunAt=now")
    assert asked.status == 2
    assert "without a terminal, give --yes to confirm, or --dry-run to see what would change" in asked.err
    dry = command("repair", str(job_id), "--set", "nextRunAt=now", "--dry-run")
    assert (dry.status, dry.err) == (0, "")
    assert dry.lines[-1] == f"would be the job greet {job_id}, due now"
    found = command("repair", str(job_id), "--set", "nextRunAt=now", "--dry-run", "--json").json
    assert (found["dry_run"], found["count"]) == (True, 1)
    assert stored(jobs, job_id) == before


def test_documents_are_shown_together_and_repaired_after_one_question(
    command: Command, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [put_broken(jobs), put_broken(jobs, nextRunAt=17)]
    questions = []

    def agree(question: str, *, yes: bool) -> None:
        questions.append(question)
        assert [stored(jobs, one)["nextRunAt"] for one in ids] == ["tomorrow", 17]

    monkeypatch.setattr(repair_command, "confirm", agree)
    ended = command("repair", *map(str, ids), str(ids[0]), "--set", "nextRunAt=2h")
    assert (ended.status, ended.err, questions) == (0, "", ["repair these 2 documents?"])
    assert [line.partition("  ")[0] for line in ended.lines[:7]] == [
        f"document {ids[0]} is not a job: its nextRunAt is 'tomorrow'",
        "field",
        "nextRunAt",
        "",
        f"document {ids[1]} is not a job: its nextRunAt is 17",
        "field",
        "nextRunAt",
    ]
    assert [line.partition(",")[0] for line in ended.lines[7:]] == [f"repaired greet {one}" for one in ids]
    assert jobs.count_documents({"nextRunAt": {"$type": "date"}}) == 2


def test_refused_document_does_not_stop_the_others(
    command: Command, db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy, changing, broken = jobs.insert_one({**JOB}).inserted_id, put_broken(jobs), put_broken(jobs)

    def agree_late(question: str, *, yes: bool) -> None:
        assert question == "repair these 2 documents?"
        jobs.update_one({"_id": changing}, {"$set": {"note": 4}})

    monkeypatch.setattr(repair_command, "confirm", agree_late)
    given = ("order-17", "order-17", str(healthy), str(changing), str(broken), "--set", "nextRunAt=now", "--json")
    ended = command("repair", *given)
    found = ended.json
    reasons = {one["id"]: one["reason"].partition(".")[0] for one in found["errors"]}
    assert (ended.status, reasons) == (
        1,
        {
            "order-17": f"{db.name}",
            str(healthy): "it is a job",
            str(changing): "it has changed in the meantime; look at it again",
        },
    )
    assert len(ended.err.splitlines()) == 3
    assert (found["count"], [one["id"] for one in found["jobs"]]) == (1, [str(broken)])
    assert [one["id"] for one in found["changes"]] == [str(broken)]
    assert stored(jobs, changing)["nextRunAt"] == "tomorrow"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MonqueConnectionError("the database does not answer")], ids=str)
def test_repair_that_ends_early_prints_what_was_done(
    command: Command, jobs: Collection, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    ids = [put_broken(jobs) for _ in range(3)]

    def repair_two(store: JobCollection, trial: Trial) -> bool:
        if trial.before["_id"] == ids[1]:
            raise error
        return repair_if_unchanged(store, trial)

    monkeypatch.setattr(repair_command, "repair_if_unchanged", repair_two)
    ended = command("repair", *map(str, ids), "--set", "nextRunAt=now", "--yes")
    assert ended.lines[-1].startswith(f"repaired greet {ids[0]}, ")
    if isinstance(error, KeyboardInterrupt):
        assert (ended.status, ended.err) == (130, f"interrupted at {ids[1]}, which may be done too\n")
    else:
        assert ended.status == 2
        assert "the database does not answer" in ended.err
    assert [stored(jobs, one)["nextRunAt"] == "tomorrow" for one in ids] == [False, True, True]


def test_json_has_the_problem_the_values_and_the_job(command: Command, db: Database, jobs: Collection) -> None:
    job_id = put_broken(jobs)
    given = ("--set", "nextRunAt=2031-01-31", "--set", "maxRetries=3")
    found = command("repair", str(job_id), *given, "--yes", "--json").json
    (job,) = found.pop("jobs")
    assert (job["id"], job["next_run_at"], job["max_attempts"]) == (str(job_id), "2031-01-31T00:00:00.000Z", 3)
    assert found == {
        "action": "repair",
        "collection": f"{db.name}.monque_jobs",
        "dry_run": False,
        "count": 1,
        "changes": [
            {
                "id": str(job_id),
                "problem": "its nextRunAt is 'tomorrow'",
                "before": {"nextRunAt": "tomorrow"},
                "after": {"nextRunAt": {"$date": "2031-01-31T00:00:00Z"}, "maxRetries": 3},
            }
        ],
        "errors": [],
    }


def test_document_is_found_by_any_spelling_of_its_id(command: Command, db: Database, jobs: Collection) -> None:
    missing = command("repair", "order-17", "--set", "nextRunAt=now", "--yes")
    assert (missing.status, missing.err) == (
        1,
        f"trio-monque: cannot repair document order-17: {db.name}.monque_jobs has no document with this id\n",
    )
    job_id = put_broken(jobs)
    jobs.insert_one({**JOB, "_id": str(job_id)})
    both = refusal_of(command, jobs, job_id, "--set", "nextRunAt=now")
    spelled = f'{{"$oid": "{job_id}"}}'
    assert both == f"""documents have this id in several types: give '"{job_id}"' or '{spelled}'"""
    assert command("repair", spelled, "--set", "nextRunAt=now", "--yes").status == 0
    assert "its _id is" in refusal_of(command, jobs, str(job_id), "--set", "nextRunAt=now", given=f'"{job_id}"')


def test_log_and_doctor_name_the_command_first(
    command: Command, db: Database, jobs: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    indexes.ensure(handle(db))
    job_id = put_broken(jobs)
    store = handle(db)
    store.sorted_out(lambda collection: collection.find())
    (line,) = caplog.messages
    assert line == (
        f"document {job_id} is not a job: its nextRunAt is 'tomorrow'. Repair it (`trio-monque repair ID --set "
        "FIELD=VALUE`) or delete it; it is skipped until then"
    )
    (finding,) = [one for one in command("doctor", "--json").json["findings"] if one["kind"] == "broken-document"]
    assert finding["advice"].startswith("`trio-monque repair ID --set FIELD=VALUE` sets a field")
