"""Which documents may be claimed, with whatever stands in their lock field, and who holds the others."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, CodecOptions, DatetimeMS, Decimal128, Int64, ObjectId, UuidRepresentation
from bson.raw_bson import RawBSONDocument
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient

from tests.support.interception import Interceptor
from tests.support.lock_values import LOCKS
from tests.support.locked import NOW, SECOND, UNKNOWN_LOCKS, claim, handle, lock_of, stamp
from tests.support.standalone import standalone_server
from trio_monque.embedded import EmbeddedServer
from trio_monque.locks_and_dead_letters import NEVER, Lock, LockState, dead_letter_lock, freed, read_lock, state_of
from trio_monque.store.documents import claiming, due, listing_and_readmitting, rescuing
from trio_monque.store.documents.locked_collection import LockedCollection
from trio_monque.store.driver.types import Collection, Database


@pytest.fixture
def documents(db: Database) -> Collection:
    return db["letters"]


@pytest.fixture
def locked(documents: Collection) -> LockedCollection:
    return handle(documents)


FREE: Sequence[Any] = [
    None,
    {"by": None},
    {"by": None, "until": None},
    {"by": None, "until": NOW},
    {"until": NOW - SECOND},
    freed(3, NOW),
]
NOT_YET: Sequence[Any] = [{"by": None, "until": NOW + SECOND}, {"until": NOW + SECOND}, freed(1, NOW + SECOND)]
HELD: Sequence[Any] = [
    {**stamp("a", nonce="1").fields, "tries": 0},
    {**stamp("a", NOW - timedelta(days=1), "1").fields, "tries": 0},
    {"by": "article", "until": NOW + SECOND},
    {"by": "article", "until": NOW - SECOND},
]


def test_look_finds_what_is_free_and_matches_and_nothing_else(locked: LockedCollection, documents: Collection) -> None:
    documents.insert_one({"_id": "never locked"})
    documents.insert_many([{"_id": f"free {place}", "lock": lock} for place, lock in enumerate(FREE)])
    documents.insert_many([{"_id": f"done {place}", "lock": lock, "done": 1} for place, lock in enumerate(FREE)])
    others = [*NOT_YET, *HELD, *UNKNOWN_LOCKS, dead_letter_lock(3, "no")]
    documents.insert_many([{"lock": lock} for lock in others])
    found = due.survey(locked, 50, NOW)
    assert sorted(found.ids) == [*(f"free {place}" for place in range(len(FREE))), "never locked"]
    assert found.is_all
    assert not found.is_short


@pytest.mark.full
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(LOCKS, min_size=30, max_size=60))
def test_server_and_reader_agree_on_every_lock(documents: Collection, locks: list[Any]) -> None:
    """What the query finds is what `read_lock` calls free: or one would claim what the other never looks at."""
    documents.delete_many({})
    documents.insert_many([{"_id": place, "lock": lock} for place, lock in enumerate(locks)])
    locked = handle(documents)
    stored = {document["_id"]: state_of(locked.lock_in(document), NOW) for document in locked.locks.find()}
    in_state = {state: {place for place, one in stored.items() if one is state} for state in LockState}
    assert set(due.survey(locked, 100, NOW).ids) == in_state[LockState.FREE]
    held = {seen.id for seen in rescuing.observe(locked)}
    assert held == in_state[LockState.HELD] | in_state[LockState.FOREIGN]
    assert {one.id for one in listing_and_readmitting.listed(locked, 100)} == in_state[LockState.DEAD_LETTER]
    waiting = [
        locked.lock_in(document) for document in locked.locks.find({"_id": {"$in": list(in_state[LockState.WAITING])}})
    ]
    earliest = min((lock.until for lock in waiting if lock is not None and lock.until is not None), default=None)
    assert due.next_due(locked, NOW) == earliest
    # And a claim of everything there is takes these, with the tries that their locks say.
    tries = {
        place: lock.tries
        for place in in_state[LockState.FREE]
        if (lock := locked.lock_in({"lock": lock_of(documents, place)}))
    }
    taken = claiming.take(locked, list(range(len(locks))), NOW, stamp())
    assert {one.id: one.tries for one in taken.documents} == tries


def test_lock_with_a_date_beyond_python_is_left_alone(documents: Collection, locked: LockedCollection) -> None:
    for place, ms in enumerate((-(10**15), 10**15)):
        documents.insert_one({"_id": place, "lock": {"by": None, "until": DatetimeMS(ms)}})
    assert due.survey(locked, 5, NOW).ids == []
    assert claiming.take(locked, [0, 1], NOW, stamp()).documents == []
    assert not due.is_anything_left(locked, NOW)


def test_look_passes_over_and_looks_again_from_the_head_where_there_is_less(
    locked: LockedCollection, documents: Collection
) -> None:
    documents.insert_many([{"_id": number} for number in range(10)])
    in_order = handle(documents, sort=[("_id", 1)])
    behind = due.survey(in_order, 4, NOW, passed_over=3)
    assert (behind.ids, behind.is_all, behind.is_short) == ([3, 4, 5, 6], False, False)
    short = due.survey(in_order, 4, NOW, passed_over=8)
    assert (short.ids, short.is_all, short.is_short) == ([0, 1, 2, 3], False, True)
    everything = due.survey(in_order, 11, NOW, passed_over=1)
    assert (len(everything.ids), everything.is_all, everything.is_short) == (10, True, True)


@pytest.mark.parametrize("direction", [1, -1])
def test_order_is_that_of_the_sort_and_what_lacks_the_field_is_found(documents: Collection, direction: int) -> None:
    """It comes first, or last, as in any sort of MongoDB's."""
    documents.insert_many(
        [{"_id": 1, "at": 3}, {"_id": 2}, {"_id": 3, "at": 1}, {"_id": 4, "at": None}, {"_id": 5, "at": "x"}]
    )
    locked = handle(documents, sort=[("at", direction), ("_id", direction)])
    assert due.survey(locked, 9, NOW).ids == [2, 4, 3, 1, 5][::direction]


