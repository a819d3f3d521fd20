"""What becomes of the ends of claims: the result and the end of the lock, in one write under the fence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pymongo import MongoClient

from tests.support.interception import Interceptor
from tests.support.locked import NOW, SECOND, claim, fence, handle, lock_of, recorded, stamp
from tests.support.open_transactions import begin_with
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import InvalidPayloadError, MonqueConnectionError
from trio_monque.locks_and_dead_letters import LockStamp, dead_letter_lock, freed
from trio_monque.store.documents.locked_collection import LockedCollection
from trio_monque.store.documents.settling import GONE, MOVED, UNPROVEN, WRITTEN, DocumentFate, settle
from trio_monque.store.documents.settling_statements import DocumentWrite, encoded_update
from trio_monque.store.driver.types import Collection, Database

LATER = NOW + 90 * SECOND


@pytest.fixture
def documents(db: Database) -> Collection:
    return db["letters"]


@pytest.fixture
def locked(documents: Collection) -> LockedCollection:
    return handle(documents)


def held(documents: Collection, locked: LockedCollection, count: int, **fields: Any) -> LockStamp:
    """Documents 0 to `count`, held by one claim."""
    mark = stamp()
    documents.insert_many([{"_id": number, **fields} for number in range(count)])
    assert len(claim(locked, count, mark)) == count
    return mark


DONE: Mapping[str, Any] = {"$set": {"done": 1}}


@pytest.mark.parametrize(
    ("update", "lock", "after"),
    [
        (None, None, {"n": 1, "list": [1]}),
        ({}, None, {"n": 1, "list": [1]}),
        (DONE, None, {"n": 1, "list": [1], "done": 1}),
        ({"$set": {"done": 1}, "$unset": {"n": ""}, "$push": {"list": 2}}, None, {"list": [1, 2], "done": 1}),
        ({"$unset": {"n": 1, "list": ""}, "$inc": {"done": 1}}, None, {"done": 1}),
        ([{"$set": {"done": {"$add": ["$n", 1]}}}], None, {"n": 1, "list": [1], "done": 2}),
        ([{"$replaceWith": {"_id": "$_id", "done": 1}}], None, {"done": 1}),
        ([], None, {"n": 1, "list": [1]}),
        (None, freed(2, LATER), {"n": 1, "list": [1], "lock": freed(2, LATER)}),
        (None, dead_letter_lock(2, "$no"), {"n": 1, "list": [1], "lock": dead_letter_lock(2, "$no")}),
        (DONE, freed(0, NOW), {"n": 1, "list": [1], "done": 1, "lock": freed(0, NOW)}),
        ([{"$unset": "n"}], freed(0, NOW), {"list": [1], "lock": freed(0, NOW)}),
        ([{"$set": {"n": 2}}], dead_letter_lock(2, "$n"), {"n": 2, "list": [1], "lock": dead_letter_lock(2, "$n")}),
    ],
    ids=str,
)
@pytest.mark.parametrize("count", [1, 3])
def test_ending_writes_the_result_and_ends_the_lock(
    locked: LockedCollection, documents: Collection, update: Any, lock: Any, after: Mapping[str, Any], count: int
) -> None:
    mark = held(documents, locked, count, n=1, list=[1])
    encoded = None if update is None else encoded_update(locked, update)
    reported = settle(locked, [DocumentWrite(number, fence(mark), encoded, lock) for number in range(count)])
    assert reported == [WRITTEN] * count
    assert list(documents.find()) == [{"_id": number, **after} for number in range(count)]


def test_equal_endings_of_one_claim_are_one_statement(locked: LockedCollection, documents: Collection) -> None:
    mark, other = held(documents, locked, 6), stamp("other")
    documents.insert_many([{"_id": number, "lock": {**other.fields, "tries": 0}} for number in (6, 7)])
    with recorded(documents) as (theirs, recorder):
        own = handle(theirs)
        endings = [
            *(DocumentWrite(number, fence(mark), encoded_update(own, DONE)) for number in (0, 1, 2)),
            DocumentWrite(3, fence(mark), encoded_update(own, {"$set": {"done": 2}})),
            *(DocumentWrite(number, fence(mark), None, freed(1, LATER)) for number in (4, 5)),
            *(DocumentWrite(number, fence(other), encoded_update(own, DONE)) for number in (6, 7)),
        ]
        assert settle(own, endings) == [WRITTEN] * 8
        sent = [command["updates"] for name, command in recorder.commands if name == "update"]
        assert [len(one) for one in sent] == [3, 1]
        assert [name for name, _ in recorder.commands if name in ("find", "update")] == ["update", "update"]


def test_endings_whose_lock_is_not_the_claims_are_gone_and_write_nothing(
    locked: LockedCollection, documents: Collection
) -> None:
    mark = held(documents, locked, 8)
    documents.update_one({"_id": 0}, {"$set": {"lock": {**stamp("other").fields, "tries": 1}}})
    documents.update_one({"_id": 1}, {"$set": {"lock": {"by": "article", "until": mark.until}}})
    documents.update_one({"_id": 2}, {"$set": {"lock": freed(1, NOW)}})
    documents.update_one({"_id": 3}, {"$unset": {"lock": ""}})
    documents.update_one({"_id": 4}, {"$set": {"lock.until": LATER}})
    documents.delete_one({"_id": 5})
    before = list(documents.find({"_id": {"$lt": 6}}))
    finished = [DocumentWrite(number, fence(mark), encoded_update(locked, DONE)) for number in range(7)]
    reported = settle(locked, [*finished, DocumentWrite(7, fence(mark), None, freed(1, LATER))])
    # The answer does not show which of 3 and 6 had no lock before.
    assert reported == [GONE, GONE, GONE, GONE, MOVED, GONE, GONE, WRITTEN]
    assert list(documents.find({"_id": {"$lt": 6}})) == before
    assert documents.find_one({"_id": 6}) == {"_id": 6, "done": 1}


def test_settling_does_not_prove_the_neighbours_of_a_lost_document_written(
    locked: LockedCollection, documents: Collection
) -> None:
    """All of them are. But the other holder may also have claimed one that we ended, and ended one of the others."""
    mark = held(documents, locked, 4)
    documents.update_one({"_id": 1}, {"$set": {"lock": {**stamp("other").fields, "tries": 1}}})
    reported = settle(locked, [DocumentWrite(number, fence(mark), encoded_update(locked, DONE)) for number in range(4)])
    assert reported == [UNPROVEN, GONE, UNPROVEN, UNPROVEN]
    assert documents.count_documents({"done": 1}) == 3


def test_end_by_a_later_holder_is_not_counted_as_ours_though_as_many_locks_are_gone_as_matched(
    locked: LockedCollection, documents: Collection, mongod: EmbeddedServer
) -> None:
    """We end 0 and 1. Another holder has ended 2 after our lease, and claims 0 before we look."""
    mark = held(documents, locked, 3)
    documents.update_one({"_id": 2}, {"$set": {"done": "theirs"}, "$unset": {"lock": ""}})
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        own = handle(client[documents.database.name]["letters"])

        def take_the_first() -> None:
            documents.update_one({"_id": 0}, {"$set": {"lock": {**stamp("other").fields, "tries": 0}}})

        interceptor.before(lambda name, _: name == "find", take_the_first)
        settled = settle(own, [DocumentWrite(number, fence(mark), encoded_update(own, DONE)) for number in range(3)])
    assert interceptor.times == 1
    assert settled == [GONE, UNPROVEN, UNPROVEN]
    assert documents.find_one({"_id": 2}) == {"_id": 2, "done": "theirs"}


def test_end_by_a_later_holder_is_not_counted_as_ours_beside_a_refused_one(
    locked: LockedCollection, documents: Collection
) -> None:
    mark = held(documents, locked, 4, n=1)
    documents.update_one({"_id": 1}, {"$set": {"done": "theirs"}, "$unset": {"lock": ""}})
    documents.update_one({"_id": 2}, {"$set": {"n": "text"}})
    added = encoded_update(locked, {"$inc": {"n": 1}})
    settled = settle(locked, [DocumentWrite(number, fence(mark), added) for number in range(4)])
    assert [(one.fate, one.may_be_written) for one in settled] == [
        (DocumentFate.GONE, True),
        (DocumentFate.GONE, True),
        (DocumentFate.REFUSED, False),
        (DocumentFate.GONE, True),
    ]
    assert documents.find_one({"_id": 1}) == {"_id": 1, "n": 1, "done": "theirs"}


def test_moved_ending_is_written_under_the_newer_fence(locked: LockedCollection, documents: Collection) -> None:
    mark = held(documents, locked, 1)
    documents.update_one({"_id": 0}, {"$max": {"lock.until": LATER}})
    assert settle(locked, [DocumentWrite(0, fence(mark), encoded_update(locked, DONE))]) == [MOVED]
    assert lock_of(documents, 0)["until"] == LATER
    assert settle(locked, [DocumentWrite(0, fence(mark, LATER), encoded_update(locked, DONE))]) == [WRITTEN]


def test_endings_with_a_lock_may_be_sent_again(locked: LockedCollection, documents: Collection) -> None:
    mark = held(documents, locked, 3)
    endings = [DocumentWrite(number, fence(mark), None, freed(number, LATER)) for number in range(3)]
    assert settle(locked, endings[:2]) == [WRITTEN] * 2
    assert settle(locked, endings) == [WRITTEN] * 3


def test_finish_sent_again_is_not_reported_as_written_after_the_finish_of_another_holder(
    locked: LockedCollection, documents: Collection
) -> None:
    """Another holder came after us and has finished: the document has no lock, and the result is not ours."""
    mark = held(documents, locked, 2)
    documents.update_one({"_id": 0}, {"$set": {"done": "theirs"}, "$unset": {"lock": ""}})
    endings = [DocumentWrite(0, fence(mark), encoded_update(locked, DONE))]
    assert settle(locked, endings) == [GONE]
    assert documents.find_one({"_id": 0}) == {"_id": 0, "done": "theirs"}


def test_document_that_is_claimed_again_at_once_was_still_ended(
    locked: LockedCollection, documents: Collection, mongod: EmbeddedServer
) -> None:
    """If all of a kind matched, later changes by others do not matter; otherwise the outcome is unknown."""
    mark = held(documents, locked, 3)
    documents.delete_one({"_id": 2})
    finished = DocumentWrite(1, fence(mark), encoded_update(locked, DONE))
    given_back = [DocumentWrite(number, fence(mark), None, freed(0, NOW)) for number in (0, 2)]
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        own = handle(client[documents.database.name]["letters"])

        def take_all() -> None:
            assert len(claim(handle(documents, {}), 5, stamp("other"))) == 2

        # Right before the question what is there now: all that was ended is claimed again.
        interceptor.before(lambda name, _: name == "find", take_all)
        reported = settle(own, [finished, *given_back])
    assert interceptor.times == 1
    assert reported == [WRITTEN, GONE, GONE]


def test_what_is_claimed_again_beside_a_refused_one_was_still_ended(
    locked: LockedCollection, documents: Collection, mongod: EmbeddedServer
) -> None:
    mark = held(documents, locked, 2, n="text")
    interceptor = Interceptor()
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        own = handle(client[documents.database.name]["letters"])

        def take_the_other() -> None:
            assert len(claim(handle(documents, {}), 5, stamp("other"))) == 1

        interceptor.before(lambda name, _: name == "find", take_the_other)
        updates = [encoded_update(own, {"$inc": {"n": 1}}), encoded_update(own, DONE)]
        reported = settle(own, [DocumentWrite(number, fence(mark), update) for number, update in enumerate(updates)])
    assert interceptor.times == 1
    assert [one.fate for one in reported] == [DocumentFate.REFUSED, DocumentFate.WRITTEN]


# --- Refused ---


def test_one_refused_update_keeps_no_neighbour_from_its_end(locked: LockedCollection, documents: Collection) -> None:
    mark = held(documents, locked, 9, n=1)
    documents.update_many({"_id": {"$in": [4, 7]}}, {"$set": {"n": "text"}})
    added = encoded_update(locked, {"$inc": {"n": 1}, "$set": {"done": 1}})
    endings = [
        *(DocumentWrite(number, fence(mark), added) for number in range(8)),
        DocumentWrite(8, fence(mark), encoded_update(locked, DONE)),
    ]
    reported = settle(locked, endings)
    assert [one.fate for one in reported if one.fate is not DocumentFate.GONE] == [
        DocumentFate.REFUSED,
        DocumentFate.REFUSED,
        DocumentFate.WRITTEN,
    ]
    # The server does not report how many documents it had written when it stopped at 4.
    assert [reported[number] for number in (0, 1, 2, 3, 5, 6)] == [UNPROVEN] * 6
    assert "non-numeric" in str(reported[4].error)
    assert [one["_id"] for one in documents.find({"lock.token": mark.token})] == [4, 7]
    assert documents.count_documents({"n": 2, "done": 1}) == 6
    # The claim is still held: it may end otherwise.
    assert settle(locked, [DocumentWrite(4, fence(mark), None, freed(1, LATER))]) == [WRITTEN]


def test_settling_distinguishes_refused_documents_from_lost_ones(
    locked: LockedCollection, documents: Collection
) -> None:
    mark = held(documents, locked, 4, n=1)
    documents.update_one({"_id": 0}, {"$set": {"n": "text"}})
    documents.update_one({"_id": 2}, {"$set": {"lock": {**stamp("other").fields, "tries": 1}}})
    documents.delete_one({"_id": 3})
    added = encoded_update(locked, {"$inc": {"n": 1}})
    reported = settle(locked, [DocumentWrite(number, fence(mark), added) for number in range(4)])
    assert [one.fate for one in reported] == [
        DocumentFate.REFUSED,
        DocumentFate.GONE,
        DocumentFate.GONE,
        DocumentFate.GONE,
    ]
    assert [one.may_be_written for one in reported] == [False, True, False, False]


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.full
@pytest.mark.parametrize(
    "update",
    [
        {"$set": {"_id": 5}},
        {"$set": {"key": "taken"}},
        {"$set": {"a.b.c": 1}},
        {"$rename": {"n": ""}},
        {"$noSuchOperator": {"n": 1}},
        {"$set": {"items.$": 1}},
        {"$set": {"": 1}},
        {"$set": 5},
        [{"$set": {"n": {"$divide": [1, 0]}}}],
        [{"$match": {}}],
        {"$set": {"big": "x" * (16 * 1024 * 1024 - 70_000)}, "$push": {"items": "y" * 1000}},
        {"$set": {"deep": deep(190)}},
    ],
    ids=lambda update: str(update)[:40],
)
def test_update_that_the_server_refuses_is_reported_and_harms_no_other(
    locked: LockedCollection, documents: Collection, update: Any
) -> None:
    documents.create_index("key", unique=True, sparse=True)
    documents.insert_one({"_id": "first", "key": "taken", "done": 1})
    mark = held(documents, locked, 3, n=1, a=5, pad="p" * 80_000)
    endings = [DocumentWrite(number, fence(mark), encoded_update(locked, DONE)) for number in (0, 2)]
    reported = settle(locked, [endings[0], DocumentWrite(1, fence(mark), encoded_update(locked, update)), endings[1]])
    assert [one.fate for one in reported] == [DocumentFate.WRITTEN, DocumentFate.REFUSED, DocumentFate.WRITTEN]
    assert reported[1].error
    assert lock_of(documents, 1)["token"] == mark.token


@pytest.mark.parametrize(
    "update", [{"$set": {"x": object()}}, {"$set": {1: 2}}, {"$set": {"x": 2**70}}, {"$set": {"x": "y" * 17_000_000}}]
)
def test_update_that_cannot_be_encoded_raises_at_once(locked: LockedCollection, update: Any) -> None:
    with pytest.raises(InvalidPayloadError):
        encoded_update(locked, update)


def test_update_is_what_it_was_when_it_was_encoded(locked: LockedCollection, documents: Collection) -> None:
    mark = held(documents, locked, 1)
    update = {"$set": {"done": [1]}}
    encoded = encoded_update(locked, update)
    update["$set"]["done"].append(2)
    settle(locked, [DocumentWrite(0, fence(mark), encoded)])
    assert documents.find_one() == {"_id": 0, "done": [1]}


@pytest.mark.full
def test_interrupted_write_does_not_count_as_refused_and_is_sent_again(
    locked: LockedCollection, documents: Collection, mongod: EmbeddedServer
) -> None:
    """A transaction of another program's has one of the documents: the server waits for it, and then gives up."""
    mark = held(documents, locked, 3)
    endings = [
        DocumentWrite(0, fence(mark), encoded_update(locked, DONE)),
        *(DocumentWrite(number, fence(mark), None, freed(1, LATER)) for number in (1, 2)),
    ]
    hurried = replace(locked, operation_timeout=1.5)
    with documents.database.client.start_session() as session:
        begin_with(session, documents, 1, {"theirs": 1})
        with pytest.raises(MonqueConnectionError) as raised:
            settle(hurried, endings)
        assert raised.value.transient
        assert raised.value.unknown_outcome
        session.abort_transaction()
    # It is unknown whether this claim has ended the first one: see `settle`.
    assert settle(locked, endings) == [GONE, WRITTEN, WRITTEN]
    assert documents.find_one({"_id": 0}) == {"_id": 0, "done": 1}
