"""Whatever the caller's handle and documents are like: claimed, renewed, and given back as that handle reads them."""

from __future__ import annotations

import logging
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
from bson import SON, Binary, Decimal128, Int64, ObjectId
from bson.binary import UuidRepresentation
from bson.codec_options import CodecOptions, DatetimeConversion, TypeCodec, TypeRegistry
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, MongoClient, ReadPreference, WriteConcern
from trio.testing import MockClock

from tests.support.documents import DONE, OPEN, fill, finish
from tests.support.interception import Recorder
from tests.support.thoroughly import one_in
from trio_monque import MonqueError, open_claims, run_claims
from trio_monque.claims import create_claim_index, dead_letters, readmit
from trio_monque.claims.claim_options import ClaimConfig
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import InvalidDatabaseError, InvalidOptionError
from trio_monque.store.driver.types import Collection

STANDARD = UuidRepresentation.STANDARD


class Price:
    def __init__(self, value: str) -> None:
        self.value = value


class PriceCodec(TypeCodec):
    python_type = Price
    bson_type = Decimal128

    def transform_python(self, value: Any) -> Any:
        return Decimal128(value.value)

    def transform_bson(self, value: Any) -> Any:
        return Price(str(value))


OPTIONS: dict[str, CodecOptions[Any]] = {
    "naive": CodecOptions(),
    "aware": CodecOptions(tz_aware=True),
    "uuid": CodecOptions(uuid_representation=STANDARD),
    "son": CodecOptions(document_class=SON),
    "raw": CodecOptions(document_class=RawBSONDocument),
    "milliseconds": CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS),
    "registry": CodecOptions(type_registry=TypeRegistry([PriceCodec()])),
    "lenient": CodecOptions(unicode_decode_error_handler="ignore"),
}
IDS: list[Any] = [
    ObjectId(),
    "text",
    5,
    2.5,
    Int64(7),
    None,
    True,
    {"a": 1, "b": {"c": 2}},
    {"b": {"c": 2}, "a": 1},
    datetime(2020, 1, 1, tzinfo=UTC),
    b"bytes",
    Binary(uuid.uuid4().bytes, 4),
    Decimal128("1.5"),
]


@pytest.mark.full
@pytest.mark.parametrize("name", one_in(4, list(OPTIONS)))
async def test_every_id_and_every_handle(things: Collection, autojump_clock: MockClock, name: str) -> None:
    things.insert_many([{"_id": one, "state": "new", "at": datetime(2020, 1, 1, tzinfo=UTC)} for one in IDS])
    handle = things.with_options(codec_options=OPTIONS[name])
    seen: list[Any] = []

    async def handler(claim: Any) -> None:
        assert type(claim.document) is OPTIONS[name].document_class
        assert claim.document["lock"]["by"] == "us"
        seen.append(claim.id)
        if claim.attempt == 1:
            await trio.sleep(50)  # Two renewals.
            raise ZeroDivisionError
        await claim.finish({"$set": {"state": "done", "of": claim.id, "at": claim.document["at"]}})

    report = await run_claims(handle, OPEN, handler, wait=False, instance_id="us", concurrency=20)
    assert (report.finished, report.failed, report.lost) == (len(IDS), len(IDS), 0)
    assert len(seen) == 2 * len(IDS)
    for document in things.find():
        assert document == {"_id": document["_id"], "state": "done", "of": document["_id"], "at": document["at"]}
    assert things.count_documents({"at": datetime(2020, 1, 1, tzinfo=UTC)}) == len(IDS)


async def test_values_of_the_callers_own_types_are_read_and_written(
    things: Collection, autojump_clock: MockClock
) -> None:
    things.insert_one({"state": "new", "price": Decimal128("9.99")})
    handle = things.with_options(codec_options=OPTIONS["registry"])

    async def handler(claim: Any) -> None:
        assert claim.document["price"].value == "9.99"
        await claim.finish({"$set": {"state": "done", "price": Price("19.99")}})

    assert (await run_claims(handle, OPEN, handler, wait=False)).finished == 1
    assert (things.find_one() or {})["price"] == Decimal128("19.99")


async def test_uuid_ids_are_uuids(things: Collection, autojump_clock: MockClock) -> None:
    handle = things.with_options(codec_options=OPTIONS["uuid"])
    ids = [uuid.uuid4() for _ in range(3)]
    handle.insert_many([{"_id": one, "state": "new"} for one in ids])
    seen = []

    async def handler(claim: Any) -> None:
        seen.append(claim.id)
        raise ZeroDivisionError

    await run_claims(handle, OPEN, handler, wait=False, max_attempts=1)
    assert sorted(seen) == sorted(ids)
    assert sorted(one.id for one in await dead_letters(handle)) == sorted(ids)
    assert await readmit(handle, *ids) == 3


