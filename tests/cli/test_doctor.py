"""`trio-monque doctor` names each fault that is planted in a real database, in one sentence, with advice."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient

from tests.support.fail_points import refusing_server
from tests.support.full_documents import put_full
from tests.support.node_peer import INDEXES, NodePeer
from tests.support.programs import uri_of_database
from tests.support.standalone import restricted_server, standalone_server
from tests.support.store import claim_due, handle, insert, stamp
from trio_monque import Monque, clock
from trio_monque.cli.doctor.doctor_command import examination
from trio_monque.cli.program import run_program
from trio_monque.diagnosis.facts import ServerFacts
from trio_monque.diagnosis.reasons import BLOCKED_LATELY
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs import LastBlock
from trio_monque.jobs.minutes import FAILED_ATTEMPTS, FAILED_FOR_GOOD, ROW, Part, minute_of
from trio_monque.store.broken.broken_documents import MOST_FIELDS_SHOWN
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs import indexes, minutes_written
from trio_monque.store.jobs.change_stream import open_watch
from trio_monque.store.reads.diagnosis import backlog
from trio_monque.store.reads.diagnosis import jobs as of_jobs

from .doctor_support import Doctor, enter, now


@pytest.fixture
def doctor(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Doctor:
    indexes.ensure(handle(db))
    return Doctor(uri_of_database(mongod.uri, db.name), capsys)


def test_nothing_needs_attention_in_a_working_fleet(
    doctor: Doctor, db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    enter(db, "worker-1", "send")
    Monque(db).sync.enqueue("send", "a")
    Monque(db).sync.schedule("0 9 * * *", "send", unique_key="daily", timezone="Europe/Berlin")
    assert doctor.looks().findings == []
    assert run_program(["doctor", "--uri", doctor.uri]) == 0
    assert capsys.readouterr().out == f"{db.name}.monque_jobs: nothing needs attention.\n"


def test_text_has_the_worst_first_and_the_numbers_last(
    doctor: Doctor, db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    enter(db, "worker-1", heartbeat_ago=600)
    db["monque_jobs"].drop_index("trio_monque_created")
    db["monque_jobs"].create_index("data.order")
    assert run_program(["doctor", "--uri", doctor.uri]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "problem: The index trio_monque_created is missing."
    assert lines[1].startswith("  Run `trio-monque indexes --create`")
    assert [line.partition(":")[0] for line in lines if ": " in line and not line.startswith(" ")][:-1] == [
        "problem",
        "problem",
        "warning",
        "note",
    ]
    assert lines[-1] == f"{db.name}.monque_jobs: 2 problems, 1 warning, 1 note."


@pytest.mark.full
def test_server_that_cannot_be_reached_is_an_error(unused_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    uri = f"mongodb://127.0.0.1:{unused_port}/shop"
    assert run_program(["doctor", "--uri", uri]) == 2
    assert "check that the server runs" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--collection", "--database"])
def test_invalid_name_is_an_error_of_the_option(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(["doctor", "--json", "--uri", "mongodb://localhost/x", option, "a$ b"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, f"Error: {option}='a$ b': " in printed.err) == ("", True)


def test_wrong_collection(doctor: Doctor, db: Database) -> None:
    found = doctor.looks("--collection", "orders")
    assert found.sentences("no-collection") == [f"The database {db.name} has no collection orders."]
    assert found.status == 1


# --- Ten faults ---


def test_missing_index(doctor: Doctor, db: Database) -> None:
    Monque(db).sync.enqueue("send")
    enter(db, "worker-1", "send")
    db["monque_jobs"].drop_index("trio_monque_claim")
    found = doctor.looks()
    assert found.sentences("missing-index") == ["The index trio_monque_claim is missing."]
    assert found.status == 1


def test_index_that_is_missing_leaves_a_query_unserved(doctor: Doctor, db: Database) -> None:
    db["monque_jobs"].drop_index("trio_monque_listing")
    db["monque_jobs"].insert_one({})
    assert doctor.looks().sentences("unserved-query") == [
        "No index serves the list of jobs by next_run_at: the server reads the whole collection, or sorts it."
    ]


def test_index_of_another_definition(doctor: Doctor, db: Database) -> None:
    db["monque_jobs"].drop_index("trio_monque_claim")
    db["monque_jobs"].create_index(["name", "status", "nextRunAt"], name="trio_monque_claim")
    db["monque_jobs"].drop_index("trio_monque_created")
    db["monque_jobs"].create_index(["createdAt", "_id"], name="mine")
    found = doctor.looks()
    assert found.sentences("other-index-definition") == [
        "The definition of the index trio_monque_claim differs from the one that this version of the library creates."
    ]
    assert found.sentences("index-under-other-name") == [
        "The index mine has the definition of trio_monque_created, so trio_monque_created cannot be created."
    ]
    assert "missing-index" not in found.kinds


def test_name_that_no_live_instance_runs(doctor: Doctor, db: Database) -> None:
    enter(db, "worker-1", "send-mail", "report")
    enter(db, "worker-2", "send-mial", heartbeat_ago=600)
    for _ in range(3):
        Monque(db).sync.enqueue("send-mial")
    db["monque_jobs"].update_one({}, {"$set": {"nextRunAt": now() - timedelta(hours=2)}})
    Monque(db).sync.enqueue("unlike", delay=3600)
    assert doctor.looks().sentences("unknown-name") == [
        (
            "No live instance runs jobs named 'send-mial'; one runs 'send-mail'. Pending jobs: 3; the oldest has "
            "waited 2h."
        ),
        "No live instance runs jobs named 'unlike'. Pending jobs: 1.",
    ]


def test_dead_instance(doctor: Doctor, db: Database) -> None:
    enter(db, "worker-1", "send", heartbeat_ago=600)
    (sentence,) = doctor.looks().sentences("dead-instance")
    assert re.fullmatch(
        r"Instance worker-1 \(process 4711 on web-1\) sent its last heartbeat 10m( \ds)? ago: it died, is frozen, or "
        r"cannot reach the database\.",
        sentence,
    )


def test_dead_instances_are_one_finding(doctor: Doctor, db: Database) -> None:
    for name, ago in (("w1", 900), ("w2", 600), ("w3", 1200), ("w4", 0)):
        enter(db, name, "send", heartbeat_ago=ago)
    (sentence,) = doctor.looks().sentences("dead-instance")
    assert sentence.startswith("Instance w2 (process 4711")
    assert sentence.endswith("cannot reach the database. Also: w1, w3.")


def test_plain_handlers_beyond_their_time_limit(doctor: Doctor, db: Database) -> None:
    enter(db, "w1", "mail", "hang", overdue_by_name={"hang": 1})
    enter(db, "w2", "mail", "hang", overdue_by_name={"hang": 4, "mail": 1})
    enter(db, "w3", "hang", overdue_by_name={"hang": 100}, heartbeat_ago=1000)  # Its threads have ended with it.
    found = [one["fields"] for one in doctor.looks().findings if one["kind"] == "overdue-threads"]
    assert found == [
        {"name": "hang", "count": 5, "instance": "w2", "quoted": "hang", "is_capped": False},
        {"name": "mail", "count": 1, "instance": "w2", "quoted": "mail", "is_capped": False},
    ]
    (sentence,) = doctor.looks("hang").sentences("overdue-threads")
    assert "handlers of 'hang' that are still running although their runs were cancelled" in sentence
    assert ": 5, some of them in w2." in sentence


def test_handlers_that_blocked_the_event_loop_lately(doctor: Doctor, db: Database) -> None:
    def block(name: str | None, ago: float) -> LastBlock:
        return LastBlock(name, now() - timedelta(seconds=ago), 3.25)

    enter(db, "w1", "mail", loop_blocked=7, last_block=block("report", 60))
    enter(db, "w2", "mail", loop_blocked=1, last_block=block(None, 60))
    enter(db, "w3", "mail", loop_blocked=9, last_block=block("report", BLOCKED_LATELY + 60))
    enter(db, "w4", "mail", loop_blocked=9, last_block=block("report", 200), heartbeat_ago=100)  # It is dead.
    found = doctor.looks()
    assert [re.sub(r"1m( \ds)? ago", "1m ago", one) for one in found.sentences("blocked-loop")] == [
        f"{culprit} for 3.2s or longer, last seen 1m ago. Since its start, its loop has been blocked for longer than a "
        f"second this many times: {times}."
        for culprit, times in [
            ("A handler of 'report' blocked the event loop of w1", 7),
            ("Something outside of the handlers blocked the event loop of w2", 1),
        ]
    ]
    assert [one["fields"]["instance"] for one in doctor.looks("report").findings if one["kind"] == "blocked-loop"] == [
        "w1"
    ]
    assert len(doctor.looks("mail").sentences("blocked-loop")) == 2  # They run the name, so its jobs wait.
    assert doctor.looks("other").sentences("blocked-loop") == []


def test_poison_and_failing_jobs(doctor: Doctor, db: Database) -> None:
    jobs = db["monque_jobs"]
    killer, given_up, once, failing = (insert(handle(db), "render").id for _ in range(4))
    changed: dict[Any, dict[str, Any]] = {
        killer: {"rescues": 2},
        given_up: {"status": "failed", "failReason": "died 4 times while running"},
        once: {"rescues": 1},
        failing: {"failCount": 7, "failReason": "ValueError: no\nimage"},
    }
    for job_id, fields in changed.items():
        jobs.update_one({"_id": job_id}, {"$set": {"updatedAt": now(), **fields}})
    found = doctor.looks()
    assert set(found.sentences("poison-job")) == {
        f"Jobs named 'render' ({status}) that may kill their process: 1 (for example job {job_id}). On one of them, "
        f"{deaths} claims in a row died."
        for status, deaths, job_id in (("pending", 2, killer), ("failed", 4, given_up))
    }
    # What has failed for good does not run, and is not counted a second time.
    advice = {one["advice"].startswith("If it still runs") for one in found.findings if one["kind"] == "poison-job"}
    assert advice == {True, False}
    assert found.sentences("failing-job") == [
        (
            "Jobs named 'render' that failed at least 5 times in a row and will be retried: 1, one of them "
            f"(job {failing}) with: ValueError: no\\nimage"
        )
    ]
    assert found.sentences("rescued-jobs") == [
        "Jobs rescued from dead instances in the last day that have not completed since: 2."
    ]


def test_name_whose_attempts_fail(doctor: Doctor, db: Database) -> None:
    """As the scheduler wrote it: three attempts of three failed lately, and many more of another name an hour ago."""
    row = [0] * ROW
    row[FAILED_ATTEMPTS], row[FAILED_FOR_GOOD] = 3, 1
    ago = {"it's odd": 5, "earlier": 60, "other": 5}
    for name, minutes in ago.items():
        part = Part(minute_of(now() - timedelta(minutes=minutes)), 5, {name: row})
        minutes_written.write(handle(db), f"w {name}", "1", [part])
    found = doctor.looks("it's odd")
    assert found.sentences("failing-name") == [
        'Jobs named "it\'s odd" are failing: 3 of 3 attempts in the last 10m. Failed for good: 1.'
    ]
    (finding,) = (one for one in found.findings if one["kind"] == "failing-name")
    assert finding["advice"].startswith("""Inspect one: `trio-monque jobs --name 'it'"'"'s odd' --status""")
    assert len(doctor.looks().sentences("failing-name")) == 2


@pytest.mark.full
def test_change_stream_that_cannot_be_opened(capsys: pytest.CaptureFixture[str]) -> None:
    with refusing_server() as server, server.client() as client:
        indexes.ensure(handle(client["x"]))
        doctor = Doctor(f"{uri_of_database(server.uri, 'x')}&appname={server.app}", capsys)
        assert doctor.looks().status == 0
        with server.refusing(13, ["aggregate"]):
            (sentence,) = doctor.looks().sentences("no-change-stream")
    assert sentence.startswith(
        "The change stream cannot be opened, so workers poll: could not open the change stream: Failing command"
    )


def test_streams_of_these_jobs_are_counted_and_from_ten_on_the_writes_too(
    mongod: EmbeddedServer, client: MongoClient[Any], db: Database
) -> None:
    jobs = handle(db)
    indexes.ensure(jobs)
    others = db["others"].watch(), db.watch([{"$match": {"operationType": "insert"}}])
    of_other_jobs = replace(jobs, collection=db["other_jobs"])
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        db["others"].insert_many([{} for _ in range(500)])

    def look() -> ServerFacts:
        return examination(mongod.uri, db, "monque_jobs", pause=pause).facts().server

    with ExitStack() as stack:
        for one in others:
            stack.enter_context(one)
        stack.callback(open_watch(of_other_jobs, "other").close)
        for number in range(9):
            stack.callback(open_watch(jobs, f"instance-{number}").close)
        server = look()
        assert (server.streams, server.writes, pauses) == (9, None, [])
        stack.callback(open_watch(jobs, "instance-9").close)
        server = look()
        assert server.streams == 10
        assert server.writes is not None
        # On a machine so busy that the questions take a second, nothing is waited for.
        assert all(0 < seconds <= 1 for seconds in pauses)
        assert server.writes >= (1 if pauses else 0)


def test_clock_that_is_a_minute_off(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "wall_clock", lambda: datetime.now(UTC) - timedelta(minutes=1))
    (sentence,) = doctor.looks().sentences("clock-off")
    assert sentence == "The clock of this machine is 60.0 s behind the server's."


@pytest.mark.full
def test_oversized_document(doctor: Doctor, db: Database) -> None:
    full, nearly = put_full(db["monque_jobs"], 0), put_full(db["monque_jobs"], 10_000)
    found = doctor.looks()
    assert found.sentences("oversized-document") == [
        f"Jobs named 'greet' without room for a claim, which never run: 1. Job {full} has 16,777,216 bytes."
    ]
    assert found.sentences("nearly-full-document") == [
        (f"Jobs named 'greet' whose result or errors may not fit: 1. Job {nearly} has 16,767,216 of 16,777,216 bytes.")
    ]


@pytest.mark.full
def test_standalone_server_with_a_full_pool(capsys: pytest.CaptureFixture[str]) -> None:
    with standalone_server("--maxConns", "20") as uri, ExitStack() as open_clients:
        indexes.ensure(handle(open_clients.enter_context(MongoClient[Any](uri))["x"]))
        found = Doctor(f"{uri}x?maxPoolSize=5", capsys).looks()
    assert found.sentences("standalone-server") == [
        "The server is standalone: it has no change streams, transactions or failover."
    ]
    assert found.sentences("small-pool") == [
        "The client's connection pool has 5 connections, and a scheduler needs 21."
    ]
    (sentence,) = found.sentences("server-full")
    assert sentence.startswith("The server is nearly out of connections: it has ")
    (sentence,) = found.sentences("no-change-stream")
    assert "could not open the change stream" in sentence


# --- Others ---


def test_running_jobs_without_a_renewal_are_named_with_the_reason(doctor: Doctor, db: Database) -> None:
    jobs = handle(db)
    frozen, gone = (insert(jobs, name).id for name in ("a", "b"))
    long_ago = now() - timedelta(minutes=5)
    claim_due(jobs, {"a": 1}, stamp("worker-1", long_ago), long_ago)
    claim_due(jobs, {"b": 1}, stamp("worker-2", long_ago), long_ago)
    insert(jobs, "c")
    claim_due(jobs, {"c": 1}, stamp("worker-3", now()), now())
    db["monque_jobs"].insert_one(
        {**(db["monque_jobs"].find_one({"name": "b"}) or {}), "_id": ObjectId(), "claimedBy": None}
    )
    enter(db, "worker-1", heartbeat_ago=300)
    found = doctor.looks()
    reasons = {
        frozen: ("worker-1", "its process 4711 on web-1 has sent no heartbeat for 5m: it died or is frozen"),
        gone: ("worker-2", "it has ended, as it has no entry in the fleet"),
    }
    assert {re.sub(r"5m( \ds)?", "5m", sentence) for sentence in found.sentences("stuck-jobs")} == {
        f"Jobs stuck in `processing`: 1 (for example job {job}). Their holder {holder} has not renewed its claims for "
        f"5m: {reason}."
        for job, (holder, reason) in reasons.items()
    }
    assert len(found.sentences("no-holder")) == 1


def test_jobs_of_dead_holders_without_a_live_instance_need_a_worker(doctor: Doctor, db: Database) -> None:
    jobs = handle(db)
    long_ago = now() - timedelta(minutes=5)
    insert(jobs, "a")
    claim_due(jobs, {"a": 1}, stamp("worker-1", long_ago), long_ago)
    claimed = db["monque_jobs"].find_one() or {}
    db["monque_jobs"].insert_one({**claimed, "_id": ObjectId(), "claimedBy": None})
    peer = NodePeer(db["monque_jobs"])
    peer.hold("send", 1, now() - timedelta(minutes=10))
    enter(db, "worker-1", heartbeat_ago=300)

    def advice() -> dict[str, str]:
        found = doctor.looks().findings
        return {one["kind"]: one["advice"] for one in found if one["kind"] in ("stuck-jobs", "no-holder", node)}

    node = "stuck-node-jobs"
    alone = advice()
    assert alone.keys() == {"stuck-jobs", "no-holder", node}
    start = "No instance is alive: start a worker, `trio-monque run MODULE:ATTRIBUTE`. "
    assert all(text.startswith(start) for text in alone.values())
    enter(db, "worker-2", "a", "send")
    assert advice() == {kind: text.removeprefix(start) for kind, text in alone.items()}


def test_peer_in_node_and_its_indexes(doctor: Doctor, db: Database) -> None:
    peer = NodePeer(db["monque_jobs"])
    db["monque_jobs"].create_indexes([one for one in INDEXES if not one.document.get("unique")])
    for _ in range(2):
        peer.enqueue("send")
    peer.claim("send")
    found = doctor.looks()
    assert len(found.sentences("node-indexes")) == 1
    assert "10 indexes of Monque for Node" in found.sentences("node-indexes")[0]
    assert len(found.sentences("node-peer")) == 1
    assert found.status == 0  # Notes only.
    peer.hold("send", 2, now() - timedelta(minutes=10))
    (sentence,) = doctor.looks().sentences("stuck-node-jobs")
    assert sentence.startswith("Jobs in `processing` under node-1: 2. It is not an instance of this library")


def test_jobs_that_still_owe_a_follow_up(doctor: Doctor, db: Database) -> None:
    enter(db, "worker-1", "pack")
    ended = {"failCount": 0, "attempts": 1, "createdAt": now(), "nextRunAt": now(), "followUp": True}
    for name, ago, status in (
        ("pack", 3, "completed"),
        ("pack", 9, "failed"),
        ("late", 0, "failed"),
        ("no", 9, "cancelled"),
    ):
        moment = now() - timedelta(minutes=ago)
        db["monque_jobs"].insert_one({**ended, "name": name, "status": status, "updatedAt": moment})
    assert doctor.looks().sentences("owed-follow-ups") == [], "no scheduler with a `then` has made the index"
    indexes.ensure(handle(db), also=[indexes.FOLLOW_UPS])
    found = doctor.looks()
    assert set(found.kinds) == {"owed-follow-ups", "failed-jobs"}
    (sentence,) = found.sentences("owed-follow-ups")
    assert sentence.startswith(
        "Ended jobs named 'pack' whose follow-up was not enqueued yet: 2; the oldest has waited 9m"
    )


def test_indexes_of_others(doctor: Doctor, db: Database) -> None:
    jobs = db["monque_jobs"]
    jobs.create_index("a")
    jobs.create_index("b", unique=True, sparse=True)
    jobs.create_index("createdAt", expireAfterSeconds=60)
    found = doctor.looks()
    assert [kind for kind in found.kinds if kind.endswith("index")] == [
        "unique-index",
        "expiring-index",
        "surplus-index",
    ]
    assert "after 1m," in found.sentences("expiring-index")[0]


def test_capped_collection(doctor: Doctor, db: Database) -> None:
    db.drop_collection("monque_jobs")
    db.create_collection("monque_jobs", capped=True, size=1 << 20)
    found = doctor.looks()
    (sentence,) = found.sentences("unsafe-collection")
    assert sentence.startswith("The collection monque_jobs cannot hold jobs: it is capped, so the server deletes")


def test_schedules_that_cannot_be_understood(doctor: Doctor, db: Database) -> None:
    enter(db, "worker-1", "daily", "node")
    daily = Monque(db).sync.schedule("@daily", "daily", unique_key="d")
    Monque(db).sync.schedule("@hourly", "daily", unique_key="e")
    hourly = Monque(db).sync.get_job_by_key("daily", "e")
    assert hourly is not None
    db["monque_jobs"].update_one({"_id": daily.id}, {"$set": {"timezone": "Mars, Olympus"}})
    db["monque_jobs"].update_one({"_id": hourly.id}, {"$set": {"timezone": "Mars/Olympus"}})
    node = NodePeer(db["monque_jobs"]).enqueue(
        "node", repeatInterval="0 0 9 * * *", nextRunAt=now() + timedelta(hours=1)
    )
    found = doctor.looks()
    first, second = sorted(found.sentences("bad-schedule"), key=lambda one: "Mars" not in one)
    assert str(daily.id) in first
    assert "'Mars, Olympus' is unknown" in first
    assert str(node) in second
    # It may be a zone of a newer database: another machine may know it.
    (elsewhere,) = found.sentences("unknown-time-zone")
    assert str(hourly.id) in elsewhere
    assert "this machine does not know its time zone 'Mars/Olympus'" in elsewhere


def test_backlog_and_paused_name(doctor: Doctor, db: Database) -> None:
    enter(db, "worker-1", "send", "report")
    for name in ("send", "report"):
        insert(handle(db), name)
    Monque(db).sync.pause("report", by="dana")
    found = doctor.looks()
    (sentence,) = found.sentences("backlog")
    assert sentence.startswith("Due jobs named 'send': 1; the oldest has waited ")
    (paused,) = found.sentences("paused-name")
    assert re.fullmatch(r"The name 'report' is paused since .*Z by dana\. Due jobs: 1\.", paused)


def test_jobs_without_any_instance(doctor: Doctor, db: Database) -> None:
    insert(handle(db), "send")
    found = doctor.looks()
    assert found.sentences("no-instance") == ["No instance is alive, so no job runs. Pending jobs: 1."]
    assert "unknown-name" not in found.kinds


def broken_documents(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {**job, "name": 3}
    yield {**job, "nextRunAt": "tomorrow"}
    yield {field: value for field, value in job.items() if field != "createdAt"}
    yield {**job, "failCount": None}
    yield {**job, "claimedBy": "worker-1"}
    yield {**job, "status": "done"}


def test_broken_documents(doctor: Doctor, db: Database) -> None:
    insert(handle(db), "send")
    enter(db, "worker-1", "send")
    job = db["monque_jobs"].find_one() or {}
    broken = [{**one, "_id": ObjectId()} for one in broken_documents(job)]
    db["monque_jobs"].insert_many(broken)
    unknown_status = broken.pop()

    def named(*arguments: str) -> set[str]:
        found = [one["fields"] for one in doctor.looks(*arguments).findings if one["kind"] == "broken-document"]
        assert {one["count"] for one in found} == {1}
        return {one["document"] for one in found}

    assert named() == {str(one["_id"]) for one in broken}
    assert named("--all-documents") == {str(one["_id"]) for one in (*broken, unknown_status)}


def test_broken_documents_come_with_the_command_that_repairs_them(doctor: Doctor, db: Database) -> None:
    enter(db, "worker-1", "send")
    jobs = [insert(handle(db), "send") for _ in range(4)]
    owned, undated, other = {"claimedBy": "a person"}, {"nextRunAt": None}, {"failCount": "many"}
    for job, fields in zip(jobs, (owned, undated, owned, other), strict=True):
        db["monque_jobs"].update_one({"_id": job.id}, {"$set": fields})
    found = [one["advice"] for one in doctor.looks().findings if one["kind"] == "broken-document"]
    commands = [re.findall(r"^`trio-monque repair (.*)` repairs them\.", one) for one in found]
    ids = [str(job.id) for job in jobs]
    assert sorted(commands) == sorted([[f"{ids[0]} {ids[2]} --unset claimedBy"], [f"{ids[1]} --set nextRunAt=now"], []])
    command = next(one[0] for one in commands if one and "--unset" in one[0])
    assert run_program(["repair", "--uri", doctor.uri, "--yes", *command.split()]) == 0
    assert sum(one["kind"] == "broken-document" for one in doctor.looks().findings) == 2


def test_document_that_is_not_shown_whole_comes_without_a_command(doctor: Doctor, db: Database) -> None:
    enter(db, "worker-1", "send")
    job = insert(handle(db), "send")
    many = {f"a{number}": 1 for number in range(MOST_FIELDS_SHOWN)}
    document = db["monque_jobs"].find_one_and_delete({"_id": job.id}) or {}
    db["monque_jobs"].insert_one({"_id": job.id, **many, **document, "claimedBy": "a person"})
    (one,) = (one for one in doctor.looks().findings if one["kind"] == "broken-document")
    assert one["advice"].startswith("`trio-monque repair ID --set FIELD=VALUE`")


@pytest.mark.full
def test_user_with_few_rights_gets_what_can_be_answered(capsys: pytest.CaptureFixture[str]) -> None:
    with restricted_server() as uri:
        found = Doctor(uri, capsys).looks()
    assert "standalone-server" in found.kinds
    assert "not authorized" in found.sentences("no-change-stream")[0]


# --- Many of one kind ---


def put_jobs(db: Database, number: int, **fields: Any) -> list[ObjectId]:
    """Insert jobs that were due an hour ago, and changed a moment ago."""
    ago = now() - timedelta(hours=1)
    job = {"name": "send", "data": None, "status": "pending", "failCount": 0, "createdAt": ago, "nextRunAt": ago}
    return db["monque_jobs"].insert_many([{**job, "updatedAt": now(), **fields} for _ in range(number)]).inserted_ids


def test_failures_with_one_cause_are_one_finding_with_a_count(doctor: Doctor, db: Database) -> None:
    enter(db, "worker-1", "send", "it's odd")
    for one in range(40):
        put_jobs(db, 1, status="failed", failReason=f"ValueError: order {one} is gone", failCount=1)
        put_jobs(db, 1, failReason=f"OSError: no route to 10.0.0.{one}", failCount=6, nextRunAt=now())
    put_jobs(db, 2, status="failed", failReason="KeyError: 'total'", failCount=9)
    put_jobs(db, 1, status="failed", failReason="KeyError: 'total'", name="it's odd")
    put_jobs(db, 1, status="failed", failReason="long ago", updatedAt=now() - timedelta(days=2))
    found = [one for one in doctor.looks().findings if one["kind"] in ("failed-jobs", "failing-job")]
    counts = [(one["kind"], one["fields"]["name"], one["fields"]["count"]) for one in found]
    assert sorted(counts) == [
        ("failed-jobs", "it's odd", 1),
        ("failed-jobs", "send", 2),
        ("failed-jobs", "send", 40),
        ("failing-job", "send", 40),
    ]
    assert {one["fields"]["is_capped"] for one in found} == {False}
    advice = next(one["advice"] for one in found if one["fields"]["name"] == "it's odd")
    assert "`trio-monque retry --name 'it'\"'\"'s odd' --status failed`" in advice


