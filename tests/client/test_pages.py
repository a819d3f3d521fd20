"""Pages: a walk sees each job once, forward and backward, beside broken documents and while others change."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient

from tests.support.interception import Recorder
from tests.support.internals import context_of, make_indexes
from tests.support.thoroughly import examples, in_full
from trio_monque import Job, JobFilter, JobStatus, Monque
from trio_monque.jobs import JobSort
from trio_monque.jobs.job_query import page_query
from trio_monque.jobs.views import page_of
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import index_scans, indexes
from trio_monque.store.reads import queries
from trio_monque.store.reads.page_reader import PageReader

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ("a", "b", "c")
ORDERS = ("id", "created_at", "updated_at", "next_run_at")


def moment(milliseconds: int) -> datetime:
    return BEGIN + timedelta(milliseconds=milliseconds)


# Few moments, so that many jobs share one.
MOMENTS = st.integers(0, 3).map(moment)
STATUSES = st.sampled_from([status.value for status in JobStatus])


# Of a field of the data: absent, null, and values that are equal in one language and not in another.
KINDS: list[dict[str, Any]] = [{}, *({"kind": one} for one in (None, 1, 1.0, True, "1", ["1", 1], [], {"1": 1}))]
SOME_KINDS = st.lists(st.sampled_from([None, 1, True, "1"]), min_size=1, max_size=2)


@st.composite
def stored(draw: Any, number: int) -> dict[str, Any]:
    document = {
        "_id": ObjectId(number.to_bytes(12, "big")),
        "name": draw(st.sampled_from(NAMES)),
        "data": {"number": number, **draw(st.sampled_from(KINDS))},
        "status": draw(STATUSES),
        "failCount": 0,
        "nextRunAt": draw(MOMENTS),
        "createdAt": draw(MOMENTS),
        "updatedAt": draw(MOMENTS),
    }
    if document["status"] == "failed":
        document["failReason"] = draw(st.sampled_from(["no (a) card", "no (b) card", "gone"]))
    broken = draw(st.sampled_from([None] * 8 + ["status", "failCount", "createdAt", "nextRunAt", "_id", "data"]))
    if broken is not None:
        strange = {"status": "limbo", "failCount": "many", "data": datetime(1, 1, 1)}  # noqa: DTZ001
        document[broken] = strange.get(broken, number)
        if broken == "data":
            del document["updatedAt"]
    return document


@st.composite
def collections(draw: Any) -> list[dict[str, Any]]:
    return [draw(stored(number)) for number in range(draw(st.integers(0, 25)))]


NAME_FILTERS = (
    st.none() | st.sampled_from(NAMES) | st.lists(st.sampled_from([*NAMES, "nobody"]), min_size=1, max_size=3)
)
STATUS_FILTERS = st.none() | STATUSES | st.lists(STATUSES, min_size=1, max_size=4)
MAYBE = st.none() | MOMENTS
RANGES = (
    ("newer_than", "older_than", 1),
    ("created_from", "created_to", 0),
    ("updated_from", "updated_to", 0),
    ("run_from", "run_to", 0),
)


@st.composite
def filters(draw: Any) -> JobFilter:
    asked: dict[str, Any] = {
        "name": draw(NAME_FILTERS),
        "status": draw(STATUS_FILTERS),
        "fail_reason": draw(st.none() | st.sampled_from(["(a)", "card", "."])),
        "fields": draw(st.none() | st.fixed_dictionaries({"data.kind": SOME_KINDS})),
    }
    for first, last, least in RANGES:
        begin, end = draw(MAYBE), draw(MAYBE)
        if begin is not None and end is not None and end - begin < timedelta(milliseconds=least):
            end = None  # A range that nothing is in is refused.
        asked |= {first: begin, last: end}
    return JobFilter(**asked)


FILTERS = st.none() | filters()
SORTS = st.builds(JobSort, by=st.sampled_from(ORDERS), direction=st.sampled_from(["asc", "desc"]))
DIRECTIONS = st.sampled_from(["forward", "backward"])


def passes(document: dict[str, Any], wanted: JobFilter) -> bool:
    """What the filter means, said once more and without MongoDB."""
    created, updated, due = (document[field] for field in ("createdAt", "updatedAt", "nextRunAt"))
    return (
        (wanted.names is None or document["name"] in wanted.names)
        and (wanted.statuses is None or document["status"] in wanted.statuses)
        and (wanted.older_than is None or created < wanted.older_than)
        and (wanted.newer_than is None or created > wanted.newer_than)
        and (wanted.fail_reason is None or wanted.fail_reason in document.get("failReason", ""))
        and (wanted.created_from is None or created >= wanted.created_from)
        and (wanted.created_to is None or created <= wanted.created_to)
        and (wanted.updated_from is None or updated >= wanted.updated_from)
        and (wanted.updated_to is None or updated <= wanted.updated_to)
        and (wanted.run_from is None or due >= wanted.run_from)
        and (wanted.run_to is None or due <= wanted.run_to)
        and has_kind(document, wanted)
    )


def has_kind(document: dict[str, Any], wanted: JobFilter) -> bool:
    for _, values in wanted.field_conditions:
        if "kind" not in document["data"]:
            return False
        kind = document["data"]["kind"]
        kinds = kind if isinstance(kind, list) else [kind]
        if not any((isinstance(a, bool) == isinstance(b, bool)) and a == b for a in kinds for b in values):
            return False
    return True


def is_job(document: dict[str, Any]) -> bool:
    return (
        isinstance(document["_id"], ObjectId)
        and document["status"] in list(JobStatus)
        and document["failCount"] == 0
        and all(isinstance(document.get(field), datetime) for field in ("createdAt", "updatedAt", "nextRunAt"))
    )


FIELDS = {"created_at": "createdAt", "updated_at": "updatedAt", "next_run_at": "nextRunAt"}


def expected(documents: Sequence[dict[str, Any]], wanted: JobFilter | None, sort: JobSort) -> list[ObjectId]:
    found = [document for document in documents if is_job(document) and passes(document, wanted or JobFilter())]

    def key(document: dict[str, Any]) -> tuple[Any, ...]:
        return (document["_id"],) if sort.by == "id" else (document[FIELDS[sort.by]], document["_id"])

    return [one["_id"] for one in sorted(found, key=key, reverse=sort.direction == "desc")]


def fill(jobs: Collection, documents: Sequence[dict[str, Any]]) -> None:
    jobs.delete_many({})
    if documents:
        jobs.insert_many(documents)


EACH = settings(
    max_examples=examples(in_full(5, 25), 60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture(params=["with indexes", "without", "with too many names", "with fields"])
def client_of_many(db: Database, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Monque:
    monque = Monque(db)
    if request.param != "without":
        make_indexes(monque)
    if request.param == "with too many names":
        monkeypatch.setattr(index_scans, "MOST_PREFIXES", 2)
    if request.param == "with fields":
        indexes.ensure(context_of(monque).jobs, also=[indexes.of_field("data.kind")])
    return monque


@given(
    documents=collections(),
    wanted=FILTERS,
    sort=SORTS,
    direction=DIRECTIONS,
    limit=st.integers(1, 7),
    cap=st.none() | st.integers(1, 9),
)
@pytest.mark.larger_in_full
@EACH
def test_walk_sees_each_job_once_in_order_with_broken_documents_between(
    client_of_many: Monque,
    jobs: Collection,
    documents: list[dict[str, Any]],
    wanted: JobFilter | None,
    sort: JobSort,
    direction: Any,
    limit: int,
    cap: int | None,
) -> None:
    fill(jobs, documents)
    truth = expected(documents, wanted, sort)
    seen: list[ObjectId] = []
    cursor = None
    for _ in range(len(documents) + 2):
        if cap is None:
            page = client_of_many.sync.get_jobs_with_cursor(
                cursor=cursor, limit=limit, direction=direction, filter=wanted, sort=sort
            )
        else:
            query = page_query(cursor, limit, direction, wanted, sort)
            page = page_of(query, queries.get_page(context_of(client_of_many).jobs, query, cap))
        ids = [job.id for job in page.jobs]
        assert len(ids) <= limit
        forward = direction == "forward"
        seen = [*seen, *ids] if forward else [*ids, *seen]
        more, before = page.has_next_page, page.has_previous_page
        if not forward:
            more, before = before, more
        assert before == (cursor is not None)
        if cap is None:
            # A page is full wherever there is enough, and says whether there is more.
            assert len(ids) == min(limit, len(truth) - len(seen) + len(ids))
            assert more == (len(seen) < len(truth))
            assert not page.is_capped
        if not more:
            break
        assert page.cursor is not None
        assert page.is_capped or len(ids) == limit
        cursor = page.cursor
    else:
        pytest.fail("the walk did not end")
    assert seen == truth


@given(documents=collections(), sort=SORTS, data=st.data())
@pytest.mark.larger_in_full
@EACH
def test_filter_and_direction_may_change_from_page_to_page(
    client_of_many: Monque, jobs: Collection, documents: list[dict[str, Any]], sort: JobSort, data: st.DataObject
) -> None:
    """Each page holds what lies behind the anchor then, whatever was asked for before."""
    fill(jobs, documents)
    everything = expected(documents, None, sort)
    cursor, place = None, None
    for _ in range(6):
        wanted: JobFilter | None = data.draw(FILTERS)
        direction: Any = data.draw(DIRECTIONS)
        page = client_of_many.sync.get_jobs_with_cursor(
            cursor=cursor, limit=3, direction=direction, filter=wanted, sort=sort
        )
        forward = direction == "forward"
        passing = expected(documents, wanted, sort)
        if place is None:
            lie_behind = passing
        else:
            beyond = everything[place + 1 :] if forward else everything[:place]
            lie_behind = [one for one in passing if one in beyond]
        assert [job.id for job in page.jobs] == (lie_behind[:3] if forward else lie_behind[-3:])
        if page.jobs:
            cursor = page.cursor
            place = everything.index(page.jobs[-1 if forward else 0].id)


CHANGES = st.lists(
    st.tuples(st.integers(0, 24), st.sampled_from(["delete", "claim", "complete", "touch", "insert"])), max_size=4
)


@given(documents=collections(), sort=SORTS, wanted=FILTERS, direction=DIRECTIONS, data=st.data())
@pytest.mark.larger_in_full
@EACH
def test_walk_sees_unchanged_jobs_exactly_once_while_others_change(
    client_of_many: Monque,
    jobs: Collection,
    documents: list[dict[str, Any]],
    sort: JobSort,
    wanted: JobFilter | None,
    direction: Any,
    data: st.DataObject,
) -> None:
    fill(jobs, documents)
    changed: set[Any] = set()
    seen: list[Job] = []
    cursor = None
    for step in range(80):
        page = client_of_many.sync.get_jobs_with_cursor(
            cursor=cursor, limit=3, direction=direction, filter=wanted, sort=sort
        )
        seen += page.jobs
        if not (page.has_next_page if direction == "forward" else page.has_previous_page):
            break
        cursor = page.cursor
        for place, change in data.draw(CHANGES) if step < 20 else ():
            if place < len(documents):
                changed.add(documents[place]["_id"])
                _change(jobs, documents[place], change, ObjectId((1000 * step + place + 100).to_bytes(12, "big")))
    else:
        pytest.fail("the walk did not end")
    unchanged = [one for one in expected(documents, wanted, sort) if one not in changed]
    seen_ids = [job.id for job in seen]
    assert [seen_ids.count(one) for one in unchanged] == [1] * len(unchanged)


def _change(jobs: Collection, document: dict[str, Any], change: str, new_id: ObjectId) -> None:
    job = {"_id": document["_id"]}
    if change == "delete":
        jobs.delete_one(job)
    elif change == "insert":
        jobs.update_one({"_id": new_id}, {"$setOnInsert": {**document, "_id": new_id}}, upsert=True)
    elif change == "touch":
        jobs.update_one(job, {"$set": {"updatedAt": moment(9), "nextRunAt": moment(2)}})
    else:
        status = "processing" if change == "claim" else "completed"
        jobs.update_one(job, {"$set": {"status": status, "updatedAt": moment(8)}})


@given(documents=collections(), wanted=STATUS_FILTERS, name=st.none() | st.sampled_from(NAMES), data=st.data())
@pytest.mark.larger_in_full
@EACH
def test_get_jobs_are_earliest_first_and_pages_by_skip_do_not_overlap(
    client_of_many: Monque, jobs: Collection, documents: list[dict[str, Any]], wanted: Any, name: Any, data: Any
) -> None:
    fill(jobs, documents)
    truth = expected(documents, JobFilter(name=name, status=wanted), JobSort(by="next_run_at"))
    skip, limit = data.draw(st.integers(0, 20)), data.draw(st.integers(1, 10))
    found = client_of_many.sync.get_jobs(name=name, status=wanted, skip=skip, limit=limit)
    assert [job.id for job in found] == truth[skip : skip + limit]


def test_payloads_of_jobs_that_a_page_skips_are_not_read(monque_client: MongoClient[Any], db: Database) -> None:
    recorder = Recorder()
    with MongoClient[Any](*(monque_client.address or ()), event_listeners=[recorder]) as client:
        monque = Monque(client[db.name]).sync
        for number in range(3):
            monque.enqueue("a", {"number": number})
        (third,) = monque.get_jobs(name="a", status="pending", skip=2, limit=5)
    assert third.data == {"number": 2}
    first, last = (one for name, one in recorder.commands if name == "find" and one["find"] == "monque_jobs")
    large = ("data", "result", "progress", "saved", "errors", "againData", "steps")
    assert first["projection"] == dict.fromkeys(large, False)
    assert (first["limit"], last["limit"]) == (2, 5)
    assert "projection" not in last


def test_get_jobs_gives_a_hundred_by_default_and_a_page_fifty(monque: Monque, jobs: Collection) -> None:
    jobs.insert_many(
        {
            "name": "a",
            "data": None,
            "status": "pending",
            "failCount": 0,
            "nextRunAt": at,
            "createdAt": at,
            "updatedAt": at,
        }
        for at in [BEGIN] * 120
    )
    assert len(monque.sync.get_jobs()) == 100
    first = monque.sync.get_jobs_with_cursor()
    assert len(first.jobs) == 50
    assert (first.has_next_page, first.has_previous_page) == (True, False)
    assert monque.sync.get_jobs_with_cursor(sort="-created_at").jobs[0].id > first.jobs[-1].id


def test_page_of_an_empty_collection_has_no_cursor(monque: Monque) -> None:
    for direction in ("forward", "backward"):
        page = monque.sync.get_jobs_with_cursor(direction=direction)
        assert (page.jobs, page.cursor, page.has_next_page, page.has_previous_page) == ((), None, False, False)


def test_text_of_fail_reason_is_meant_to_the_letter(monque: Monque, jobs: Collection) -> None:
    at = {"nextRunAt": BEGIN, "createdAt": BEGIN, "updatedAt": BEGIN}
    for number, reason in enumerate(["a.c", "abc", "x a.c", "A.C"]):
        jobs.insert_one({"name": "n", "data": number, "status": "failed", "failCount": 1, "failReason": reason, **at})

    def found(**asked: Any) -> list[Any]:
        return [job.data for job in monque.sync.get_jobs_with_cursor(filter=JobFilter(**asked)).jobs]

    assert found(fail_reason="a.c") == [0, 2]
    assert found(fail_reason_prefix="a.c") == [0]
    assert found(fail_reason=".*") == []


@pytest.mark.parametrize("sort", ORDERS)
def test_page_larger_than_what_is_examined_by_default_is_whole(
    monque: Monque, jobs: Collection, monkeypatch: pytest.MonkeyPatch, sort: Any
) -> None:
    monkeypatch.setattr(queries, "MOST_EXAMINED", 20)
    make_indexes(monque)
    at = {"nextRunAt": BEGIN, "createdAt": BEGIN, "updatedAt": BEGIN}
    jobs.insert_many(
        {"name": ["even", "odd"][number % 2], "data": number, "status": "pending", "failCount": 0, **at}
        for number in range(60)
    )

    def page(limit: int, wanted: JobFilter | None = None, cursor: str | None = None) -> tuple[Any, ...]:
        found = monque.sync.get_jobs_with_cursor(limit=limit, filter=wanted, cursor=cursor, sort=sort)
        return len(found.jobs), found.has_next_page, found.is_capped, found.cursor

    for limit in (19, 20, 21, 40, 59):
        assert page(limit)[:3] == (limit, True, False)
    for limit in (60, 61, 100):
        assert page(limit)[:3] == (60, False, False)
    # What is looked for along the order is looked for among as many as the page may show, and one or two more. Here
    # every second job passes.
    odd = JobFilter(name="odd", created_from=BEGIN, run_from=BEGIN, updated_from=BEGIN)
    pages, cursor, more = [], None, True
    while more:
        number, more, capped, cursor = page(40, odd, cursor)
        assert capped == more
        pages.append(number)
    assert pages == ([30] if sort == "next_run_at" else [21, 9])  # There its name has an index.


def test_capped_page_ends_where_it_has_looked_although_others_delete_meanwhile(
    monque: Monque, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next page would begin behind jobs that no query has examined."""
    make_indexes(monque)
    for number in range(60):
        name = "wanted" if number == 25 else "other"
        at = {"nextRunAt": BEGIN, "createdAt": moment(number), "updatedAt": BEGIN}
        jobs.insert_one({"name": name, "data": number, "status": "pending", "failCount": 0, **at})
    capped_at = PageReader.capped_at

    def deleting_before_and_after(reader: Any) -> Any:
        jobs.delete_many({"data": {"$lt": 10}})
        found = capped_at(reader)
        jobs.delete_many({"data": {"$lt": 15}})
        return found

    monkeypatch.setattr(PageReader, "capped_at", deleting_before_and_after)
    seen, cursor = [], None
    while True:
        query = page_query(cursor, 5, "forward", JobFilter(name="wanted"), "created_at")
        page = page_of(query, queries.get_page(context_of(monque).jobs, query, 20))
        seen += [job.data for job in page.jobs]
        if not page.has_next_page:
            break
        cursor = page.cursor
    assert seen == [25]


@pytest.mark.parametrize("name", ["\U0001f600" * 100, "a" + "\U0001f600" * 100, "ab" + "é" * 200], ids=[1, 2, 3])
def test_collection_without_indexes_is_asked_for_long_names_too(monque: Monque, jobs: Collection, name: str) -> None:
    """The server refuses the hint, and its message quotes the name up to somewhere in a character."""
    jobs.insert_one({"name": "other", "data": None, "status": "pending", "failCount": 0})
    assert monque.sync.get_jobs_with_cursor(filter=JobFilter(name=name)).jobs == ()
    assert monque.sync.get_jobs_with_cursor(filter=JobFilter(name="other", unique_key=name)).jobs == ()
    assert monque.sync.get_queue_stats(name=name).total == 0