async def test_document_that_cannot_be_decoded_is_set_aside_alone(
    things: Collection, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(PriceCodec):
        def transform_bson(self, value: Any) -> Any:
            raise ZeroDivisionError("no such price")

    fill(things, 3)
    things.insert_one({"_id": "bad", "state": "new", "price": Decimal128("1"), "z": 1})
    handle: Collection = things.with_options(codec_options=CodecOptions(type_registry=TypeRegistry([Broken()])))
    with caplog.at_level(logging.ERROR):
        report = await run_claims(handle, OPEN, finish, wait=False)
    assert report.finished == 3
    (aside,) = await dead_letters(handle)
    assert (aside.id, aside.document, aside.attempts) == ("bad", None, 0)
    assert "decoded" in (aside.error or "")
    assert "bad" in caplog.text
    bad = things.find_one({"_id": "bad"})
    assert bad is not None
    assert {name: bad[name] for name in bad if name != "lock"} == {
        "_id": "bad",
        "state": "new",
        "price": Decimal128("1"),
        "z": 1,
    }


async def test_writes_wait_for_a_majority_whatever_the_handle_says(
    mongod: EmbeddedServer, things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 2)
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder], w=1) as client:
        handle = client[things.database.name][things.name].with_options(
            write_concern=WriteConcern(w=1), read_preference=ReadPreference.SECONDARY_PREFERRED
        )

        async def handler(claim: Any) -> None:
            await trio.sleep(30)
            if claim.attempt == 1:
                raise ZeroDivisionError
            await claim.finish(DONE)

        await run_claims(handle, OPEN, handler, wait=False)
        await readmit(handle, filter={})
    writes = [command for name, command in recorder.commands if name == "update"]
    assert len(writes) >= 6
    assert {str(command.get("writeConcern", {}).get("w")) for command in writes} == {"majority"}
    for name, command in recorder.commands:
        if name in ("find", "aggregate", "update"):
            assert command.get("$readPreference", {"mode": "primary"})["mode"].startswith("primary")


async def test_other_collections_than_pymongos_own_are_refused_at_once(
    mongod: EmbeddedServer, things: Collection, autojump_clock: MockClock
) -> None:
    client: Any = AsyncMongoClient(mongod.uri, connect=False)
    wrong: list[Any] = [client["a"]["b"], things.database, things.name, None, things.database.client]
    for one in wrong:
        with pytest.raises((InvalidDatabaseError, InvalidOptionError)):
            async with open_claims(one, OPEN):
                raise AssertionError("never entered")
        with pytest.raises((InvalidDatabaseError, InvalidOptionError)):
            await run_claims(one, OPEN, finish)
        for call in (create_claim_index(one, OPEN), dead_letters(one), readmit(one, 1)):
            with pytest.raises((InvalidDatabaseError, InvalidOptionError)):
                await call


WRONG: list[dict[str, Any]] = [
    {"lock_field": ""},
    {"lock_field": "_id"},
    {"lock_field": "a.b"},
    {"lock_field": "$a"},
    {"lock_field": 5},
    {"sort": "created"},
    {"sort": {"created": 1}},
    {"sort": [("created", 2)]},
    {"sort": [("created",)]},
    {"sort": [("", 1)]},
    {"sort": ["ab"]},
    {"concurrency": 0},
    {"concurrency": 1.5},
    {"concurrency": True},
    {"wait": 1},
    {"rate_limit": 0},
    {"rate_limit": -1},
    {"rate_limit": float("nan")},
    {"timeout": 0},
    {"timeout": float("inf")},
    {"max_attempts": 0},
    {"backoff": -1},
    {"backoff": "1"},
    {"base_retry_interval": -1},
    {"max_backoff_delay": 0},
    {"retry_jitter": 1.5},
    {"heartbeat_interval": 0.1},
    {"heartbeat_interval": 301},
    {"clock_skew": -1},
    {"poll_interval": 0},
    {"shutdown_timeout": -1},
    {"cleanup_timeout": -1},
    {"operation_timeout": 0},
    {"instance_id": ""},
    {"instance_id": 5},
    {"allow_scan": "yes"},
    {"concurency": 5},
]


@pytest.mark.full
@pytest.mark.parametrize("options", WRONG, ids=str)
async def test_wrong_option_is_refused_at_once_by_its_name(
    things: Collection, autojump_clock: MockClock, options: dict[str, Any]
) -> None:
    (name,) = options
    with pytest.raises(InvalidOptionError, match=name):
        async with open_claims(things, OPEN, **options):
            raise AssertionError("never entered")
    with pytest.raises(InvalidOptionError, match=name):
        await run_claims(things, OPEN, finish, **options)


