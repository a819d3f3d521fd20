"""A value of every BSON type in every field of a job: no operation fails because of it, and no other job is harmed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from typing import Any, Final

import pytest
import trio
from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo.errors import BulkWriteError, DuplicateKeyError, WriteError
from trio.testing import MockClock

from tests.support.internals import make_indexes
from tests.support.malformed import ELEMENTS, SHARE, chunks, with_field
from tests.support.thoroughly import THOROUGH, one_in
from trio_monque import Job, JobStatus, Monque, NewJob, RunningJob, Workers
from trio_monque.errors import BrokenDocumentError, JobStateError, PartialEnqueueError
from trio_monque.store.codec import LENIENT
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.fields import FIELD
from trio_monque.testing import SchedulerOpener, advance, quiesce

PAST: Final = datetime(2026, 1, 1, tzinfo=UTC)
LOCKED_AT: Final = round(PAST.timestamp() * 1000)
WELL: Final = {"name": "greet", "data": {}, "failCount": 0, "nextRunAt": PAST, "createdAt": PAST, "updatedAt": PAST}
CLAIM: Final = {
    "status": "processing",
    "claimedBy": "dead",
    "lockedAt": PAST,
    "lastHeartbeat": PAST,
    "heartbeatInterval": 1000,
}
OURS: Final = {**CLAIM, "claimToken": f"dead:{LOCKED_AT}:x"}
STATES: Final[dict[str, dict[str, Any]]] = {
    "due": {"status": "pending"},
    "due later": {"status": "pending", "nextRunAt": "soon"},
    "claimed": OURS,
    "recurring": {**OURS, "repeatInterval": "* * * * *"},
    "claimed by Node": CLAIM,
    "failed": {"status": "failed"},
}
CHUNKS: Final = chunks(list(ELEMENTS), 8)
RAW: Final = LENIENT.with_options(document_class=RawBSONDocument)


@dataclass(frozen=True, slots=True)
class Bad:
    """A malformed document: where it is so, and in which state it would be otherwise."""

    id: ObjectId
    kind: str
    field: str
    state: str

    @property
    def unique_key(self) -> str:
        return f"{self.kind}, {self.field}, {self.state}"


def fill(jobs: Collection, kinds: Sequence[str], states: Sequence[str], *, as_well: bool = False) -> list[Bad]:
    """Documents with each of these kinds in each field, in these states; as far as the server takes them."""
    soon = datetime.now(UTC) + timedelta(seconds=20)
    bad: list[Bad] = []
    documents = []
    for turn, (kind, field) in enumerate(product(kinds, FIELD.values())):
        for state in (state for place, state in enumerate(states) if (place + turn) % SHARE == 0):
            one = Bad(ObjectId(), kind, field, state)
            well = {"_id": one.id, **WELL, "uniqueKey": one.unique_key, **STATES[state]}
            if well["nextRunAt"] == "soon":
                well["nextRunAt"] = soon
            bad.append(one)
            documents.append(with_field(well, field, ELEMENTS[kind], as_well=as_well and field != "_id"))
    try:
        jobs.with_options(codec_options=RAW).insert_many(documents, ordered=False)
    except BulkWriteError as error:
        for refused in error.details["writeErrors"]:
            assert bad[refused["index"]].field in ("_id", "uniqueKey"), refused["errmsg"]
    stored = {document["_id"] for document in jobs.find({"_id": {"$type": "objectId"}}, ["_id"])}
    return [one for one in bad if one.id in stored]


def contents(jobs: Collection) -> dict[Any, bytes]:
    found = jobs.with_options(codec_options=RAW).find({"_id": {"$type": "objectId"}})
    return {document["_id"]: bytes(document.raw) for document in found}


@pytest.fixture
def monque(db: Database) -> Monque:
    client = Monque(db, stats_cache_ttl=0)
    make_indexes(client)  # Before there is anything that an index could not have.
    return client


@pytest.fixture
def good(monque: Monque, jobs: Collection) -> set[ObjectId]:
    """Jobs that are as they must be."""
    return {job.id for job in monque.sync.enqueue_many([NewJob(name="greet", data=number) for number in range(3)])}


# --- Lists, counts and single documents ---


def pages(monque: Monque, sort: str, direction: Any) -> Iterator[Job]:
    cursor = None
    while True:
        page = monque.sync.get_jobs_with_cursor(cursor=cursor, limit=400, sort=sort, direction=direction)
        yield from page.jobs
        cursor = page.cursor
        if not (page.has_next_page if direction == "forward" else page.has_previous_page):
            return


@pytest.mark.parametrize("kinds", one_in(20, CHUNKS), ids=", ".join)
def test_every_list_and_count_has_what_is_well(
    monque: Monque, jobs: Collection, good: set[ObjectId], kinds: Sequence[str]
) -> None:
    bad = fill(jobs, kinds, ["due", "claimed", "failed"])
    sync = monque.sync
    broken = [one.document_id for one in sync.get_broken_documents(limit=10_000)]
    assert [one for one in good if one in broken] == []
    assert [one.id for one in bad if one.id in broken] != []
    for status in (None, "pending", ["pending", "processing", "failed"]):
        for name in (None, "greet"):
            assert good <= {job.id for job in sync.get_jobs(status=status, name=name, limit=10_000)}
            sync.get_jobs(status=status, name=name, skip=7)
    for sort in ("id", "created_at", "updated_at", "next_run_at"):
        for sign, direction in (("", "forward"), ("-", "backward")):
            seen = [job.id for job in pages(monque, sign + sort, direction) if job.id in good]
            assert sorted(seen) == sorted(good), (sign + sort, direction)
    assert sync.get_queue_stats().pending >= 3
    assert sync.get_queue_stats(name="greet").pending >= 3
    assert "greet" in {view.name for view in sync.get_queue_view_summaries()}


@pytest.mark.parametrize("kinds", one_in(20, CHUNKS, first=1), ids=", ".join)
def test_single_document_is_changed_or_refused_and_never_both(
    monque: Monque, jobs: Collection, kinds: Sequence[str]
) -> None:
    bad = fill(jobs, kinds, ["due", "claimed", "failed"])
    sync = monque.sync
    actions: list[Callable[[ObjectId], object]] = [
        sync.get_job,
        sync.cancel_job,
        sync.retry_job,
        partial(sync.reschedule_job, run_at=PAST),
        sync.delete_job,
    ]
    for action in actions:
        before = contents(jobs)
        refused = set()
        for one in bad:
            try:
                action(one.id)
            except (BrokenDocumentError, JobStateError):
                refused.add(one.id)
        after = contents(jobs)
        assert [one for one in bad if one.id in refused and after[one.id] != before[one.id]] == []


@pytest.mark.full
@pytest.mark.parametrize("kinds", CHUNKS, ids=", ".join)
def test_unique_key_of_a_malformed_document_keeps_nothing_else_from_being_enqueued(
    monque: Monque, jobs: Collection, kinds: Sequence[str]
) -> None:
    bad = fill(jobs, kinds, ["due", "claimed"])
    sync = monque.sync
    for one in bad:
        for enqueue in (
            partial(sync.enqueue, "greet"),
            partial(sync.schedule, "* * * * *", "greet", {}, on_conflict="update"),
        ):
            with suppress(BrokenDocumentError):
                enqueue(unique_key=one.unique_key)
    fresh = [NewJob(name="greet", unique_key=f"fresh {number}") for number in range(3)]
    plain = [NewJob(name="greet", data="plain")]
    with pytest.raises(PartialEnqueueError) as raised:
        sync.enqueue_many([NewJob(name="greet", unique_key=one.unique_key) for one in bad] + fresh + plain)
    assert isinstance(raised.value.__cause__, BrokenDocumentError)
    assert set(range(len(bad), len(bad) + 4)) <= raised.value.enqueued.keys()


@pytest.mark.full
@pytest.mark.parametrize("kinds", one_in(20, CHUNKS, first=3), ids=", ".join)
def test_bulk_actions_change_what_they_can_and_report_the_rest(
    monque: Monque, jobs: Collection, good: set[ObjectId], kinds: Sequence[str]
) -> None:
    fill(jobs, kinds, list(STATES))
    sync = monque.sync
    assert sync.cancel_jobs(name="greet").count >= 3
    assert sync.retry_jobs(name="greet").count >= 3
    assert {job.status for job in map(sync.get_job, good) if job} == {JobStatus.PENDING}
    assert sync.delete_jobs(name="greet").count >= 3
    assert not any(map(sync.get_job, good))
    left = sync.delete_jobs(everything=True)
    assert left.refused == jobs.count_documents({"_id": {"$type": "objectId"}})


# --- Running ---


# A document may have two fields of one name: the server goes by the first, and the driver reads the last.
TWICE: Final = ("null", "status", "array of text", "bad text")


@pytest.mark.parametrize(
    ("kinds", "as_well"),
    [*one_in(10, CHUNKS, [False]), (TWICE, True)],
    ids=[*map(", ".join, CHUNKS), "fields that are there twice"],
)
async def test_scheduler_runs_what_is_well(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    good: set[ObjectId],
    autojump_clock: MockClock,
    kinds: Sequence[str],
    as_well: bool,
) -> None:
    fill(jobs, kinds, list(STATES), as_well=as_well)
    later = await monque.enqueue("greet", delay=25)
    dead = jobs.insert_one({**WELL, **OURS}).inserted_id
    ran: list[ObjectId] = []
    workers = Workers()

    @workers.register("greet", concurrency=50)
    async def greet(job: RunningJob[Any]) -> None:
        ran.append(job.id)

    async with open_test_scheduler(workers) as scheduler:
        await quiesce()
        assert good <= set(ran)
        await advance(30)
        assert scheduler.is_healthy(), scheduler.health().reasons
        assert {later.id, dead} <= set(ran)
        # By hand, it waits for the longest lease that a document says, half a beat after half a beat.
        if THOROUGH or "code" in kinds:
            await scheduler.recover_stale_jobs()


@pytest.mark.full
@pytest.mark.parametrize("kinds", CHUNKS, ids=", ".join)
async def test_job_that_becomes_malformed_while_it_runs_harms_no_other(
    open_test_scheduler: SchedulerOpener,
    monque: Monque,
    jobs: Collection,
    autojump_clock: MockClock,
    kinds: Sequence[str],
) -> None:
    workers = Workers()
    go_on = trio.Event()
    fields = [field for field in FIELD.values() if field != "_id"]

    @workers.register("greet", concurrency=1000, store_result=True, max_attempts=2)
    async def greet(job: RunningJob[Any]) -> object:
        await go_on.wait()
        if job.data["reports"]:
            await job.save("state")
        if job.data["fails"]:
            raise ZeroDivisionError
        return job.data["result"]

    async with open_test_scheduler(workers, heartbeat_interval=5) as scheduler:
        bad = await scheduler.enqueue_many(
            [
                NewJob(
                    name="greet", data={"reports": number % 2, "fails": number % 3 == 0, "result": number % 5 or None}
                )
                for number in range(len(kinds) * len(fields))
            ]
        )
        neighbour = await scheduler.enqueue("greet", {"reports": 1, "fails": 0, "result": 1})
        await quiesce()
        raw = jobs.with_options(codec_options=RAW)
        places = [(kind, field) for kind in kinds for field in fields]
        for job, (kind, field) in zip(bad, places, strict=True):
            with suppress(DuplicateKeyError):
                raw.update_one({"_id": job.id}, {"$set": with_field({}, field, ELEMENTS[kind])})
        await advance(6)
        go_on.set()
        await quiesce()
        await advance(60)
        stored = await scheduler.get_job(neighbour.id)
        assert stored is not None
        assert stored.status is JobStatus.COMPLETED
        assert scheduler.is_healthy(), scheduler.health().reasons
        assert scheduler.statistics().running == 0


@pytest.mark.full
async def test_change_stream_reports_good_documents_among_malformed_ones(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection
) -> None:
    """In real time: virtual time needs no stream. One by one: each is the only one that the stream reports."""
    workers = Workers()
    ran = {"first": trio.Event(), "last": trio.Event()}

    @workers.register("greet", concurrency=50)
    async def greet(job: RunningJob[Any]) -> None:
        if job.data in ("first", "last"):
            ran[job.data].set()

    async def insert(data: str) -> None:
        """As another driver does: only the stream reports it."""
        jobs.insert_one(await monque.document("greet", data))
        await ran[data].wait()

    raw = jobs.with_options(codec_options=RAW)
    async with open_test_scheduler(workers, poll_interval=3600) as scheduler:
        await insert("first")
        for element in ELEMENTS.values():
            for field in ("_id", "name", "status", "nextRunAt", "claimedBy", "attempts", "cancelRequestedAt"):
                well = {"_id": ObjectId(), **WELL, **STATES["due"], "cancelRequestedAt": PAST}
                with suppress(WriteError):
                    raw.insert_one(with_field(well, field, element))
        raw.update_many({"name": "greet"}, {"$set": {"nextRunAt": PAST, "cancelRequestedAt": PAST}})
        await insert("last")
        assert scheduler.is_healthy(), scheduler.health().reasons
