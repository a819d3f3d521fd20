"""A scheduler sees changes by other processes at once. On a real clock, with polls too rare to be the cause."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import bson
import pytest
import trio
from bson import ObjectId
from pymongo import MongoClient
from pymongo.errors import OperationFailure
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tests.support.interception import Recorder
from tests.support.node_peer import NodePeer
from tests.support.open_resources import Connections, threads
from tests.support.standalone import restricted_server, standalone_server
from tests.support.store import handle
from tests.support.stream_events import Heard
from tests.support.thoroughly import one_in
from trio_monque import Monque, NewJob, RunningJob, Workers
from trio_monque.embedded import embedded_mongod
from trio_monque.engine import watcher
from trio_monque.jobs.new_job import Draft
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import change_stream, indexes, replacing
from trio_monque.testing import fail_next, quiesce


@pytest.fixture
def node(jobs: Collection) -> NodePeer:
    """Another client, whose changes reach this process through the database alone."""
    return NodePeer(jobs)


def soon(seconds: float = 0.0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def test_change_stream_is_opened_at_the_start_and_closed_at_the_end(db: Database) -> None:
    heard = Heard()
    async with heard.open(db):
        await heard.wait_connected()
        assert heard.stream == ["ChangeStreamConnected"]
    assert heard.stream == ["ChangeStreamConnected", "ChangeStreamClosed"]


async def test_without_the_option_no_change_stream_is_opened(db: Database) -> None:
    heard = Heard()
    async with heard.open(db, change_stream=False, poll_interval=0.01) as scheduler:
        job = await scheduler.enqueue("greet")
        await heard.wait_started(job.id)
    assert heard.stream == []


async def test_job_of_another_process_starts_at_once(db: Database, node: NodePeer) -> None:
    heard = Heard()
    async with heard.open(db):
        await heard.wait_connected()
        await heard.wait_started(node.enqueue("greet"))


async def test_job_that_becomes_pending_starts_at_once(db: Database, jobs: Collection, node: NodePeer) -> None:
    failed = node.enqueue("greet", status="failed", nextRunAt=soon())
    heard = Heard()
    async with heard.open(db):
        await heard.wait_connected()
        jobs.update_one({"_id": failed}, {"$set": {"status": "pending"}})
        await heard.wait_started(failed)


async def test_job_that_is_brought_forward_starts_at_once(db: Database, jobs: Collection, node: NodePeer) -> None:
    later = node.enqueue("greet", nextRunAt=soon(1000))
    heard = Heard()
    async with heard.open(db):
        await heard.wait_connected()
        jobs.update_one({"_id": later}, {"$set": {"nextRunAt": soon()}})
        await heard.wait_started(later)


@pytest.mark.parametrize("data", [1, "x" * 100_000], ids=["small", "large"])
async def test_job_that_another_process_replaces_starts_at_once(
    db: Database, jobs: Collection, node: NodePeer, data: object
) -> None:
    """The server may report the update as a replacement of the document."""
    later = node.enqueue("greet", data, uniqueKey="k", nextRunAt=soon(1000))
    heard = Heard()
    async with heard.open(db):
        await heard.wait_connected()
        new = Draft(ObjectId(), NewJob("greet", 2, unique_key="k", on_conflict="replace"), bson.encode({"": 2}))
        replaced = replacing.replace_or_insert(handle(db), replacing.Replacement(new.at(soon()), new.payload))
        assert (replaced.outcome, replaced.job.id) == ("replaced", later)
        await heard.wait_started(later)


async def test_burst_of_changes_costs_few_looks_and_names_without_a_worker_none(
    mongod: Any, db: Database, jobs: Collection
) -> None:
    heard, recorder, monque = Heard("greet", "mine"), Recorder(), Monque(db).sync_in_loop
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        async with heard.open(client[db.name]):
            await heard.wait_connected()
            await heard.wait_started(*jobs.insert_many([monque.document("mine")]).inserted_ids)
            recorder.commands.clear()
            for _ in range(50):
                read = _reads_of_the_stream(recorder)
                jobs.insert_many([monque.document("theirs") for _ in range(10)])
                while _reads_of_the_stream(recorder) == read:  # Then it has taken these changes.
                    await trio.sleep(0.001)
            (last,) = jobs.insert_many([monque.document("mine")]).inserted_ids
            await heard.wait_started(last)
            assert _looks(recorder) <= 20, "those of the two that are mine, however late"
            recorder.commands.clear()
            burst = jobs.insert_many([monque.document("greet") for _ in range(100)]).inserted_ids
            await heard.wait_started(*burst)
            assert _looks(recorder) <= 40


def _reads_of_the_stream(recorder: Recorder) -> int:
    return recorder.count(lambda name, _: name == "getMore")


def _looks(recorder: Recorder) -> int:
    return len([name for name, _ in recorder.commands if name in ("find", "aggregate")])


def started_when_due(jobs: Collection, *ids: ObjectId) -> bool:
    """By the one clock that their claims go by. How soon after it they start is for benchmarks/latency.py."""
    found = list(jobs.find({"_id": {"$in": ids}}))
    return len(found) == len(ids) and all(job["startedAt"] >= job["nextRunAt"] for job in found)


async def test_timer_for_delayed_jobs_of_another_process_starts_them(
    db: Database, jobs: Collection, node: NodePeer
) -> None:
    """No poll, no later change and no enqueue of its own finds them: only a timer that their report has set."""
    heard = Heard()
    async with heard.open(db):
        await heard.wait_connected()
        await quiesce()  # The looks of the start are over.
        due = soon()
        last = node.enqueue("greet", nextRunAt=due + timedelta(seconds=1000))
        second = node.enqueue("greet", nextRunAt=due + timedelta(seconds=0.8))
        first = node.enqueue("greet", nextRunAt=due + timedelta(seconds=0.4))
        await heard.wait_started(first, second)
    assert started_when_due(jobs, first, second)
    assert last not in heard.started


@pytest.mark.full
async def test_delayed_job_is_not_lost_beside_one_that_came_at_once(db: Database, jobs: Collection) -> None:
    heard, monque = Heard("now", "later"), Monque(db).sync_in_loop
    async with heard.open(db):
        await heard.wait_connected()
        both = jobs.insert_many([monque.document("now"), monque.document("later", delay=0.5)])
        await heard.wait_started(*both.inserted_ids)
    assert started_when_due(jobs, *both.inserted_ids)


async def test_two_delayed_names_start_while_the_traffic_of_a_third_goes_on(
    db: Database, jobs: Collection, node: NodePeer
) -> None:
    heard = Heard("early", "late", "noise")
    async with heard.open(db), trio.open_nursery() as nursery:
        await heard.wait_connected()

        async def make_noise() -> None:
            while True:
                await trio.to_thread.run_sync(node.enqueue, "noise")

        nursery.start_soon(make_noise)
        late = node.enqueue("late", nextRunAt=soon(0.8))
        early = node.enqueue("early", nextRunAt=soon(0.4))
        await heard.wait_started(early, late)  # The noise ends only now.
        nursery.cancel_scope.cancel()
    assert started_when_due(jobs, early, late)


async def test_job_starts_while_steady_events_go_on(db: Database, jobs: Collection, node: NodePeer) -> None:
    heard = Heard()
    target = node.enqueue("elsewhere")
    ended = threading.Event()

    def chatter() -> None:
        while not ended.is_set():
            # Nameless, so that every one of them may mean something.
            jobs.update_one({"_id": target}, {"$set": {"nextRunAt": soon()}})

    async with heard.open(db), trio.open_nursery() as nursery:
        await heard.wait_connected()
        nursery.start_soon(trio.to_thread.run_sync, chatter)
        try:
            for _ in range(10):
                # A scheduler that waits for the events to end waits for ever.
                await heard.wait_started(node.enqueue("greet"))
        finally:
            ended.set()


@pytest.mark.full
async def test_stream_that_is_killed_is_reported_and_opened_again(
    db: Database, client: MongoClient[Any], node: NodePeer
) -> None:
    heard = Heard()
    async with heard.open(db):
        await heard.wait_connected()
        await trio.to_thread.run_sync(_kill_stream, client, db.name)
        await heard.wait_connected(times=2)
        assert heard.stream == [
            "ChangeStreamConnected",
            "ChangeStreamClosed",
            "ChangeStreamFailed",
            "ChangeStreamConnected",
        ]
        await heard.wait_started(node.enqueue("greet"))


def _kill_stream(client: MongoClient[Any], database: str) -> None:
    # A short wait may be over before it is killed, and then the stream goes on.
    long = {"command.getMore": {"$exists": True}, "command.maxTimeMS": change_stream.LONGEST_AWAIT * 1000}
    waiting = {"command.collection": "$cmd.aggregate", "command.$db": database, **long}
    while not (found := list(client.admin.aggregate([{"$currentOp": {}}, {"$match": waiting}]))):
        pass
    client.admin.command("killOp", op=found[0]["opid"])
    # A wait that is killed notices only when something happens.
    NodePeer(client[database]["monque_jobs"]).enqueue("theirs")


@pytest.mark.full
async def test_jobs_enqueued_during_an_outage_of_the_stream_are_found_when_it_is_back(
    db: Database, client: MongoClient[Any], jobs: Collection, node: NodePeer
) -> None:
    heard = Heard()
    async with heard.open(db):
        await heard.wait_connected()
        await trio.to_thread.run_sync(_kill_stream, client, db.name)
        await heard.wait(lambda: "ChangeStreamFailed" in heard.stream)
        job = node.enqueue("greet")
        await heard.wait_started(job)


@pytest.mark.full
async def test_changes_are_received_again_after_a_server_restart(tmp_path: Path, unused_port: int) -> None:
    heard = Heard()
    async with embedded_mongod(port=unused_port, folder=tmp_path) as server:
        client = MongoClient[Any](server.uri, tz_aware=True)
        opened = heard.open(client["x"])
        await opened.__aenter__()
        await heard.wait_connected()
    async with embedded_mongod(port=unused_port, folder=tmp_path):
        while heard.stream.count("ChangeStreamConnected") < 2:
            await trio.sleep(0.01)
        assert heard.stream.index("ChangeStreamFailed") > 0
        await heard.wait_started(NodePeer(client["x"]["monque_jobs"]).enqueue("greet"))
        await opened.__aexit__(None, None, None)
        client.close()


@pytest.mark.parametrize("code", [280, 286])
async def test_stream_that_cannot_resume_is_opened_again_and_missed_changes_are_found(
    db: Database, node: NodePeer, code: int
) -> None:
    heard = Heard()
    async with heard.open(db) as scheduler:
        await heard.wait_connected()
        # The lost answer is one that reported a job: of the second, if the first was waited for already.
        with fail_next(scheduler, OperationFailure("no", code), when="after", command="read changes"):
            await heard.wait_started(node.enqueue("greet"))
            job = node.enqueue("greet")
            await heard.wait_connected(times=2)
        await heard.wait_started(job)
    assert heard.stream.count("ChangeStreamFailed") == 1


async def test_user_without_the_right_polls_and_the_fallback_is_reported_once() -> None:
    heard = Heard()
    with restricted_server() as uri, MongoClient[Any](uri, tz_aware=True) as restricted:
        async with heard.open(restricted["x"], poll_interval=0.1):
            await heard.wait(lambda: bool(heard.stream))
            await heard.wait_started(NodePeer(restricted["x"]["monque_jobs"]).enqueue("greet"))
            await heard.wait_started(NodePeer(restricted["x"]["monque_jobs"]).enqueue("greet"))
    assert heard.stream == ["ChangeStreamFallback"]


async def test_standalone_server_is_polled_and_the_fallback_is_reported_once() -> None:
    heard = Heard()
    with standalone_server() as uri, MongoClient[Any](uri, tz_aware=True, retryWrites=False) as alone:
        async with heard.open(alone["x"], poll_interval=0.1) as scheduler:
            await heard.wait(lambda: bool(heard.stream))
            await heard.wait_started(NodePeer(alone["x"]["monque_jobs"]).enqueue("greet"))
            job = await scheduler.enqueue("greet")
            await heard.wait_started(job.id)
    assert heard.stream == ["ChangeStreamFallback"]


@pytest.mark.parametrize("change_stream", [True, False])
async def test_polls_are_rare_while_the_stream_is_up(mongod: Any, db: Database, change_stream: bool) -> None:
    heard, recorder = Heard(), Recorder()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        async with heard.open(client[db.name], poll_interval=0.02, change_stream=change_stream):
            if change_stream:
                await heard.wait_connected()
                await trio.sleep(0.3)  # A poll from before the stream was up may still come,
                await quiesce()  # and its look has been sent.
                recorder.commands.clear()
                await trio.sleep(0.5)
                assert _looks(recorder) == 0
            else:
                recorder.commands.clear()
                while _looks(recorder) < 5:
                    await trio.sleep(0.01)


@pytest.mark.parametrize(
    ("how", "change_stream"),
    one_in(5, ["drop", "rename", "drop database", "replace", "drop and make again"], [True, False]),
)
async def test_indexes_of_a_collection_that_vanished_are_made_again_and_jobs_run(
    db: Database, jobs: Collection, client: MongoClient[Any], node: NodePeer, how: str, change_stream: bool
) -> None:
    heard = Heard()

    def drop_and_make_again() -> None:
        jobs.drop()
        node.enqueue("elsewhere")

    vanish: dict[str, Callable[[], object]] = {
        "drop": jobs.drop,
        "rename": partial(jobs.rename, "elsewhere"),
        "drop database": partial(client.drop_database, db.name),
        "replace": partial(db["another"].rename, "monque_jobs", dropTarget=True),
        "drop and make again": drop_and_make_again,
    }
    db["another"].insert_one({})
    wanted = {index.document["name"] for index in indexes.ALL}
    # Without a stream, by the polls, and by them alone: none of these enqueues is the scheduler's own.
    polls = {} if change_stream else {"change_stream": False, "poll_interval": 0.05}
    async with heard.open(db, **polls) as scheduler:
        if change_stream:
            await heard.wait_connected()
        await heard.wait_started(node.enqueue("greet"))
        vanish[how]()
        if not change_stream:
            # Where there is no collection, there is nothing to find, and nothing to index.
            await heard.wait_started(node.enqueue("greet"))
        while not wanted <= jobs.index_information().keys():
            await trio.sleep(0.01)
        if change_stream and how == "drop database":
            await heard.wait_connected(times=2)
        await heard.wait_started(node.enqueue("greet"), (await scheduler.enqueue("greet")).id)


async def test_scheduler_survives_while_its_indexes_cannot_be_made_again(db: Database, jobs: Collection) -> None:
    heard, monque = Heard(), Monque(db).sync_in_loop
    async with heard.open(db):
        await heard.wait_connected()
        # Two jobs of one key, which come with the collection that takes the place of the old one.
        twins = [monque.document("greet", unique_key="one", delay=1000) for _ in range(2)]
        db["another"].insert_many(twins)
        db["another"].rename("monque_jobs", dropTarget=True)
        await heard.wait(lambda: any("could not create the indexes" in str(event.error) for event in heard.errors))
        jobs.update_one({"_id": twins[0]["_id"]}, {"$set": {"status": "cancelled"}})
        await heard.wait_started(NodePeer(jobs).enqueue("greet"))


async def test_scheduler_survives_while_its_database_is_dropped(db: Database, node: NodePeer) -> None:
    heard = Heard()
    async with heard.open(db) as scheduler:
        await heard.wait_connected()
        dropping = OperationFailure("database is in the process of being dropped", 215)
        with fail_next(scheduler, dropping, command="create the indexes"):
            db.drop_collection("monque_jobs")
            await heard.wait(lambda: bool(heard.errors))
        await heard.wait_started(node.enqueue("greet"))


@pytest.mark.full
async def test_stream_brings_each_request_to_cancel_to_its_handler(db: Database) -> None:
    """How soon is for benchmarks/cancel_latency.py."""
    workers, running, heard, elsewhere = Workers(), dict[ObjectId, trio.Event](), Heard(), Monque(db)
    cancelled = dict[ObjectId, trio.Event]()

    @workers.register("long", concurrency=20)
    async def long(job: RunningJob[Any]) -> None:
        running[job.id].set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled[job.id].set()

    heard.workers = workers
    # No beat comes in time: it is the stream that tells.
    async with heard.open(db, heartbeat_interval=300.0):
        await heard.wait_connected()
        for _ in range(20):
            document = await elsewhere.document("long")
            job_id = document["_id"]
            running[job_id], cancelled[job_id] = trio.Event(), trio.Event()
            await trio.to_thread.run_sync(db["monque_jobs"].insert_one, document)
            await running[job_id].wait()
            await elsewhere.cancel_job(job_id)
            await cancelled[job_id].wait()


class Waits(CommandListener):
    """The waits for changes: whether a long one has begun, and what each was answered with.

    A wait that the server ends by itself is answered with no event.
    """

    def __init__(self) -> None:
        self.has_long_one = threading.Event()
        self.answers: list[set[str]] = []

    def started(self, event: CommandStartedEvent) -> None:
        if event.command_name == "getMore" and event.command["maxTimeMS"] == change_stream.LONGEST_AWAIT * 1000:
            self.has_long_one.set()

    def succeeded(self, event: CommandSucceededEvent) -> None:
        if event.command_name == "getMore":
            self.answers.append({event["ns"]["coll"] for event in event.reply["cursor"]["nextBatch"]})

    def failed(self, event: CommandFailedEvent) -> None: ...


@pytest.mark.full
async def test_leaving_ends_the_wait_of_the_stream_by_a_mark_and_leaves_no_mark(
    mongod: Any, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the mark, the wait would end by itself after `LONGEST_AWAIT`, with an empty answer."""
    monkeypatch.setattr(watcher, "LEAVING_TIMEOUT", 3600.0)
    for _ in range(5):
        waits = Waits()
        with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[waits]) as client:
            async with Heard().open(client[db.name]):
                await trio.to_thread.run_sync(waits.has_long_one.wait)
            assert waits.answers[-1] == {"monque_jobs.instances"}
    assert db["monque_jobs.instances"].count_documents({}) == 0


@pytest.mark.full
async def test_thirty_cycles_leave_no_thread_and_no_connection(mongod: Any, db: Database) -> None:
    connections = Connections()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[connections]) as client:
        before: tuple[Any, int] | None = None
        for _ in range(30):
            heard = Heard()
            async with heard.open(client[db.name]) as scheduler:
                await heard.wait_connected()
                await heard.wait_started((await scheduler.enqueue("greet")).id)
            while any(" from " in name for name in threads()):
                await trio.sleep(0.001)
            if before is None:
                before = threads(), connections.open
        now = threads()
        assert before is not None
        assert connections.open <= before[1] + 3
        assert now["idle"] <= before[0]["idle"] + 3
        assert _open_streams(client, db.name) == 0


def _open_streams(client: MongoClient[Any], database: str) -> int:
    cursors = client.admin.aggregate(
        # The namespace of one that is being waited for is another than that of an idle one.
        [
            {"$currentOp": {"idleCursors": True}},
            {"$match": {"ns": {"$in": [f"{database}.$cmd.aggregate", f"{database}.$cmd"]}}},
        ]
    )
    return len(list(cursors))
