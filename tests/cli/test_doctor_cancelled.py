"""The doctor names jobs that were cancelled and may be missed: schedules, and jobs that were not started in time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tests.support.node_peer import NodePeer
from tests.support.programs import uri_of_database
from tests.support.store import handle
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs.job import Job
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs import indexes
from trio_monque.store.jobs.unstarted_writes import end, look
from trio_monque.store.reads.diagnosis import cancelled_jobs, changed_schedules

from .doctor_support import Doctor, enter, now


@pytest.fixture
def doctor(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Doctor:
    indexes.ensure(handle(db))
    enter(db, "worker-1", "report", "mail", "other")
    return Doctor(uri_of_database(mongod.uri, db.name), capsys)


def declare(db: Database, name: str, key: str) -> Job:
    return Monque(db).sync.schedule("0 9 * * *", name, unique_key=key)


# --- Schedules ---


def test_cancelled_schedule_is_noted_until_a_retry(doctor: Doctor, db: Database) -> None:
    declare(db, "other", "yearly")
    daily = declare(db, "report", "daily")
    assert doctor.looks().findings == []
    Monque(db).sync.cancel_job(daily.id)
    found = doctor.looks()
    assert found.kinds == ["ended-schedule"]
    assert found.status == 0
    (sentence,) = found.sentences("ended-schedule")
    assert re.fullmatch(
        r"Cancelled schedules named 'report', which no longer recur: 1; the last one "
        rf"\(job {daily.id}, with the key 'daily'\) was cancelled at 20..-..-.. ..:..:..Z\.",
        sentence,
    )
    assert found.findings[0]["advice"].startswith(
        f"To run it now, and then on its schedule: `trio-monque retry {daily.id}`."
    )
    assert doctor.looks("report").kinds == ["ended-schedule"]
    assert doctor.looks("other").kinds == []
    again = Monque(db).sync.retry_job(daily.id)
    assert again is not None
    assert again.schedule is not None
    assert again.next_run_at <= now() + timedelta(seconds=1)
    assert doctor.looks().findings == []


def test_schedule_that_was_declared_again_is_not_missed(doctor: Doctor, db: Database) -> None:
    for _ in range(2):
        Monque(db).sync.cancel_job(declare(db, "report", "daily").id)
    (one,) = doctor.looks().findings
    assert one["fields"]["count"] == 1
    again = declare(db, "report", "daily")
    # Its next run may be before that of the cancelled one.
    db["monque_jobs"].update_one({"_id": again.id}, {"$set": {"nextRunAt": now()}})
    assert doctor.looks().findings == []


def test_cancelled_schedules_of_a_name_are_one_finding_with_the_last_one(doctor: Doctor, db: Database) -> None:
    last = [declare(db, "report", key) for key in ("a", "b", "c")][1]
    for job in Monque(db).sync.get_jobs():
        Monque(db).sync.cancel_job(job.id)
    db["monque_jobs"].update_one({"_id": last.id}, {"$set": {"updatedAt": now() + timedelta(seconds=9)}})
    db["monque_jobs"].update_one({"_id": last.id}, {"$unset": {"uniqueKey": True}})
    (one,) = doctor.looks().findings
    assert one["fields"]["count"] == 3
    assert f"3; the last one (job {last.id}) was cancelled at" in one["sentence"]


def test_more_schedules_than_are_read_leave_it_unknown_which_were_declared_again(
    doctor: Doctor, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    Monque(db).sync.cancel_job(declare(db, "report", "daily").id)
    declare(db, "report", "hourly")
    monkeypatch.setattr(cancelled_jobs, "MOST_READ", 2)
    assert doctor.looks().kinds == ["ended-schedule"]
    monkeypatch.setattr(changed_schedules, "MOST_READ", 1)
    assert doctor.looks().findings == []


def test_document_of_another_program_is_not_a_schedule(doctor: Doctor, db: Database) -> None:
    job = declare(db, "report", "daily")
    Monque(db).sync.cancel_job(job.id)
    document = db["monque_jobs"].find_one({"_id": job.id}) or {}
    wrong: list[dict[str, Any]] = [
        {"name": 3},
        {"uniqueKey": 3},
        {"updatedAt": None},
        {"repeatInterval": None},
        {"status": "done"},
    ]
    db["monque_jobs"].insert_one({**document, "uniqueKey": "x", "_id": "not an id"})
    for number, fields in enumerate(wrong):
        db["monque_jobs"].insert_one({**document, "uniqueKey": "x", **fields, "_id": f"not an id {number}"})
        db["monque_jobs"].insert_one({k: v for k, v in {**document, **fields}.items() if k != "_id"})
    found = [one["fields"] for one in doctor.looks().findings if one["kind"] == "ended-schedule"]
    assert [(one["count"], one["job"]) for one in found] == [(1, str(job.id))]


# --- Jobs that were not started in time ---


def not_started(db: Database, name: str, number: int) -> Sequence[Job]:
    for _ in range(number):
        Monque(db).sync.enqueue(name, start_by=now() + timedelta(hours=1))
    jobs = handle(db)
    return end(jobs, look(jobs), now(), "a receipt")


def test_jobs_that_were_not_started_in_time_are_counted_by_name(doctor: Doctor, db: Database) -> None:
    mails = not_started(db, "mail", 3)
    not_started(db, "report", 1)
    old, recent = not_started(db, "other", 2)
    Monque(db).sync.cancel_job(Monque(db).sync.enqueue("other", start_by=now() + timedelta(hours=1)).id)
    db["monque_jobs"].update_one({"_id": old.id}, {"$set": {"updatedAt": now() - timedelta(days=2)}})
    found = doctor.looks()
    assert found.kinds == ["not-started-in-time"] * 3
    assert found.status == 1
    named = {one["fields"]["name"]: one["fields"] for one in found.findings}
    assert {name: fields["count"] for name, fields in named.items()} == {"mail": 3, "other": 1, "report": 1}
    assert named["mail"]["job"] in {str(job.id) for job in mails}
    assert re.fullmatch(
        "Jobs named 'other' that were cancelled in the last day because no run began before their `start_by`: 1, the "
        rf"last one [0-9.]+s ago \(for example job {recent.id}\)\.",
        found.sentences("not-started-in-time")[1],
    )
    (one,) = doctor.looks("other").findings
    assert (one["fields"]["name"], one["fields"]["count"]) == ("other", 1)


def test_question_about_unstarted_jobs_is_not_asked_where_no_client_enqueues_any(doctor: Doctor, db: Database) -> None:
    not_started(db, "mail", 1)
    db["monque_jobs"].drop_index(indexes.name_of(indexes.START_BY))
    assert doctor.looks().findings == []


def test_what_keeps_them_from_starting_now_is_named_beside_them(doctor: Doctor, db: Database) -> None:
    for name in ("mail", "other", "unknown"):
        not_started(db, name, 1)
    for name in ("mail", "unknown"):
        Monque(db).sync.pause(name)
    paused, unserved = " The name is paused now.", " No live instance runs the name now."
    assert obstacles(doctor) == {"mail": paused, "other": "", "unknown": paused}
    Monque(db).sync.resume("unknown")
    assert obstacles(doctor) == {"mail": paused, "other": "", "unknown": unserved}
    # A process of Monque for Node has no entry, and may run any name.
    peer = NodePeer(db["monque_jobs"])
    peer.enqueue("report")
    peer.claim("report")
    assert obstacles(doctor) == {"mail": paused, "other": "", "unknown": ""}


def obstacles(doctor: Doctor) -> dict[str, str]:
    found = [one["fields"] for one in doctor.looks().findings if one["kind"] == "not-started-in-time"]
    return {one["name"]: one["obstacle"] for one in found}
