"""What schedulers did in each minute is written beside their heartbeats, and costs their jobs no command."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
import trio
from bson import ObjectId
from pymongo import MongoClient

from tests.support.interception import Recorder
from tests.support.store import handle
from trio_monque import Monque, NewJob, RunningJob, Workers, open_scheduler
from trio_monque.client.client_context import ClientContext
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import InvalidOptionError
from trio_monque.jobs import Figures, Job, JobStatus, Minute
from trio_monque.jobs.minutes import ROW, Part
from trio_monque.options_and_defaults import ClientConfig
from trio_monque.scheduler.minute_counts import MinuteCounts
from trio_monque.scheduler.minute_writer import MinuteWriter
from trio_monque.store.driver.database_threads import DatabaseThreads
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import minutes_written
from trio_monque.testing import SchedulerOpener, drain

AT: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)


def workers_of() -> Workers:
    workers = Workers()

    @workers.register("mail")
    async def mail(job: RunningJob[Any]) -> None: ...

    @workers.register("letter", max_attempts=1)
    async def letter(job: RunningJob[Any]) -> None:
        raise ValueError("no")

    return workers


async def run_jobs(db: Database, number: int = 10, **options: Any) -> None:
    async with open_scheduler(db, workers_of(), **options) as scheduler:
        await scheduler.enqueue_many([NewJob(name) for name in ("mail", "letter") for _ in range(number)])
        while scheduler.statistics().completed < number or scheduler.statistics().failed < number:
            await trio.sleep(0.01)


def in_all(minutes: Any) -> Mapping[str, Figures]:
    found: dict[str, Figures] = {}
    for minute in minutes:
        for name, figures in minute.by_name.items():
            found[name] = found.get(name, Figures()) + figures
    return found


def written_in(db: Database) -> Collection:
    return db["monque_jobs.minutes"]


async def test_two_schedulers_write_what_they_did_when_they_end(db: Database) -> None:
    monque = Monque(db, stats_cache_ttl=0)
    assert await monque.get_minutes() == []
    for instance_id in ("one", "two", "one"):  # One that starts again within the minute, too.
        await run_jobs(db, instance_id=instance_id)
    documents = list(written_in(db).find())
    assert Counter(one["_id"]["i"] for one in documents) >= Counter({"one": 2, "two": 1})
    now = datetime.now(UTC)
    found = in_all(await monque.get_minutes(until=now + timedelta(minutes=2)))
    assert (found["mail"].done, found["mail"].failed_attempts) == (30, 0)
    assert (found["letter"].done, found["letter"].failed_attempts, found["letter"].failed_for_good) == (0, 30, 30)
    assert found["mail"].run.number == found["mail"].wait.number == 30
    assert (
        in_all(monque.sync_in_loop.get_minutes(since=now - timedelta(hours=25), until=now - timedelta(hours=1))) == {}
    )


async def test_jobs_cost_no_command_more(db: Database, mongod: EmbeddedServer) -> None:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder]) as client:
        sent = {}
        for number in (5, 50):
            recorder.commands.clear()
            await run_jobs(client[db.name], number)
            sent[number] = [name for name, command in recorder.commands if "monque_jobs.minutes" in command.values()]
    # One for each minute that the run has touched.
    assert set(sent[5]) == set(sent[50]) == {"createIndexes", "insert"}
    assert all(len(names) <= 3 for names in sent.values())


async def test_old_minutes_are_deleted_by_the_server(db: Database) -> None:
    await run_jobs(db)
    assert written_in(db).index_information()["trio_monque_minutes"]["expireAfterSeconds"] == 26 * 3600


async def test_nothing_is_written_where_that_is_turned_off(db: Database) -> None:
    await run_jobs(db, minutes=False)
    assert list(written_in(db).find()) == []


async def test_nothing_is_written_in_virtual_time(
    db: Database, open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_test_scheduler(workers_of()) as scheduler:
        await monque.enqueue("mail")
        await drain(scheduler)
    assert list(written_in(db).find()) == []


async def test_scheduler_without_jobs_writes_nothing(db: Database) -> None:
    async with open_scheduler(db, workers_of()):
        pass
    assert list(written_in(db).find()) == []


async def test_server_that_refuses_it_harms_no_job_and_is_logged_once(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    db.create_collection("monque_jobs.minutes", validator={"never": True})
    with caplog.at_level(logging.WARNING, "trio_monque.scheduler"):
        await run_jobs(db)
    logged = [one.getMessage() for one in caplog.records if "could not write what was done" in one.getMessage()]
    assert len(logged) == 1
    assert db["monque_jobs"].count_documents({"status": "completed"}) == 10


# --- What is stored ---


@pytest.fixture
def store(db: Database) -> JobCollection:
    return handle(db)


def row(done: int) -> list[int]:
    return [done, *([0] * (ROW - 1))]


def write(store: JobCollection, *minutes: int, instance: str = "one", name: str = "mail") -> None:
    parts = [Part(AT + timedelta(minutes=minute), 3, {name: row(1)}) for minute in minutes]
    minutes_written.write(store, instance, "r", parts)


def read(store: JobCollection, since: int, until: int) -> list[int]:
    """The minutes that were read, each as often as jobs were done in it."""
    found = minutes_written.read_minutes(store, AT + timedelta(minutes=since), AT + timedelta(minutes=until))
    return [int((minute.at - AT) / timedelta(minutes=1)) for minute in found for _ in range(minute.in_all.done)]


def test_minute_that_is_sent_twice_is_stored_once(store: JobCollection) -> None:
    write(store, 0, 1)
    write(store, 1, 2)
    assert read(store, 0, 9) == [0, 1, 2]


def test_span_has_its_first_minute_and_not_its_last(store: JobCollection) -> None:
    for instance in ("a", "z"):
        write(store, *range(6), instance=instance)
    assert read(store, 1, 4) == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("name", ["", "a.b", "$a", "a$b.c", "ü" * 50, "_id"])
def test_any_name_comes_back(store: JobCollection, name: str) -> None:
    write(store, 0, name=name)
    (minute,) = minutes_written.read_minutes(store, AT, AT + timedelta(minutes=1))
    assert minute == Minute(AT, 3, {name: Figures(done=1)})


def test_documents_of_others_are_left_out(store: JobCollection, db: Database) -> None:
    write(store, 0)
    good = written_in(db).find_one() or {}
    changed: list[dict[str, Any]] = [
        {"v": 2},
        {"v": None},
        {"n": None},
        {"n": {"mail": 1}},
        {"n": [[{"mail": 1}, *[1] * 6, []]]},
        {"n": [["mail", *[1] * 6, {"7": 1}]]},
        {"n": [["mail", -1, *[1] * 5, []]]},
        {"n": [["mail", *[1] * 6, [7, -1]]]},
        {"n": [["mail", *[1] * 6, [-1, 1]]]},
        {"n": [["mail", *[1] * 6, [0, 1]]]},
        {"n": [["mail", *[1] * 6, ["seven", 1]]]},
        {"n": [["mail", float("nan"), *[1] * 5, []]]},
        {"n": [["mail", float("inf"), *[1] * 5, []]]},
        {"n": [["mail", 1, 2]]},
        {"n": [["mail", *"abcdef", []]]},
        {"n": [["mail", 1, 1, 1, 1, 1, 1, [1000, 1]]]},
        {"n": [["mail", 1, 1, 1, 1, 1, 1, [7]]]},
        {"slots": None},
    ]
    for number, change in enumerate(changed):
        written_in(db).insert_one({**good, "_id": {"m": AT, "i": str(number), "r": ""}, **change})
    written_in(db).insert_many(
        [{"_id": {"m": AT, "i": "nothing"}}, {**good, "_id": {"m": AT}}, {**good, "_id": AT}, {**good, "_id": {}}]
    )
    assert read(store, 0, 1) == [0]


def test_minute_is_the_one_in_the_id(store: JobCollection, db: Database) -> None:
    """The server has compared that with the span; another date would be a minute that no sum can be made of."""
    write(store, 0)
    written_in(db).update_one({}, {"$set": {"at": datetime.max.replace(tzinfo=UTC, microsecond=0)}})
    assert read(store, 0, 1) == [0]


def test_earliest_documents_are_left_out_of_an_answer_that_is_too_long(
    store: JobCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minutes_written, "MOST_READ", 2)
    write(store, 0, 1, 2)
    assert read(store, 0, 9) == [1, 2]


@pytest.mark.full
@pytest.mark.parametrize(
    ("span", "done"),
    [
        ({"until": datetime.min.replace(tzinfo=UTC)}, 0),
        ({"since": datetime.min.replace(tzinfo=UTC)}, 1),
        ({"since": datetime(9998, 12, 31, 23, tzinfo=UTC)}, 0),
        ({"until": datetime(9998, 12, 31, 23, tzinfo=UTC)}, 0),
    ],
)
async def test_span_may_reach_the_edges_of_time(db: Database, span: dict[str, Any], done: int) -> None:
    await run_jobs(db, 1)
    assert sum(minute.in_all.done for minute in await Monque(db).get_minutes(**span)) == done


# --- The writer ---


def writer_of(db: Database, counts: MinuteCounts) -> MinuteWriter:
    return MinuteWriter(ClientContext.of(db, ClientConfig()), DatabaseThreads(), counts, "one")


def count_at(counts: MinuteCounts, minutes: int) -> datetime:
    """Count a job in this minute, and return the next one."""
    at = AT + timedelta(minutes=minutes)
    job = Job(
        id=ObjectId(),
        name="mail",
        data=None,
        status=JobStatus.FAILED,
        next_run_at=at,
        created_at=at,
        updated_at=at,
        fail_count=1,
    )
    counts.failed_without_run(job)
    return at + timedelta(minutes=1)


async def test_index_that_an_operator_has_changed_stays_so(db: Database) -> None:
    written_in(db).create_index("at", name="for_a_week", expireAfterSeconds=7 * 86_400)
    counts = MinuteCounts(lambda: 1)
    await writer_of(db, counts).write_what_is_over(count_at(counts, 0))
    assert written_in(db).count_documents({}) == 1
    assert written_in(db).index_information().keys() == {"_id_", "for_a_week"}


async def test_collection_that_was_dropped_gets_its_index_again_within_an_hour(db: Database) -> None:
    counts = MinuteCounts(lambda: 1)
    writer = writer_of(db, counts)
    await writer.write_what_is_over(count_at(counts, 0))
    written_in(db).drop()
    await writer.write_what_is_over(count_at(counts, 30))
    assert written_in(db).index_information().keys() == {"_id_"}
    await writer.write_what_is_over(count_at(counts, 61))
    assert written_in(db).index_information().keys() == {"_id_", "trio_monque_minutes"}


async def test_what_could_not_be_written_is_written_later_and_once(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    counts = MinuteCounts(lambda: 1)
    writer = writer_of(db, counts)
    db.create_collection("monque_jobs.minutes", validator={"_id.m": {"$lt": AT + timedelta(minutes=1)}})
    with caplog.at_level(logging.WARNING, "trio_monque.scheduler"):
        await writer.write_what_is_over(count_at(counts, 0))
        later = count_at(counts, 1)
        for _ in range(2):
            await writer.write_what_is_over(later)
    assert [one["_id"]["m"] for one in written_in(db).find()] == [AT]
    assert len(caplog.records) == 1
    db.command("collMod", "monque_jobs.minutes", validator={})
    for _ in range(2):
        await writer.write_all()
    assert [one["_id"]["m"] for one in written_in(db).find()] == [AT, AT + timedelta(minutes=1)]


@pytest.mark.parametrize(
    "span",
    [
        {"since": AT, "until": AT},
        {"since": AT, "until": AT - timedelta(hours=1)},
        {"since": AT, "until": AT + timedelta(hours=27)},
        {"since": AT.replace(tzinfo=None)},
        {"until": 7},
    ],
)
async def test_span_that_cannot_be_is_refused(db: Database, span: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError):
        await Monque(db).get_minutes(**span)


async def test_answer_is_shared_for_some_seconds(db: Database, store: JobCollection) -> None:
    monque, until = Monque(db), AT + timedelta(minutes=5)
    write(store, 0)
    first = await monque.get_minutes(since=AT, until=until)
    write(store, 1)
    assert await monque.get_minutes(since=AT, until=until) is first
    again = await Monque(db).get_minutes(since=AT, until=until)
    assert [minute.at for minute in again] == [AT, AT + timedelta(minutes=1)]
    assert isinstance(first[0], Minute)
