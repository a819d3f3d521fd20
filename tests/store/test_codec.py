"""Documents in and out, beside whatever codec options a caller's handle has."""

from __future__ import annotations

import uuid
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from bson import DatetimeMS, Decimal128, ObjectId
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion, TypeCodec, TypeRegistry
from bson.son import SON
from trio.testing import MockClock

from tests.support.store import PAST, handle, insert
from trio_monque import Job, JobStatus, Monque, RunningJob, Workers, open_scheduler
from trio_monque.jobs.job_parts import (
    IN_PARTS,
    PARTS,
    ChildOf,
    FollowUp,
    FollowUpChosen,
    FollowUpOwed,
    FollowUpParked,
    JobClaim,
    JobInternals,
    JobLimits,
    NurseryScope,
    RunAgain,
    Schedule,
)
from trio_monque.store.codec import document_of
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.fields import FIELD
from trio_monque.store.jobs.job_json import NAMES
from trio_monque.store.reads import queries
from trio_monque.testing import drain


def test_every_field_of_a_job_has_its_field_in_the_document() -> None:
    assert FIELD.keys() == {*IN_PARTS, *(field.name for field in fields(Job) if field.name not in PARTS)}
    assert {NAMES[name] for name in NAMES} == FIELD.keys()


def test_document_of_a_new_job_has_the_fields_of_monque_and_no_defaults(db: Database, jobs: Collection) -> None:
    job = insert(handle(db), data=None)
    assert jobs.find_one({"_id": job.id}) == {
        "_id": job.id,
        "name": "greet",
        "data": None,
        "status": "pending",
        "nextRunAt": PAST,
        "failCount": 0,
        "createdAt": PAST,
        "updatedAt": PAST,
    }


@pytest.mark.parametrize(
    "follow_up", [FollowUpOwed(), FollowUpChosen(ObjectId(24 * "a")), FollowUpParked(attempt=2, due=PAST)], ids=repr
)
def test_job_survives_the_way_to_the_database_and_back(db: Database, jobs: Collection, follow_up: FollowUp) -> None:
    at = PAST + timedelta(milliseconds=1)
    job = Job(
        id=ObjectId(),
        name="greet",
        data={"nested": [1, 2.5, None, True, {"text": "ä"}]},
        status=JobStatus.PROCESSING,
        next_run_at=at,
        fail_count=2,
        created_at=at,
        updated_at=at,
        fail_reason="why",
        schedule=Schedule(cron="* * * * *", timezone="Europe/Berlin", version=2, on_exhausted="fail"),
        unique_key="k",
        claim=JobClaim(
            by="us",
            since=at,
            token="t",
            last_heartbeat=at,
            heartbeat_interval=0.25,
            renewed_at=at,
            cancel_requested_at=at,
        ),
        attempts=3,
        rescues=1,
        limits=JobLimits(timeout=2.5, max_attempts=0, max_rescues=0, start_by=at),
        again=RunAgain(call=ObjectId(), data=[1], next_run_at=at, start_by=at, debounced_since=at),
        nursery=NurseryScope(
            id=ObjectId(), occurrence=at, since_attempt=2, failed={"0": [ObjectId()]}, steps={"a.b": [1]}
        ),
        child=ChildOf(
            scope=ObjectId(),
            parent=ObjectId(),
            block="place",
            key="k",
            run=2,
            cancelled_by=1,
        ),
        internals=JobInternals(rev=4, receipt="r", occurrence=at, resumes_at=at, saved_for=at, last_scope=ObjectId()),
        debounced_since=at,
        follows=ObjectId(),
        follow_up=follow_up,
        meta={"tenant": "acme"},
        result=1,
        progress=2,
        saved=3,
        started_at=at,
        finished_at=at,
        errors=[{"error": "x"}],
    )
    jobs.insert_one(document_of(job))
    assert queries.get_job(handle(db), job.id) == job
    document = jobs.find_one({"_id": job.id})
    assert document is not None
    assert document["heartbeatInterval"] == 250  # Milliseconds, as Monque has it.


class DecimalCodec(TypeCodec):
    python_type = Decimal
    bson_type = Decimal128

    def transform_python(self, value: Any) -> Any:
        return Decimal128(value)

    def transform_bson(self, value: Any) -> Any:
        return value.to_decimal()


