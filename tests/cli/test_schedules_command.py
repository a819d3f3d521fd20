"""`trio-monque schedules` lists the recurring jobs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.store import PAST
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.reads import special_jobs

from .command_support import Command, command_of
from .doctor_support import now

WITHOUT_INDEX = (
    "recurring jobs that have ended or have no unique key are not listed: there is no index of schedules yet"
)


@pytest.fixture
def command(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(mongod, db, capsys)


def test_recurring_jobs_are_listed_by_their_next_runs_with_zone_key_and_failures(
    command: Command, monque: Monque, jobs: Collection
) -> None:
    monque.sync.enqueue("once")
    late = monque.sync.schedule("30 6 * * *", "report", timezone="Europe/Berlin", unique_key="daily")
    soon = monque.sync.schedule("* * * * *", "poll")
    runs = monque.sync.schedule("0 * * * *", "hourly")
    ended = monque.sync.schedule("0 * * * *", "gone")
    jobs.update_one({"_id": late.id}, {"$set": {"nextRunAt": now() + timedelta(hours=5, minutes=30), "failCount": 2}})
    jobs.update_one({"_id": soon.id}, {"$set": {"nextRunAt": now() - timedelta(seconds=90), "finishedAt": PAST}})
    jobs.update_one({"_id": runs.id}, {"$set": {"status": "processing", "nextRunAt": now() - timedelta(hours=1)}})
    monque.sync.cancel_job(ended.id)
    shown = command("schedules")
    assert shown.status == 0
    by_id = {line.split()[0]: line for line in shown.lines[1:]}
    assert by_id.keys() == {str(one.id) for one in (late, soon, runs, ended)}
    assert shown.lines.index(by_id[str(soon.id)]) < shown.lines.index(by_id[str(late.id)])
    parts = ("report", "daily", "30 6 * * *", "Europe/Berlin", ", in 5h")
    assert [part for part in parts if part not in by_id[str(late.id)]] == []
    assert by_id[str(late.id)].endswith("2")
    assert all(text in by_id[str(soon.id)] for text in ("UTC", ", due for 1m 3", f"{PAST:%Y-%m-%d %H:%M:%SZ}"))
    assert "running now" in by_id[str(runs.id)]
    assert "cancelled" in by_id[str(ended.id)]
    found = command("schedules", "--json").json
    assert found["is_capped"] is False
    assert [one["unique_key"] for one in found["jobs"] if one["name"] == "report"] == ["daily"]


def test_a_limit_is_reported_and_nothing_at_all_is_a_sentence(command: Command, monque: Monque, db: Database) -> None:
    nothing = f"no recurring job in {db.name}.monque_jobs\n"
    assert (command("schedules").out, command("schedules").err) == (nothing, "")
    monque.sync.enqueue("once")
    ended = command("schedules")
    assert ended.out == nothing
    assert ended.err == f"{WITHOUT_INDEX}\n"  # And no --limit, which would not help.
    for number in range(3):
        monque.sync.schedule("0 * * * *", f"name-{number}")
    ended = command("schedules", "--limit", "2")
    assert (ended.status, len(ended.lines)) == (0, 3)
    assert ended.err == "there are more: give a greater --limit\n"
    assert command("schedules", "--limit", "3").err == ""


def test_without_their_index_the_schedules_with_a_key_are_listed(
    command: Command, monque: Monque, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monque.sync.enqueue("once", unique_key="other")
    moments = {"nextRunAt": PAST, "createdAt": PAST, "updatedAt": PAST}
    recurring = {"name": "node", "status": "pending", "failCount": 0, "data": None, "repeatInterval": "0 * * * *"}
    found = jobs.insert_one({**recurring, **moments, "uniqueKey": "k"}).inserted_id
    jobs.insert_many(
        [
            {**recurring, **moments},
            {**recurring, **moments, "uniqueKey": "ended", "status": "failed"},
        ]
    )
    monkeypatch.setattr(special_jobs, "MOST_READ", 2)
    ended = command("schedules")
    assert [line.split()[0] for line in ended.lines[1:]] == [str(found)]
    assert ended.err == f"{WITHOUT_INDEX}\n"
    monque.sync.enqueue("once", unique_key="third")
    assert command("schedules").err == f"{WITHOUT_INDEX}; only 5,000 live jobs with a unique key were searched\n"
    assert command("schedules", "--limit", "1").err.endswith("\nthere are more: give a greater --limit\n")


@pytest.mark.full
def test_schedules_that_are_too_large_for_one_answer_are_reported(
    command: Command, monque: Monque, jobs: Collection
) -> None:
    for number in range(4):
        monque.sync.schedule("0 0 1 1 *", "yearly", unique_key=str(number))
    jobs.update_many({}, {"$set": {"data": "x" * (15 << 20)}})
    ended = command("schedules")
    assert 1 < len(ended.lines) < 5
    assert ended.err == "there are more: these are as large as one answer may be\n"
