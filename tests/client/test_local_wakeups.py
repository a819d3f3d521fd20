"""Local wakeups: a client that stores or changes a job wakes the schedulers of the same run and collection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import trio
from bson import ObjectId
from pymongo import MongoClient

from tests.support.interception import Interceptor
from tests.support.store import PAST
from trio_monque import Monque
from trio_monque.client.local_wakeups import LISTENING, Announcer, receiving_wakeups, wake_all_schedulers
from trio_monque.client.operation import Caused
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs.job import Job, JobStatus
from trio_monque.store.driver.types import Collection, Database

JOB = Job(id=ObjectId(), name="greet", next_run_at=PAST, created_at=PAST, updated_at=PAST)


@dataclass(eq=False)
class Heard:
    """A scheduler that records its wake-ups."""

    reported: list[object] = field(default_factory=list)
    instance_id: str = "heard"
    looked_for_the_dead: int = 0
    looked_for_pauses: int = 0
    watched: int = 0

    def look(self) -> None:
        self.reported.append("look")

    def expect(self, jobs: Sequence[Job], *, new: bool) -> None:
        self.reported.append((list(jobs), new))

    def look_while(self, is_open: Callable[[], bool]) -> None:
        self.reported.append(is_open)

    def look_for_the_dead(self) -> None:
        self.looked_for_the_dead += 1

    def look_for_requests(self) -> None:
        self.reported.append("look for requests")

    def look_for_orphans(self) -> None:
        self.reported.append("look for orphans")

    def look_for_pauses(self) -> None:
        self.looked_for_pauses += 1

    def watch(self, is_idle: Callable[[], bool]) -> None:
        self.watched += 1

    def is_idle(self) -> bool:
        return True

    def waits_for(self) -> Set[Hashable]:
        return frozenset()

    async def wait_changed(self) -> None:
        await trio.sleep_forever()


async def test_scheduler_that_has_ended_is_forgotten_and_costs_no_announcement() -> None:
    scheduler = Heard()
    with receiving_wakeups("shop.jobs", scheduler):
        assert scheduler in LISTENING
    assert scheduler not in LISTENING


async def test_wake_ups_reach_the_schedulers_of_the_same_collection() -> None:
    one, two, other = Heard(), Heard(), Heard()
    later = replace(JOB, next_run_at=PAST + timedelta(hours=1))
    with receiving_wakeups("db.jobs", one), receiving_wakeups("db.jobs", two), receiving_wakeups("db.other", other):
        Announcer("db.jobs").announce([later, JOB], new=True)
        Announcer("db.jobs").announce_unknown()
    Announcer("db.jobs").announce([JOB])
    assert one.reported == two.reported == [([later, JOB], True), "look"]
    assert other.reported == []


async def test_jobs_that_are_not_pending_wake_no_scheduler() -> None:
    one = Heard()
    with receiving_wakeups("db.jobs", one):
        Announcer("db.jobs").announce([replace(JOB, status=JobStatus.PROCESSING)])
        Announcer("db.jobs").announce([])
    assert one.reported == []


async def test_threads_of_the_run_are_heard_and_others_are_not() -> None:
    one = Heard()

    def from_a_thread_of_its_own() -> None:
        other = threading.Thread(target=Announcer("db.jobs").announce, args=([JOB],))
        other.start()
        other.join()

    with receiving_wakeups("db.jobs", one):
        await trio.to_thread.run_sync(Announcer("db.jobs").announce, [JOB])
        assert one.reported == [([JOB], False)]
        await trio.to_thread.run_sync(from_a_thread_of_its_own)
    assert one.reported == [([JOB], False)]


async def test_job_of_a_caller_that_was_cancelled_while_its_group_was_sent_wakes_schedulers(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    """The leader gets its job and announces it. The cancelled follower does not get its own, which is stored too."""
    one, interceptor, callers = Heard(), Interceptor(), trio.CancelScope()
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        monque = Monque(client[db.name])
        interceptor.before(lambda name, _: name == "insert", lambda: trio.from_thread.run_sync(callers.cancel))
        with receiving_wakeups(f"{db.name}.monque_jobs", one), callers:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(monque.enqueue, "greet")
                nursery.start_soon(monque.enqueue, "greet")
    assert jobs.count_documents({}) == 2
    assert "look" in one.reported


async def test_all_schedulers_of_the_run_can_be_made_to_look() -> None:
    one, other = Heard(), Heard()
    with receiving_wakeups("db.jobs", one), receiving_wakeups("db.other", other):
        wake_all_schedulers()
    assert one.reported == other.reported == ["look"]
    # And once more when the other one left.
    assert (one.looked_for_the_dead, other.looked_for_the_dead) == (1, 1)
    assert (one.looked_for_pauses, other.looked_for_pauses) == (1, 1)


async def test_what_an_operation_caused_is_delivered_once() -> None:
    one, other = Heard(), Heard()
    caused = Caused(jobs=[JOB], are_new=True, may_be_due=True, changed_pauses=True)
    with receiving_wakeups("db.jobs", one), receiving_wakeups("db.other", other):
        Announcer("db.jobs").deliver(caused)
        Announcer("db.jobs").deliver(caused)
    assert (one.reported, one.looked_for_pauses) == ([([JOB], True), "look"], 1)
    assert (other.reported, other.looked_for_pauses) == ([], 0)