@pytest.mark.parametrize(
    "filter",
    [
        {"$or": [{"a": 1}, {"b": 1}]},
        {"$or": [{"lock": None}, {"lock.by": "anybody"}], "a": 1},
        {"_id": {"$gt": 0}, "a": 1},
        {"_id": {"$in": [1, 3]}},
        {"$and": [{"a": {"$exists": True}}, {"a": {"$ne": 2}}]},
        {"$nor": [{"a": 2}, {"a": None}]},
        {"$expr": {"$eq": ["$a", 1]}},
        {"in.depth": {"$elemMatch": {"x": 1}}},
        {"lock.tries": {"$exists": False}, "a": 1},
    ],
    ids=str,
)
def test_filter_may_use_any_field_and_operator(documents: Collection, filter: dict[str, Any]) -> None:  # noqa: A002
    documents.insert_many(
        [
            {"_id": 0, "a": 2},
            {"_id": 1, "a": 1, "in": {"depth": [{"x": 1}]}},
            {"_id": 2, "a": 1, "lock": {**stamp("b").fields, "tries": 0}},
            {"_id": 3, "a": 1, "in": {"depth": [{"x": 1}]}},
            {"_id": 4, "lock": {"by": None, "until": NOW + SECOND}},
        ]
    )
    locked = handle(documents, filter)
    assert sorted(due.survey(locked, 9, NOW).ids) == [1, 3]
    assert sorted(one.id for one in claim(locked, 9, stamp())) == [1, 3]


def test_filter_is_what_it_was_when_the_handle_was_made(documents: Collection) -> None:
    documents.insert_many([{"_id": 0, "a": 1}, {"_id": 1, "a": 2}])
    given_filter = {"a": 1}
    locked = handle(documents, given_filter)
    given_filter["a"] = 2
    assert due.survey(locked, 9, NOW).ids == [0]


