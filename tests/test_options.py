"""Every wrong option is refused at once and by name, without a database."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import timedelta
from typing import Any, get_type_hints

import pytest
from pymongo import AsyncMongoClient, MongoClient

from trio_monque import Monque, MonqueError, Retention, Workers, open_scheduler, run_scheduler
from trio_monque.errors import InvalidDatabaseError, InvalidOptionError
from trio_monque.options_and_defaults import (
    ClientConfig,
    ClientOptions,
    SchedulerConfig,
    SchedulerOptions,
    scheduler_config,
)
from trio_monque.store.driver.types import Database

WRONG: list[tuple[str, Any]] = [
    ("collection_name", ""),
    ("collection_name", "a$b"),
    ("collection_name", "system.jobs"),
    ("collection_name", 7),
    ("collection_name", "a..b"),
    ("collection_name", "jobs."),
    ("collection_name", "\ud800"),
    ("collection_name", "x" * 300),
    ("poll_interval", 10**400),
    ("max_backoff_delay", 1e13),
    ("operation_timeout", 1e300),
    ("write_concern", "majority "),
    ("max_payload_size", 0),
    ("max_payload_size", 1.5),
    ("max_payload_size", 1 << 40),
    ("operation_timeout", 0),
    ("operation_timeout", "10"),
    ("operation_timeout", float("inf")),
    ("skip_index_creation", 1),
    ("write_concern", 0),
    ("write_concern", ""),
    ("write_concern", True),
    ("instance_id", ""),
    ("instance_id", " padded"),
    ("instance_id", "a\nb"),
    ("instance_id", "x" * 256),
    ("poll_interval", 0),
    ("poll_interval", -1),
    ("poll_interval", float("nan")),
    ("heartbeat_interval", 0.1),
    ("heartbeat_interval", 301),
    ("heartbeat_interval", True),
    ("lock_timeout", 0),
    ("shutdown_timeout", -1),
    ("cleanup_timeout", -0.1),
    ("concurrency_per_name", 0),
    ("concurrency_per_name", 2.0),
    ("concurrency", 0),
    ("max_attempts", -1),
    ("max_rescues", -1),
    ("recover_stale_jobs", 1),
    ("base_retry_interval", -1),
    ("max_backoff_delay", 0),
    ("retry_jitter", 1.5),
    ("retention", 86400),
    ("retention", {"completed": 86400}),
    ("retention", Retention),
    ("instance_id", "lock:retention"),
]

WRONG_OF_RETENTION: list[tuple[str, Any]] = [
    ("completed", -1),
    ("failed", float("inf")),
    ("cancelled", float("nan")),
    ("completed", timedelta(days=1)),
    ("completed", True),
    ("keep_last", 0),
    ("keep_last", -1),
    ("keep_last", 2.0),
    ("interval", 0),
    ("interval", None),
    ("interval", float("inf")),
]


@pytest.fixture
def unreachable() -> Database:
    """Every call to this server waits for half a minute."""
    client: MongoClient[Any] = MongoClient("localhost:1", connect=False)
    return client["nowhere"]


@pytest.mark.parametrize(("option", "value"), WRONG)
async def test_wrong_option_is_refused_by_name(unreachable: Database, option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{option}=") as caught:
        async with open_scheduler(unreachable, **{option: value}):
            pass
    assert isinstance(caught.value, InvalidOptionError)
    assert isinstance(caught.value, MonqueError)
    assert (caught.value.option, caught.value.value) == (option, value) or value != value  # NaN
    with pytest.raises(ValueError, match=f"^{option}="):
        await run_scheduler(unreachable, **{option: value})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"heartbeat_interval": 30, "lock_timeout": 89}, "lock_timeout"),
        ({"heartbeat_interval": 1, "lock_timeout": 5, "cleanup_timeout": 5}, "cleanup_timeout"),
    ],
)
async def test_combination_that_cannot_hold_is_refused(
    unreachable: Database, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        async with open_scheduler(unreachable, **options):
            pass
    assert caught.value.option == named


async def test_unknown_option_is_refused_by_name(unreachable: Database) -> None:
    with pytest.raises(
        InvalidOptionError, match="heartbeat=30: is not an option of a scheduler: did you mean 'heartbeat_interval'"
    ):
        async with open_scheduler(unreachable, heartbeat=30):  # type: ignore[call-arg]
            pass
    with pytest.raises(InvalidOptionError, match="is not an option of a scheduler: did you mean 'listeners'"):
        async with open_scheduler(unreachable, listener={}):  # type: ignore[call-arg]
            pass
    with pytest.raises(InvalidOptionError, match="poll_interval=1: is not an option of a client"):
        Monque(unreachable, poll_interval=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(("option", "value"), WRONG_OF_RETENTION)
def test_wrong_retention_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidOptionError, match=f"^{option}=") as caught:
        Retention(**{"failed": 1.0, option: value})
    assert caught.value.option == option


def test_retention_that_deletes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least one of completed=, failed=, cancelled="):
        Retention(interval=60.0)


def test_retention_goes_by_the_ages_that_are_given_and_by_count_for_all_where_none_is() -> None:
    assert Retention(completed=5, cancelled=0).ages == {"completed": 5, "cancelled": 0}
    assert Retention(failed=5, keep_last=3).ages == {"failed": 5}
    assert Retention(keep_last=3).ages == {"completed": 0, "failed": 0, "cancelled": 0}
    assert Retention(keep_last=3).interval == 3600.0


def test_options_of_a_lock_without_limit_need_no_lease_to_fit() -> None:
    assert scheduler_config({"heartbeat_interval": 300, "lock_timeout": None}).lock_timeout is None


def test_defaults_are_those_that_are_published() -> None:
    config = scheduler_config({})
    assert re.fullmatch(r".+-\d+-[0-9a-f]{8}", config.instance_id)
    assert config.instance_id != scheduler_config({}).instance_id
    assert scheduler_config({"instance_id": None}).instance_id
    published = {
        "collection_name": "monque_jobs",
        "max_payload_size": None,
        "operation_timeout": 10.0,
        "skip_index_creation": False,
        "write_concern": "majority",
        "poll_interval": 1.0,
        "heartbeat_interval": 30.0,
        "lock_timeout": 1800.0,
        "shutdown_timeout": 30.0,
        "cleanup_timeout": 5.0,
        "concurrency_per_name": 5,
        "concurrency": None,
        "max_attempts": 10,
        "max_rescues": 3,
        "recover_stale_jobs": True,
        "base_retry_interval": 1.0,
        "max_backoff_delay": 86400.0,
        "retry_jitter": 0.25,
        "retention": None,
    }
    assert {name: getattr(config, name) for name in published} == published


def test_typed_options_and_checked_options_are_the_same() -> None:
    assert get_type_hints(ClientOptions).keys() == {field.name for field in fields(ClientConfig)}
    assert get_type_hints(SchedulerOptions).keys() == {field.name for field in fields(SchedulerConfig)}


async def test_async_database_is_refused_with_advice() -> None:
    client: AsyncMongoClient[Any] = AsyncMongoClient("localhost:1", connect=False)
    given: Any = client["x"]
    with pytest.raises(TypeError, match="AsyncDatabase.*MongoClient"):
        Monque(given)
    with pytest.raises(InvalidDatabaseError, match="AsyncDatabase.*MongoClient"):
        async with open_scheduler(given):
            pass


@pytest.mark.parametrize("given", [None, "mongodb://localhost", {"db": 1}])
def test_anything_else_than_a_database_is_refused(given: Any) -> None:
    with pytest.raises(InvalidDatabaseError, match=f"{type(given).__name__} is not a pymongo"):
        Monque(given)


async def test_pool_too_small_is_refused_with_the_size_it_needs() -> None:
    with MongoClient[Any]("localhost:1", connect=False, maxPoolSize=5) as client:
        with pytest.raises(ValueError, match=r"maxPoolSize=5.*maxPoolSize=\d+ or more") as caught:
            async with open_scheduler(client["x"]):
                pass
        needed = re.search(r"needs (\d+) connections", str(caught.value))
        assert needed is not None
        Monque(client["x"])  # A client alone may wait for its turn.


async def test_other_things_than_workers_and_listeners_are_refused(unreachable: Database) -> None:
    wrong: Any = [lambda job: None]
    with pytest.raises(InvalidOptionError, match="workers"):
        await run_scheduler(unreachable, wrong)
    with pytest.raises(InvalidOptionError, match="listeners"):
        await run_scheduler(unreachable, listeners={"job:complete": print})  # type: ignore[dict-item]
    with pytest.raises(InvalidOptionError, match="listeners"):
        await run_scheduler(unreachable, Workers(), listeners=wrong)
