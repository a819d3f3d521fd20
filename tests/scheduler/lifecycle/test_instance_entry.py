"""An instance's entry where others write between two of its commands, and where its own earlier write is there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import MongoClient

from tests.support.interception import Interceptor
from tests.support.internals import context_of
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import InstanceCollisionError
from trio_monque.jobs import Instance
from trio_monque.options_and_defaults import SchedulerConfig
from trio_monque.scheduler.instance_entry import InstanceEntry
from trio_monque.scheduler.instance_state import InstanceState
from trio_monque.store.driver.types import Collection, Database


@pytest.fixture
def interceptor() -> Interceptor:
    return Interceptor()


@pytest.fixture
def entry(mongod: EmbeddedServer, db: Database, interceptor: Interceptor) -> Iterator[InstanceEntry]:
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[interceptor]) as client:
        yield InstanceEntry(context_of(Monque(client[db.name])), SchedulerConfig(instance_id="us"))


@pytest.fixture
def entries(db: Database) -> Collection:
    return db["monque_jobs.instances"]


def renewed(entry: InstanceEntry, *, draining: bool = False) -> Instance:
    return entry.renewed(InstanceState(), datetime.now(UTC), draining=draining)


def is_look(name: str, command: Any) -> bool:
    return name == "find" and command["find"] == "monque_jobs.instances"


def test_entry_that_leaves_while_its_id_is_asked_for_makes_room(
    entry: InstanceEntry, entries: Collection, interceptor: Interceptor
) -> None:
    entries.insert_one({"_id": "us", "incarnation": "another"})
    interceptor.before(is_look, lambda: entries.delete_one({"_id": "us"}))
    entry.enter(InstanceState())
    assert interceptor.times == 1
    assert entry.is_there


def test_entry_of_an_earlier_try_of_the_same_start_is_its_own(entry: InstanceEntry, entries: Collection) -> None:
    entry.enter(InstanceState())
    entry.enter(InstanceState())
    assert entries.count_documents({}) == 1


def test_document_of_its_id_that_is_not_an_entry_ends_the_start_with_an_error(
    entry: InstanceEntry, entries: Collection
) -> None:
    entries.insert_one({"_id": "us"})
    with pytest.raises(InstanceCollisionError, match="the document with this _id"):
        entry.enter(InstanceState())


def test_heartbeats_grow_although_the_servers_clock_steps_back(entry: InstanceEntry, entries: Collection) -> None:
    """Others take a heartbeat that does not change for a dead instance."""
    entry.enter(InstanceState())
    entered = entries.find_one({"_id": "us"})
    assert entered is not None
    before = datetime(2020, 1, 1, tzinfo=UTC)
    first, second = (entry.renewed(InstanceState(), before, draining=False).last_heartbeat for _ in range(2))
    assert entered["heartbeatAt"].replace(tzinfo=UTC) < first < second


def test_claim_under_the_id_that_was_never_renewed_does_not_keep_the_instance_from_starting(
    entry: InstanceEntry, db: Database
) -> None:
    moment = datetime.now(UTC)
    dates = dict.fromkeys(("nextRunAt", "createdAt", "updatedAt", "lockedAt"), moment)
    db["monque_jobs"].insert_one({"name": "greet", "status": "processing", "claimedBy": "us", "failCount": 0, **dates})
    entry.enter(InstanceState())
    assert entry.is_there


def test_beat_of_an_instance_that_leaves_does_not_write_a_removed_entry_again(
    entry: InstanceEntry, entries: Collection
) -> None:
    entry.enter(InstanceState())
    entries.delete_many({})
    assert entry.beat(renewed(entry, draining=True)) is None
    assert entries.count_documents({}) == 0


def test_own_entry_that_appears_between_the_beat_and_the_insert_is_not_another_instance(
    entry: InstanceEntry, entries: Collection, interceptor: Interceptor
) -> None:
    """As where the driver has sent the insert twice."""
    entry.enter(InstanceState())
    own = entries.find_one_and_delete({"_id": "us"})
    assert own is not None
    interceptor.before(lambda name, _: name == "insert", lambda: entries.insert_one(own))
    assert entry.beat(renewed(entry)) is None
    assert interceptor.times == 1
