"""The indexes for claims, and that the server uses them for everything that is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from tests.support.locked import NOW, SECOND, explained, fence, handle, recorded, stages, stamp
from tests.support.thoroughly import one_in
from trio_monque.errors import MonqueConnectionError
from trio_monque.locks_and_dead_letters import dead_letter_lock, freed
from trio_monque.store.documents import claiming, due, indexes, leases, listing_and_readmitting, rescuing
from trio_monque.store.documents.locked_collection import LockedCollection
from trio_monque.store.driver.types import Collection, Database

HELD, WAITING, ASIDE, FREE = 20, 20, 20, 40


@pytest.fixture
def documents(db: Database) -> Collection:
    return db["letters"]


def fill(documents: Collection, meant: Mapping[str, Any], others: Mapping[str, Any], rest: int) -> None:
    mark = stamp("them")
    locks: list[Any] = [
        *({**mark.fields, "tries": 0} for _ in range(HELD)),
        *(freed(1, NOW + number * SECOND) for number in range(1, WAITING + 1)),
        *(dead_letter_lock(3, "no") for _ in range(ASIDE)),
        *(freed(1, NOW) for _ in range(FREE // 2)),
    ]
    # What is free comes last in the order of the sort.
    documents.insert_many([{**meant, "at": number, "lock": lock} for number, lock in enumerate(locks)])
    documents.insert_many([{**meant, "at": 1000 + number} for number in range(FREE // 2)])
    documents.insert_many([{**others, "at": -number} for number in range(rest)])


QUESTIONS: Mapping[str, Callable[[LockedCollection], object]] = {
    "survey": lambda locked: due.survey(locked, 10, NOW),
    "survey all": lambda locked: due.survey(locked, 500, NOW),
    "next due": lambda locked: due.next_due(locked, NOW),
    "observe": rescuing.observe,
    "is left": lambda locked: due.is_anything_left(locked, NOW + 999 * SECOND),
    "dead letters": lambda locked: listing_and_readmitting.listed(locked, 5),
    "page of dead letters": lambda locked: listing_and_readmitting.page(locked, {"_id": 7}, 5),
    "release": lambda locked: claiming.release_all(locked, stamp(), NOW),
    "resolve": lambda locked: claiming.resolve(locked, stamp(), NOW + 99 * SECOND),
}


def plans(
    documents: Collection,
    filter: Mapping[str, Any],  # noqa: A002
    question: str,
    **options: Any,
) -> Sequence[Mapping[str, Any]]:
    """How the server answers the question: of each command that was sent."""
    with recorded(documents) as (theirs, recorder):
        QUESTIONS[question](handle(theirs, filter, **options))
        sent = [command for name, command in recorder.commands if name in ("find", "update")]
    return [explained(documents.database, command) for command in sent]


def plans_of_each(
    documents: Collection,
    filter: Mapping[str, Any],  # noqa: A002
    questions: Iterable[str],
    **options: Any,
) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """None of the questions changes what another one finds."""
    asked = {question: plans(documents, filter, question, **options) for question in questions}
    assert documents.count_documents({"lock.by": "us"}) == 0
    return asked


def used(plan: Mapping[str, Any]) -> set[str]:
    found = list(stages(plan["queryPlanner"]["winningPlan"]))
    assert "COLLSCAN" not in {stage["stage"] for stage in found}
    return {stage["indexName"] for stage in found if "indexName" in stage}


def examined(plan: Mapping[str, Any]) -> int:
    statistics = plan["executionStats"]
    return max(int(statistics["totalKeysExamined"]), int(statistics["totalDocsExamined"]))


def examined_by_each(plans: Mapping[str, Sequence[Mapping[str, Any]]]) -> Mapping[str, Sequence[int]]:
    return {question: [examined(plan) for plan in its] for question, its in plans.items()}


PARTIAL: Sequence[Any] = [
    ({"done": None}, {}, {"done": 1}),
    ({"status": "todo"}, {"status": "todo"}, {"status": "done"}),
    ({"to": {"$exists": True}, "n": {"$gt": 3}}, {"to": 1, "n": 4}, {"to": 1, "n": 3}),
    ({"$and": [{"status": "todo"}, {"n": {"$gte": 1, "$lt": 3}}]}, {"status": "todo", "n": 1}, {"status": "todo"}),
    ({"in.depth": {"$type": "string"}}, {"in": {"depth": "x"}}, {"in": 5}),
]


@pytest.mark.full
@pytest.mark.parametrize(("filter", "meant", "others"), PARTIAL, ids=lambda value: str(value))
@pytest.mark.parametrize("sort", one_in(2, [(), [("at", 1)], [("at", -1), ("_id", 1)]], first=1), ids=str)
def test_partial_index_answers_whatever_the_rest_of_the_collection_is(
    documents: Collection,
    filter: Mapping[str, Any],  # noqa: A002
    meant: Mapping[str, Any],
    others: Mapping[str, Any],
    sort: Any,
) -> None:
    locked = handle(documents, filter, sort=sort)
    name, by_until = indexes.create(locked), indexes.create(handle(documents, filter))
    assert "partialFilterExpression" in documents.index_information()[name]
    fill(documents, meant, others, rest=10)
    few = plans_of_each(documents, filter, QUESTIONS, sort=sort)
    documents.insert_many([{**others, "at": -number} for number in range(1000)])
    many = plans_of_each(documents, filter, QUESTIONS, sort=sort)
    assert examined_by_each(few) == examined_by_each(many)
    for question in QUESTIONS:
        assert few[question]
        for plan in [*few[question], *many[question]]:
            assert used(plan) <= {name, by_until}, question
            assert used(plan), question


@pytest.mark.parametrize("direction", [1, -1])
def test_claims_in_order_read_a_backlog_from_its_head(documents: Collection, direction: int) -> None:
    sort = [("at", direction)]
    indexes.create(handle(documents, sort=sort))
    documents.insert_many([{"at": number} for number in range(3000)])
    (plan,) = plans(documents, {"done": None}, "survey", sort=sort)
    assert examined(plan) <= 11
    assert "SORT" not in {stage["stage"] for stage in stages(plan["queryPlanner"]["winningPlan"])}


@pytest.mark.full
@pytest.mark.parametrize("sort", [(), [("at", 1)]], ids=str)
def test_unlocked_backlog_costs_the_other_queries_nothing(documents: Collection, sort: Any) -> None:
    indexes.create(handle(documents, {"done": None}, sort=sort))
    fill(documents, {}, {"done": 1}, rest=10)
    questions = ("next due", "observe", "is left", "release", "resolve")
    few = plans_of_each(documents, {"done": None}, questions, sort=sort)
    documents.insert_many([{"at": 5000 + number} for number in range(1000)])
    many = plans_of_each(documents, {"done": None}, questions, sort=sort)
    assert examined_by_each(few) == examined_by_each(many)


def test_guarded_writes_go_by_the_ids(documents: Collection) -> None:
    fill(documents, {}, {"done": 1}, rest=500)
    indexes.create(handle(documents))
    with recorded(documents) as (theirs, recorder):
        own, mark = handle(theirs), stamp()
        ids = due.survey(own, 10, NOW).ids
        recorder.commands.clear()
        claiming.take(own, ids, NOW, mark)
        leases.renew(own, [(fence(mark), ids)], NOW + 99 * SECOND)
        claiming.release_all(own, mark, NOW, ids=ids)
        listing_and_readmitting.readmit(own, ids)
        sent = [command for name, command in recorder.commands if name in ("find", "update")]
    assert len(sent) == 5
    for command in sent:
        plan = explained(documents.database, command)
        assert used(plan) == {"_id_"}
        assert plan["executionStats"]["totalDocsExamined"] == 10


WHOLE: Sequence[Any] = [
    ({"to": {"$exists": False}}, {}, {"to": 1}),
    ({"status": {"$ne": "done"}}, {"status": "todo"}, {"status": "done"}),
    ({"status": {"$nin": ["done", "gone"]}}, {"status": "todo"}, {"status": "gone"}),
    ({"$or": [{"status": "todo"}, {"again": True}]}, {"again": True}, {"status": "done"}),
    (
        {"kind": {"$ne": "x"}, "$or": [{"status": "todo"}, {"again": {"$gt": 3}}]},
        {"again": 4},
        {"kind": "x", "again": 4},
    ),
]


@pytest.mark.full
@pytest.mark.parametrize(("filter", "meant", "others"), WHOLE, ids=lambda value: str(value))
@pytest.mark.parametrize("sort", one_in(2, [(), [("at", 1)]], first=1), ids=str)
def test_filter_without_a_partial_index_gets_one_that_serves_it(
    documents: Collection,
    filter: Mapping[str, Any],  # noqa: A002
    meant: Mapping[str, Any],
    others: Mapping[str, Any],
    sort: Any,
) -> None:
    locked = handle(documents, filter, sort=sort)
    indexes.create(locked)
    assert all("partialFilterExpression" not in one for one in documents.index_information().values())
    fill(documents, meant, others, rest=10)
    assert indexes.is_served(locked, NOW)
    questions = ("survey", "survey all", "next due", "observe", "is left")
    few = plans_of_each(documents, filter, questions, sort=sort)
    documents.insert_many([{**others, "at": -number} for number in range(1000)])
    many = plans_of_each(documents, filter, questions, sort=sort)
    for question in questions:
        for plan in [*few[question], *many[question]]:
            assert used(plan), question
            assert all(one.startswith("trio_monque_claims_") for one in used(plan)), question
        for before, after in zip(few[question], many[question], strict=True):
            assert examined(after) <= examined(before) + 5, question


def test_index_is_made_once_and_each_filter_and_order_has_its_own(documents: Collection) -> None:
    names = [
        indexes.create(handle(documents, filter, sort=sort))
        for filter in ({"done": None}, {"status": "todo"})  # noqa: A001
        for sort in ((), [("at", 1)])
    ]
    assert len(set(names)) == 4
    assert all(name.startswith("trio_monque_claims_lock_") for name in names)
    before = documents.index_information()
    assert indexes.create(handle(documents)) == names[0]
    assert documents.index_information() == before
    assert indexes.create(handle(documents, lock_field="claim")).startswith("trio_monque_claims_claim_")


def test_arrays_in_two_fields_of_the_filter_do_not_prevent_an_index(documents: Collection) -> None:
    documents.insert_one({"to": [1, 2], "tags": [3]})
    locked = handle(documents, {"to": {"$ne": 5}, "tags": {"$ne": 5}})
    indexes.create(locked)
    assert indexes.is_served(locked, NOW)


def test_creating_an_index_that_exists_under_another_name_raises(documents: Collection) -> None:
    documents.create_index([("lock.until", 1), ("lock.by", 1)], partialFilterExpression={"done": None}, name="mine")
    assert indexes.is_served(handle(documents), NOW)
    with pytest.raises(MonqueConnectionError, match="nothing needs to be created"):
        indexes.create(handle(documents))


@pytest.mark.full
@pytest.mark.parametrize("sort", [(), [("at", 1)]], ids=str)
def test_search_without_an_index_is_known(documents: Collection, sort: Any) -> None:
    documents.insert_many([{} for _ in range(10)])
    locked = handle(documents, sort=sort)
    assert not indexes.is_served(locked, NOW)
    assert not indexes.is_large(locked)
    documents.insert_many([{} for _ in range(indexes.LARGE - 10)])
    assert not indexes.is_large(locked)
    documents.insert_one({})
    assert indexes.is_large(locked)
    indexes.create(locked)
    assert indexes.is_served(locked, NOW)


def test_search_of_a_collection_that_is_not_there_needs_no_index(documents: Collection) -> None:
    locked = handle(documents)
    assert due.survey(locked, 5, NOW).is_all
    assert indexes.is_served(locked, NOW)
    assert not indexes.is_large(locked)
