"""Many results in one statement: each job's own is stored, as the plain statement stores it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import bson
import pytest
from bson import Binary, Decimal128, ObjectId
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from hypothesis import example, given
from hypothesis import strategies as st
from pymongo import MongoClient

from tests.support.bson_values import ABSENT, NOTHING, VALUES
from tests.support.callers_codec import CALLERS_OPTIONS, Money
from tests.support.interception import Recorder
from tests.support.store import PAST, claim, handle, stamp
from tests.support.thoroughly import in_full, the_same_examples
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs import transitions
from trio_monque.jobs.claim_stamps_and_fences import claim_id
from trio_monque.jobs.conditional_write import Transition
from trio_monque.jobs.job import Job, JobStatus
from trio_monque.jobs.job_parts import Schedule
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import settling, settling_statements
from trio_monque.store.jobs.settling import Fate, Statement, grouped

LATER: Final = PAST + timedelta(minutes=1)


@pytest.fixture
def store(db: Database) -> JobCollection:
    return handle(db)


def completed(jobs: Sequence[Job], results: Sequence[Any]) -> list[Transition]:
    return [transitions.complete(job, LATER, result) for job, result in zip(jobs, results, strict=True)]


def settle(store: JobCollection, settled: Sequence[Transition], receipt: str = "r") -> list[Fate]:
    fates = settling.settle(store, grouped(settled, receipt))
    return [fates[transition.guard["id"], transition.guard["claim.token"]] for transition in settled]


def results_of(jobs: Collection, held: Sequence[Job]) -> list[Any]:
    found = {document["_id"]: document for document in jobs.find()}
    return [found[job.id].get("result") for job in held]


def statuses_of(jobs: Collection, held: Sequence[Job]) -> list[str]:
    found = {document["_id"]: document["status"] for document in jobs.find()}
    return [found[job.id] for job in held]


@contextmanager
def recorded(mongod: EmbeddedServer, db: Database) -> Iterator[tuple[JobCollection, Recorder]]:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder]) as client:
        yield handle(client[db.name]), recorder


def updates(recorder: Recorder) -> list[int]:
    """How many statements each command had."""
    assert {name for name, _ in recorder.commands} == {"update"}
    return [len(command["updates"]) for _, command in recorder.commands]


def test_results_of_one_claim_cycle_are_one_statement(mongod: EmbeddedServer, db: Database) -> None:
    with recorded(mongod, db) as (store, recorder):
        held = [*claim(store, 30), *claim(store, 20, stamp("others"))]
        results = [None if number % 5 == 0 else {"number": number} for number in range(50)]
        recorder.commands.clear()
        assert settle(store, completed(held, results)) == [Fate.WRITTEN] * 50
        # Of each cycle, those with a result and those without.
        assert updates(recorder) == [4]
    assert results_of(db["monque_jobs"], held) == results


def test_more_results_than_one_statement_may_hold_are_several(
    mongod: EmbeddedServer, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling_statements, "MOST_BYTES", 1000)
    with recorded(mongod, db) as (store, recorder):
        held = claim(store, 7)
        results = ["a" * size for size in (400, 400, 400, 5000, 10, 900, 10)]
        recorder.commands.clear()
        assert settle(store, completed(held, results)) == [Fate.WRITTEN] * 7
        parts = [one["q"]["_id"] for one in recorder.commands[0][1]["updates"]]
        assert updates(recorder) == [4]
    ids = [job.id for job in held]
    assert parts == [{"$in": ids[:2]}, ids[2], ids[3], {"$in": ids[4:]}]
    assert results_of(db["monque_jobs"], held) == results


@pytest.mark.full
def test_results_that_no_command_could_hold_together_are_stored(store: JobCollection, jobs: Collection) -> None:
    held = claim(store, 6)
    results = [character * 10_000_000 for character in "abcdef"]
    assert settle(store, completed(held, results)) == [Fate.WRITTEN] * 6
    assert results_of(jobs, held) == results


def test_results_sent_again_are_written_once_and_reported_as_written(store: JobCollection, jobs: Collection) -> None:
    """As after a lost answer: half of it was applied, one job was claimed again since, and one was lost before."""
    held = claim(store, 6)
    (whole,) = grouped(completed(held, list("abcdef")), "r")
    half = Statement(whole.transition, whole.receipt, whole.claims[:3], whole.results[:3])
    assert set(settling.settle(store, [half]).values()) == {Fate.WRITTEN}
    after_half = [jobs.find_one({"_id": job.id}) for job in held[1:3]]
    jobs.update_one({"_id": held[0].id}, {"$set": {"status": "processing", "claimedBy": "another"}})
    jobs.update_one({"_id": held[5].id}, {"$set": {"claimedBy": "another"}})
    for _ in range(2):
        fates = settling.settle(store, [whole])
        assert [fates[claim_id(job)] for job in held] == [Fate.WRITTEN] * 5 + [Fate.LOST]
        assert results_of(jobs, held) == [*"abcde", None]
    assert [jobs.find_one({"_id": job.id}) for job in held[1:3]] == after_half
    assert statuses_of(jobs, held) == ["processing", *["completed"] * 4, "processing"]


@pytest.mark.parametrize("field", ["status", "claimedBy", "lockedAt", "claimToken", "repeatInterval"])
def test_results_are_written_under_the_whole_fence(store: JobCollection, jobs: Collection, field: str) -> None:
    held = claim(store, 3)
    changed = {"lockedAt": LATER, "repeatInterval": "* * * * *"}.get(field, "failed")
    jobs.update_one({"_id": held[1].id}, {"$set": {field: changed}})
    before = jobs.find_one({"_id": held[1].id})
    fate = Fate.JOB_CHANGED if field == "repeatInterval" else Fate.LOST
    assert settle(store, completed(held, [1, 2, 3])) == [Fate.WRITTEN, fate, Fate.WRITTEN]
    assert jobs.find_one({"_id": held[1].id}) == before
    assert results_of(jobs, held) == [1, None, 3]


def test_result_that_does_not_fit_keeps_no_neighbour_from_its_end(
    store: JobCollection, jobs: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    held = claim(store, 4)
    jobs.update_one({"_id": held[1].id}, {"$set": {"data": "x" * (16 * 1024 * 1024 - 100_000)}})
    results = ["a", "b" * 200_000, "c", "d"]
    fates = [Fate.WRITTEN, Fate.REFUSED, Fate.WRITTEN, Fate.WRITTEN]
    for _ in range(2):  # And again, as after a lost answer.
        assert settle(store, completed(held, results)) == fates
        assert results_of(jobs, held) == ["a", None, "c", "d"]
    assert statuses_of(jobs, held) == ["completed", "processing", "completed", "completed"]
    (reported,) = (one.message for one in caplog.records if one.levelname == "ERROR")
    assert str(held[1].id) in reported


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("depth", [180, 190, 195, 250])
@pytest.mark.parametrize("alone", [True, False])
def test_result_that_is_nested_too_deeply_spoils_no_other(
    store: JobCollection, jobs: Collection, depth: int, alone: bool
) -> None:
    """From some depth on, the server refuses the command as a whole, and does not say for whose sake."""
    held = [*claim(store, 1 if alone else 4), *claim(store, 2, stamp("others"))]
    results = [nested(depth), *range(2, len(held) + 1)]
    fates = [Fate.REFUSED] + [Fate.WRITTEN] * (len(held) - 1)
    assert settle(store, completed(held, results)) == fates
    assert results_of(jobs, held) == [None, *results[1:]]
    assert statuses_of(jobs, held) == ["processing"] + ["completed"] * (len(held) - 1)


def test_result_as_deep_as_a_document_may_be_is_stored_beside_others(store: JobCollection, jobs: Collection) -> None:
    held = claim(store, 3)
    results = [nested(179), nested(1), nested(178)]
    assert settle(store, completed(held, results)) == [Fate.WRITTEN] * 3
    assert results_of(jobs, held) == results


def test_change_streams_get_next_occurrences_with_results_as_updates(store: JobCollection, jobs: Collection) -> None:
    """Monque for Node wakes for no replacement of a document: what it may wait for is not written as one."""
    held = [replace(job, schedule=Schedule(cron="* * * * *")) for job in claim(store, 3)]
    jobs.update_many({}, {"$set": {"repeatInterval": "* * * * *"}})
    settled = [transitions.go_on(job, LATER, LATER, result=number) for number, job in enumerate(held)]
    with jobs.watch() as stream:
        assert settle(store, settled) == [Fate.WRITTEN] * 3
        reported = [stream.next() for _ in held]
    assert [(one["operationType"], one["updateDescription"]["updatedFields"]["result"]) for one in reported] == [
        ("update", number) for number in range(3)
    ]


# --- What is stored ---


def test_results_are_encoded_as_the_callers_codec_says(db: Database, jobs: Collection) -> None:
    store = handle(db.with_options(codec_options=CALLERS_OPTIONS))
    held = claim(store, 2)
    number = uuid.uuid4()
    assert settle(store, completed(held, [Money("1.50"), {"id": number}])) == [Fate.WRITTEN] * 2
    assert results_of(jobs, held) == [Decimal128("1.50"), {"id": Binary(number.bytes, 3)}]


def raw_of(jobs: Collection, job: Job) -> dict[str, bytes]:
    """The stored document, field by field, as it lies there."""
    raw = jobs.with_options(codec_options=CodecOptions(document_class=RawBSONDocument)).find_one({"_id": job.id})
    assert raw is not None
    # Field by field: a new field is appended in another order, which means nothing.
    return {name: bson.encode({"": value}) for name, value in raw.items()}


@pytest.mark.larger_in_full
@the_same_examples(in_full(10, 50), 150)
@given(results=st.lists(VALUES, min_size=2, max_size=5), before=VALUES | NOTHING, data=VALUES)
@example(results=[{"a": 1}, {"b": 2}], before={"a": {"c": 3}, "b": 3}, data={"$id": 1, "a.b": 2})
@example(results=[1.0, True, -0.0], before=1, data=None)
@example(results=[-0.0, 0, Decimal128("0.0")], before=0.0, data=None)
@example(results=[[1], []], before=[1, 2, 3], data=[])
def test_any_result_is_stored_as_the_plain_statement_stores_it(
    db: Database, results: Sequence[Any], before: Any, data: Any
) -> None:
    store, jobs = handle(db, write_concern=1), db["monque_jobs"]
    jobs.delete_many({})
    mark = stamp()
    together, alone = claim(store, len(results), mark), claim(store, len(results), mark)
    there = {"data": data, "foreign": data, "failReason": "why", "saved": before if before is not ABSENT else 1}
    jobs.update_many({}, {"$set": there if before is ABSENT else {**there, "result": before}})
    settled = grouped([_completed(job, result) for job, result in zip(together, results, strict=True)], "r")
    assert len(settled) == 1
    assert set(settling.settle(store, settled).values()) == {Fate.WRITTEN}
    for job, result in zip(alone, results, strict=True):
        assert settle(store, [_completed(job, result)], "r") == [Fate.WRITTEN]
    for one, other in zip(together, alone, strict=True):
        stored, plainly = raw_of(jobs, one), raw_of(jobs, other)
        assert stored.pop("_id") != plainly.pop("_id")
        assert stored.pop("receipt") is not None
        assert plainly.pop("receipt") is not None
        assert stored == plainly
        assert "result" in stored
        assert "saved" not in stored


def _completed(job: Job, result: Any) -> Transition:
    """Also where it is None, which a scheduler does not store: a null is a value, too."""
    transition = transitions.complete(job, LATER)
    return replace(transition, set={**transition.set, "result": result})


@pytest.mark.parametrize(
    "change",
    [
        {"guard": {"again.call": None}},
        {"cleared": ("claim", "saved")},
        {"added": {"rescues": 1}},
        {"set": {"status": JobStatus.FAILED}},
    ],
    ids=["guard", "cleared", "added", "set"],
)
def test_ends_that_differ_in_anything_share_no_statement(change: dict[str, Any]) -> None:
    """For example a job with a key, whose end asks that it was not replaced, beside one without."""

    def end(**fields: Any) -> Transition:
        plain: dict[str, Any] = {"set": {"status": JobStatus.COMPLETED}, "cleared": ("claim",), "added": {}}
        guard = {"id": ObjectId(), "claim.token": "t", **fields.pop("guard", {})}
        return Transition(guard=guard, **{**plain, **fields})

    ends = [end(), end(**change), end(), end(**change)]
    statements = grouped(ends, "r")
    assert [one.ids for one in statements] == [
        [ends[0].guard["id"], ends[2].guard["id"]],
        [ends[1].guard["id"], ends[3].guard["id"]],
    ]
    assert [one.transition.cleared for one in statements] == [ends[0].cleared, ends[1].cleared]
    assert [one.transition.guard for one in statements] == [
        {name: condition for name, condition in one.guard.items() if name != "id"} for one in ends[:2]
    ]
