"""The driver's errors, by table: what is ours, what passes, and what may have happened all the same."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo import errors as driver

from trio_monque import Monque, MonqueConnectionError
from trio_monque.store.outcomes import has_unknown_outcome, is_transient, translated
from trio_monque.store.types import Database

ROWS: list[tuple[driver.PyMongoError, bool, bool]] = [
    # error, worth trying again, may have been applied
    (driver.AutoReconnect("connection closed"), True, True),
    (driver.NetworkTimeout("timed out"), True, True),
    (driver.NotPrimaryError("not primary"), True, True),
    (driver.ServerSelectionTimeoutError("no servers"), True, False),
    (driver.WriteConcernError("waiting for replication", 64), True, True),
    (driver.WTimeoutError("waiting for replication", 64), True, True),
    (driver.ExecutionTimeout("operation exceeded time limit", 50), True, True),
    (driver.OperationFailure("interrupted", 11602), True, True),
    (driver.OperationFailure("not authorized", 13), False, False),
    (driver.OperationFailure("bad value", 2), False, False),
    (driver.DuplicateKeyError("E11000", 11000), False, False),
    (driver.ConfigurationError("bad option"), False, False),
    (driver.BulkWriteError({"writeErrors": [{"code": 11602}]}), True, False),
    (driver.BulkWriteError({"writeErrors": [{"code": 11000}]}), False, False),
    (driver.BulkWriteError({"writeErrors": [], "writeConcernErrors": [{"code": 64}]}), True, True),
]


@pytest.mark.parametrize(("error", "transient", "unknown"), ROWS, ids=lambda value: type(value).__name__)
def test_each_kind_of_error_has_its_row(error: driver.PyMongoError, transient: bool, unknown: bool) -> None:
    assert is_transient(error) is transient
    assert has_unknown_outcome(error) is unknown
    ours = translated(error, "do it")
    assert isinstance(ours, MonqueConnectionError)
    assert (ours.transient, ours.unknown_outcome) == (transient, unknown)
    assert str(ours).startswith("could not do it: ")
    assert "\n" not in str(ours)


def test_server_that_does_not_answer_ends_in_our_error_within_the_operation_timeout(unused_port: int) -> None:
    with MongoClient[Any]("127.0.0.1", unused_port) as client:
        monque = Monque(client["x"], operation_timeout=0.2)
        started = time.monotonic()
        with pytest.raises(MonqueConnectionError, match="check that the server runs") as caught:
            monque.sync.enqueue("greet")
        assert time.monotonic() - started < 5
    assert isinstance(caught.value.__cause__, driver.PyMongoError)
    assert caught.value.transient


async def test_scheduler_on_a_server_that_does_not_answer_fails_to_start_with_our_error(unused_port: int) -> None:
    from trio_monque import open_scheduler

    with MongoClient[Any]("127.0.0.1", unused_port) as client, pytest.raises(MonqueConnectionError):
        async with open_scheduler(client["x"], operation_timeout=0.2):
            raise AssertionError("it never starts")


def test_failed_start_may_be_tried_again(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    from trio_monque.store import indexes

    ensure = indexes.ensure
    calls: list[int] = []

    def fails_once(jobs: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise MonqueConnectionError("not now", transient=True)
        ensure(jobs)

    monkeypatch.setattr(indexes, "ensure", fails_once)
    monque = Monque(db)
    with pytest.raises(MonqueConnectionError):
        monque.sync.enqueue("greet")
    monque.sync.enqueue("greet")
    monque.sync.enqueue("greet")
    assert len(calls) == 2