class ShoutingCodec(TypeCodec):
    """Changes every string that is read: it must not touch our own fields."""

    python_type = bytearray
    bson_type = str

    def transform_python(self, value: Any) -> Any:
        return value.decode()

    def transform_bson(self, value: Any) -> Any:
        return value.upper()


AT = datetime(2030, 5, 6, 7, 8, 9)  # noqa: DTZ001  # What an unaware handle gives and takes.
ID = uuid.UUID("12345678123456781234567812345678")
TOKYO = timezone(timedelta(hours=9))


@pytest.mark.parametrize(
    ("options", "given", "got"),
    [
        ({}, {"at": AT.replace(tzinfo=UTC)}, {"at": AT.replace(tzinfo=UTC)}),
        ({"tz_aware": True}, {"at": AT.replace(tzinfo=UTC)}, {"at": AT.replace(tzinfo=UTC)}),
        ({"tz_aware": True, "tzinfo": TOKYO}, {"at": AT.replace(tzinfo=TOKYO)}, {"at": AT.replace(tzinfo=TOKYO)}),
        ({"uuid_representation": UuidRepresentation.STANDARD}, {"id": ID}, {"id": ID}),
        ({"uuid_representation": UuidRepresentation.PYTHON_LEGACY}, {"id": ID}, {"id": ID}),
        ({"type_registry": TypeRegistry([DecimalCodec()])}, {"d": Decimal("1.5")}, {"d": Decimal("1.5")}),
        ({"type_registry": TypeRegistry([ShoutingCodec()])}, {"text": "quiet"}, {"text": "QUIET"}),
        ({"datetime_conversion": DatetimeConversion.DATETIME_MS}, {"at": DatetimeMS(5)}, {"at": DatetimeMS(5)}),
        ({"document_class": SON}, {"b": 1, "a": 2}, SON([("b", 1), ("a", 2)])),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_callers_codec_options_hold_for_data_and_not_for_our_own_fields(
    db: Database, jobs: Collection, autojump_clock: MockClock, options: dict[str, Any], given: Any, got: Any
) -> None:
    callers = db.client.get_database(db.name, codec_options=CodecOptions(**options))
    workers = Workers()
    handled: list[RunningJob[Any]] = []

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        handled.append(job)

    monque = Monque(callers)
    job = await monque.enqueue("greet", given)
    assert job.next_run_at.tzinfo is UTC
    async with open_scheduler(callers, workers) as scheduler:
        await drain(scheduler)
    (stored,) = await monque.get_jobs(status="completed")
    for seen in (handled[0].job, stored):
        assert seen.data == got
        assert type(seen.data) is type(got)
        assert seen.name == "greet"
        assert isinstance(seen.status, JobStatus)
        for moment in (seen.next_run_at, seen.created_at, seen.updated_at):
            assert moment.tzinfo is UTC
        assert seen.created_at == job.created_at
    assert type(next(iter(stored.data.values()))) is type(next(iter(got.values())))


def test_dates_an_hour_apart_that_read_the_same_on_the_callers_clock_stay_two(db: Database, jobs: Collection) -> None:
    """When summer ends it is half past two twice, which Python's comparison in one zone does not tell."""
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    stored = insert(handle(db))
    jobs.update_one({}, {"$set": {"createdAt": first, "nextRunAt": first + timedelta(hours=1)}})
    callers = CodecOptions[dict[str, Any]](tz_aware=True, tzinfo=ZoneInfo("Europe/Berlin"))
    found = queries.get_job(handle(db.client.get_database(db.name, codec_options=callers)), stored.id)
    assert found is not None
    assert (found.created_at, found.next_run_at) == (first, first + timedelta(hours=1))


def test_date_that_is_stored_twice_is_held_once(db: Database) -> None:
    found = queries.get_job(handle(db), insert(handle(db)).id)
    assert found is not None
    assert found.next_run_at is found.created_at


def test_reads_and_writes_go_to_the_primary_with_majority_whatever_the_handle_says(db: Database) -> None:
    from pymongo import ReadPreference, WriteConcern

    careless = db.client.get_database(db.name, read_preference=ReadPreference.SECONDARY, write_concern=WriteConcern(0))
    collection = handle(careless).collection
    assert collection.read_preference == ReadPreference.PRIMARY
    assert collection.write_concern.document == {"w": "majority"}
