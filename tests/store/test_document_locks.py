"""Locks taken, renewed, given back, taken away and ended, with others acting in between."""

from __future__ import annotations

import threading
from collections import Counter
from decimal import Decimal
from typing import Any

import bson
import pytest
from bson import CodecOptions, DatetimeMS, Decimal128
from bson.codec_options import TypeDecoder, TypeRegistry

from tests.support.full_documents import LARGEST
from tests.support.locked import NOW, SECOND, UNKNOWN_LOCKS, claim, fence, handle, lock_of, recorded, stamp
from tests.support.malformed import text, with_field
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import MonqueConnectionError
from trio_monque.locks_and_dead_letters import MOST_TRIES, LockStamp, dead_letter_lock, freed, read_lock
from trio_monque.store.documents import claiming, due, leases, listing_and_readmitting, rescuing
from trio_monque.store.documents.locked_collection import LockedCollection
from trio_monque.store.documents.rescuing import Takeaway
from trio_monque.store.documents.settling import GONE, WRITTEN, settle
from trio_monque.store.documents.settling_statements import DocumentWrite
from trio_monque.store.driver.types import Collection, Database

LATER = NOW + 90 * SECOND


@pytest.fixture
def documents(db: Database) -> Collection:
    return db["letters"]


@pytest.fixture
def locked(documents: Collection) -> LockedCollection:
    return handle(documents)


def held(documents: Collection, locked: LockedCollection, count: int, by: str = "us") -> LockStamp:
    """Documents 0 to `count`, held by one claim."""
    mark = stamp(by)
    documents.insert_many([{"_id": number} for number in range(count)])
    assert len(claim(locked, count, mark)) == count
    return mark


# --- Taking ---


def test_taken_documents_are_exactly_what_the_database_holds(locked: LockedCollection, documents: Collection) -> None:
    documents.insert_many([{"_id": number, "to": [number]} for number in range(5)])
    mark = stamp()
    taken = claiming.take(locked, [3, 1, 4], NOW, mark)
    assert [one.id for one in taken.documents] == [3, 1, 4]
    assert [one.document for one in taken.documents] == [documents.find_one({"_id": number}) for number in (3, 1, 4)]
    assert taken.documents[0].document == {"_id": 3, "to": [3], "lock": {**mark.fields, "tries": 0}}
    assert not taken.more
    assert lock_of(documents, 0) is None


@pytest.mark.parametrize(
    ("lock", "tries"),
    [
        ({"by": None, "until": NOW, "tries": 4}, 4),
        ({"by": None, "until": NOW, "tries": 2**40}, MOST_TRIES),
        ({"by": None, "until": NOW, "tries": -4}, 0),
        ({"by": None, "until": NOW, "tries": 4.0}, 0),
        ({"by": None, "until": NOW, "tries": "4"}, 0),
        ({"by": None, "until": NOW, "error": "old", "note": "theirs"}, 0),
        (None, 0),
    ],
    ids=str,
)
def test_claimed_lock_keeps_the_tries_and_nothing_else(
    locked: LockedCollection, documents: Collection, lock: Any, tries: int
) -> None:
    documents.insert_one({"_id": 0, "lock": lock})
    mark = stamp()
    (taken,) = claiming.take(locked, [0], NOW, mark).documents
    assert taken.tries == tries
    assert lock_of(documents, 0) == {**mark.fields, "tries": tries}


@pytest.mark.parametrize(
    "change",
    [
        {"$set": {"done": 1}},
        {"$set": {"lock": {"by": None, "until": NOW + SECOND}}},
        {"$set": {"lock": {"by": "article", "until": NOW - SECOND}}},
        *({"$set": {"lock": lock}} for lock in UNKNOWN_LOCKS),
    ],
    ids=str,
)
def test_guarded_write_repeats_the_whole_condition(
    locked: LockedCollection, documents: Collection, change: dict[str, Any]
) -> None:
    documents.insert_many([{"_id": 0}, {"_id": 1}])
    ids = due.survey(locked, 5, NOW).ids
    documents.update_one({"_id": 0}, change)
    before = documents.find_one({"_id": 0})
    taken = claiming.take(locked, ids, NOW, stamp())
    assert [one.id for one in taken.documents] == [1]
    assert taken.more
    assert documents.find_one({"_id": 0}) == before


def test_deleted_candidate_is_not_claimed(locked: LockedCollection, documents: Collection) -> None:
    taken = claiming.take(locked, [0], NOW, stamp())
    assert (taken.documents, taken.more) == ([], True)
    assert documents.count_documents({}) == 0


