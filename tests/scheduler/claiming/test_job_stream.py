"""What one answer of the change stream comes to, for the engine."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest
import trio
from bson import ObjectId
from pymongo import WriteConcern
from pymongo import errors as driver

from tests.support.interference import Slow
from tests.support.internals import context_of, interference_of, make_indexes, opened_of, threads_of
from tests.support.node_peer import NodePeer
from trio_monque import Job, Monque, Workers
from trio_monque.engine.demand import Hints, StreamFailedError
from trio_monque.loop_time import LoopTime
from trio_monque.scheduler.changes import ChangesOfDatabase
from trio_monque.scheduler.job_finder import JobKey
from trio_monque.scheduler.job_stream import JobStream, RecentIds
from trio_monque.scheduler.paused_names import PausedNames
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs.change_stream import ANYTHING, JobChange
from trio_monque.testing import fail_next


@dataclass
class Opened:
    """A stream that is open, for workers of the one name "greet"."""

    stream: JobStream
    monque: Monque
    node: NodePeer
    paused: PausedNames

    def due(self, seconds: float) -> ObjectId:
        now = context_of(self.monque).clock.now()
        return self.node.enqueue("greet", nextRunAt=now + timedelta(seconds=seconds))

    async def next(self) -> Hints[Job]:
        """What was written before this call comes in one answer."""
        return await self.stream.next(math.inf)


@pytest.fixture(autouse=True)
def has_written(db: Database) -> None:
    """Every scheduler writes before it opens its stream.

    On a server that has just started and is never written to, opening one waits for the next entry of the oplog,
    which comes after up to ten seconds.
    """
    db["anything"].with_options(write_concern=WriteConcern("majority")).insert_one({})


def changes_for(monque: Monque) -> ChangesOfDatabase:
    return ChangesOfDatabase(lambda: context_of(monque).jobs, "us")


@asynccontextmanager
async def opened(db: Database, reported: RecentIds | None = None) -> AsyncIterator[Opened]:
    monque, workers = Monque(db), Workers()
    workers.register("greet", lambda _: None)
    paused = PausedNames(threads_of(monque), time_of_loops=LoopTime(is_event_driven=False))
    reported = RecentIds() if reported is None else reported
    stream = JobStream(context_of(monque), threads_of(monque), workers, paused, changes_for(monque), reported)
    await stream.open()
    yield Opened(stream, monque, NodePeer(db["monque_jobs"]), paused)
    await stream.close()


@pytest.mark.parametrize("order", [(-5, 40, 20), (40, 20, -5), (20, -5, 40)])
async def test_stream_reports_the_earliest_and_the_latest_due_time_in_any_order_of_arrival(
    db: Database, jobs: Collection, order: tuple[int, ...]
) -> None:
    monque, workers, node = Monque(db), Workers(), NodePeer(jobs)
    workers.register("greet", lambda _: None)
    paused = PausedNames(threads_of(monque), time_of_loops=LoopTime(is_event_driven=False))
    stream = JobStream(context_of(monque), threads_of(monque), workers, paused, changes_for(monque), RecentIds())
    await stream.open()
    clock = context_of(monque).clock
    now = clock.now()
    earliest, far, latest = (clock.on_run_clock(now + timedelta(seconds=seconds)) for seconds in (-5, 30, 40))
    for seconds in order:
        node.enqueue("greet", nextRunAt=now + timedelta(seconds=seconds))
    node.enqueue("theirs", nextRunAt=now + timedelta(seconds=90))
    heard = [await stream.next(math.inf)]
    # Each answer has what was there when it was asked for.
    while max(one.last_due for one in heard) < far:
        heard.append(await stream.next(math.inf))
    await stream.close()
    assert min(one.due for one in heard) == pytest.approx(earliest, abs=3)
    assert max(one.last_due for one in heard) == pytest.approx(latest, abs=3)
    assert not any(one.look for one in heard)


async def test_only_a_new_job_that_was_heard_alone_is_claimed_by_its_id(db: Database, jobs: Collection) -> None:
    reported = RecentIds()
    async with opened(db, reported) as our:
        alone = our.due(0)
        heard = await our.next()
        assert heard.item is not None
        assert isinstance(heard.item.key, JobKey)
        assert (heard.item.group, heard.item.key.id, heard.look) == ("greet", alone, False)
        assert alone in reported
        # Two at once: the scheduler looks for both.
        ids = [our.due(-1), our.due(-2)]
        both = await our.next()
        assert both.item is None
        assert both.due < trio.current_time()
        assert all(one in reported for one in ids)
        # What is put off is not new, although it is heard alone.
        jobs.update_one({"_id": alone}, {"$set": {"nextRunAt": context_of(our.monque).clock.now()}})
        later = await our.next()
        assert later.item is None
        assert later.due < math.inf


async def test_stream_does_not_repeat_a_job_announced_by_a_client_of_this_run(db: Database) -> None:
    reported = RecentIds()
    async with opened(db, reported) as our:
        reported.add([our.due(0)])
        assert await our.next() == Hints()


async def test_stream_does_not_repeat_a_job_announced_while_its_answer_is_read(db: Database) -> None:
    """The word of the client comes after the thread has read the answer, and before the event loop has it."""

    class ClientTellsNext(RecentIds):
        def __contains__(self, job_id: ObjectId) -> bool:
            known = super().__contains__(job_id)
            self.add([job_id])
            return known

    async with opened(db, ClientTellsNext()) as our:
        our.due(0)
        heard = await our.next()
        assert (heard.item, heard.due, heard.look) == (None, math.inf, False)


async def test_job_that_is_not_pending_or_has_no_worker_here_wakes_nothing(db: Database, jobs: Collection) -> None:
    async with opened(db) as our:
        our.node.enqueue("greet", status="completed")
        our.node.enqueue("theirs")
        assert await our.next() == Hints()


async def test_job_that_becomes_pending_without_a_date_causes_a_look(db: Database, jobs: Collection) -> None:
    async with opened(db) as our:
        job_id = our.node.enqueue("greet", status="failed")
        assert await our.next() == Hints()
        jobs.update_one({"_id": job_id}, {"$set": {"status": "pending"}})
        assert await our.next() == Hints(look=True)


async def test_request_to_cancel_ends_the_run_of_that_job_alone(db: Database, jobs: Collection) -> None:
    async with opened(db) as our:
        ids = [our.node.enqueue("greet", status="processing") for _ in range(2)]
        assert (await our.next()).is_cancel_requested is None
        jobs.update_one({"_id": ids[0]}, {"$set": {"cancelRequestedAt": context_of(our.monque).clock.now()}})
        heard = await our.next()
        assert heard.is_cancel_requested is not None
        found = [await our.monque.get_job(one) for one in ids]
        assert [job is not None and heard.is_cancel_requested(job) for job in found] == [True, False]
        assert (heard.look, heard.due) == (False, math.inf)


async def test_pauses_are_looked_up_again_when_the_stream_opens_and_when_it_reports_one(db: Database) -> None:
    async with opened(db) as our:
        context = context_of(our.monque)
        reported = [our.paused.is_announced]
        assert our.paused.look_up(context.jobs) == frozenset()
        assert await our.monque.pause("greet")
        assert (await our.next()).look
        # At once, and not after the half second for which an answer is good.
        assert our.paused.look_up(context.jobs) == {"greet"}
        await our.stream.close()
        reported.append(our.paused.is_announced)
        assert await our.monque.resume("greet")
        await our.stream.open()
        reported.append(our.paused.is_announced)
        assert reported == [True, False, True]
        assert our.paused.look_up(context.jobs) == frozenset()


async def test_collection_that_vanished_causes_a_look_that_makes_its_indexes_first(
    db: Database, jobs: Collection
) -> None:
    async with opened(db) as our:
        make_indexes(our.monque)
        assert len(jobs.index_information()) > 1
        jobs.drop()
        assert (await our.next()).look
        make_indexes(our.monque)
        assert len(jobs.index_information()) > 1


async def test_stream_that_was_closed_has_let_go_of_its_cursor(db: Database) -> None:
    async with opened(db) as our:
        first = opened_of(our.stream)
        await our.stream.close()
        assert not first.is_open
        await our.stream.open()
        # A wait that is abandoned ends with the next event, and lets go of the cursor by itself.
        second = opened_of(our.stream)
        async with trio.open_nursery() as nursery:
            waiting = Slow("read changes")
            interference_of(our.monque).append(waiting)
            nursery.start_soon(our.next)
            await trio.to_thread.run_sync(waiting.has_begun.wait)
            interference_of(our.monque).remove(waiting)
            waiting.may_go_on.set()
            nursery.cancel_scope.cancel()
        our.due(0)
        while second.is_open:
            await trio.sleep(0.01)


async def test_failure_to_end_the_wait_raises_stream_failed_error(db: Database) -> None:
    async with opened(db) as our:
        with fail_next(our.monque, driver.AutoReconnect, command="end the wait"), pytest.raises(StreamFailedError):
            await our.stream.end_wait()
        with fail_next(our.monque, driver.AutoReconnect, command="read changes"):
            with pytest.raises(StreamFailedError) as failed:
                await our.next()
        assert not failed.value.is_final


class LeftOut:
    """Changes, some of them left out: a `ChangeSource` and its `OpenChanges`."""

    is_open = True

    def open(self) -> LeftOut:
        return self

    def read(self, wait: float) -> Sequence[JobChange]:
        return [ANYTHING]

    def close(self) -> None: ...

    def end_wait(self) -> None: ...


async def test_where_changes_were_left_out_all_that_they_may_have_said_is_looked_up(db: Database) -> None:
    monque = Monque(db)
    job = await monque.enqueue("greet")  # The indexes are there.
    context, paused = context_of(monque), PausedNames(threads_of(monque), time_of_loops=LoopTime(is_event_driven=False))
    stream = JobStream(context, threads_of(monque), Workers(), paused, LeftOut(), RecentIds())
    await stream.open()
    assert paused.look_up(context.jobs) == frozenset()
    await monque.pause("greet")
    hints = await stream.next(math.inf)
    assert hints.look
    assert hints.is_cancel_requested is not None
    assert hints.is_cancel_requested(job)
    assert paused.look_up(context.jobs) == {"greet"}
    assert not context.are_indexes_there
    await stream.close()
