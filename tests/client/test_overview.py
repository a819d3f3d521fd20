"""How the jobs are, as one call tells it: from the database, in few commands, and shared by callers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from pymongo import MongoClient

from tests.cli.doctor_support import enter
from tests.support.authorized import authorized_server
from tests.support.examined import profiling
from tests.support.store import handle
from trio_monque import Monque, Workers, open_scheduler
from trio_monque.client import findings_and_overview
from trio_monque.errors import InvalidOptionError, MonqueConnectionError
from trio_monque.jobs.minutes import DONE, FAILED_ATTEMPTS, FAILED_FOR_GOOD, ROW, WAIT_BUCKETS, Part, minute_of
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import minutes_written
from trio_monque.store.reads.queue_depths import DepthCaps


def document(name: str, status: str, at: datetime, **fields: Any) -> dict[str, Any]:
    dates = dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), at)
    return {"name": name, "data": None, "status": status, "failCount": 0, **dates, **fields}


@pytest.fixture
def now(jobs: Collection) -> datetime:
    found: datetime = jobs.database.command("hello")["localTime"].replace(tzinfo=UTC)
    return found


@pytest.mark.parametrize(
    ("names", "pending", "failed"),
    [(0, 10_000, 1_000), (1, 10_000, 1_000), (20, 1_000, 250), (100, 200, 50), (500, 40, 10)],
)
def test_names_share_what_an_overview_counts(names: int, pending: int, failed: int) -> None:
    caps = findings_and_overview.OVERVIEW_CAPS.shared_by(names)
    assert (caps.pending, caps.failed, caps.ended, caps.names) == (pending, failed, 0, 500)
    assert DepthCaps().shared_by(names) == DepthCaps()


async def test_overview_with_a_maximum_age_is_asked_anew(db: Database, jobs: Collection, now: datetime) -> None:
    monque = Monque(db, stats_cache_ttl=600)
    jobs.insert_one(document("mail", "pending", now))
    first = await monque.get_overview()
    jobs.insert_one(document("letter", "pending", now))
    assert await monque.get_overview() is first
    assert list((await monque.get_overview(max_age=0)).names) == ["letter", "mail"]
    with pytest.raises(InvalidOptionError, match="max_age"):
        await monque.get_overview(max_age=-1)


async def test_last_minutes_of_the_hour_are_read_while_the_others_are_kept(db: Database, now: datetime) -> None:
    monque = Monque(db, stats_cache_ttl=0.000001)
    row = [0] * ROW
    row[DONE] = 7
    beside = db["monque_jobs.minutes"]

    def written(ago: int) -> dict[str, Any]:
        part = Part(minute_of(now) - timedelta(minutes=ago), 3, {"mail": row})
        return minutes_written.document_of(part, f"worker {ago}", "a")

    beside.insert_many([written(40), written(2)])
    assert [one.in_all.done for one in await monque.get_minutes()] == [7, 7]
    beside.insert_many([written(30), written(1)])
    # The earlier one was written half an hour late: it is there within a minute.
    assert [one.in_all.done for one in await monque.get_minutes()] == [7, 7, 7]
    assert [one.in_all.done for one in await Monque(db).get_minutes()] == [7, 7, 7, 7]


async def test_overview_of_all_that_is_there(db: Database, jobs: Collection, now: datetime) -> None:
    monque = Monque(db)
    await monque.schedule("0 0 1 1 *", "yearly", unique_key="next")
    await monque.pause("letter")
    enter(db, "worker-1", "mail", "yearly")
    enter(db, "worker-2", "mail", heartbeat_ago=3600.0)
    ago = now - timedelta(seconds=30)
    jobs.insert_many([document("mail", "pending", ago - timedelta(minutes=10 * number)) for number in range(3)])
    jobs.insert_many([document("mail", "pending", now + timedelta(days=1)) for _ in range(2)])
    jobs.insert_many([document("letter", "pending", ago), document("mail", "failed", ago)])
    running = {"claimedBy": "worker-1", "lockedAt": ago, "lastHeartbeat": now, "heartbeatInterval": 30_000}
    jobs.insert_one(document("mail", "processing", ago, **running))
    jobs.insert_one(document("yearly", "failed", ago, repeatInterval="0 0 1 1 *", uniqueKey="gone"))

    found = await monque.get_overview()
    assert list(found.names) == ["letter", "mail", "yearly"]
    mail = found.names["mail"]
    assert (mail.due, mail.later, mail.running, mail.stuck, mail.failed, mail.capped) == (3, 2, 1, 0, 1, frozenset())
    assert mail.oldest_due_age is not None
    assert mail.oldest_due_age >= 1230
    assert found.longest_run is not None
    assert found.longest_run >= 30
    assert (found.running, found.alive, len(found.instances), found.is_capped) == (1, 1, 2, False)
    assert [(one.name, one.unique_key) for one in found.upcoming] == [("yearly", "next")]
    assert [one.kind for one in found.concerns] == ["late", "schedule_failed", "paused", "silent_without_jobs"]
    assert found.names["letter"].is_paused
    assert not found.names["letter"].is_served


async def test_what_was_done_in_the_last_minutes_is_judged(db: Database, now: datetime) -> None:
    row = [0] * ROW
    row[DONE], row[FAILED_ATTEMPTS], row[WAIT_BUCKETS + 14] = 100, 50, 150  # Waits from 8 to 16 s.
    parts = [Part(minute_of(now - timedelta(minutes=ago)), 5, {"mail": row, "": row}) for ago in (5, 20)]
    minutes_written.write(handle(db), "w", "1", parts)
    enter(db, "worker-1", "mail")
    monque = Monque(db)
    await monque.enqueue("mail", run_at=now - timedelta(seconds=100))
    (failing,) = (await monque.get_overview()).concerns
    assert (failing.kind, failing.values["failed"], failing.values["attempts"]) == ("failing", 50, 150)


async def test_jobs_that_failed_for_good_are_a_concern_for_an_hour(
    db: Database, jobs: Collection, now: datetime
) -> None:
    row = [0] * ROW
    row[DONE], row[FAILED_ATTEMPTS], row[FAILED_FOR_GOOD] = 100, 2, 2
    ago = {"mail": 40, "letter": 61, "retried": 40}
    parts = [Part(minute_of(now - timedelta(minutes=age)), 5, {name: row}) for name, age in ago.items()]
    minutes_written.write(handle(db), "w", "1", parts)
    jobs.insert_many([document(name, "failed", now - timedelta(minutes=ago[name])) for name in ("mail", "letter")])
    (concern,) = (await Monque(db).get_overview()).concerns
    assert (concern.kind, concern.values["name"], concern.values["failed"]) == ("failed_jobs", "mail", 2)


async def test_scheduler_tells_how_many_jobs_can_run_at_once(db: Database) -> None:
    workers = Workers()
    workers.register("mail", _nothing, concurrency=3)
    workers.register("letter", _nothing, concurrency=4)
    async with open_scheduler(db, workers, concurrency=6):
        found = await Monque(db).get_overview()
    assert found.slots == 6


async def _nothing(job: object) -> None:
    pass


async def test_four_commands_and_a_fifth_one_once_a_minute(db: Database) -> None:
    monque = Monque(db, stats_cache_ttl=0.000001)
    await monque.schedule("0 0 1 1 *", "yearly", unique_key="yearly")
    commands = []
    for collection in ("monque_jobs.minutes", "monque_jobs", "monque_jobs.instances", "monque_jobs.minutes"):
        with profiling(db, collection=collection) as reported:
            await monque.get_overview()
        # The profiler reports the parts of a command beside it, and those have no command of their own.
        commands.append(sum("command" in one for one in reported()))
    assert commands == [1, 3, 1, 0]


@pytest.mark.full
def test_user_who_may_not_read_the_minutes_sees_all_else() -> None:
    resources = [{"db": "x", "collection": name} for name in ("monque_jobs", "monque_jobs.instances")]
    privileges = [{"resource": one, "actions": ["find"]} for one in resources]
    with authorized_server() as server:
        Monque(server.root["x"]).sync.enqueue("mail")
        uri = server.user_with({"role": "reader", "privileges": privileges, "roles": []}, "x")
        with MongoClient[Any](uri) as client:
            found = Monque(client["x"]).sync.get_overview()
            assert found.names["mail"].due == 1
            with pytest.raises(MonqueConnectionError, match="not authorized"):
                Monque(client["x"]).sync.get_minutes()


async def test_callers_share_one_answer(db: Database) -> None:
    monque = Monque(db)
    await monque.enqueue("mail")
    answers: list[object] = []

    async def ask() -> None:
        answers.append(await monque.get_overview())

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
    assert len({id(one) for one in answers}) == 1
    assert (await monque.get_overview()) is answers[0]


async def test_documents_of_other_programs_harm_no_overview(db: Database, jobs: Collection, now: datetime) -> None:
    monque = Monque(db)
    await monque.schedule("0 0 1 1 *", "yearly", unique_key="yearly")
    jobs.insert_many(
        [
            {**document("mail", "pending", now), "name": 7},
            {**document("mail", "pending", now), "nextRunAt": "soon", "repeatInterval": 7},
            {**document("mail", "failed", now), "name": ["mail"], "repeatInterval": "x"},
            document("mail", "processing", now, lockedAt="soon"),
            {"repeatInterval": "* * * * *"},
        ]
    )
    beside = db["monque_jobs.instances"]
    beside.insert_many([{"_id": 7, "incarnation": "1"}, {"_id": "pause:mail"}, {"_id": "lock:x"}])
    found = await monque.get_overview()
    assert found.names["mail"].is_paused
    assert found.names["mail"].longest_run is None
    assert [one.name for one in found.upcoming] == ["yearly"]


async def test_schedules_that_no_client_of_this_release_declared_are_found_by_their_keys(
    db: Database, jobs: Collection, now: datetime
) -> None:
    monque = Monque(db)
    await monque.enqueue("mail")  # The other indexes are there.
    later = now + timedelta(hours=1)
    jobs.insert_one(document("hourly", "pending", later, repeatInterval="0 * * * *", uniqueKey="hourly"))
    jobs.insert_one(document("mail", "pending", later, uniqueKey="another"))
    assert [one.unique_key for one in (await monque.get_overview()).upcoming] == ["hourly"]


async def test_overview_of_very_many_names_is_capped(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings_and_overview, "OVERVIEW_CAPS", DepthCaps(pending=5, failed=5, ended=0, names=3))
    for number in range(4):
        await Monque(db).enqueue(f"name-{number}")
        found = await Monque(db).get_overview()
        assert (len(found.names), found.is_capped) == (min(3, number + 1), number >= 2)