IDS: Sequence[Any] = [
    1,
    2.5,
    Int64(2**40),
    "text",
    b"bytes",
    ObjectId(),
    datetime(2020, 1, 1, tzinfo=UTC),
    Decimal128("1.5"),
    True,
    None,
    UUID(int=7),
    Binary(b"x" * 16, 3),
    {"a": 1, "b": {"c": [1, UUID(int=8)]}},
    {"b": 1, "a": 1},
    {"a": 1, "b": 1},
]


@pytest.mark.parametrize("document_class", [dict, RawBSONDocument])
@pytest.mark.parametrize("representation", [UuidRepresentation.STANDARD, UuidRepresentation.JAVA_LEGACY])
@pytest.mark.parametrize("tz_aware", [True, False])
def test_ids_of_every_type_go_the_whole_way(
    db: Database, document_class: type[Any], representation: int, tz_aware: bool
) -> None:
    options: CodecOptions[Any] = CodecOptions(
        document_class=document_class, uuid_representation=representation, tz_aware=tz_aware
    )
    documents = db.get_collection("letters", codec_options=options)
    documents.insert_many([{"_id": document_id} for document_id in IDS])
    locked, mark = handle(documents), stamp()
    taken = claim(locked, 50, mark)
    assert {one.key for one in taken} == {locked.key_of(document_id) for document_id in IDS}
    assert all(locked.key_of(one.document["_id"]) == one.key for one in taken)
    seen = rescuing.observe(locked)
    assert {one.key for one in seen} == {one.key for one in taken}
    assert all(locked.key_of(one.id) == one.key for one in seen)
    assert due.still_matching(locked, IDS) == set()
    assert claiming.release_all(locked, mark, NOW, but=[one.id for one in taken[1:]]) == 1
    assert due.still_matching(locked, IDS) == {taken[0].key}


def test_next_due_is_the_earliest_that_is_not_due_yet(locked: LockedCollection, documents: Collection) -> None:
    assert due.next_due(locked, NOW) is None
    documents.insert_many([{"lock": lock} for lock in [*FREE, *HELD, *UNKNOWN_LOCKS, dead_letter_lock(3, "no")]])
    documents.insert_one({"done": 1, "lock": freed(1, NOW + SECOND)})
    assert due.next_due(locked, NOW) is None
    documents.insert_many([{"lock": freed(1, NOW + seconds * SECOND)} for seconds in (9, 5, 7)])
    assert due.next_due(locked, NOW) == NOW + 5 * SECOND
    assert due.next_due(locked, NOW + 5 * SECOND) == NOW + 7 * SECOND


def test_observe_returns_every_held_lock(locked: LockedCollection, documents: Collection) -> None:
    documents.insert_many(
        [{"_id": f"other {place}", "lock": lock} for place, lock in enumerate([*FREE, *NOT_YET, *UNKNOWN_LOCKS])]
    )
    documents.insert_many([{"_id": place, "lock": lock} for place, lock in enumerate(HELD)])
    documents.insert_one({"done": 1, "lock": HELD[0]})
    assert {seen.id: seen.lock for seen in rescuing.observe(locked)} == {
        place: read_lock(lock) for place, lock in enumerate(HELD)
    }


@pytest.mark.parametrize(
    ("lock", "is_left"),
    [
        *((lock, True) for lock in FREE),
        *((lock, True) for lock in NOT_YET),
        *((lock, False) for lock in UNKNOWN_LOCKS),
        (dead_letter_lock(3, "no"), False),
        (HELD[0], True),  # Its holder may die, and then it comes back.
        (HELD[1], True),
        ({"by": "article", "until": NOW + SECOND}, False),
        ({"by": "article", "until": NOW}, True),
        ({"by": "article", "until": NOW - SECOND, "token": "us:1"}, True),
    ],
    ids=str,
)
def test_what_counts_as_left(locked: LockedCollection, documents: Collection, lock: Any, is_left: bool) -> None:
    documents.insert_many([{"lock": lock}, {"done": 1}])
    assert due.is_anything_left(locked, NOW) is is_left


