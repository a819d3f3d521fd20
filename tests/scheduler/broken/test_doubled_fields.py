"""Documents with two fields of one name: the server compares the first, and the driver reads the last.

Each is settled, or is set aside alone. None stops a neighbour, runs for ever, or stays claimed for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import permutations, product
from typing import Any, Final

import pytest
import trio
from bson import ObjectId
from trio.testing import MockClock

from tests.support.malformed import Element, with_field
from tests.support.store import handle
from tests.support.thoroughly import one_in
from trio_monque import Monque, RunningJob, Workers
from trio_monque.store.broken.doubled_fields import report_doubled
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.fields import FIELD
from trio_monque.testing import SchedulerOpener, advance, now, quiesce

PAST: Final = datetime(2026, 1, 1, tzinfo=UTC)
FAR: Final = datetime(2400, 1, 1, tzinfo=UTC)
LOCKED_AT: Final = round(PAST.timestamp() * 1000)
DUE: Final = {"name": "greet", "data": {}, "failCount": 0, "nextRunAt": PAST, "createdAt": PAST, "updatedAt": PAST}
DUE_STATE: Final = {"status": "pending"}
DEAD: Final = {
    "status": "processing",
    "claimedBy": "dead",
    "lockedAt": PAST,
    "lastHeartbeat": PAST,
    "renewedAt": PAST,
    "heartbeatInterval": 1000,
    "claimToken": f"dead:{LOCKED_AT}:r-x",
}
FIELDS: Final = [field for field in FIELD.values() if field != "_id"]
VALUES: Final[Mapping[str, Sequence[Any]]] = {
    "name": ("greet", "another"),
    "status": ("pending", "completed"),
    "repeatInterval": ("* * * * *", "0 0 * * *"),
    "timezone": ("UTC", "Europe/Berlin"),
    "onExhausted": ("fail", "continue"),
    "uniqueKey": ("one", "another"),
    "heartbeatInterval": (1000, 30000),
    "errors": ([], [{"error": "x"}]),
    "again": (ObjectId("a" * 24), ObjectId("b" * 24)),
    **dict.fromkeys(("claimedBy", "claimToken"), (None, "another")),
    **dict.fromkeys(("failReason", "receipt", "result", "progress", "saved", "data"), ("one", "another")),
    **dict.fromkeys(("failCount", "attempts", "rescues", "rev", "maxRetries", "maxRescues"), (1, 2)),
    **dict.fromkeys(("scheduleVersion", "timeout"), (1, 2)),
    **dict.fromkeys(("ownScope", "scope", "parent"), (ObjectId("c" * 24), ObjectId("d" * 24))),
    **dict.fromkeys(("scopeTry", "scopeRun", "scopeCancel"), (1, 2)),
    **dict.fromkeys(("block", "childKey"), ("one", "another")),
    **dict.fromkeys(("steps", "scopeFailed"), ({"a": 1}, {})),
}


def values_of(field: str) -> Sequence[Any]:
    return VALUES.get(field, (PAST, FAR))


@dataclass(frozen=True, slots=True)
class Doubled:
    """One document: which field it has twice, with which values, and what becomes of its runs."""

    field: str
    first: Any
    last: Any
    recurs: bool
    fails: bool


def insert_doubled(jobs: Collection, well: Mapping[str, Any], one: Doubled) -> ObjectId:
    job_id = ObjectId()
    # By the first of its unique keys, too, it must be the only one.
    first = f"{one.first} {job_id}" if one.field == "uniqueKey" else one.first
    schedule = {"repeatInterval": "* * * * *"} if one.recurs else {}
    # The driver gives the bytes of a large document as a view.
    filler = {"filler": "x" * 5000} if one.fails else {}
    document = {"_id": job_id, **well, **schedule, **filler, one.field: first}
    jobs.insert_one(with_field(document, one.field, Element.of(one.last), as_well=True))
    return job_id


def stored(jobs: Collection, job_id: ObjectId) -> str:
    """The status that the server compares."""
    (status,) = jobs.distinct("status", {"_id": job_id})
    return str(status)


@pytest.fixture
def monque(db: Database) -> Monque:
    return Monque(db)


def test_large_document_is_searched_for_fields_that_it_has_twice(db: Database, jobs: Collection) -> None:
    """Of 4 kB or more, the driver gives the bytes as a view, in which nothing can be searched."""
    by_handle = handle(db)
    large = {**DUE, **DUE_STATE, "data": "x" * 5000}
    doubled = insert_doubled(jobs, large, Doubled("attempts", 1, 2, recurs=False, fails=False))
    sound = jobs.insert_one(large).inserted_id
    report_doubled(by_handle, [doubled, sound])
    assert by_handle.broken.problem_of(doubled) == "it has two fields called attempts"
    assert by_handle.broken.problem_of(sound) is None


@pytest.mark.full
@pytest.mark.parametrize("field", one_in(12, FIELDS))
async def test_due_document_with_a_field_twice_is_settled_or_set_aside_alone(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock, field: str
) -> None:
    bad = {
        insert_doubled(jobs, {**DUE, **DUE_STATE}, one): one
        for first, last in permutations(values_of(field), 2)
        for one in (Doubled(field, first, last, recurs, fails) for recurs, fails in product((True, False), repeat=2))
    }
    ran: Counter[ObjectId] = Counter()
    workers = Workers()

    @workers.register("greet", concurrency=50, max_attempts=2)
    async def greet(job: RunningJob[Any]) -> None:
        ran[job.id] += 1
        if job.id in bad and bad[job.id].fails:
            raise ZeroDivisionError

    async with open_test_scheduler(workers, heartbeat_interval=1, max_rescues=2) as scheduler:
        neighbour = await scheduler.enqueue("greet")
        with trio.move_on_after(5):  # In virtual time: what is tried again at once, for ever, would not let it pass.
            await trio.sleep_forever()
        assert ran[neighbour.id] == 1
        await trio.sleep(40)
        await quiesce()  # A job of this minute may be running.
        assert scheduler.is_healthy(), scheduler.health().reasons
        broken = {one.document_id for one in await monque.get_broken_documents()}
        for job_id, one in bad.items():
            status = stored(jobs, job_id)
            assert status != "processing", one
            is_for_us = jobs.count_documents({"_id": job_id, "name": "greet", "nextRunAt": {"$lte": now()}})
            if status == "pending" and is_for_us:
                assert job_id in broken, one
            # What two calls have left in a job runs after its own attempts, each with as many.
            assert ran[job_id] <= (4 if one.recurs else 6 if one.field == "again" else 2), one


@pytest.mark.full
@pytest.mark.parametrize("field", one_in(12, FIELDS, first=6))
async def test_dead_claim_on_a_document_with_a_field_twice_is_taken_away(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, field: str
) -> None:
    first = DEAD.get(field, values_of(field)[0])
    bad = [
        insert_doubled(jobs, {**DUE, **DEAD, "rescues": rescues}, Doubled(field, first, last, recurs, fails=False))
        for last in values_of(field)
        for recurs in (True, False)
        for rescues in (0, 3)
    ]
    ran: list[ObjectId] = []
    workers = Workers()

    @workers.register("greet", concurrency=50)
    async def greet(job: RunningJob[Any]) -> None:
        ran.append(job.id)

    # A claim without a token that can be read is protected as one of another library is.
    async with open_test_scheduler(workers, heartbeat_interval=1, lock_timeout=30) as scheduler:
        await trio.sleep(60)
        # In virtual time, the reaper rests after a claim that it could not take; otherwise it looks again and again.
        await scheduler.recover_stale_jobs()
        await scheduler.recover_stale_jobs()
        neighbour = await scheduler.enqueue("greet")
        await trio.sleep(5)
        await quiesce()
        assert neighbour.id in ran
        assert scheduler.is_healthy(), scheduler.health().reasons
        assert [(job_id, stored(jobs, job_id)) for job_id in bad if stored(jobs, job_id) == "processing"] == []


async def test_job_whose_schedule_stands_twice_fails_with_that_reason_after_one_run(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    twice = Doubled("repeatInterval", "0 0 * * *", "* * * * *", recurs=False, fails=False)
    job_id = insert_doubled(jobs, {**DUE, **DUE_STATE}, twice)
    ran: list[ObjectId] = []
    workers = Workers()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        ran.append(job.id)

    async with open_test_scheduler(workers) as scheduler:
        await advance(3600)
        assert ran == [job_id]
        (reason,) = jobs.distinct("failReason", {"_id": job_id, "status": "failed"})
        assert "two fields called repeatInterval" in reason
        assert scheduler.statistics().schedules_ended == 1


async def test_document_with_a_field_twice_runs_once_it_is_mended(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    bad = insert_doubled(jobs, {**DUE, **DUE_STATE}, Doubled("attempts", 1, 2, recurs=False, fails=False))
    ran: list[ObjectId] = []
    workers = Workers()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        ran.append(job.id)

    async with open_test_scheduler(workers) as scheduler:
        await advance(150)  # It is looked at again each minute.
        assert ran == []
        (listed,) = await monque.get_broken_documents()
        assert (listed.document_id, listed.reason) == (bad, "it has two fields called attempts")
        jobs.replace_one({"_id": bad}, {"_id": bad, **DUE, **DUE_STATE})
        await advance(70)
        await scheduler.enqueue("greet")
        await advance(1)
        assert bad in ran


async def test_neighbour_starts_in_time_behind_documents_with_two_due_dates(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """The timer goes by the two earliest jobs, as the server orders them."""
    soon = now() + timedelta(seconds=20)
    ran: dict[ObjectId, datetime] = {}
    workers = Workers()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        ran[job.id] = now()

    for _ in range(2):
        insert_doubled(
            jobs, {**DUE, **DUE_STATE}, Doubled("nextRunAt", soon, soon.replace(year=2400), recurs=False, fails=False)
        )
    async with open_test_scheduler(workers) as scheduler:
        later = await scheduler.enqueue("greet", run_at=soon + timedelta(seconds=1))
        await advance(60)
        assert ran[later.id] - later.next_run_at < timedelta(seconds=1)
