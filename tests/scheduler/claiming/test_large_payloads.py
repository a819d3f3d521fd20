"""A look reads no further than it must where payloads are large, and no name starves behind others."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.looks import Reads
from tests.support.store import PAST, handle, insert
from trio_monque import Monque, NewJob, RunningJob, Workers
from trio_monque.jobs import Job
from trio_monque.store.driver.types import Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import due
from trio_monque.store.jobs.due import Reach
from trio_monque.testing import SchedulerOpener, advance, drain, quiesce

MEGABYTE = "x" * 1_000_000
NAMES = [f"name-{number}" for number in range(8)]
EACH = 6
SLOTS = 5


@pytest.fixture
def store(db: Database) -> JobCollection:
    return handle(db)


def insert_large(store: JobCollection, *names: str) -> None:
    for name in names:
        for _ in range(8):
            insert(store, name, data=MEGABYTE)


@pytest.mark.full
def test_look_of_one_name_ends_after_the_batch_with_which_it_has_enough(store: JobCollection) -> None:
    insert_large(store, *["a"] * 3)
    found, unread, usual_size = due.look(store, {"a": 24}, PAST, reach=Reach(4))
    assert (len(found), unread) == (16, ["a"])  # 16 MB: the largest batch of the server.
    assert 1_000_000 < usual_size < 1_001_000
    # A look that knows the size of the jobs asks for smaller batches: here of four.
    found, unread, _ = due.look(store, {"a": 24}, PAST, reach=Reach(4, usual_size))
    assert (len(found), unread) == (8, ["a"])
    # What can start is read, however large it is.
    found, unread, _ = due.look(store, {"a": 24}, PAST, reach=Reach(20, usual_size))
    assert (len(found), unread) == (20, ["a"])
    seen = due.survey(store, {"a": 25}, PAST, reach=Reach(24, usual_size))
    assert (len(seen.jobs), seen.exhausted, seen.unread) == (24, frozenset(), ["a"])
    seen = due.survey(store, {"a": 25}, PAST, reach=Reach(25, usual_size))
    assert (len(seen.jobs), seen.unread) == (24, ())
    assert seen.exhausted == {"a"}


@pytest.mark.full
@pytest.mark.parametrize(("wanted", "found"), [({"a": 24}, 16), ({"a": 24, "b": 24}, 6)])
def test_look_that_meets_much_larger_jobs_than_the_last_one_ends_with_its_first_batch(
    store: JobCollection, wanted: dict[str, int], found: int
) -> None:
    insert_large(store, *["a"] * 3)
    seen = due.survey(store, wanted, PAST, reach=Reach(20, 1000))
    assert (len(seen.jobs), seen.exhausted, seen.unread) == (found, frozenset(), list(wanted))
    # The next one asks for batches of four.
    seen = due.survey(store, wanted, PAST, reach=Reach(20, seen.usual_size))
    assert len(seen.jobs) == 20


@pytest.mark.full
async def test_first_jobs_of_a_scheduler_are_claimed_in_looks_of_one_batch(
    db: Database, open_test_scheduler: SchedulerOpener, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    reads, running = Reads(monkeypatch), 0
    await Monque(db).enqueue_many([NewJob("a", MEGABYTE) for _ in range(40)])
    workers = Workers()

    @workers.register("a", concurrency=40)
    async def holds(job: RunningJob[Any]) -> None:
        nonlocal running
        running += 1
        await trio.sleep(10)

    async with open_test_scheduler(workers):
        await advance(5)
        assert running == 40  # Without waiting for a poll.
    assert reads.numbers[0] == 16


@pytest.mark.full
def test_name_that_was_not_reached_does_not_count_as_exhausted(store: JobCollection) -> None:
    insert_large(store, "a", "b")
    insert(store, "c")
    wanted = {"a": 9, "b": 9, "c": 9, "d": 9}
    seen = due.survey(store, wanted, PAST, reach=Reach(4, 1_000_000))
    assert Counter(job.name for job in seen.jobs) == {"a": 6}  # The first documents beyond 4 MB, and with them enough.
    assert not seen.exhausted
    assert seen.unread == ["a", "b", "c", "d"]
    seen = due.survey(store, {name: wanted[name] for name in ("c", "d", "a", "b")}, PAST, reach=Reach(10, 900_000))
    assert Counter(job.name for job in seen.jobs) == {"c": 1, "a": 8, "b": 2}
    assert seen.exhausted == {"c", "d", "a"}
    assert seen.unread == ["b"]
    seen = due.survey(store, wanted, PAST)
    assert seen.exhausted == wanted.keys()
    assert (len(seen.jobs), seen.unread) == (17, ())
    # Behind a passed-over head, too: the second query, from the head, is for names that were read to the end.
    seen = due.survey(store, wanted, PAST, passed_over={"a": 2, "b": 2}, reach=Reach(4, 1_000_000))
    assert not seen.exhausted | seen.short
    assert Counter(job.name for job in seen.jobs) == {"a": 6}
    seen = due.survey(store, wanted, PAST, passed_over={"a": 6, "b": 6}, reach=Reach(4, 1_000_000))
    assert seen.exhausted == {"c", "d"}
    assert seen.short == {"a", "b"}
    assert Counter(job.name for job in seen.jobs) == {"a": 6, "c": 1}
    assert seen.unread == ["a", "b"]


def test_look_leaves_out_what_claims_in_flight_have(store: JobCollection) -> None:
    first, second = insert(store, "a"), insert(store, "a")
    other = insert(store, "b")
    for wanted, left in (({"a": 5}, [second]), ({"a": 5, "b": 5}, [second, other])):
        found = due.look(store, wanted, PAST, reach=Reach(1, leaves_out=[first.id])).jobs
        assert list(found) == left


def workers_for(names: Sequence[str], started: list[str], **options: Any) -> Workers:
    workers = Workers()

    async def handle(job: RunningJob[Any]) -> None:
        started.append(job.name)

    for name in names:
        workers.register(name, handle, concurrency=SLOTS, **options)
    return workers


@pytest.mark.full
async def test_names_with_large_payloads_take_turns_and_little_is_read_twice(
    db: Database, open_test_scheduler: SchedulerOpener, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    reads, started = Reads(monkeypatch), list[str]()
    await Monque(db).enqueue_many([NewJob(name, MEGABYTE) for name in NAMES for _ in range(EACH)])
    async with open_test_scheduler(workers_for(NAMES, started), concurrency=SLOTS) as scheduler:
        await drain(scheduler)
    assert Counter(started) == dict.fromkeys(NAMES, EACH)
    assert sum(reads.numbers) <= 2 * len(NAMES) * EACH
    assert max(reads.numbers[1:]) <= SLOTS + 4 + SLOTS  # With those that a claim in flight has.
    # All names had their turn, long before the first one had none left.
    assert set(started[: 4 * len(NAMES)]) == set(NAMES)


@pytest.mark.full
async def test_name_of_a_higher_priority_is_read_first(
    db: Database, open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    started = list[str]()
    workers = workers_for(NAMES, started).union(workers_for(["urgent"], started, priority=3))
    await Monque(db).enqueue_many([NewJob(name, MEGABYTE) for name in (*NAMES, "urgent") for _ in range(EACH)])
    async with open_test_scheduler(workers, concurrency=SLOTS) as scheduler:
        await drain(scheduler)
    # The first look had read other names before its turn came.
    assert Counter(started[: 4 * SLOTS])["urgent"] == EACH


async def test_payloads_of_jobs_that_have_ended_are_not_kept_until_others_end(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()
    marker = "the payload of this test"

    @workers.register("keeps", concurrency=20)
    async def keeps(job: RunningJob[Any]) -> None: ...

    await monque.enqueue_many([NewJob(name="keeps", data=marker)] * 20)
    async with open_test_scheduler(workers) as scheduler:
        await quiesce()
        assert scheduler.statistics().completed == 20
        gc.collect()
        kept = [one for one in gc.get_objects() if type(one) is Job and one.data == marker]
        assert len(kept) == 0
