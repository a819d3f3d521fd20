"""The scripts that move jobs lose none and double none.

These are examples/migrate/agenda.py, examples/migrate/sidequest.py and examples/migrate/waiting_jobs.py.

`old_jobs.json` was written by these libraries themselves, under Node: Agenda 5.0.0, Agenda 6.2.6 with
@agendajs/mongo-backend 4.0.3, @pulsecron/pulse 1.6.8, and @sidequest/mongo-backend 1.16.4. Of the first three, a
worker has run `fails` and `done`, and holds `long`; of Sidequest, an engine has claimed the last job.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import pytest
from bson import ObjectId, json_util
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from examples.migrate import agenda, sidequest, waiting_jobs
from tests.support.fail_points import refusing_server
from tests.support.programs import ROOT, run_program, uri_of_database
from tests.support.waiting import wait_until
from trio_monque import Monque
from trio_monque.store.driver.types import Database

OLD: Final[Mapping[str, Sequence[dict[str, Any]]]] = json_util.loads(
    (ROOT / "tests/migrate/data/old_jobs.json").read_text(encoding="utf-8"),
    json_options=json_util.JSONOptions(tz_aware=True, tzinfo=UTC),
)
AGENDA_LIKE: Final = ("agenda 5.0.0", "agenda 6.2.6", "@pulsecron/pulse 1.6.8")
LATER: Final = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
COLLECTION: Final = "old_jobs"


def names(documents: Sequence[Mapping[str, Any]]) -> Counter[str]:
    return Counter(document["name"] for document in documents)


@pytest.mark.parametrize("library", AGENDA_LIKE)
def test_waiting_jobs_of_agenda_are_moved_once(db: Database, library: str, capsys: pytest.CaptureFixture[str]) -> None:
    old = db[COLLECTION]
    old.insert_many(OLD[library])
    assert agenda.move(db, COLLECTION) == 4
    assert "left clean-up: " in capsys.readouterr().out
    assert names(list(old.find())) == Counter(["clean-up", "done", "fails", "holiday", "long"])
    assert names(list(db[f"{COLLECTION}.moved"].find())) == Counter({"send email": 3, "report": 1})
    jobs = Monque(db).sync.get_jobs()
    assert [(job.data["to"], job.next_run_at) for job in jobs if job.name == "send-email"] == [
        ("ada@example.org", OLD[library][0]["nextRunAt"]),
        ("bob@example.org", LATER),
        ("eve@example.org", LATER),
    ]
    (report,) = (job for job in jobs if job.name == "report")
    assert report.schedule is not None
    assert (report.data, report.unique_key) == ({"source": "crm"}, "cron:report")
    assert (report.schedule.cron, report.schedule.timezone) == ("0 9 * * 1-5", "Europe/Berlin")

    assert agenda.move(db, COLLECTION) == 0
    assert len(Monque(db).sync.get_jobs()) == 4


@pytest.mark.parametrize("library", AGENDA_LIKE)
def test_job_that_a_stopped_worker_of_agenda_held_is_moved_when_asked_for(db: Database, library: str) -> None:
    db[COLLECTION].insert_many(OLD[library])
    assert agenda.move(db, COLLECTION, stopped=True) == 5
    (held,) = Monque(db).sync.get_jobs(name="long")
    assert (held.data, held.status) == ({"minutes": 9}, "pending")


def test_job_that_a_worker_of_agenda_has_locked_before_it_runs_stays(db: Database) -> None:
    db[COLLECTION].insert_one({**OLD["agenda 6.2.6"][0], "lockedAt": LATER})
    assert agenda.move(db, COLLECTION) == 0
    assert agenda.move(db, COLLECTION, stopped=True) == 1


def test_schedule_of_agenda_with_an_end_stays(db: Database) -> None:
    (report,) = (one for one in OLD["agenda 6.2.6"] if one["name"] == "report")
    db[COLLECTION].insert_one({**report, "endDate": LATER})
    assert agenda.move(db, COLLECTION) == 0
    assert Monque(db).sync.get_jobs() == []


def test_waiting_jobs_of_sidequest_are_moved_once(db: Database) -> None:
    old = db["sidequest_jobs"]
    old.insert_many(OLD["sidequest 1.16.4"])
    assert sidequest.move(db) == 3
    assert [(one["class"], one["state"]) for one in old.find()] == [("SendEmail", "waiting"), ("Fails", "claimed")]
    jobs = Monque(db).sync.get_jobs()
    assert [(job.name, job.data, job.limits.max_attempts, job.limits.timeout) for job in jobs] == [
        ("SendEmail", ["ada@example.org", 7], 5, None),
        ("SendEmail", ["claimed@example.org", 10], 5, None),
        ("SendEmail", ["bob@example.org", 8], 3, 30),
    ]
    assert jobs[-1].next_run_at == LATER

    assert sidequest.move(db) == 0
    assert sidequest.move(db, stopped=True) == 1
    assert [job.name for job in Monque(db).sync.get_jobs()].count("Fails") == 1


@pytest.mark.full
def test_job_stays_where_it_was_if_the_new_one_cannot_be_stored() -> None:
    """Each write of the transaction is refused once: of the old job, of its copy, and of the new job."""
    with refusing_server() as server, server.client() as refused, MongoClient[Any](server.uri, tz_aware=True) as client:
        own = refused["move"]
        Monque(client["move"]).sync.enqueue("other")
        for command in ("findAndModify", "insert", "commitTransaction"):
            client["move"][COLLECTION].insert_one({**OLD["agenda 6.2.6"][0], "_id": ObjectId()})
            with server.refusing(2, [command]), pytest.raises(OperationFailure):  # 2 is BadValue: not to be retried.
                agenda.move(own, COLLECTION)
            assert client["move"][COLLECTION].count_documents({}) == 1
            assert agenda.move(own, COLLECTION) == 1
        assert len(Monque(client["move"]).sync.get_jobs(name="send-email")) == 3


@pytest.mark.full
def test_jobs_of_a_script_that_was_killed_half_way_are_moved_once_each() -> None:
    template, script = OLD["agenda 6.2.6"][0], "examples/migrate/agenda.py"
    with refusing_server() as server, MongoClient[Any](server.uri) as client:
        # The server keeps the transaction of a killed process open for a minute otherwise.
        client.admin.command({"setParameter": 1, "transactionLifetimeLimitSeconds": 1})
        old, jobs = client["move"][COLLECTION], client["move"]["monque_jobs"]
        old.insert_many({**template, "_id": ObjectId(), "data": number} for number in range(300))
        command = [sys.executable, script, uri_of_database(server.uri, "move"), COLLECTION]
        with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}) as killed:
            wait_until(lambda: jobs.count_documents({}) >= 20, "some are moved")
            killed.send_signal(signal.SIGKILL)
        left = old.count_documents({})
        assert left + jobs.count_documents({}) == 300
        assert run_program(script, command[2], COLLECTION, uri=server.uri, database="move") == f"moved {left}\n"
        assert sorted(job["data"] for job in jobs.find()) == list(range(300))


@pytest.mark.full
def test_moved_jobs_of_another_store_wait_until_all_are_moved_and_are_not_doubled_after_a_crash(db: Database) -> None:
    monque = Monque(db)
    store = {str(number): {"to": number} for number in range(3)}

    def crash() -> None:
        raise ConnectionError("the old store is gone")

    def take(key: str) -> bool:
        return store.pop(key) is not None

    def waiting(crashes: bool) -> list[waiting_jobs.WaitingJob]:
        return [
            waiting_jobs.WaitingJob(
                id=key,
                name="send",
                kwargs=data,
                run_at=LATER + timedelta(seconds=int(key)),
                remove=crash if crashes and key == "1" else partial(take, key),
            )
            for key, data in store.items()
        ]

    with pytest.raises(ConnectionError):
        waiting_jobs.move(monque, waiting(crashes=True))
    assert (list(store), monque.sync.paused()) == (["1", "2"], ["send"])
    assert waiting_jobs.move(monque, waiting(crashes=False)) == 2
    assert (list(store), monque.sync.paused()) == ([], [])
    jobs = monque.sync.get_jobs()
    assert [job.data for job in jobs] == [{"args": [], "kwargs": {"to": number}} for number in range(3)]
    assert [job.next_run_at for job in jobs] == [LATER + timedelta(seconds=number) for number in range(3)]


@pytest.mark.full
def test_job_that_an_old_worker_took_meanwhile_is_not_run_again(db: Database) -> None:
    monque = Monque(db)
    monque.sync.pause("other", by="dana")
    taken = waiting_jobs.WaitingJob(id="7", name="send", remove=lambda: False)
    assert waiting_jobs.move(monque, [taken]) == 0
    assert [job.status for job in monque.sync.get_jobs()] == ["cancelled"]
    assert monque.sync.paused() == ["other"]