def test_candidate_that_was_stored_again_under_an_equal_number_is_claimed(
    locked: LockedCollection, documents: Collection
) -> None:
    """The server matches 1 and 1.0 alike, and their keys differ."""
    documents.insert_many([{"_id": 1}, {"_id": 2}])
    taken = claiming.take(locked, [1.0, 2], NOW, stamp()).documents
    assert {one.id for one in taken} == {1, 2}
    assert all(type(one.id) is int for one in taken)


def test_copy_is_exact_although_the_document_changed_after_the_look(
    locked: LockedCollection, documents: Collection
) -> None:
    documents.insert_one({"_id": 0, "to": "old"})
    ids = due.survey(locked, 5, NOW).ids
    documents.update_one({"_id": 0}, {"$set": {"to": "new"}})
    (taken,) = claiming.take(locked, ids, NOW, stamp()).documents
    assert taken.document["to"] == "new"


def test_each_document_is_taken_by_one_of_many_at_once(
    locked: LockedCollection, documents: Collection, mongod: EmbeddedServer
) -> None:
    documents.insert_many([{"_id": number} for number in range(200)])
    won: list[Any] = []

    def work(number: int) -> None:
        while True:
            seen = due.survey(locked, 20, NOW)
            if not seen.ids:
                return
            won.extend(one.id for one in claiming.take(locked, seen.ids, NOW, stamp(f"i{number}")).documents)

    threads = [threading.Thread(target=work, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(won) == Counter(range(200))


class _Decimals(TypeDecoder):
    bson_type = Decimal128

    def transform_bson(self, value: Any) -> Decimal:
        decimal: Decimal = value.to_decimal()
        if decimal == 13:
            raise RuntimeError("unlucky")
        return decimal


def test_document_that_the_handle_cannot_decode_is_set_aside_alone(
    db: Database, documents: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    documents.insert_many([{"_id": 0}, {"_id": 1, "at": DatetimeMS(10**15), "lock": freed(2, NOW)}, {"_id": 2}])
    locked, mark = handle(documents), stamp()
    taken = claiming.take(locked, [0, 1, 2], NOW, mark).documents
    assert [one.id for one in taken] == [0, 2]
    (aside,) = listing_and_readmitting.listed(locked, 5)
    assert (aside.id, aside.document, aside.lock.tries) == (1, None, 2)
    assert aside.lock.error is not None
    assert "cannot be decoded" in aside.lock.error
    assert "document 1 of" in caplog.text


def test_document_is_what_the_callers_codec_makes_of_it(db: Database) -> None:
    options: CodecOptions[Any] = CodecOptions(type_registry=TypeRegistry([_Decimals()]), tz_aware=False)
    documents = db.get_collection("letters", codec_options=options)
    documents.insert_many([{"_id": number, "price": Decimal128(str(number))} for number in (12, 13, 14)])
    locked = handle(documents)
    taken = claim(locked, 5, stamp())
    assert [one.document["price"] for one in taken] == [Decimal(12), Decimal(14)]
    assert taken[0].document["lock"]["until"].tzinfo is None
    assert [one.id for one in listing_and_readmitting.listed(locked, 5)] == [13]


def test_document_that_the_server_refuses_to_lock_is_logged_and_passed_over(
    locked: LockedCollection, documents: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    documents.insert_many([{"_id": 0}, {"_id": 1, "fixed": True}, {"_id": 2}, {"_id": 3, "fixed": True}, {"_id": 4}])
    rule = {"$or": [{"fixed": None}, {"lock": None}]}
    documents.database.command("collMod", documents.name, validator=rule)
    ids = due.survey(locked, 9, NOW).ids
    taken = claiming.take(locked, ids, NOW, stamp())
    assert [one.id for one in taken.documents] == [0, 2, 4]
    assert all(one.document == documents.find_one({"_id": one.id}) for one in taken.documents)
    assert due.survey(locked, 9, NOW).ids == []
    assert caplog.text.count("refused to lock it") == 2
    documents.delete_many({"fixed": None})
    assert not due.is_anything_left(locked, NOW)


def test_document_that_was_locked_before_the_refused_one_is_taken(
    locked: LockedCollection, documents: Collection
) -> None:
    """The first write has locked it, and has stopped without a count. The second one does not match it any more."""
    documents.insert_many([{"_id": 0}, {"_id": 1, "fixed": True}])
    rule = {"$or": [{"fixed": None}, {"lock": None}]}
    documents.database.command("collMod", documents.name, validator=rule)
    assert [one.id for one in claiming.take(locked, [0, 1], NOW, stamp()).documents] == [0]


@pytest.mark.full
def test_collection_that_will_have_no_locks_at_all_is_an_error(locked: LockedCollection, documents: Collection) -> None:
    documents.insert_many([{"_id": number} for number in range(claiming.MOST_REFUSED + 1)])
    documents.database.command("collMod", documents.name, validator={"lock": None})
    with pytest.raises(MonqueConnectionError, match="validation") as raised:
        while ids := due.survey(locked, 50, NOW).ids:
            assert claiming.take(locked, ids, NOW, stamp()).documents == []
    assert raised.value.transient  # It is tried again, and unhealthy meanwhile; it ends nothing.


def test_document_whose_renewal_or_release_the_server_refuses_keeps_no_other_from_it(
    locked: LockedCollection, documents: Collection
) -> None:
    mark = held(documents, locked, 4)
    documents.update_one({"_id": 1}, {"$set": {"fixed": True}})
    same = {"$or": [{"fixed": None}, {"lock.until": mark.until}]}
    documents.database.command("collMod", documents.name, validator=same)
    assert leases.renew(locked, [(fence(mark), [0, 1, 2, 3])], LATER) == {locked.key_of(1)}
    assert {one["_id"] for one in documents.find({"lock.until": LATER})} == {0, 2, 3}
    claiming.release_all(locked, mark, LATER, ids=[0, 1, 2, 3])
    assert {one["_id"] for one in documents.find({"lock.by": None})} == {0, 2, 3}


@pytest.mark.full
def test_dead_claim_on_a_full_document_is_taken_away_with_a_short_error(
    locked: LockedCollection, documents: Collection
) -> None:
    held(documents, locked, 2)
    stored = {**(documents.find_one({"_id": 1}) or {}), "data": ""}
    documents.replace_one({"_id": 1}, {**stored, "data": "x" * (LARGEST - len(bson.encode(stored)))})
    dead = [
        Takeaway(one.id, one.lock, dead_letter_lock(1, "its holder died, " + "n" * 200))
        for one in rescuing.observe(locked)
    ]
    assert rescuing.rescue(locked, dead) == {locked.key_of(0), locked.key_of(1)}
    # Once more, as after an answer that was lost.
    assert rescuing.rescue(locked, dead) == {locked.key_of(0), locked.key_of(1)}
    assert lock_of(documents, 1)["error"] == "its holder died,"


def test_document_that_stays_set_aside_keeps_no_other_from_its_readmission(
    locked: LockedCollection, documents: Collection
) -> None:
    documents.insert_many([{"_id": number, "lock": dead_letter_lock(1, "no")} for number in range(4)])
    documents.update_one({"_id": 1}, {"$set": {"fixed": True}})
    rule = {"$or": [{"fixed": None}, {"lock": {"$exists": True}}]}
    documents.database.command("collMod", documents.name, validator=rule)
    listing_and_readmitting.readmit(locked, None)
    assert {one["_id"] for one in documents.find({"lock": None})} == {0, 2, 3}


# --- Finding out ---


@pytest.mark.parametrize("by_ids", [True, False])
def test_resolved_claim_is_renewed_and_read(locked: LockedCollection, documents: Collection, by_ids: bool) -> None:
    mark = held(documents, locked, 3)
    documents.update_one({"_id": 1}, {"$unset": {"lock": ""}})
    found = claiming.resolve(locked, mark, LATER, ids=[0, 1, 2] if by_ids else None)
    assert [one.id for one in found] == [0, 2]
    assert all(one.document == documents.find_one({"_id": one.id}) for one in found)
    assert lock_of(documents, 0)["until"] == LATER
    assert lock_of(documents, 1) is None
    assert claiming.resolve(locked, stamp(), LATER, ids=[0, 1, 2] if by_ids else None) == []


@pytest.mark.parametrize("by_ids", [True, False])
def test_release_frees_what_bears_the_token_and_keeps_the_tries(
    locked: LockedCollection, documents: Collection, by_ids: bool
) -> None:
    mark = held(documents, locked, 3)
    documents.insert_one({"_id": "tried", "lock": freed(3, NOW)})
    (tried,) = claiming.take(locked, ["tried"], NOW, mark).documents
    other = stamp("other")
    documents.insert_one({"_id": "other", "lock": {**other.fields, "tries": 0}})
    # Renewed to any time, and by any of our instances.
    documents.update_one({"_id": 0}, {"$set": {"lock.until": LATER}})
    ids = [0, 1, 2, "tried", "other"] if by_ids else None
    assert claiming.release_all(locked, mark, NOW, but=[2], ids=ids) == 3
    assert lock_of(documents, "tried") == freed(3, NOW)
    assert lock_of(documents, 0) == lock_of(documents, 1) == freed(0, NOW)
    assert lock_of(documents, 2) == {**mark.fields, "tries": 0}
    assert lock_of(documents, "other") == {**other.fields, "tries": 0}
    assert tried.tries == 3
    assert claiming.release_all(locked, mark, NOW, but=[2], ids=ids) == 0


def test_unknown_locks_are_touched_by_nothing(locked: LockedCollection, documents: Collection) -> None:
    documents.insert_many([{"_id": place, "lock": lock} for place, lock in enumerate(UNKNOWN_LOCKS)])
    before = list(documents.find())
    everything, mark = list(range(len(UNKNOWN_LOCKS))), stamp("x")
    assert claiming.take(locked, everything, NOW, mark).documents == []
    assert claiming.resolve(locked, mark, LATER, ids=everything) == []
    assert claiming.release_all(locked, mark, NOW) == 0
    assert len(leases.renew(locked, [(fence(mark), everything)], LATER)) == len(everything)
    assert set(settle(locked, [DocumentWrite(one, fence(mark), None, freed(1, NOW)) for one in everything])) == {GONE}
    assert listing_and_readmitting.readmit(locked, None) == 0
    assert list(documents.find()) == before


# --- Renewing ---


def test_renewal_touches_what_it_is_given_under_the_fence_alone(
    locked: LockedCollection, documents: Collection
) -> None:
    mark = held(documents, locked, 6)
    documents.update_one({"_id": 1}, {"$unset": {"lock": ""}})
    documents.update_one({"_id": 2}, {"$set": {"lock.token": "us:another"}})
    documents.update_one({"_id": 3}, {"$set": {"lock": {"by": "article", "until": mark.until}}})
    documents.update_one({"_id": 4}, {"$set": {"lock.until": NOW + SECOND}})
    before = {number: lock_of(documents, number) for number in range(6)}
    lost = leases.renew(locked, [(fence(mark), [0, 1, 2, 3, 4, "never there"])], LATER)
    assert lost == {locked.key_of(one) for one in (1, 2, 3, 4, "never there")}
    assert lock_of(documents, 0) == {**mark.fields, "until": LATER, "tries": 0}
    assert [lock_of(documents, number) for number in range(1, 6)] == [before[number] for number in range(1, 6)]


def test_renewal_never_goes_back_and_may_be_sent_again(locked: LockedCollection, documents: Collection) -> None:
    mark = held(documents, locked, 2)
    assert leases.renew(locked, [(fence(mark), [0, 1])], LATER) == set()
    # Its answer was lost: what was sent may be there.
    assert leases.renew(locked, [(fence(mark, LATER), [0, 1])], LATER - SECOND) == set()
    assert lock_of(documents, 0)["until"] == LATER
    # And who does not know of it has lost it.
    assert len(leases.renew(locked, [(fence(mark), [0, 1])], LATER + SECOND)) == 2


def test_many_claims_are_renewed_in_statements_of_a_thousand(locked: LockedCollection, documents: Collection) -> None:
    marks = [stamp(), stamp()]
    documents.insert_many([{"_id": number, "lock": {**marks[number % 2].fields, "tries": 0}} for number in range(2500)])
    documents.delete_one({"_id": 7})
    with recorded(documents) as (theirs, recorder):
        own = handle(theirs)
        groups = [(fence(mark), list(range(place, 2500, 2))) for place, mark in enumerate(marks)]
        assert leases.renew(own, groups, LATER) == {own.key_of(7)}
        sizes = [
            sum(len(one["q"]["_id"]["$in"]) for one in command["updates"])
            for name, command in recorder.commands
            if name == "update"
        ]
    assert sizes == [1000, 1000, 500]
    assert documents.count_documents({"lock.until": LATER}) == 2499


def test_dates_finer_than_the_database_keeps_are_the_same_claim(
    locked: LockedCollection, documents: Collection
) -> None:
    at = NOW.replace(microsecond=123_456)
    documents.insert_many([{"_id": 0}, {"_id": 1}])
    mark = stamp(at=at)
    claim(locked, 2, mark, now=at)
    later = at + 30 * SECOND
    documents.delete_one({"_id": 1})
    assert leases.renew(locked, [(fence(mark), [0, 1])], later) == {locked.key_of(1)}
    ending = DocumentWrite(0, fence(mark, later), None, freed(1, later))
    assert settle(locked, [ending, DocumentWrite(1, fence(mark), None, freed(1, at))]) == [WRITTEN, GONE]
    assert settle(locked, [ending, DocumentWrite(1, fence(mark), None, freed(1, at))]) == [WRITTEN, GONE]


# --- Taking away ---


def seen_lock(documents: Collection, document_id: Any) -> Any:
    lock = read_lock(lock_of(documents, document_id))
    assert lock is not None
    return lock


@pytest.mark.parametrize(
    "lock",
    [
        {**stamp("them", nonce="1").fields, "tries": 1},
        {"by": "article", "until": NOW},
        {"by": "article", "until": NOW, "token": "them:1"},
        {"by": "article", "until": NOW, "token": 5},
        {"by": "article", "until": NOW, "token": None, "note": "theirs"},
    ],
    ids=str,
)
def test_rescue_takes_what_is_as_it_was_seen_and_tells_it_twice(
    locked: LockedCollection, documents: Collection, lock: Any
) -> None:
    documents.insert_many([{"_id": 0, "lock": lock}, {"_id": 1, "lock": lock}])
    becomes = freed(2, NOW + SECOND)
    dead = [Takeaway(number, seen_lock(documents, number), becomes) for number in (0, 1)]
    assert rescuing.rescue(locked, dead) == {locked.key_of(0), locked.key_of(1)}
    assert lock_of(documents, 0) == lock_of(documents, 1) == becomes
    # The answer was lost: the same is sent again.
    assert rescuing.rescue(locked, dead) == {locked.key_of(0), locked.key_of(1)}


@pytest.mark.parametrize(
    "change",
    [
        {"$set": {"lock.until": LATER}},
        {"$set": {"lock.token": "them:2"}},
        {"$set": {"lock.by": "others"}},
        {"$set": {"lock": None}},
        {"$unset": {"lock": ""}},
        {"$set": {"lock": freed(1, NOW)}},
    ],
    ids=str,
)
def test_rescue_leaves_alone_what_has_changed(
    locked: LockedCollection, documents: Collection, change: dict[str, Any]
) -> None:
    held(documents, locked, 2, by="them")
    becomes = freed(1, NOW + SECOND)
    dead = [Takeaway(number, seen_lock(documents, number), becomes) for number in (0, 1)]
    documents.update_one({"_id": 0}, change)
    before = documents.find_one({"_id": 0})
    assert rescuing.rescue(locked, dead) == {locked.key_of(1)}
    assert documents.find_one({"_id": 0}) == before


def test_readmitted_is_only_what_was_set_aside(locked: LockedCollection, documents: Collection) -> None:
    mark = held(documents, locked, 1)
    documents.insert_many([{"_id": number, "lock": dead_letter_lock(3, "no")} for number in (1, 2, 3)])
    documents.insert_many(
        [{"_id": 4, "lock": freed(3, LATER)}, {"_id": 5, "done": 1, "lock": dead_letter_lock(3, "no")}]
    )
    assert listing_and_readmitting.readmit(locked, [0, 1, 4]) == 1
    assert "lock" not in documents.find_one({"_id": 1})  # type: ignore[operator]
    assert listing_and_readmitting.readmit(locked, None) == 2
    assert listing_and_readmitting.listed(locked, 5) == []
    assert (lock_of(documents, 0)["token"], lock_of(documents, 4)) == (mark.token, freed(3, LATER))
    assert lock_of(documents, 5) == dead_letter_lock(3, "no")


def test_lock_of_ours_that_another_program_garbles_is_lost_alone(
    locked: LockedCollection, documents: Collection
) -> None:
    mark = held(documents, locked, 3)
    documents.update_one({"_id": 1}, {"$set": with_field({}, "lock.by", text(b"\xff\xfe"))})
    lost = leases.renew(locked, [(fence(mark), [0, 1, 2])], LATER + 90 * SECOND)
    assert lost == {locked.key_of(1)}
    assert [seen.id for seen in rescuing.observe(locked)] == [0, 2]