def miss_nothing(uri: str, documents: Collection, before: Any, after: Any) -> None:
    """The document is to be had at each moment, and changes before any of the reads: who leaves leaves it behind."""
    interceptor = Interceptor()
    with MongoClient[Any](uri, tz_aware=True, event_listeners=[interceptor]) as client:
        theirs = handle(client[documents.database.name][documents.name])
        for reads in range(6):
            documents.replace_one({"_id": 1}, {"_id": 1, "lock": before}, upsert=True)
            left = [reads]

            def is_next(name: str, _: Any, left: list[int] = left) -> bool:
                left[0] -= name == "find"
                return left[0] < 0

            def meanwhile() -> None:
                documents.update_one({"_id": 1}, {"$set": {"lock": after}})

            interceptor.before(is_next, meanwhile)
            assert due.is_anything_left(theirs, NOW), f"changed before read {reads + 1}"
    assert interceptor.times > 1


CHANGES: Mapping[str, tuple[Any, Any]] = {"freed": (HELD[0], NOT_YET[0]), "taken": (NOT_YET[0], HELD[0])}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_between_two_reads_counts_as_left(
    mongod: EmbeddedServer, documents: Collection, change: str
) -> None:
    miss_nothing(mongod.uri, documents, *CHANGES[change])


@pytest.mark.full
def test_what_changes_between_two_reads_of_a_server_without_snapshots_counts_as_left() -> None:
    with standalone_server() as uri, MongoClient[Any](uri, tz_aware=True, retryWrites=False) as alone:
        for change in CHANGES.values():
            miss_nothing(uri, alone["x"]["letters"], *change)


def test_unreadable_locks_are_logged_once(
    locked: LockedCollection, documents: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    documents.insert_many([{"_id": place, "lock": lock} for place, lock in enumerate(UNKNOWN_LOCKS)])
    documents.insert_one({"_id": "future", "lock": {"by": 5, "until": NOW + SECOND}})
    documents.insert_many([{"lock": lock} for lock in [*FREE, *NOT_YET, *HELD, dead_letter_lock(3, "no")]])
    with caplog.at_level(logging.WARNING, "trio_monque"):
        for _ in range(3):
            due.survey(locked, 50, NOW)
            rescuing.observe(locked)
    reported = [repr(record.args[1]) for record in caplog.records if isinstance(record.args, tuple)]
    assert sorted(reported) == sorted(map(repr, [*range(len(UNKNOWN_LOCKS)), "future"]))


def test_set_aside_is_listed_with_its_error(locked: LockedCollection, documents: Collection) -> None:
    documents.insert_many([{"lock": lock} for lock in [*FREE, *NOT_YET, *HELD, *UNKNOWN_LOCKS]])
    documents.insert_many([{"_id": number, "lock": dead_letter_lock(number, "no")} for number in range(3)])
    documents.insert_one({"done": 1, "lock": dead_letter_lock(9, "done")})
    listed = listing_and_readmitting.listed(locked, 10)
    assert {one.id: one.lock for one in listed} == {
        number: Lock(None, NEVER, tries=number, error="no") for number in range(3)
    }
    assert all(one.document is not None and one.document["lock"]["tries"] == one.id for one in listed)
    assert len(listing_and_readmitting.listed(locked, 2)) == 2


def test_still_matching_returns_documents_that_match_and_are_not_held(
    locked: LockedCollection, documents: Collection
) -> None:
    documents.insert_many(
        [{"_id": 0}, {"_id": 1, "done": 1}, {"_id": 2, "lock": HELD[0]}, {"_id": 3, "lock": freed(1, NOW)}]
    )
    assert due.still_matching(locked, [0, 1, 2]) == {locked.key_of(0)}
