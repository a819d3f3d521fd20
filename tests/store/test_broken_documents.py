"""Documents that no scheduler runs: found, listed, passed over, and looked at again after they were mended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson import SON, DatetimeMS, ObjectId
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.interception import Recorder
from tests.support.malformed import ELEMENTS, with_field
from tests.support.store import PAST, claim_due, handle, insert, stamp
from trio_monque import Monque, RunningJob, Workers
from trio_monque.errors import InvalidOptionError
from trio_monque.jobs import BrokenDocument
from trio_monque.jobs.job import Job
from trio_monque.store import skipped_documents
from trio_monque.store.broken import broken_documents
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import due, next_due
from trio_monque.testing import SchedulerOpener, advance, quiesce

WELL = {
    "name": "greet",
    "data": {},
    "status": "pending",
    "failCount": 0,
    "nextRunAt": PAST,
    "createdAt": PAST,
    "updatedAt": PAST,
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "wrong type": ({"failCount": "7"}, "its failCount is '7'"),
    "missing": ({"name": None}, "it has no name"),
    "status": ({"status": "waiting"}, "its status is 'waiting'"),
    "foreign id": ({"_id": "a string"}, "its _id is 'a string'"),
    "structured id": ({"_id": {"a": 1}}, "its _id is {'a': 1}"),
    "huge": ({"rev": 2**60}, f"its rev is {2**60}"),
    "date": ({"nextRunAt": DatetimeMS(2**60)}, "its nextRunAt is"),
    "data": ({"data": {"at": DatetimeMS(2**60)}}, "its data cannot be decoded"),
    "left over": ({"claimedBy": "who?"}, "it is pending but still has claimedBy='who?'"),
}


@pytest.fixture
def store(db: Database) -> JobCollection:
    return handle(db)


def put(jobs: Collection, change: dict[str, Any]) -> None:
    jobs.insert_one({field: value for field, value in {**WELL, **change}.items() if value is not None})


async def test_every_kind_of_broken_document_is_listed_with_its_reason_and_none_that_is_well(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broken_documents, "MOST_IN_A_BATCH", 2)
    for change, _ in WRONG.values():
        put(jobs, {})
        put(jobs, change)
        put(jobs, {"status": "processing", "claimedBy": "them", "lockedAt": PAST})
    monque = Monque(db)
    found = await monque.get_broken_documents()
    assert len(found) == len(WRONG)
    for one, (change, problem) in zip(found, WRONG.values(), strict=True):
        assert problem in one.reason
        assert one.document_id == one.document["_id"]
        assert one.document_id == change.get("_id", one.document_id)
    assert monque.sync_in_loop.get_broken_documents() == found
    assert await monque.get_broken_documents(limit=4) == found[:4]
    with pytest.raises(InvalidOptionError, match="limit"):
        await monque.get_broken_documents(limit=0)


@pytest.mark.parametrize("options", [CodecOptions(document_class=SON), CodecOptions(tz_aware=True)])
def test_codec_options_of_the_caller_change_nothing_of_what_is_broken(
    db: Database, jobs: Collection, options: CodecOptions[Any]
) -> None:
    put(jobs, {})
    for change, _ in WRONG.values():
        put(jobs, change)
    found = Monque(db.with_options(options)).sync.get_broken_documents()
    assert [problem in one.reason for one, (_, problem) in zip(found, WRONG.values(), strict=True)] == [True] * len(
        WRONG
    )


async def test_document_that_is_shown_is_bounded(db: Database, jobs: Collection) -> None:
    put(jobs, {"failCount": "x", "data": "d" * 5000, **{f"f{number}": 1 for number in range(150)}})
    (found,) = await Monque(db).get_broken_documents()
    assert isinstance(found, BrokenDocument)
    assert found.document["data"] == "(5005 bytes)"
    assert found.document["failCount"] == "x"
    assert len(found.document) == 101
    assert found.document["..."] == f"{1 + 7 + 150 - 100} fields more"


def test_strings_with_invalid_utf8_are_listed_and_hide_nothing(db: Database, jobs: Collection) -> None:
    document = RawBSONDocument(
        __import__("bson")
        .encode({"_id": ObjectId(), **WELL, "failReason": "QQQQ"})
        .replace(b"QQQQ", b"\xff\xfe\xff\xfe")
    )
    jobs.insert_one(document)
    put(jobs, {"failCount": "x"})
    first, second = Monque(db).sync.get_broken_documents()
    assert "cannot be decoded" in first.reason
    assert "failCount" in second.reason


# --- Looked at again ---


def claimed(store: JobCollection) -> list[Job]:
    return list(claim_due(store, {"greet": 10}))


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by which documents are looked at again."""
    now = [1000.0]
    monkeypatch.setattr(skipped_documents, "steady_moment", lambda: now[0])
    return now


