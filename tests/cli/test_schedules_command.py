"""`trio-monque schedules` lists the recurring jobs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.store import PAST
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database

from .command_support import Command, command_of
from .doctor_support import now


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
    assert "there is no index of schedules yet" in ended.err
    assert "--limit" not in ended.err  # It would not help.
    for number in range(3):
        monque.sync.schedule("0 * * * *", f"name-{number}")
    ended = command("schedules", "--limit", "2")
    assert (ended.status, len(ended.lines)) == (0, 3)
    assert ended.err == "there are more: give a greater --limit\n"
    assert command("schedules", "--limit", "3").err == ""