async def test_filter_and_handler_are_checked(things: Collection, autojump_clock: MockClock) -> None:
    wrong: list[Any] = [None, "new", 5, {"lock": None}, {"lock.by": None}, {"a": object()}]
    for one in wrong:
        with pytest.raises(InvalidOptionError, match="filter"):
            async with open_claims(things, one):
                raise AssertionError("never entered")

    async def without_a_claim() -> None: ...

    handlers: list[Any] = [(None, "not callable"), (lambda claim: None, "must be an async function")]
    handlers += [(without_a_claim, "takes no argument, but is called with one argument, the claim")]
    for one, problem in handlers:
        with pytest.raises(InvalidOptionError, match=f"handler=.*{problem}"):
            await run_claims(things, OPEN, one)
    with pytest.raises(InvalidOptionError):
        await readmit(things)
    with pytest.raises(InvalidOptionError):
        await readmit(things, 1, filter={})
    with pytest.raises(InvalidOptionError, match="limit"):
        await dead_letters(things, limit=0)


async def test_filter_is_what_it_was_at_the_call(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 3)
    wanted: dict[str, Any] = {"state": "new", "_id": {"$lt": 2}}
    async with open_claims(things, wanted, wait=False) as claims:
        wanted["_id"]["$lt"] = 100
        async for claim in claims:
            await claim.finish(DONE)
    assert claims.report is not None
    assert claims.report.finished == 2


async def test_empty_filter_is_all_documents_and_does_not_become_false(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    with pytest.raises(MonqueError, match="still matches"):
        await run_claims(things, {}, finish, wait=False)


def test_claims_need_an_event_loop(things: Collection) -> None:
    opening = open_claims(things, OPEN)
    with pytest.raises(MonqueError, match=r"open_claims needs an event loop: .* trio\.run, asyncio\.run or anyio\.run"):
        opening.__aenter__().send(None)


def test_what_an_operator_asks_works_on_asyncio(things: Collection) -> None:
    import asyncio

    fill(things, 2)

    async def main() -> None:
        assert await create_claim_index(things, OPEN) in things.index_information()
        assert await dead_letters(things) == []
        assert await readmit(things, filter={}) == 0

    asyncio.run(main())


@pytest.mark.parametrize("chosen", [{}, {"operation_timeout": 3600.0}], ids=["default", "an hour"])
async def test_operation_timeout_of_an_operators_calls_reaches_the_server(
    mongod: EmbeddedServer, things: Collection, autojump_clock: MockClock, chosen: dict[str, Any]
) -> None:
    """The server builds an index for as long as the command may take, and then gives up the build."""
    fill(things, 2)
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder]) as client:
        handle = client[things.database.name][things.name]
        await create_claim_index(handle, OPEN, **chosen)
        await dead_letters(handle, OPEN, **chosen)
        await readmit(handle, filter=OPEN, **chosen)
    limits = {name: command.get("maxTimeMS", 0.0) for name, command in recorder.commands}
    most = chosen.get("operation_timeout", 10.0) * 1000
    for name in ("createIndexes", "find", "update"):
        assert most / 2 < limits[name] <= most, limits


@pytest.mark.parametrize("call", [create_claim_index, dead_letters, readmit])
async def test_operation_timeout_of_an_operators_call_must_be_seconds(call: Any, things: Collection) -> None:
    with pytest.raises(InvalidOptionError, match="operation_timeout"):
        await call(things, filter=OPEN, operation_timeout=0)


def test_defaults_are_what_is_published() -> None:
    config = ClaimConfig()
    assert (config.lock_field, config.sort, config.concurrency, config.wait) == ("lock", None, 5, True)
    assert (config.max_attempts, config.base_retry_interval, config.max_backoff_delay) == (10, 1.0, 86400.0)
    assert (config.retry_jitter, config.timeout, config.heartbeat_interval, config.clock_skew) == (
        0.25,
        None,
        20.0,
        1.0,
    )
    assert (config.poll_interval, config.rate_limit, config.shutdown_timeout) == (1.0, None, 30.0)
    assert (config.cleanup_timeout, config.operation_timeout, config.allow_scan) == (5.0, 10.0, False)
    assert config.instance_id != ClaimConfig().instance_id


async def test_listeners_get_events_and_do_not_block_the_run(things: Collection, autojump_clock: MockClock) -> None:
    from trio_monque.events import DocumentFailed

    fill(things, 3)
    heard: list[Any] = []

    async def listener(event: DocumentFailed) -> None:
        heard.append((event.document_id, event.attempt))
        await trio.sleep(0.1)
        raise ZeroDivisionError("a listener's own fault")

    async def handler(claim: Any) -> None:
        if claim.attempt == 1:
            raise ZeroDivisionError
        await claim.finish(DONE)

    report = await run_claims(things, OPEN, handler, wait=False, listeners={DocumentFailed: listener})
    assert sorted(heard) == [(0, 1), (1, 1), (2, 1)]
    assert (report.finished, report.failed) == (3, 3)
    wrong: Any = {DocumentFailed: "nobody"}
    with pytest.raises(InvalidOptionError):
        await run_claims(things, OPEN, handler, listeners=wrong)