MENDED: dict[str, dict[str, Any]] = {
    "wrong type": {"failCount": "7"},
    "huge": {"rev": 2**60},
    "date": {"nextRunAt": DatetimeMS(-(2**60))},
    "data": {"data": {"at": DatetimeMS(2**60)}},
    "owner beside": {"failCount": "7", "claimedBy": "who?"},
}


@pytest.mark.parametrize("kind", MENDED)
def test_mended_document_is_claimed_without_a_restart(
    store: JobCollection, jobs: Collection, moment: list[float], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Also by who touches nothing but the field that was wrong."""
    document_id = ObjectId()
    put(jobs, {"_id": document_id, **MENDED[kind]})
    other = insert(store)
    assert [job.id for job in claimed(store)] == [other.id]
    # Not mended: it is not logged again, however often a look finds it.
    for _ in range(3):
        moment[0] += skipped_documents.LOOK_AGAIN_AFTER
        assert claimed(store) == []
    jobs.update_one({"_id": document_id}, _mending(MENDED[kind]))
    moment[0] += skipped_documents.LOOK_AGAIN_AFTER - 1
    assert claimed(store) == []
    moment[0] += 1
    assert [job.id for job in claimed(store)] == [document_id]
    assert len(caplog.records) == 1


def test_pending_job_is_claimed_once_its_owner_is_removed_and_logged_again_if_it_gets_one(
    store: JobCollection, jobs: Collection, moment: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    put(jobs, {"claimedBy": "who?"})
    assert claimed(store) == []
    jobs.update_one({}, {"$unset": {"claimedBy": ""}})
    assert len(claimed(store)) == 1
    moment[0] += skipped_documents.LOOK_AGAIN_AFTER
    assert claimed(store) == []
    jobs.update_one({}, {"$set": {"status": "pending"}})
    assert claimed(store) == []
    assert len(caplog.records) == 2


def _mending(change: dict[str, Any]) -> dict[str, Any]:
    mended = {field: WELL[field] for field in change if field in WELL}
    gone = {field: "" for field in change if field not in WELL}
    return {**({"$set": mended} if mended else {}), **({"$unset": gone} if gone else {})}


def test_wrongly_mended_document_is_logged_again_with_its_new_fault(
    store: JobCollection, jobs: Collection, moment: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    put(jobs, {"failCount": "7"})
    assert claimed(store) == []
    jobs.update_one({}, {"$set": {"failCount": 7, "rev": "x"}})
    moment[0] += skipped_documents.LOOK_AGAIN_AFTER
    assert claimed(store) == []
    assert ["failCount" in caplog.text, "rev" in caplog.text] == [True, True]
    assert len(caplog.records) == 2


def test_documents_that_are_passed_over_cost_one_look_a_minute(
    monque_client: MongoClient[Any], db: Database, jobs: Collection, moment: list[float]
) -> None:
    for number in range(150):
        put(jobs, {"data": number, "failCount": "x"})
    recorder = Recorder()
    with MongoClient[Any](*(monque_client.address or ()), event_listeners=[recorder]) as client:
        store = handle(client[db.name])
        claimed(store)
        assert len(store.broken) == 150
        recorder.commands.clear()
        for _ in range(10):
            claimed(store)
        assert len(recorder.commands) == 10
        moment[0] += skipped_documents.LOOK_AGAIN_AFTER
        for _ in range(10):
            claimed(store)
        assert len(recorder.commands) == 21
        # A hundred at once, and the others next time.
        jobs.delete_many({})
        moment[0] += skipped_documents.LOOK_AGAIN_AFTER
        claimed(store)
        assert len(store.broken) == 50
        moment[0] += skipped_documents.LOOK_AGAIN_AFTER
        claimed(store)
        assert len(store.broken) == 0


def test_ids_that_are_equal_to_python_only_are_different_ones(store: JobCollection) -> None:
    assert [store.report_broken(one, "x") for one in (1, True, 1.5, {"a": 1}, {"a": 1}, 1)] == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    assert len(store.broken) == 4


async def test_mended_document_runs_in_a_scheduler_that_had_met_it(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    ran: list[ObjectId] = []
    workers = Workers()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        ran.append(job.id)

    put(jobs, {"failCount": "x", "nextRunAt": datetime(2020, 1, 1, tzinfo=UTC)})
    async with open_test_scheduler(workers):
        await quiesce()
        jobs.update_one({}, {"$set": {"failCount": 0}})
        await advance(skipped_documents.LOOK_AGAIN_AFTER)
        assert ran == []
        await advance(1)
        await quiesce()
        assert len(ran) == 1


def test_arrays_of_dates_hide_no_job_that_is_due_later(store: JobCollection, jobs: Collection) -> None:
    for _ in range(3):
        put(jobs, {"nextRunAt": [PAST + timedelta(seconds=1)]})
    put(jobs, {"nextRunAt": PAST + timedelta(seconds=2)})
    found = next_due.next_due(store, ["greet"], PAST)
    assert found is not None
    assert found.moment == PAST + timedelta(seconds=2)


@pytest.mark.parametrize("attempts", [2**63 - 1, 2**53 + 1, -1, 1.0, True, "0", [0]])
def test_job_whose_attempts_are_not_a_counter_is_not_claimed_by_its_id(
    store: JobCollection, jobs: Collection, attempts: Any
) -> None:
    """The server would refuse to add to it, and the error would end the scheduler."""
    put(jobs, {"nextRunAt": PAST + timedelta(seconds=2), "attempts": attempts})
    found = next_due.next_due(store, ["greet"], PAST)
    assert found is not None
    assert found.alone is None


@pytest.mark.parametrize("kind", ["bad text", "surrogate", "pointer", "symbol", "document", "code"])
def test_document_that_no_query_finds_by_its_id_hides_no_job(
    store: JobCollection, jobs: Collection, moment: list[float], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    jobs.insert_one(with_field(WELL, "_id", ELEMENTS[kind]))
    assert claimed(store) == []
    for _ in range(3):
        moment[0] += skipped_documents.LOOK_AGAIN_AFTER
        good = insert(store)
        seen = due.survey(store, {"greet": 1}, PAST)
        assert [job.id for job in seen.jobs] == [good.id]
        assert [job.id for job in claimed(store)] == [good.id]
    assert len(caplog.records) == 1


def test_room_that_a_claim_needs_is_what_the_smallest_claim_adds(db: Database, jobs: Collection) -> None:
    """A larger number would list jobs as broken that can be claimed; a smaller one would miss those that cannot."""
    store = handle(db)
    pending = insert(store)
    jobs.update_one({"_id": pending.id}, {"$set": {"attempts": 1}})
    before = jobs.find_one({"_id": pending.id})
    assert claim_due(store, {"greet": 1}, stamp("u"))
    after = jobs.find_one({"_id": pending.id})
    assert before is not None
    assert after is not None
    added = len(bson.encode(after)) - len(bson.encode(before))
    assert broken_documents.ROOM_FOR_A_CLAIM <= added < broken_documents.ROOM_FOR_A_CLAIM + len("renewedAt")
