"""Why due jobs of a name wait: long runs hold its slots, or slots are free and they do not start, or they are many."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from tests.support.programs import uri_of_database
from tests.support.store import claim_due, handle, insert, stamp
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs.job import Job
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs import indexes
from trio_monque.store.reads.diagnosis import backlog, held_jobs

from .doctor_support import Doctor, Report, enter, now

REASONS = {"backlog", "long-runs", "not-starting", "slots-taken"}


@pytest.fixture
def doctor(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Doctor:
    indexes.ensure(handle(db))
    return Doctor(uri_of_database(mongod.uri, db.name), capsys)


def run(db: Database, name: str = "export", *, by: str = "worker-1", ago: float = 300.0) -> Job:
    """Insert a job, and claim it that long ago; its last renewal is of now."""
    insert(handle(db), name)
    claimed = now() - timedelta(seconds=ago)
    (job,) = claim_due(handle(db), {name: 1}, stamp(by, claimed), claimed)
    moment = now()
    db["monque_jobs"].update_one({"_id": job.id}, {"$set": {"updatedAt": moment, "lastHeartbeat": moment}})
    return job


def wait(db: Database, name: str = "export") -> None:
    """Insert a job that is due for a long time. After those that are claimed: a claim takes the first that is due."""
    insert(handle(db), name)


def reasons(found: Report) -> list[str]:
    return [one for one in found.kinds if one in REASONS]


def test_run_that_does_not_end_and_holds_the_only_slot_is_named(doctor: Doctor, db: Database) -> None:
    hangs = run(db)
    wait(db)
    enter(db, "worker-1", "export", slots=1, held=1, held_by_name={"export": 1})
    found = doctor.looks()
    assert reasons(found) == ["long-runs"]
    (sentence,) = found.sentences("long-runs")
    assert re.fullmatch(
        r"Due jobs named 'export': 1; the oldest has waited \w+ \w+\. All running jobs of this name \(1\) were claimed "
        rf"more than a minute ago; job {hangs.id} has run longest, for 5m( \d+s)?, since 20..-..-.. ..:..:..Z\.",
        sentence,
    )
    (advice,) = [one["advice"] for one in found.findings if one["kind"] == "long-runs"]
    at = [advice.index(text) for text in (f"show {hangs.id}", f"cancel {hangs.id}", "start more worker")]
    assert at == sorted(at)


def test_longest_of_several_runs_of_live_instances_is_named(doctor: Doctor, db: Database) -> None:
    run(db, ago=90)
    longest = run(db, by="worker-2", ago=900)
    run(db, ago=200)
    run(db, by="gone", ago=5000)
    wait(db)
    for instance, held in (("worker-1", 2), ("worker-2", 1)):
        enter(db, instance, "export", slots=held, held=held, held_by_name={"export": held})
    (found,) = (one["fields"] for one in doctor.looks().findings if one["kind"] == "long-runs")
    assert (found["job"], found["running"]) == (str(longest.id), 3)


def test_run_that_began_a_moment_ago_shows_that_jobs_start(doctor: Doctor, db: Database) -> None:
    run(db)
    run(db, ago=10)
    wait(db)
    enter(db, "worker-1", "export", slots=2, held=2, held_by_name={"export": 2})
    assert reasons(doctor.looks()) == ["backlog"]


def test_more_running_jobs_than_are_looked_at_show_nothing(
    doctor: Doctor, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(db)
    wait(db)
    enter(db, "worker-1", "export", slots=1, held=1, held_by_name={"export": 1})
    monkeypatch.setattr(held_jobs, "MOST_CLAIMS", 1)
    assert reasons(doctor.looks()) == ["backlog"]


FREE: dict[str, dict[str, Any]] = {
    "the instance holds nothing": {},
    "it holds jobs of another name": {"held": 1, "held_by_name": {"report": 1}},
    "what it holds waits for children": {"held": 2, "parked": 1, "held_by_name": {"report": 2}},
}


@pytest.mark.parametrize("entry", FREE.values(), ids=FREE)
def test_free_slots_beside_due_jobs_are_named_with_the_log(doctor: Doctor, db: Database, entry: dict[str, Any]) -> None:
    wait(db)
    enter(db, "worker-1", "export", "report", slots=2, **entry)
    found = doctor.looks()
    assert reasons(found) == ["not-starting"]
    (sentence,) = found.sentences("not-starting")
    assert sentence.endswith(". Slots are free in worker-1, but these jobs do not start.")
    (advice,) = [one["advice"] for one in found.findings if one["kind"] == "not-starting"]
    assert advice.startswith('Look in the log of worker-1 for "skipped job"')


@pytest.mark.parametrize(("names", "expected"), [(["export"], "not-starting"), (["export", "report"], "long-runs")])
def test_slot_beside_a_long_run_is_known_to_be_free_if_the_instance_has_no_other_name(
    doctor: Doctor, db: Database, names: list[str], expected: str
) -> None:
    run(db)
    wait(db)
    enter(db, "worker-1", *names, slots=2, held=1, held_by_name={"export": 1})
    assert reasons(doctor.looks()) == [expected]


BY_OTHERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "by runs": ({"held": 2, "held_by_name": {"report": 2}}, ["report"]),
    "by threads that go on": ({"overdue_by_name": {"report": 2}}, ["report"]),
    "by a thread, a run and a parent that waits": (
        {"held": 2, "parked": 1, "held_by_name": {"report": 1, "order": 1}, "overdue_by_name": {"mail": 1}},
        ["mail"],
    ),
    "by fewer runs than parents that wait": (
        {"held": 12, "parked": 10, "held_by_name": {"order": 10, "charge": 2}},
        [],
    ),
    "by many": (
        {"held": 9, "held_by_name": {"a": 4, "b": 2, "c": 2, "d": 1}, "overdue_by_name": {"d": 3}},
        ["a", "d", "b"],
    ),
}


@pytest.mark.parametrize(("entry", "expected"), BY_OTHERS.values(), ids=BY_OTHERS)
def test_names_whose_jobs_hold_all_slots_are_named(
    doctor: Doctor, db: Database, entry: dict[str, Any], expected: list[str]
) -> None:
    """More concurrency for the name itself would change nothing."""
    wait(db)
    enter(db, "worker-1", "export", "report", slots=2, **entry)
    enter(db, "worker-2", "report", slots=2)  # It does not run the name.
    found = doctor.looks()
    assert reasons(found) == ["slots-taken"]
    (fields,) = (one["fields"] for one in found.findings if one["kind"] == "slots-taken")
    assert fields["names"] == expected
    (sentence,) = found.sentences("slots-taken")
    named = f" ({', '.join(map(repr, expected))})" if expected else ""
    assert sentence.endswith(f"jobs of other names{named} hold all slots of the instances that run it.")


def test_all_names_that_wait_for_the_same_slots_are_one_finding(doctor: Doctor, db: Database) -> None:
    for name, ago in (("export", 600), ("import", 900), ("mail", 5), ("paused", 5), ("elsewhere", 600)):
        job = insert(handle(db), name)
        db["monque_jobs"].update_one({"_id": job.id}, {"$set": {"nextRunAt": now() - timedelta(seconds=ago)}})
    Monque(db).sync.pause("paused")
    names = ("export", "import", "mail", "paused", "report")
    enter(db, "worker-1", *names, slots=2, held=2, held_by_name={"report": 2})
    enter(db, "worker-2", "elsewhere", "zip", slots=1, held=1, held_by_name={"zip": 1})
    found = doctor.looks()
    taken = {one["fields"]["name"]: one["fields"]["also"] for one in found.findings if one["kind"] == "slots-taken"}
    assert taken == {"import": ["export", "mail"], "elsewhere": []}
    (sentence,) = (one for one in found.sentences("slots-taken") if "'import'" in one)
    assert sentence.endswith("instances that run it. Also waiting: 'export', 'mail'.")


def test_free_slot_of_one_of_two_instances_leaves_it_at_not_starting(doctor: Doctor, db: Database) -> None:
    wait(db)
    enter(db, "worker-1", "export", "report", slots=2, held=2, held_by_name={"report": 2})
    enter(db, "worker-2", "export", "report", slots=2)
    assert reasons(doctor.looks()) == ["not-starting"]


TAKEN: dict[str, dict[str, Any]] = {
    "one is held by a thread that goes on": {"overdue_by_name": {"export": 1}},
    "it ran jobs of the name at the last heartbeat": {"held": 1, "held_by_name": {"export": 1}},
    "it is draining": {"draining": True},
    "an older release wrote the entry": {"slots": None},
    "it has only just started": {"started_ago": 20.0},
}


@pytest.mark.full
@pytest.mark.parametrize("entry", TAKEN.values(), ids=TAKEN)
def test_slot_that_is_not_known_to_be_free_leaves_it_at_a_backlog(
    doctor: Doctor, db: Database, entry: dict[str, Any]
) -> None:
    wait(db)
    enter(db, "worker-1", "export", "report", **{"slots": 2, **entry})
    assert reasons(doctor.looks()) == ["backlog"]


def test_broken_documents_at_the_head_do_not_hide_that_there_are_more(
    doctor: Doctor, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(db, "worker-1", "export", slots=5)
    for _ in range(2):
        left_over(db, due_ago=7200)
    for _ in range(4):
        wait(db)
    monkeypatch.setattr(backlog, "MOST_COUNTED", 3)
    (sentence,) = doctor.looks().sentences("not-starting")
    assert sentence.startswith("Due jobs named 'export': 3+;")


def left_over(db: Database, *, due_ago: float) -> Job:
    """Insert a pending job that still has an owner: no claim takes it."""
    job = insert(handle(db), "export")
    due = now() - timedelta(seconds=due_ago)
    db["monque_jobs"].update_one({"_id": job.id}, {"$set": {"claimedBy": "a person", "nextRunAt": due}})
    return job


def test_documents_that_cannot_be_run_do_not_count_as_a_backlog(doctor: Doctor, db: Database) -> None:
    enter(db, "worker-1", "export", slots=5)
    left_over(db, due_ago=7200)
    found = doctor.looks()
    assert found.kinds == ["broken-document"]
    job = insert(handle(db), "export")
    db["monque_jobs"].update_one({"_id": job.id}, {"$set": {"nextRunAt": now() - timedelta(seconds=600)}})
    found = doctor.looks()
    assert reasons(found) == ["not-starting"]
    assert found.sentences("not-starting")[0].startswith("Due jobs named 'export': 1; the oldest has waited 10m")


def test_names_that_are_kept_waiting_come_before_those_that_have_a_backlog(doctor: Doctor, db: Database) -> None:
    for _ in range(2):
        run(db, "archive", ago=10)
    wait(db, "archive")
    wait(db, "zip")
    enter(db, "worker-1", "archive", "zip", slots=2, held=2, held_by_name={"archive": 2})
    assert reasons(doctor.looks()) == ["slots-taken", "backlog"]
