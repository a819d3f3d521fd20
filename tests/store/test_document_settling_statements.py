"""Results of many documents in one statement: each gets its own, as the plain statement writes it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import bson
import pytest
from bson import Binary, Decimal128, Int64
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pymongo import errors as driver

from tests.support.bson_values import KEYS, SCALARS, VALUES
from tests.support.callers_codec import CALLERS_OPTIONS, Money
from tests.support.locked import NOW, SECOND, fence, handle, recorded, stamp
from tests.support.thoroughly import in_full, one_in, rows_in, the_same_examples
from trio_monque.locks_and_dead_letters import LockStamp, freed
from trio_monque.store.documents import settling_statements
from trio_monque.store.documents.locked_collection import LockedCollection
from trio_monque.store.documents.settling import GONE, MOVED, UNPROVEN, WRITTEN, DocumentFate, SettledDocument, settle
from trio_monque.store.documents.settling_statements import DocumentWrite, EncodedUpdate, encoded_update, grouped
from trio_monque.store.driver.types import Collection, Database

# So much of it stays as it is that the results of many may be written by one statement.
ROOMY: Final = {"_id": 1, "kept": "x" * 100}


@pytest.fixture
def documents(db: Database) -> Collection:
    return db["letters"]


@pytest.fixture
def locked(documents: Collection) -> LockedCollection:
    return handle(documents)


def held(documents: Collection, ids: Sequence[Any], **fields: Any) -> LockStamp:
    mark = stamp()
    documents.insert_many([{"_id": one, **fields, "lock": {**mark.fields, "tries": 0}} for one in ids])
    return mark


def finished(
    locked: LockedCollection, mark: LockStamp, results: Mapping[Any, Mapping[str, Any]]
) -> list[DocumentWrite]:
    return [
        DocumentWrite(one, fence(mark), encoded_update(locked, {"$set": sets}, ROOMY)) for one, sets in results.items()
    ]


def stored(documents: Collection) -> dict[Any, Any]:
    return {document.pop("_id"): document for document in documents.find()}


def fates(reported: Sequence[SettledDocument]) -> list[DocumentFate]:
    return [one.fate for one in reported]


# --- What is one statement ---


def test_results_of_one_claim_are_one_statement(documents: Collection) -> None:
    mark, other = held(documents, range(20)), held(documents, range(20, 30))
    results = {number: {"n": number, "done": True} for number in range(30)}
    with recorded(documents) as (theirs, recorder):
        own = handle(theirs)
        endings = [
            *finished(own, mark, {number: results[number] for number in range(15)}),
            *finished(own, mark, {number: {"done": True, "n": number} for number in range(15, 20)}),
            *finished(own, other, {number: results[number] for number in range(20, 30)}),
        ]
        assert settle(own, endings) == [WRITTEN] * 30
        sent = [command["updates"] for name, command in recorder.commands if name == "update"]
    assert [len(one) for one in sent] == [2]
    assert stored(documents) == results


def test_results_of_few_and_equal_ones_are_plain_statements(documents: Collection) -> None:
    mark = held(documents, range(12))
    results = {number: {"n": number % 2} for number in range(10)} | {10: {"m": 1}, 11: {"m": 2}}
    with recorded(documents) as (theirs, recorder):
        own = handle(theirs)
        assert settle(own, finished(own, mark, results)) == [WRITTEN] * 12
        ((_, command),) = [one for one in recorder.commands if one[0] == "update"]
    assert len(command["updates"]) == 4
    assert all(isinstance(one["u"], Mapping) for one in command["updates"])
    assert stored(documents) == results


PLAIN: Final = {"$set": {"a": 1}}


@pytest.mark.parametrize(
    ("update", "document", "names"),
    [
        (PLAIN, ROOMY, ("a",)),
        ({"$set": {"b": {"$x": 1}, "a": [1], "c$": None, "é": 1}}, ROOMY, ("a", "b", "c$", "é")),
        ({"$set": {"kept": "y", "a": 1}}, {**ROOMY, "other": "x" * 100}, ("a", "kept")),
        (PLAIN, None, ()),
        (PLAIN, RawBSONDocument(bson.encode(ROOMY)), ()),
        # Too little of it stays as it is.
        (PLAIN, {"_id": 1}, ()),
        ({"$set": {"kept": "y"}}, ROOMY, ()),
        (PLAIN, {"_id": 1, "lock": {"by": "x" * 100}}, ()),
        # What has parts is there, and replaced.
        (PLAIN, {**ROOMY, "a": {"b": 1}}, ()),
        (PLAIN, {**ROOMY, "a": [1]}, ()),
        # What no plain `$set` of whole fields is.
        ({}, ROOMY, ()),
        ({"$set": {}}, ROOMY, ()),
        ({"$set": 5}, ROOMY, ()),
        ({"$inc": {"a": 1}}, ROOMY, ()),
        ({**PLAIN, "$inc": {"b": 1}}, ROOMY, ()),
        ([PLAIN], ROOMY, ()),
        ({"$set": {"a": 1, "b.c": 1}}, ROOMY, ()),
        ({"$set": {"a": 1, "$b": 1}}, ROOMY, ()),
        ({"$set": {"a": 1, "_id": 1}}, ROOMY, ()),
        ({"$set": {"a": 1, "": 1}}, ROOMY, ()),
        ({"$set": {"a": 1, "10": 1}}, ROOMY, ()),
    ],
    ids=str,
)
def test_only_whole_fields_of_roomy_documents_are_set_together(
    locked: LockedCollection, update: Any, document: Any, names: tuple[str, ...]
) -> None:
    assert encoded_update(locked, update, document).names == names


def test_document_read_with_lenient_decoding_is_settled_alone(db: Database) -> None:
    documents: Collection = db.get_collection("letters", CodecOptions[Any](unicode_decode_error_handler="replace"))
    assert encoded_update(handle(documents), PLAIN, ROOMY).names == ()


def test_ends_with_a_lock_go_as_they_went(locked: LockedCollection, documents: Collection) -> None:
    mark = held(documents, range(4))
    lock = freed(1, NOW + SECOND)
    endings = [DocumentWrite(one.id, one.fence, one.update, lock) for one in finished(locked, mark, own_numbers(4))]
    assert settle(locked, endings) == [WRITTEN] * 4
    assert stored(documents) == {number: {"n": number, "lock": lock} for number in range(4)}


def own_numbers(count: int) -> dict[Any, dict[str, Any]]:
    return {number: {"n": number} for number in range(count)}


def test_more_than_one_statement_may_hold_are_several(documents: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling_statements, "MOST_BYTES", 1000)
    ids: list[Any] = [0, 1, 2, 3, 4, "i" * 900, 5]
    mark = held(documents, ids)
    texts = ["a" * size for size in (300, 301, 302, 5000, 10, 11, 12)]
    results = {one: {"text": text} for one, text in zip(ids, texts, strict=True)}
    with recorded(documents) as (theirs, recorder):
        own = handle(theirs)
        assert settle(own, finished(own, mark, results)) == [WRITTEN] * 7
        ((_, command),) = [one for one in recorder.commands if one[0] == "update"]
    parts = [bson.decode(one["q"]["_id"].raw) for one in command["updates"]]
    assert parts == [{"$in": [0, 1]}, {"$eq": 2}, {"$eq": 3}, {"$eq": 4}, {"$eq": "i" * 900}, {"$eq": 5}]
    assert stored(documents) == results


@pytest.mark.full
def test_results_that_no_command_could_hold_together_are_written(
    locked: LockedCollection, documents: Collection
) -> None:
    mark = held(documents, range(6))
    results = {number: {"text": character * 10_000_000} for number, character in enumerate("abcdef")}
    assert settle(locked, finished(locked, mark, results)) == [WRITTEN] * 6
    assert stored(documents) == results


# --- The fence, and what is refused ---


def test_results_are_written_under_the_fence(locked: LockedCollection, documents: Collection) -> None:
    mark = held(documents, range(6), text="before")
    documents.update_one({"_id": 1}, {"$set": {"lock": {**stamp("other").fields, "tries": 1}}})
    documents.update_one({"_id": 2}, {"$max": {"lock.until": mark.until + 90 * SECOND}})
    documents.update_one({"_id": 3}, {"$set": {"lock": freed(1, NOW)}})
    documents.delete_one({"_id": 4})
    before = stored(documents)
    endings = finished(locked, mark, own_numbers(6))
    assert len(grouped(locked, endings)) == 1
    reported = settle(locked, endings)
    assert reported == [UNPROVEN, GONE, MOVED, GONE, GONE, UNPROVEN]
    after = {number: {"text": "before", "n": number} for number in (0, 5)}
    assert stored(documents) == before | after


TOO_LARGE: Final = "y" * 200_000


@pytest.mark.full
@pytest.mark.parametrize(
    ("bad", "sets"),
    rows_in(
        2,
        [
            ([2], {"text": TOO_LARGE}),
            ([2], {"text": "forbidden"}),
            ([2], {"text": "taken"}),
            ([0, 3], {"text": "forbidden"}),
            ([4], {"text": "text 3"}),
        ],
    ),
    ids=["too large", "validator", "unique index", "two", "one after the other"],
)
def test_refused_result_keeps_no_neighbour_from_its_end(
    documents: Collection, bad: Sequence[int], sets: Mapping[str, Any]
) -> None:
    documents.create_index("text", unique=True, partialFilterExpression={"text": {"$lt": "x"}})
    documents.database.command("collMod", documents.name, validator={"text": {"$ne": "forbidden"}})
    documents.insert_one({"_id": "first", "text": "taken"})
    mark = held(documents, range(6))
    documents.update_many({"_id": {"$in": list(bad)}}, {"$set": {"pad": "x" * (16 * 1024 * 1024 - 100_000)}})
    results = {number: sets if number in bad else {"text": f"text {number}"} for number in range(6)}
    with recorded(documents) as (theirs, recorder):
        own = handle(theirs)
        reported = settle(own, finished(own, mark, results))
        first = next(command for name, command in recorder.commands if name == "update")
    assert len(first["updates"]) == 1
    assert all(reported[number].fate is DocumentFate.REFUSED and reported[number].error for number in bad)
    # If the server stopped at a later document than the first, it does not report how many it had written.
    neighbour = WRITTEN if 0 in bad else UNPROVEN
    assert all(reported[number] == neighbour for number in range(6) if number not in bad)
    assert [one["_id"] for one in documents.find({"lock.token": mark.token})] == list(bad)
    written = stored(documents)
    assert [written[number].get("text") for number in range(6)] == [
        None if number in bad else f"text {number}" for number in range(6)
    ]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("depth", [170, 178, 179, 180, 190, 195, 250])
def test_result_that_is_nested_too_deeply_spoils_no_other(
    locked: LockedCollection, documents: Collection, depth: int
) -> None:
    """What one statement of one document takes, is written beside others, too."""
    mark = held(documents, ["alone", *range(4)])
    deep = encoded_update(locked, {"$set": {"n": nested(depth)}})
    (alone,) = settle(locked, [DocumentWrite("alone", fence(mark), deep)])
    assert alone.fate is (DocumentFate.WRITTEN if depth < 180 else DocumentFate.REFUSED)
    reported = settle(locked, finished(locked, mark, {**own_numbers(4), 1: {"n": nested(depth)}}))
    assert reported[1].fate is alone.fate
    # The server refuses the whole command. Whether it has executed some statements before depends on the depth.
    neighbours = [WRITTEN] if alone == WRITTEN else [WRITTEN, UNPROVEN]
    assert all(reported[number] in neighbours for number in (0, 2, 3))
    assert stored(documents)[1].get("n") == (nested(depth) if alone == WRITTEN else None)
    assert [stored(documents)[number] for number in (0, 2, 3)] == [{"n": number} for number in (0, 2, 3)]


# --- What is written ---


def test_ids_and_results_are_encoded_as_the_callers_codec_says(db: Database, documents: Collection) -> None:
    theirs: Collection = db.get_collection("letters", CALLERS_OPTIONS)
    ids = [uuid.uuid4() for _ in range(3)]
    mark = held(theirs, ids)
    results = {one: {"sum": Money(f"{place}.50"), "of": ids[place]} for place, one in enumerate(ids)}
    assert len(grouped(handle(theirs), finished(handle(theirs), mark, results))) == 1
    assert settle(handle(theirs), finished(handle(theirs), mark, results)) == [WRITTEN] * 3
    binary = [Binary(one.bytes, 3) for one in ids]
    assert {Binary(one, 3): document for one, document in stored(documents).items()} == {
        one: {"sum": Decimal128(f"{place}.50"), "of": one} for place, one in enumerate(binary)
    }


def test_ids_are_compared_as_the_collections_collation_says(db: Database) -> None:
    documents = db.create_collection("letters", collation={"locale": "en", "strength": 2})
    mark = held(documents, ["a", "B", "ä"])
    # Written otherwise than they are stored: that is what the server finds them by, too.
    results = {"A": {"n": 1}, "b": {"n": 2}, "Ä": {"n": 3}}
    assert settle(handle(documents), finished(handle(documents), mark, results)) == [WRITTEN] * 3
    assert stored(documents) == {"a": {"n": 1}, "B": {"n": 2}, "ä": {"n": 3}}


def test_ids_of_equal_numbers_are_one(locked: LockedCollection, documents: Collection) -> None:
    mark = held(documents, [1, 2.0, Int64(3), Decimal128("4"), {"a": 5}])
    ids = [1.0, Int64(2), Decimal128("3.0"), 4, {"a": 5.0}]
    endings = [
        DocumentWrite(one, fence(mark), encoded_update(locked, {"$set": {"n": text}}, ROOMY))
        for one, text in zip(ids, "abcde", strict=True)
    ]
    assert len(grouped(locked, endings)) == 1
    assert settle(locked, endings) == [WRITTEN] * 5
    assert sorted(document["n"] for document in documents.find()) == list("abcde")


def test_document_that_is_not_among_them_never_gets_anothers_result(documents: Collection) -> None:
    """However a server may compare ids when it finds documents, and when it looks their results up."""
    mark = held(documents, range(3))
    with recorded(documents) as (theirs, recorder):
        own = handle(theirs)
        assert settle(own, finished(own, mark, own_numbers(3))) == [WRITTEN] * 3
        ((_, command),) = [one for one in recorder.commands if one[0] == "update"]
    documents.insert_one({"_id": 3})
    with pytest.raises(driver.WriteError):
        documents.update_one({"_id": 3}, command["updates"][0]["u"])
    assert documents.find_one({"_id": 3}) == {"_id": 3}


NAMES: Final = KEYS.filter(
    lambda name: bool(name) and name[0] != "$" and "." not in name and name not in ("_id", "lock")
)
# No `_id` may be an array or a pattern; others the server refuses by itself.
IDS: Final = SCALARS | st.dictionaries(KEYS, SCALARS, max_size=2)


def _raw(documents: Collection) -> list[bytes]:
    options = CodecOptions[Any](document_class=RawBSONDocument)
    return [one.raw for one in documents.with_options(codec_options=options).find(sort={"_id": 1})]


@pytest.mark.full
@pytest.mark.larger_in_full
@the_same_examples(in_full(10, 80), 250)
@given(
    ids=st.lists(IDS, min_size=3, max_size=5),
    names=st.lists(NAMES, min_size=1, max_size=4, unique=True),
    values=st.lists(VALUES, min_size=20, max_size=20),
    before=st.dictionaries(NAMES | st.sampled_from(["$x", "a.b", "10", ""]), VALUES, max_size=4),
    is_there=st.lists(st.booleans(), min_size=4, max_size=4),
    chance=st.randoms(use_true_random=False),
)
@example([1, 2, 3], ["b", "a"], [{"a": 1}] * 20, {}, [True] * 4, Random(1))
@example([None, 1.5, True], ["é", "B", "a$b"], [0, 0.0, -0.0, None] * 5, {"x": 1}, [True] * 4, Random(2))
def test_any_results_are_written_as_the_plain_statements_write_them(
    db: Database,
    ids: Sequence[Any],
    names: Sequence[str],
    values: Sequence[Any],
    before: Mapping[str, Any],
    is_there: Sequence[bool],
    chance: Random,
) -> None:
    together, alone = db["together"], db["alone"]
    together.delete_many({})
    alone.delete_many({})
    mark = stamp()
    left = iter(values)
    are_there = [name for name, is_one in zip(names, is_there, strict=False) if is_one]
    there = {**before, **dict(zip(are_there, values[16:], strict=False))}
    fields = [*there.items(), ("lock", {**mark.fields, "tries": 0})]
    chance.shuffle(fields)
    with suppress(driver.BulkWriteError):
        together.insert_many([{"_id": one, **dict(fields)} for one in ids], ordered=False)
    stored = list(together.find())
    assume(len(stored) >= 3)  # The server takes no regular expression as an `_id`, for example.
    alone.insert_many(stored)
    ids = [one["_id"] for one in stored]
    sets = [{"own": place, **{name: next(left) for name in names}} for place, _ in enumerate(ids)]
    # Handles that wait for no disk: it is the same server.
    plain = [EncodedUpdate(encoded_update(handle(alone), {"$set": one}).encoded) for one in sets]
    joined = [encoded_update(handle(together), {"$set": one}, ROOMY) for one in sets]
    endings = [DocumentWrite(one, fence(mark), update) for one, update in zip(ids, joined, strict=True)]
    assert len(grouped(handle(together), endings)) == 1 or any(name.isdecimal() for name in names)
    reported = fates(settle(handle(together), endings))
    for one, update, fate in zip(ids, plain, reported, strict=True):
        assert fates(settle(handle(alone), [DocumentWrite(one, fence(mark), update)])) == [fate]
    assert _raw(together) == _raw(alone)


# --- What change streams get ---


@pytest.mark.parametrize("room", one_in(6, range(0, 90, 3)))
@pytest.mark.parametrize(
    "there", [{}, {"n": 0}, {"n": "x" * 50, "done": False}, {"n": {"a": 1, "b": 2}}, {"n": [1, 2]}]
)
def test_change_streams_get_the_same_updates_as_from_plain_statements(
    locked: LockedCollection, documents: Collection, room: int, there: Mapping[str, Any]
) -> None:
    """If streams would get a statement for many as a replacement, or as one of parts, each goes alone."""
    mark = held(documents, range(3), **there, rest="x" * room)
    ends = [{"n": {"a": 1, "own": number}, "done": True, "at": datetime(2026, 1, 1, tzinfo=UTC)} for number in range(3)]
    found = list(documents.find(sort={"_id": 1}))
    updates = [encoded_update(locked, {"$set": one}, document) for one, document in zip(ends, found, strict=True)]
    is_joined = bool(updates[0].names)
    assert is_joined or room < 45 or isinstance(there.get("n"), dict | list)
    assert not (is_joined and room < 20)
    with documents.watch() as stream:
        assert (
            settle(locked, [DocumentWrite(one, fence(mark), update) for one, update in enumerate(updates)])
            == [WRITTEN] * 3
        )
        reported = {one["documentKey"]["_id"]: one for one in (stream.next() for _ in range(3))}
    for number, sets in enumerate(ends):
        assert reported[number]["operationType"] == "update"
        assert reported[number]["updateDescription"]["updatedFields"].keys() == sets.keys()
        assert reported[number]["updateDescription"]["removedFields"] == ["lock"]
