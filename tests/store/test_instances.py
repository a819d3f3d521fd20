"""The collection beside the jobs: entries of instances, and paused names."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from threading import Barrier
from typing import Any

import pytest
from pymongo import MongoClient

from tests.support.interception import Recorder
from tests.support.store import PAST, claim, handle, insert, stamp
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs.instance import LIVE_FOR_BEATS, Instance, LastBlock, is_alive
from trio_monque.jobs.name_pause import NamePause
from trio_monque.store.driver.types import Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import instances

ENTRY = Instance(
    id="us",
    incarnation="first",
    host="here",
    pid=7,
    names=("greet", "send.$mail"),
    started_at=PAST,
    last_heartbeat=PAST,
    heartbeat_interval=0.25,
    held=3,
    held_by_name={"send.$mail": 2, "greet": 1},
    overdue_by_name={"send.$mail": 1},
    parked=1,
    full_names=("greet",),
    time_limits={"send.$mail": 0.5},
    loop_blocked=3,
    last_block=LastBlock("greet", PAST, 1.25),
    version="1",
)
LATER = replace(
    ENTRY, last_heartbeat=PAST + timedelta(seconds=1), draining=True, held=0, held_by_name={}, overdue_by_name={}
)
LATER_FIELDS = ("overdueByName", "parked", "fullNames", "timeLimits", "loopBlocked", "lastBlock")
"""Those that the first release did not write."""
OTHER = replace(ENTRY, incarnation="second")


@pytest.fixture
def beside(db: Database) -> JobCollection:
    return handle(db)


def test_entry_is_read_as_it_was_written_and_as_its_beats_changed_it(beside: JobCollection) -> None:
    assert instances.read_all(beside) == []
    assert instances.insert(beside, ENTRY)
    assert instances.read(beside, "us") == ENTRY
    assert instances.beat(beside, LATER)
    assert instances.read_all(beside) == [LATER]
    assert instances.remove(beside, LATER)
    assert instances.read(beside, "us") is None
    assert not instances.beat(beside, LATER)
    assert instances.read_all(beside) == []


def test_entry_of_an_older_release_is_read(beside: JobCollection) -> None:
    instances.insert(beside, ENTRY)
    entries = beside.collection.database[instances.name_of_collection(beside.collection.name)]
    entries.update_one({"_id": "us"}, {"$unset": dict.fromkeys(LATER_FIELDS, "")})
    older = replace(ENTRY, overdue_by_name={}, parked=0, full_names=(), time_limits={}, loop_blocked=0, last_block=None)
    assert instances.read(beside, "us") == older


def test_exactly_one_of_many_simultaneous_entries_under_one_id_succeeds(beside: JobCollection) -> None:
    together = Barrier(10)

    def enter(number: int) -> bool:
        together.wait()
        return instances.insert(beside, replace(ENTRY, incarnation=str(number)))

    with ThreadPoolExecutor(10) as threads:
        entered = list(threads.map(enter, range(10)))
    assert sum(entered) == 1
    (entry,) = instances.read_all(beside)
    assert entered[int(entry.incarnation)]


def test_exactly_one_of_many_simultaneous_takeovers_of_a_dead_id_succeeds(beside: JobCollection) -> None:
    instances.insert(beside, ENTRY)
    together = Barrier(10)

    def take(number: int) -> bool:
        together.wait()
        return instances.replace_if_unchanged(beside, ENTRY, replace(ENTRY, incarnation=f"new {number}"))

    with ThreadPoolExecutor(10) as threads:
        took = list(threads.map(take, range(10)))
    assert sum(took) == 1


def test_one_that_gave_a_sign_of_life_is_neither_taken_over_nor_removed(beside: JobCollection) -> None:
    instances.insert(beside, ENTRY)
    instances.beat(beside, LATER)
    assert not instances.replace_if_unchanged(beside, ENTRY, OTHER)
    assert not instances.remove_if_unchanged(beside, ENTRY)
    assert instances.read_all(beside) == [LATER]
    assert instances.replace_if_unchanged(beside, LATER, OTHER)
    assert not instances.remove_if_unchanged(beside, LATER)
    assert instances.remove_if_unchanged(beside, OTHER)


def test_one_that_lost_its_entry_to_another_writes_and_removes_nothing(beside: JobCollection) -> None:
    instances.insert(beside, OTHER)
    assert not instances.insert(beside, ENTRY)
    assert not instances.beat(beside, LATER)
    assert not instances.remove(beside, ENTRY)
    assert instances.read_all(beside) == [OTHER]


def test_malformed_instance_entry_is_logged_and_left_out(
    beside: JobCollection, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    instances.insert(beside, ENTRY)
    changes: list[dict[str, Any]] = [{"startedAt": "now"}, {"names": 1}, {"pid": None}, {"heartbeatInterval": "x"}]
    for number, change in enumerate(changes):
        whole = db["monque_jobs.instances"].find_one({"_id": "us"})
        assert whole is not None
        db["monque_jobs.instances"].insert_one({**whole, "_id": f"broken {number}", **change})
    assert instances.read_all(beside) == [ENTRY]
    assert [f"broken {number}" in record.message for number, record in enumerate(caplog.records)] == [True] * 4
    assert instances.read(beside, "broken 0") is None


def test_names_are_paused_and_resumed_and_doing_so_again_changes_nothing(beside: JobCollection) -> None:
    assert instances.paused(beside) == frozenset()
    for name in ("b", "a", ";", "pause:a"):
        assert instances.pause(beside, name, PAST)
        assert not instances.pause(beside, name, PAST)
    assert instances.paused(beside) == {"a", "b", ";", "pause:a"}
    assert instances.resume(beside, "b")
    assert not instances.resume(beside, "b")
    assert instances.paused(beside) == {"a", ";", "pause:a"}


def test_pause_keeps_who_made_it_and_others_are_read_as_far_as_they_can_be(db: Database, beside: JobCollection) -> None:
    assert instances.pause(beside, "a", PAST, "dana")
    assert not instances.pause(beside, "a", PAST + timedelta(hours=1), "mallory")
    instances.pause(beside, "b", PAST)  # An older release writes it so, too.
    of_others: dict[str, Any] = {"c": {}, "d": {"pausedAt": "now", "by": 5}, "e": {"by": "x" * 10_000}, "f": {"by": ""}}
    for name, document in of_others.items():
        db["monque_jobs.instances"].insert_one({"_id": f"pause:{name}", **document})
    expected = [
        *(NamePause("a", PAST, "dana"), NamePause("b", PAST), NamePause("c"), NamePause("d")),
        *(NamePause("e", None, "x" * 199 + "…"), NamePause("f")),
    ]
    assert instances.pauses(beside) == expected
    assert instances.read_fleet(beside) == ([], {one.name: one for one in expected})
    stored: Any = db["monque_jobs.instances"].find_one({"_id": "pause:b"})
    assert stored.keys() == {"_id", "pausedAt"}


def test_exactly_one_of_many_simultaneous_pauses_changes_the_name_and_none_fails(beside: JobCollection) -> None:
    together = Barrier(10)

    def pause(_: int) -> bool:
        together.wait()
        return instances.pause(beside, "a", PAST)

    with ThreadPoolExecutor(10) as threads:
        assert sum(threads.map(pause, range(10))) == 1


def test_instance_entries_and_pauses_are_kept_apart(beside: JobCollection) -> None:
    instances.insert(beside, ENTRY)
    instances.insert(beside, replace(ENTRY, id="pause;"))
    instances.pause(beside, "a", PAST)
    assert instances.paused(beside) == {"a"}
    assert [entry.id for entry in instances.read_all(beside)] == ["pause;", "us"]


def test_fleet_is_written_to_a_majority_and_read_from_the_primary_whatever_the_client_does_by_default(
    mongod: EmbeddedServer, db: Database
) -> None:
    recorder = Recorder()
    defaults: dict[str, Any] = {"w": 1, "readPreference": "secondary", "serverSelectionTimeoutMS": 2000}
    with MongoClient[Any](mongod.uri, event_listeners=[recorder], **defaults) as client:
        beside = handle(client[db.name])
        instances.insert(beside, ENTRY)
        instances.pause(beside, "a", PAST)
        assert instances.read_all(beside) == [ENTRY]
    writes = [command for name, command in recorder.commands if name in ("insert", "update")]
    assert [write["writeConcern"]["w"] for write in writes] == ["majority"] * 2


def test_collections_of_one_database_have_fleets_of_their_own(db: Database) -> None:
    one = handle(db)
    other = JobCollection.of(db, "others", write_concern="majority", operation_timeout=5.0)
    instances.insert(one, ENTRY)
    instances.pause(one, "a", PAST)
    assert instances.insert(other, OTHER)
    assert instances.paused(other) == frozenset()


def test_claims_under_an_id_are_those_and_no_others(beside: JobCollection) -> None:
    (ours,) = claim(beside, 1, stamp("us"))
    claim(beside, 1, stamp("others"))
    left_over = insert(beside)
    beside.collection.update_one({"_id": left_over.id}, {"$set": {"claimedBy": "us"}})  # Its status alone was changed.
    (found,) = instances.claims_of(beside, "us")
    assert (found.id, found.claim) == (ours.id, ours.claim)


@pytest.mark.parametrize(
    ("interval", "seconds"), [(30.0, 30.0), (None, 300.0), (float("nan"), 300.0), (1e9, 300.0), (0.0, 0.2), (-1.0, 0.2)]
)
def test_instance_counts_as_live_for_two_clamped_intervals_after_a_heartbeat(
    interval: float | None, seconds: float
) -> None:
    alive = partial(is_alive, PAST, interval)
    assert alive(PAST - timedelta(hours=1))  # The clocks differ.
    assert alive(PAST + LIVE_FOR_BEATS * timedelta(seconds=seconds))
    assert not alive(PAST + LIVE_FOR_BEATS * timedelta(seconds=seconds) + timedelta(milliseconds=1))
