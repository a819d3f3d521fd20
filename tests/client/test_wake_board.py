"""The wake board: whoever makes a job, the schedulers of the same run and collection hear of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import trio
from bson import ObjectId

from tests.support.store import PAST
from trio_monque.client.wake_board import announce, announce_unknown, have_all_look, on_the_board
from trio_monque.jobs.job import Job, JobStatus

JOB = Job(id=ObjectId(), name="greet", next_run_at=PAST, created_at=PAST, updated_at=PAST)


@dataclass
class Heard:
    """A scheduler that writes down what it is told."""

    told: list[object] = field(default_factory=list)

    def look(self) -> None:
        self.told.append("look")

    def expect(self, due: datetime) -> None:
        self.told.append(due)

    def look_while(self, is_open: Callable[[], bool]) -> None:
        self.told.append(is_open)


async def test_schedulers_of_the_same_collection_hear_of_the_job_that_is_due_first() -> None:
    one, two, other = Heard(), Heard(), Heard()
    later = replace(JOB, next_run_at=PAST + timedelta(hours=1))
    with on_the_board("db.jobs", one), on_the_board("db.jobs", two), on_the_board("db.other", other):
        announce("db.jobs", [later, JOB])
        announce_unknown("db.jobs")
    announce("db.jobs", [JOB])
    assert one.told == two.told == [PAST, "look"]
    assert other.told == []


async def test_jobs_that_are_not_pending_wake_nobody() -> None:
    one = Heard()
    with on_the_board("db.jobs", one):
        announce("db.jobs", [replace(JOB, status=JobStatus.PROCESSING)])
        announce("db.jobs", [])
    assert one.told == []


async def test_threads_of_the_run_are_heard_and_others_are_not() -> None:
    one = Heard()

    def from_a_thread_of_its_own() -> None:
        other = threading.Thread(target=announce, args=("db.jobs", [JOB]))
        other.start()
        other.join()

    with on_the_board("db.jobs", one):
        await trio.to_thread.run_sync(announce, "db.jobs", [JOB])
        assert one.told == [PAST]
        await trio.to_thread.run_sync(from_a_thread_of_its_own)
    assert one.told == [PAST]


async def test_all_schedulers_of_the_run_can_be_made_to_look() -> None:
    one, other = Heard(), Heard()
    with on_the_board("db.jobs", one), on_the_board("db.other", other):
        have_all_look()
    assert one.told == other.told == ["look"]