def test_failed_child_is_found_unless_its_parent_has_ended_since(
    doctor: Doctor, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent has dealt with it, or has failed and is found itself."""
    enter(db, "worker-1", "send", "order", "nightly")
    ended = {"finishedAt": now() + timedelta(minutes=1)}
    parents: dict[str, list[Any]] = {
        "completed": put_jobs(db, 1, name="order", status="completed", **ended),
        "failed": put_jobs(db, 1, name="order", status="failed", failReason="JobNurseryError: x", **ended),
        "running": put_jobs(db, 1, name="order", status="pending", nextRunAt=now() + timedelta(hours=1)),
        "recurring": put_jobs(db, 1, name="nightly", nextRunAt=now() + timedelta(hours=1), **ended),
        "ended before the child": put_jobs(db, 1, name="order", status="completed", finishedAt=now()),
        "cancelled": put_jobs(db, 1, name="order", status="cancelled", **ended),
        "gone": [ObjectId()],
        "of another type": ["x"],
    }
    for kind, (parent,) in parents.items():
        when = now() + timedelta(seconds=5)
        put_jobs(db, 1, status="failed", parent=parent, failReason=f"{kind.replace(' ', '')}: x", updatedAt=when)

    def reasons(*name: str) -> set[str]:
        found = (one["fields"] for one in doctor.looks(*name).findings if one["kind"] == "failed-jobs")
        return {one["reason"].partition(":")[0] for one in found}

    one = {"name": "send", "status": "failed", "failReason": "odd: x", "updatedAt": now(), "createdAt": now()}
    db["monque_jobs"].insert_one({**one, "_id": {"of": "another program"}, "nextRunAt": now()})
    parents["odd"] = [ObjectId()]
    dealt_with = {"completed", "failed"}
    assert reasons() == {"JobNurseryError", *(kind.replace(" ", "") for kind in parents if kind not in dealt_with)}
    # Of one name, the parent is not looked at.
    assert reasons("send") == {kind.replace(" ", "") for kind in parents if kind != "completed"}
    # Others may be hidden beyond those that are read.
    monkeypatch.setattr(of_jobs, "MOST_READ", len(parents))
    assert dealt_with <= reasons()


def test_broken_document_hides_no_backlog(doctor: Doctor, db: Database) -> None:
    enter(db, "worker-1", "send")
    put_jobs(db, 3)
    for wrong in (None, "tomorrow", 5):
        put_jobs(db, 2, nextRunAt=wrong)
    found = doctor.looks()
    (sentence,) = found.sentences("backlog")
    assert sentence.startswith("Due jobs named 'send': 3; the oldest has waited 1h")
    assert sum(one["fields"]["count"] for one in found.findings if one["kind"] == "broken-document") == 6


def test_capped_number_is_a_lower_bound_everywhere(
    doctor: Doctor, db: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backlog, "MOST_COUNTED", 20)
    monkeypatch.setattr(of_jobs, "MOST_READ", 4)
    put_jobs(db, 15)
    put_jobs(db, 3, name="report")
    put_jobs(db, 6, name="report", status="failed", failReason="x")
    found = doctor.looks()
    assert found.sentences("no-instance") == ["No instance is alive, so no job runs. Pending jobs: 13+."]
    fields = {one["kind"]: one["fields"] for one in found.findings}
    assert fields["no-instance"] == {"pending": 13, "is_capped": True}
    assert (fields["failed-jobs"]["count"], fields["failed-jobs"]["is_capped"]) == (4, True)
    run_program(["doctor", "--uri", doctor.uri, "--json"])
    pending = {one["name"]: one for one in json.loads(capsys.readouterr().out)["pending"]}
    assert [(one["pending"], one["due"], one["is_capped"]) for one in pending.values()] == [
        (3, 3, False),
        (10, 10, True),
    ]


def test_one_name_only(doctor: Doctor, db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    enter(db, "worker-1", "send")
    put_jobs(db, 2)
    put_jobs(db, 2, status="failed", failReason="x")
    put_jobs(db, 1, nextRunAt=None)
    put_jobs(db, 2, name="other", status="failed", failReason="x")
    put_jobs(db, 1, name="other", nextRunAt=None)
    put_jobs(db, 1, name="other")
    found = doctor.looks("send")
    assert sorted(found.kinds) == ["backlog", "broken-document", "failed-jobs"]
    assert "unknown-name" in doctor.looks().kinds
    assert {one["fields"]["count"] for one in found.findings if "count" in one["fields"]} == {1, 2}
    assert doctor.looks("send", "--all-documents").kinds.count("broken-document") == 1
    assert doctor.looks("sned").sentences("no-such-name") == [
        "No job has the name 'sned', and no live instance runs it; one runs 'send'."
    ]


@pytest.mark.full
def test_questions_are_asked_until_the_time_is_up(capsys: pytest.CaptureFixture[str]) -> None:
    with refusing_server() as server, server.client() as client:
        indexes.ensure(handle(client["x"]))
        doctor = Doctor(f"{uri_of_database(server.uri, 'x')}&appname={server.app}", capsys)
        with server.refusing(50, ["aggregate"]):
            assert doctor.looks().kinds.count("unanswered") > 3
            seconds = itertools.count()  # One for each question.
            look = examination(doctor.uri, client["x"], "monque_jobs", clock=lambda: next(seconds) * 3.0)
            unanswered = look.facts().unanswered
    assert unanswered.count("the remaining queries were skipped, because 30 s had passed") == 1
    assert 1 < len(unanswered) <= 10
