"""New jobs in the collection: what is sent, what its echo means, and what stands there for good."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson import ObjectId
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions

from tests.support.store import PAST, handle, insert
from trio_monque.errors import InvalidOptionError, MonqueConnectionError
from trio_monque.jobs.new_job import Draft, NewJob
from trio_monque.jobs.stored_value_limits import check_payload
from trio_monque.store.codec import document_of
from trio_monque.store.driver.types import Collection, Database, MongoClient
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import indexes, inserting
from trio_monque.store.jobs.inserting import Parcel

AWARE: CodecOptions[Any] = CodecOptions(tz_aware=True, tzinfo=UTC)


def parcel(jobs: JobCollection, **fields: Any) -> Parcel:
    new = NewJob(**{"name": "greet", **fields})
    draft = Draft(ObjectId(), new, check_payload(new.data, None, jobs.codec.callers))
    return inserting.parcel(draft.at(PAST), draft.payload)


@pytest.mark.parametrize(
    "data",
    [
        None, True, 7, 1 << 40, 2.5, "text", "", [], [1, [None]], {}, {"a": {"b": [1, "x"]}},
        b"bytes", ObjectId(), datetime(2026, 1, 1, tzinfo=UTC), bson.Regex("^a"), bson.MinKey(),
    ],
)  # fmt: skip
def test_payload_encoded_beforehand_makes_the_same_document(db: Database, data: Any) -> None:
    """Any value round-trips, as it would if the document were encoded in one."""
    jobs = handle(db)
    one = parcel(jobs, data=data, unique_key="k", timeout=3)
    assert bson.decode(one.document.raw, jobs.codec.callers) == {  # type: ignore[union-attr]  # It is raw.
        **bson.decode(bson.encode(document_of(one.job)), jobs.codec.callers)
    }


def test_jobs_packed_together_are_the_same_documents_as_each_alone() -> None:
    new = [
        NewJob(name="greet", data=1),
        NewJob(name="greet", data={"i": 2}),
        NewJob(name="other", data=3),
        NewJob(name="greet", data=4, delay=60),
        NewJob(name="greet", data=5, unique_key="k"),
        NewJob(name="greet", data=6, max_attempts=1, max_rescues=0, timeout=2.5),
        NewJob(name="greet", data=7),
        NewJob(name="other", data=8, run_at=PAST),
    ]
    made = [(Draft(ObjectId(), one, b"").at(PAST), bson.encode({"": one.data})) for one in new]
    # One that was made field by field, and the same names and moments at another time.
    made += [(replace(made[0][0], id=ObjectId(), attempts=2), made[0][1])]
    made += [(Draft(ObjectId(), new[0], b"").at(PAST + timedelta(milliseconds=1)), made[0][1])]
    packed = inserting.parcels(made)
    assert [one.job for one in packed] == [job for job, _ in made]
    for one, (job, payload) in zip(packed, made, strict=True):
        assert one.document == inserting.parcel(job, payload).document
        assert bson.decode(bson.encode(one.document), AWARE) == document_of(job)


def test_document_leaves_out_the_defaults_however_the_job_was_made() -> None:
    job = Draft(ObjectId(), NewJob(name="greet", unique_key="k"), b"").at(PAST)
    assert document_of(replace(job)) == document_of(job)
    assert list(document_of(job)) == [
        "_id", "name", "data", "status", "nextRunAt", "failCount", "uniqueKey", "createdAt", "updatedAt"
    ]  # fmt: skip


def test_payload_keeps_the_callers_codec_options_beside_our_own_fields(db: Database) -> None:
    options: CodecOptions[Any] = CodecOptions(uuid_representation=UuidRepresentation.STANDARD, tz_aware=False)
    jobs = handle(db.client.get_database(db.name, codec_options=options))
    given = {"id": uuid.uuid4(), "at": datetime(2026, 1, 1, tzinfo=UTC)}
    one = parcel(jobs, data=given)
    assert not inserting.insert_all(jobs, [one])
    found = inserting.stored_job(jobs, one.job.id)
    assert found == one.job


def test_fields_that_were_not_given_are_absent(db: Database, jobs: Collection) -> None:
    insert(handle(db), data=1)
    (document,) = jobs.find()
    assert set(document) == {
        "_id", "name", "data", "status", "nextRunAt", "failCount", "createdAt", "updatedAt",
    }  # fmt: skip
    assert next(iter(document)) == "_id"


def test_echo_of_a_sending_counts_as_inserted(db: Database, jobs: Collection) -> None:
    store = handle(db)
    first, second = parcel(store), parcel(store)
    assert inserting.insert_all(store, [first]) == {}
    jobs.update_one({}, {"$set": {"status": "completed"}})
    assert inserting.insert_all(store, [first, second]) == {}
    assert [document["status"] for document in jobs.find().sort("_id")] == ["completed", "pending"]
    assert inserting.stored(store, [first.job.id, ObjectId()]) == {first.job.id}


def test_document_that_the_server_refuses_is_reported_by_its_place_and_the_others_are_stored(
    db: Database, jobs: Collection
) -> None:
    db.create_collection("monque_jobs", validator={"data": {"$ne": "bad"}})
    store = handle(db)
    refused = inserting.insert_all(store, [parcel(store, data=data) for data in ("a", "bad", "b", "bad")])
    assert set(refused) == {1, 3}
    assert refused[1] is not refused[3]
    for error in refused.values():
        assert isinstance(error, MonqueConnectionError)
        assert not error.unknown_outcome
        assert "Document failed validation" in str(error)
    assert [document["data"] for document in jobs.find().sort("_id")] == ["a", "b"]


def test_inserting_distinguishes_free_keys_from_those_in_use(db: Database, jobs: Collection) -> None:
    store = handle(db)
    indexes.ensure(store)
    held = insert(store, unique_key="held")
    ended = insert(store, unique_key="ended")
    jobs.update_one({"_id": ended.id}, {"$set": {"status": "failed"}})
    parcels = [parcel(store, unique_key=key) for key in ("held", "ended", "free")]
    assert inserting.insert_where_keys_are_free(store, parcels) == {1, 2}
    jobs.insert_one({"name": "greet", "uniqueKey": "broken", "status": "pending"})
    wanted = [one.job for one in (*parcels, parcel(store, unique_key="broken"), parcel(store, unique_key="no"))]
    found = inserting.holders(store, wanted)
    assert found[("greet", "held")] == held
    assert set(found) == {("greet", "held"), ("greet", "ended"), ("greet", "free")}


def test_session_of_another_client_is_refused_before_anything_is_sent(db: Database, mongod: Any) -> None:
    store = handle(db)
    with (
        MongoClient(mongod.uri) as other,
        other.start_session() as session,
        pytest.raises(InvalidOptionError, match="another MongoClient"),
    ):
        inserting.check_session(store, session)
    with pytest.raises(InvalidOptionError, match=r"document\(\)"):
        inserting.check_session(store, object())
