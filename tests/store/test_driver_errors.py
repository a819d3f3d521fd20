"""The driver's errors, by table: what is ours, what passes, and what may have happened all the same."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from bson.codec_options import CodecOptions
from pymongo import MongoClient
from pymongo import errors as driver

from tests.support.store import PAST, claim, handle
from tests.support.thoroughly import one_in
from trio_monque import Monque
from trio_monque.error_types import MonqueConnectionError, is_outage
from trio_monque.store.codec import RawDocument
from trio_monque.store.driver.driver_errors import (
    OUTAGE_CODES,
    PASSING_CODES,
    PERMANENT_CODES,
    has_unknown_outcome,
    is_transient,
    refused_because_of_documents,
    translated,
)
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs import leases

Row = tuple[driver.PyMongoError, bool, bool]

LABELLED = {"errmsg": "later", "errorLabels": ["RetryableWriteError"]}

# Every class of the driver's errors: worth trying again, may have been applied.
CLASSES: list[Row] = [
    (driver.PyMongoError("whatever comes next"), False, True),
    (driver.AutoReconnect("connection closed"), True, True),
    (driver.NetworkTimeout("timed out"), True, True),
    (driver.NotPrimaryError("not primary"), True, True),
    (driver.ServerSelectionTimeoutError("no servers"), True, False),
    (driver.ConnectionFailure("gone"), True, True),
    (driver.WaitQueueTimeoutError("no connection was free, when it was tried again perhaps"), True, True),
    (driver.ProtocolError("bytes that are no answer"), True, True),
    (driver.OperationFailure("bad value", 2), False, False),
    (driver.OperationFailure("not authorized", 13), False, False),
    (driver.OperationFailure("later", 2, LABELLED), True, True),
    (driver.ExecutionTimeout("operation exceeded time limit", 50), True, True),
    (driver.CursorNotFound("of a read", 43), True, True),
    (driver.WriteConcernError("waiting for replication", 64), True, True),
    (driver.WriteConcernError("no such write concern", 79), False, True),
    (driver.WTimeoutError("waiting for replication", 64), True, True),
    (driver.WriteError("refused", 121), False, False),
    (driver.DuplicateKeyError("E11000", 11000), False, False),
    (driver.BulkWriteError({"writeErrors": [{"code": 11602}]}), True, True),
    (driver.BulkWriteError({"writeErrors": [{"code": 11000}]}), False, False),
    (driver.BulkWriteError({"writeErrors": [{"code": 11000}, {"code": 11602}]}), False, True),
    (driver.BulkWriteError({"writeErrors": [], "writeConcernErrors": [{"code": 64}]}), True, True),
    # The write was refused, and what was applied beside it may be rolled back: the one must not hide the other.
    (driver.BulkWriteError({"writeErrors": [{"code": 11000}], "writeConcernErrors": [{"code": 91}]}), False, True),
    (driver.ClientBulkWriteException({"error": None}, True), False, False),  # Of a call that is not used here.
    (driver.OperationFailure("an answer without a code"), False, True),
    (driver.ConfigurationError("bad option"), False, False),
    (driver.ConfigurationError("Sessions are not supported by this MongoDB deployment"), True, False),
    (driver.InvalidURI("bad URI"), False, False),
    (driver.InvalidName("a$b"), False, False),
    (driver.CollectionInvalid("it exists"), False, True),
    (driver.InvalidOperation("the client was closed, while it was tried again perhaps"), False, True),
    (driver.EncryptionError(ValueError("on the way out, or of the answer")), False, True),
    (driver.EncryptedCollectionError(ValueError("as above"), {}), False, True),
]


@pytest.mark.parametrize(("error", "transient", "unknown"), CLASSES, ids=lambda value: type(value).__name__)
def test_each_kind_of_error_has_its_row(error: driver.PyMongoError, transient: bool, unknown: bool) -> None:
    assert_classified(error, transient, unknown)


def assert_classified(error: driver.PyMongoError, transient: bool, unknown: bool) -> None:
    assert is_transient(error) is transient
    assert has_unknown_outcome(error) is unknown
    ours = translated(error, "do it")
    assert isinstance(ours, MonqueConnectionError)
    assert (ours.transient, ours.unknown_outcome) == (transient, unknown)
    reading = translated(error, "do it", writes=False)
    assert isinstance(reading, MonqueConnectionError)
    assert not reading.unknown_outcome
    assert str(ours).startswith("could not do it: ")
    assert "\n" not in str(ours)


def test_every_class_of_the_driver_has_a_row() -> None:
    exported = [one for name, one in vars(driver).items() if isinstance(one, type) and not name.startswith("_")]
    classes = {one for one in exported if issubclass(one, driver.PyMongoError)}
    assert {type(error) for error, _, _ in CLASSES} == classes


CLOSED = driver.InvalidOperation("Cannot use MongoClient after close")


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        *[(driver.OperationFailure("never", code), True) for code in sorted(PERMANENT_CODES)],
        *[(driver.OperationFailure("later", code), False) for code in sorted(PASSING_CODES | OUTAGE_CODES)],
        (driver.OperationFailure("no table names it", 54_321), False),
        (driver.OperationFailure("an answer without a code"), False),
        # Of one statement, and so perhaps of one document.
        *[(one, False) for one in (driver.WriteError("no", 2), driver.BulkWriteError({"writeErrors": [{"code": 2}]}))],
        (driver.OperationFailure("the field has another type", 14), False),
        (driver.AutoReconnect("gone"), False),
        (driver.ConfigurationError("another wire version"), False),
        (CLOSED, True),
    ],
    ids=repr,
)
def test_only_what_can_never_succeed_is_permanent(error: driver.PyMongoError, permanent: bool) -> None:
    ours = translated(error, "do it")
    assert isinstance(ours, MonqueConnectionError)
    assert ours.permanent is permanent
    assert is_outage(ours) is not permanent
    assert not (ours.transient and ours.permanent)


def test_tables_have_no_code_in_common() -> None:
    assert not PASSING_CODES & OUTAGE_CODES
    assert not PERMANENT_CODES & (PASSING_CODES | OUTAGE_CODES)


@pytest.mark.parametrize("code", [14031, 13, 8000])
def test_statements_that_fail_in_an_outage_are_not_refused_because_of_their_documents(code: int) -> None:
    errors = [{"index": 0, "code": 121, "errmsg": "refused"}, {"index": 1, "code": code, "errmsg": "the disk is full"}]
    with pytest.raises(MonqueConnectionError, match="could not settle: the disk is full") as caught:
        refused_because_of_documents(driver.BulkWriteError({"writeErrors": errors}), "settle")
    assert (caught.value.transient, caught.value.permanent, caught.value.unknown_outcome) == (False, False, True)
    alone = driver.BulkWriteError({"writeErrors": errors[:1]})
    assert refused_because_of_documents(alone, "settle") == errors[:1]


def one_of_each_form(code: int) -> list[driver.PyMongoError]:
    """The ways in which a server can say that code."""
    entry = {"code": code, "index": 0, "errmsg": "so it is"}
    return [
        driver.OperationFailure("of the command", code),
        driver.WriteError("of the write", code),
        driver.BulkWriteError({"writeErrors": [entry]}),
        driver.BulkWriteError({"writeErrors": [], "writeConcernErrors": [entry]}),
        driver.WriteConcernError("of the write concern", code),
    ]


@pytest.mark.parametrize(("code", "form"), one_in(5, sorted(PASSING_CODES), range(5)))
def test_code_that_passes_leaves_a_write_unknown_in_whatever_form_it_comes(code: int, form: int) -> None:
    assert_classified(one_of_each_form(code)[form], True, True)


@pytest.mark.parametrize("code", [2, 9, 11, 13, 20, 26, 72, 79, 100, 121, 10334, 11000, 17280])
def test_code_that_refuses_is_known_unless_it_is_the_write_concern_that_failed(code: int) -> None:
    *refusals, in_bulk, alone = one_of_each_form(code)
    for error in refusals:
        assert_classified(error, False, False)
    for error in (in_bulk, alone):
        assert_classified(error, False, True)


def test_codes_that_the_driver_itself_tries_again_are_all_known() -> None:
    from pymongo import helpers_shared

    assert helpers_shared._RETRYABLE_ERROR_CODES <= PASSING_CODES


def test_answer_to_a_write_that_is_read_raw_is_the_drivers_own_error() -> None:
    """The driver changes the reply, and a RawBSONDocument cannot be changed: it would be an AttributeError."""
    from pymongo import helpers_shared

    reply = {"ok": 1, "writeConcernError": {"code": 11602, "errmsg": "stepped down"}, **LABELLED}
    raw = bson.decode(bson.encode(reply), CodecOptions(document_class=RawDocument))
    with pytest.raises(driver.WriteConcernError) as caught:
        helpers_shared._check_command_response(raw, 17, None, parse_write_concern_error=True)
    assert caught.value.code == 11602
    assert caught.value.has_error_label("RetryableWriteError")
    assert_classified(caught.value, True, True)


def test_connection_that_was_made_in_the_middle_of_an_election_is_used_once(db: Database) -> None:
    """Its server was neither primary nor secondary: the driver holds that sessions are not supported there."""
    with MongoClient[Any](db.client.address[0], db.client.address[1], directConnection=True) as client:  # type: ignore[index]
        store = handle(client[db.name])
        (job,) = claim(store, 1)
        for server in client._topology._servers.values():
            assert server.pool.conns
            for connection in server.pool.conns:
                connection.supports_sessions = False
        with pytest.raises(MonqueConnectionError, match="Sessions are not supported") as caught:
            leases.renew(store, [job], PAST)
        assert (caught.value.transient, caught.value.unknown_outcome) == (True, False)
        assert not leases.renew(store, [job], PAST).lost


def test_server_that_does_not_answer_ends_in_our_error_within_the_operation_timeout(unused_port: int) -> None:
    """The driver alone would wait for an hour."""
    with MongoClient[Any]("127.0.0.1", unused_port, serverSelectionTimeoutMS=3_600_000) as client:
        monque = Monque(client["x"], operation_timeout=0.2)
        with pytest.raises(MonqueConnectionError, match="check that the server runs") as caught:
            monque.sync.enqueue("greet")
    assert isinstance(caught.value.__cause__, driver.PyMongoError)
    assert caught.value.transient


async def test_scheduler_on_a_server_that_does_not_answer_fails_to_start_with_our_error(unused_port: int) -> None:
    from trio_monque import open_scheduler

    with (
        MongoClient[Any]("127.0.0.1", unused_port, serverSelectionTimeoutMS=3_600_000) as client,
        pytest.raises(MonqueConnectionError),
    ):
        async with open_scheduler(client["x"], operation_timeout=0.2, start_timeout=0):
            raise AssertionError("it never starts")


def test_failed_start_may_be_tried_again(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    from trio_monque.store.jobs import indexes

    ensure = indexes.ensure
    calls: list[int] = []

    def fails_once(jobs: Any, retention: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise MonqueConnectionError("not now", transient=True)
        ensure(jobs, retention, **options)

    monkeypatch.setattr(indexes, "ensure", fails_once)
    monque = Monque(db)
    with pytest.raises(MonqueConnectionError):
        monque.sync.enqueue("greet")
    monque.sync.enqueue("greet")
    monque.sync.enqueue("greet")
    assert len(calls) == 2


@pytest.mark.parametrize("collection", ['"monque_jobs"', "1"])
def test_command_that_a_server_quotes_is_not_in_our_error(collection: str) -> None:
    quoted = f'{{ findAndModify: {collection}, update: {{ $setOnInsert: {{ data: {{ card: "4711\\n" }} }} }} }}'
    error = driver.OperationFailure(f"not authorized on shop to execute command {quoted}", 13)
    assert str(translated(error, "enqueue the job")) == (
        f"could not enqueue the job: not authorized on shop to execute command {{ findAndModify: {collection}, … }} "
        "(check the user, the password and the rights in the connection string)"
    )
