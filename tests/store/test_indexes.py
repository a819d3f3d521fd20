"""The indexes live beside Monque's, and each serves its query."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.support import node_peer
from tests.support.store import PAST, handle, insert, stamp
from trio_monque import Monque, NewJob, Retention, SyncMonque, open_scheduler
from trio_monque.errors import MonqueConnectionError
from trio_monque.jobs.claim_stamps_and_fences import stamp_fence
from trio_monque.jobs.claimable import claimable
from trio_monque.store.codec import filter_of
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import indexes, rescuing


@pytest.fixture
def store(db: Database) -> JobCollection:
    return handle(db)


@pytest.mark.parametrize("ours_first", [True, False])
def test_both_libraries_can_make_their_indexes_in_either_order(
    store: JobCollection, jobs: Collection, ours_first: bool
) -> None:
    if ours_first:
        indexes.ensure(store)
    jobs.create_indexes(list(node_peer.INDEXES))
    if not ours_first:
        indexes.ensure(store)
    jobs.create_indexes(list(node_peer.INDEXES))
    indexes.ensure(store)
    # The unique one is shared; beside them stands the index on _id.
    assert len(jobs.index_information()) == len(node_peer.INDEXES) + len(indexes.ALL) - 1 + 1


def stages(plan: Any) -> Iterator[dict[str, Any]]:
    if isinstance(plan, dict):
        if "stage" in plan:
            yield plan
        for value in plan.values():
            yield from stages(value)
    elif isinstance(plan, list):
        for value in plan:
            yield from stages(value)


def used(jobs: Collection, command: dict[str, Any]) -> set[str]:
    explained = jobs.database.command({"explain": {**command}, "verbosity": "queryPlanner"})
    found = list(stages(explained["queryPlanner"]["winningPlan"]))
    assert not any(stage["stage"] in ("COLLSCAN", "SORT") for stage in found), explained["queryPlanner"]["winningPlan"]
    return {stage["indexName"] for stage in found if stage["stage"] == "IXSCAN"}


@pytest.mark.full
def test_each_query_is_served_by_its_index_without_a_sort(store: JobCollection, jobs: Collection) -> None:
    indexes.ensure(store)
    for number in range(300):
        insert(store, f"name-{number % 3}")
    look = {"find": jobs.name, "filter": filter_of(claimable(["name-1"], PAST)), "sort": {"nextRunAt": 1}}
    assert used(jobs, look) == {"trio_monque_claim"}
    held = {"find": jobs.name, "filter": filter_of(stamp_fence(stamp()))}
    assert used(jobs, held) == {"trio_monque_held"}
    claims = {"find": jobs.name, "filter": rescuing.CLAIMED, "sort": dict(rescuing.IN_ORDER)}
    assert used(jobs, claims) == {"trio_monque_held"}
    page = {"find": jobs.name, "filter": {}, "sort": {"nextRunAt": 1, "_id": 1}, "limit": 100}
    assert used(jobs, page) == {"trio_monque_listing"}
    key = {
        "find": jobs.name,
        "filter": {"name": "name-1", "uniqueKey": "k", "status": {"$in": ["pending", "processing"]}},
    }
    assert used(jobs, key) == {"name_1_uniqueKey_1"}


def test_claim_costs_the_same_beside_a_long_history(store: JobCollection, jobs: Collection) -> None:
    indexes.ensure(store)
    jobs.insert_many(
        [
            {"name": "greet", "status": "completed", "nextRunAt": PAST, "createdAt": PAST, "updatedAt": PAST}
            for _ in range(3000)
        ]
    )
    for _ in range(20):
        insert(store)
    look = jobs.find(filter_of(claimable(["greet"], PAST)), sort=[("nextRunAt", 1)], limit=10)
    explained = look.explain()["executionStats"]
    assert (explained["totalKeysExamined"], explained["totalDocsExamined"]) == (10, 10)


async def test_indexes_are_made_before_the_first_write_unless_skipped(db: Database, jobs: Collection) -> None:
    await Monque(db, skip_index_creation=True).enqueue("greet", unique_key="one")
    async with open_scheduler(db, skip_index_creation=True):
        pass
    assert list(jobs.index_information()) == ["_id_"]
    await Monque(db).get_queue_stats()
    assert list(jobs.index_information()) == ["_id_"]
    await Monque(db).enqueue("greet")
    assert len(jobs.index_information()) == len(indexes.ALL) + 1


@pytest.mark.full
@pytest.mark.parametrize(
    "enqueue",
    [
        lambda monque: monque.enqueue("greet", unique_key="one"),
        lambda monque: monque.enqueue_many([NewJob(name="greet", unique_key="one")]),
        lambda monque: monque.schedule("0 9 * * *", "greet", unique_key="one"),
    ],
    ids=["enqueue", "enqueue_many", "schedule"],
)
@pytest.mark.parametrize("made_again", [False, True])
def test_unique_key_is_not_used_without_its_index_after_an_unnoticed_drop(
    db: Database, jobs: Collection, enqueue: Callable[[SyncMonque], object], made_again: bool
) -> None:
    monque = Monque(db).sync
    enqueue(monque)
    jobs.drop()
    if made_again:
        jobs.insert_one({})
    enqueue(monque)
    assert indexes.UNIQUE_KEY.document["name"] in jobs.index_information()
    assert jobs.count_documents({"uniqueKey": "one"}) == 1


async def test_scheduler_makes_the_indexes_when_it_starts(db: Database, jobs: Collection) -> None:
    async with open_scheduler(db):
        assert len(jobs.index_information()) == len(indexes.ALL) + 1


def test_index_of_another_version_raises_an_error_with_advice(store: JobCollection, jobs: Collection) -> None:
    jobs.create_index([("name", 1), ("nextRunAt", 1)], name="trio_monque_claim")
    with pytest.raises(MonqueConnectionError, match="(?s)another version.*dropIndex.*trio_monque_claim") as caught:
        indexes.ensure(store)
    assert not caught.value.transient
    jobs.drop_index("trio_monque_claim")
    indexes.ensure(store)


AT_REST = {"status": {"$in": ["pending", "completed", "failed", "cancelled"]}}
HAS_ENDED = {"status": {"$in": ["completed", "failed", "cancelled"]}}
# A row is added for a new index, also for one that takes the place of another; it is never changed.
DEFINITIONS: Sequence[tuple[str, str, dict[str, Any]]] = (
    ("trio_monque_claim", "name status nextRunAt _id", {"partialFilterExpression": AT_REST}),
    (
        "trio_monque_held",
        "status claimedBy lockedAt name",
        {"partialFilterExpression": {"status": "processing"}},
    ),
    (
        "name_1_uniqueKey_1",
        "name uniqueKey",
        {
            "unique": True,
            "partialFilterExpression": {
                "uniqueKey": {"$exists": True},
                "status": {"$in": ["pending", "processing"]},
            },
        },
    ),
    ("trio_monque_listing", "nextRunAt _id", {}),
    # No more made.
    ("trio_monque_due", "status nextRunAt _id", {"partialFilterExpression": AT_REST}),
    ("trio_monque_created", "createdAt _id", {}),
    ("trio_monque_updated", "status updatedAt _id", {"partialFilterExpression": AT_REST}),
    (
        "trio_monque_follow_ups",
        "followUp name status _id",
        {"partialFilterExpression": {"followUp": {"$exists": True}}},
    ),
    (
        "trio_monque_start_by",
        "startBy",
        {"partialFilterExpression": {"startBy": {"$exists": True}, "status": "pending"}},
    ),
    (
        "trio_monque_run_again",
        "again",
        {"partialFilterExpression": {"again": {"$exists": True}, "status": {"$in": ["completed", "failed"]}}},
    ),
    ("trio_monque_schedules", "nextRunAt _id", {"partialFilterExpression": {"repeatInterval": {"$exists": True}}}),
    (
        "trio_monque_scopes",
        "scope parent _id",
        {
            "partialFilterExpression": {
                "scope": {"$exists": True},
                "status": {"$in": ["pending", "processing"]},
            }
        },
    ),
    ("trio_monque_ended", "status updatedAt _id", {"partialFilterExpression": HAS_ENDED}),
    ("trio_monque_ended_by_name", "status name updatedAt _id", {"partialFilterExpression": HAS_ENDED}),
)


def test_changed_definition_has_a_new_name(store: JobCollection, jobs: Collection) -> None:
    """Or no scheduler of the one version would start beside those of the other: the server refuses two of one name."""
    definitions = {
        name: {"key": [(field, 1) for field in fields.split()], **options} for name, fields, options in DEFINITIONS
    }
    assert len(definitions) == len(DEFINITIONS)
    indexes.ensure(store, Retention(completed=1))
    indexes.ensure(store, Retention(completed=1, keep_last=1), also=indexes.IF_NEEDED[2:])
    made = {
        name: {option: value for option, value in index.items() if option not in ("v", "ns")}
        for name, index in jobs.index_information().items()
        if name != "_id_"
    }
    assert len(made) == len(indexes.ALL) + len(indexes.IF_NEEDED)
    for name, definition in made.items():
        assert definition == definitions.get(name), f"{name} is another index: give it a name that none has had"
