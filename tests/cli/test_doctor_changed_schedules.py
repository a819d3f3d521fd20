"""The doctor notes schedules that a declaration has changed, and jobs that were put off and hold a unique key."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from bson import Code, DatetimeMS

from tests.support.programs import uri_of_database
from tests.support.store import handle
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs.job import Job
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs import indexes

from .doctor_support import Doctor, enter, now


@pytest.fixture
def doctor(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Doctor:
    indexes.ensure(handle(db))
    enter(db, "worker-1", "report", "mail", "other")
    return Doctor(uri_of_database(mongod.uri, db.name), capsys)


# --- Changed schedules ---


def declare(db: Database, cron: str, key: str = "daily", **options: Any) -> Job:
    return Monque(db).sync.schedule(cron, "report", unique_key=key, on_conflict="update", **options)


def test_schedule_that_a_declaration_has_changed_is_noted_for_a_day(doctor: Doctor, db: Database) -> None:
    declare(db, "0 9 * * *")
    assert doctor.looks().findings == []
    changed = declare(db, "0 9 * * 5", timezone="Europe/Berlin")
    found = doctor.looks()
    assert (found.kinds, found.status) == (["changed-schedule"], 0)
    (sentence,) = found.sentences("changed-schedule")
    assert re.fullmatch(
        r"Schedules named 'report' whose times a declaration has changed in the last day, without a new version: 1; "
        rf"the last one \(job {changed.id}, with the key 'daily'\) at 20..-..-.. ..:..:..Z by process \d+ on .+, from "
        r"0 9 \* \* \* \(UTC\) to 0 9 \* \* 5 \(Europe/Berlin\)\.",
        sentence,
    )
    assert f"reschedule {changed.id} now" in found.findings[0]["advice"]
    assert doctor.looks("report").kinds == ["changed-schedule"]
    assert doctor.looks("other").kinds == []
    db["monque_jobs"].update_one({}, {"$set": {"scheduleChangedAt": now() - timedelta(days=1, minutes=1)}})
    assert doctor.looks().findings == []


def test_change_that_a_version_has_decided_is_not_noted(doctor: Doctor, db: Database) -> None:
    declare(db, "0 9 * * *", version=1)
    declare(db, "0 9 * * 5", version=2)
    assert doctor.looks().findings == []
    declare(db, "0 9 * * 1", version=2)  # Of one version, the last declaration holds.
    assert doctor.looks().kinds == ["changed-schedule"]
    declare(db, "0 9 * * 1", version=3)  # The same times, which a version decides now.
    assert doctor.looks().findings == []


def test_changed_schedule_that_was_cancelled_since_is_noted_as_cancelled_alone(doctor: Doctor, db: Database) -> None:
    declare(db, "0 9 * * *")
    Monque(db).sync.cancel_job(declare(db, "0 9 * * 5").id)
    assert doctor.looks().kinds == ["ended-schedule"]


def test_changed_schedules_of_a_name_are_one_finding_with_the_last_one(doctor: Doctor, db: Database) -> None:
    for key in ("a", "b", "c"):
        declare(db, "0 9 * * *", key)
    changed = {key: declare(db, "0 9 * * 5", key) for key in ("c", "a", "b")}
    db["monque_jobs"].update_one({"uniqueKey": "b"}, {"$set": {"scheduleChangedAt": now() + timedelta(seconds=1)}})
    (one,) = doctor.looks().findings
    assert (one["fields"]["count"], one["fields"]["schedule"]) == (3, f"job {changed['b'].id}, with the key 'b'")


def test_text_of_another_program_cannot_forge_a_line(doctor: Doctor, db: Database) -> None:
    declare(db, "0 9 * * *")
    declare(db, "0 9 * * 5")
    forged = "x\x1b[31m\nproblem: " + "y" * 5000
    db["monque_jobs"].update_one({}, {"$set": {"scheduleChangedFrom": forged, "scheduleChangedBy": forged}})
    (sentence,) = doctor.looks().sentences("changed-schedule")
    assert sentence.isprintable()
    assert len(sentence) < 3000


@pytest.mark.parametrize("fields", [{"scheduleChangedAt": "today"}, {"scheduleChangedFrom": 7}])
def test_change_that_another_program_has_written_is_left_out(
    doctor: Doctor, db: Database, fields: dict[str, Any]
) -> None:
    declare(db, "0 9 * * *")
    declare(db, "0 9 * * 5")
    db["monque_jobs"].update_one({}, {"$set": fields})
    assert doctor.looks().kinds == []  # And it is a job all the same.


# --- Jobs that were put off ---


def put_off(db: Database, key: str | None = "k", days: int = 60, **fields: Any) -> Job:
    job = Monque(db).sync.enqueue("mail", unique_key=key)
    due = now() + timedelta(days=days)
    db["monque_jobs"].update_one({"_id": job.id}, {"$set": {"nextRunAt": due, "attempts": 1, **fields}})
    return job


def test_job_that_was_put_off_and_holds_a_key_is_noted(doctor: Doctor, db: Database) -> None:
    put_off(db, "near", days=20)
    far = put_off(db, "far")
    found = doctor.looks()
    assert (found.kinds, found.status) == (["put-off-key"], 0)
    (sentence,) = found.sentences("put-off-key")
    assert sentence.startswith(
        "Jobs named 'mail' with a unique key that have run, and are due again in more than a week: 2, for example job "
        f"{far.id} (key 'far'), due at 20"
    )
    assert f"`trio-monque reschedule {far.id} now`" in found.findings[0]["advice"]
    assert doctor.looks("mail").kinds == ["put-off-key"]
    assert doctor.looks("report").kinds == []


def test_dates_beyond_those_of_python_do_not_end_the_doctor(doctor: Doctor, db: Database) -> None:
    far = DatetimeMS(300_000_000_000_000)
    put_off(db, "near", days=20)
    put_off(db, "never", nextRunAt=far)
    put_off(db, "odd", updatedAt=far, failCount=float("nan"))
    declare(db, "0 9 * * *", "zone")
    db["monque_jobs"].update_one({"uniqueKey": "zone"}, {"$set": {"timezone": Code("UTC")}})
    found = doctor.looks()
    (fields,) = (one["fields"] for one in found.findings if one["kind"] == "put-off-key")
    assert (fields["count"], "bad-schedule" in found.kinds) == (2, True)
    db["monque_jobs"].delete_many({"uniqueKey": {"$ne": "never"}})
    assert doctor.looks().kinds == ["broken-document"]


OTHERS: dict[str, dict[str, Any]] = {
    "it is due within a week": {"days": 6},
    "it has not run: the caller wanted the date": {"attempts": 0},
    "it has no key": {"key": None},
    "it is a schedule": {"repeatInterval": "0 0 1 1 *"},
}


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS)
def test_job_that_is_as_its_caller_wants_it_is_not_noted(doctor: Doctor, db: Database, fields: dict[str, Any]) -> None:
    put_off(db, **fields)
    assert doctor.looks().findings == []
