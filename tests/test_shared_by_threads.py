"""What several threads share, with two of them in the middle of it at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from bson import ObjectId

from tests.support.side_by_side import Hold, noticing_locks
from tests.support.store import PAST, handle, insert, stamp
from trio_monque import Monque, NewJob, RunningJob, Workers
from trio_monque.client import server_time
from trio_monque.client.server_time import ServerTime
from trio_monque.clock import steady_clock
from trio_monque.events import Event, JobCancelled
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import claiming, due
from trio_monque.store.skipped_documents import SkippedDocuments


class HeldMemory(dict[object, object]):
    """The memory of missed candidates: two threads read one entry of it before either goes on."""

    def __init__(self, key: object) -> None:
        super().__init__()
        self._key = key
        self._both = threading.Barrier(2, timeout=20)
        self.is_held = False

    def get(self, key: object, default: object = None) -> Any:
        found = super().get(key, default)
        if self.is_held and key == self._key:
            self._both.wait()
        return found


def test_two_claims_that_have_missed_the_same_job_before_both_go_on(db: Database, jobs: Collection) -> None:
    job = insert(handle(db))
    memory = HeldMemory(job.id)
    store = replace(handle(db), missed=memory)
    seen = due.look(store, {"greet": 1}, PAST).jobs
    jobs.update_one({"_id": job.id}, {"$inc": {"rev": 1}})
    assert not claiming.take(store, seen, PAST, stamp()).jobs
    assert job.id in memory, "it is missed"
    memory.is_held = True
    seen = due.look(store, {"greet": 1}, PAST).jobs
    with ThreadPoolExecutor(2) as pool:
        claims = [pool.submit(claiming.take, store, seen, PAST, stamp(f"instance {number}")) for number in range(2)]
        taken = [one for claim in claims for one in claim.result(20).jobs]
    assert [one.id for one in taken] == [job.id]


class HeldName(str):
    """A name that is a key of a dict, and holds the thread that looks it up."""

    hold: Hold | None = None
    __slots__ = ()

    def __hash__(self) -> int:
        if self.hold is not None:
            self.hold.here()
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)


def test_document_that_is_repaired_while_it_is_added_is_not_left_out_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with noticing_locks(monkeypatch) as locks:
        skipped = SkippedDocuments()
    skipped.add(ObjectId(), "another one", "other")
    document_id = ObjectId()
    hold = Hold()
    monkeypatch.setattr(HeldName, "hold", hold)
    adds, repairs = hold.side_by_side(
        lambda: skipped.add(document_id, "it is broken", HeldName("greet")), lambda: skipped.discard(document_id), locks
    )
    assert adds.result()
    repairs.result()
    # Either order will do, as long as the looks leave out what is looked at again.
    assert list(skipped.of("greet")) == [one for one in skipped if one == document_id]


def test_worker_is_registered_while_a_claim_reads_which_have_a_follow_up(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, hold = Workers(), Hold()
    workers.register("first", handler, then=follow_up)
    workers.register("second", handler, then=follow_up)
    followed = workers.followed

    class HeldNames(set[str]):
        def __iter__(self) -> Iterator[str]:
            for number, name in enumerate(super().__iter__()):
                if number:
                    hold.here()  # With this, an iteration over a set that changes fails.
                yield name

    monkeypatch.setattr(workers, "followed", HeldNames(followed))
    reads, registers = hold.side_by_side(
        lambda: set(workers.followed), lambda: workers.register("third", handler, then=follow_up), []
    )
    registers.result()
    assert reads.result() == {"first", "second"}
    assert workers.followed == {"first", "second", "third"}


def handler(job: RunningJob[Any]) -> None: ...


def follow_up(job: Any) -> NewJob | None: ...


def test_offset_belongs_to_the_server_that_is_taken_for_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads measure, one before and one after another server became the primary."""
    hold, primaries, offsets = Hold(), {"old": ("old", 1), "new": ("new", 1)}, {"old": 1e6, "new": 0.0}
    measuring = threading.local()
    now_primary = "old"
    monkeypatch.setattr(server_time, "known_primary", lambda _: primaries[getattr(measuring, "who", now_primary)])
    monkeypatch.setattr(server_time, "measure_clock_offset", lambda _: offsets[measuring.who])
    with noticing_locks(monkeypatch) as locks:
        time = ServerTime(None)  # type: ignore[arg-type]  # Both functions that use it are replaced.
    set_offset = time.clock.set_offset

    def held(seconds: float, measured_at: Any) -> float:
        if seconds == offsets["old"]:
            hold.here()
        return set_offset(seconds, measured_at)

    def measure(who: str) -> None:
        measuring.who = who
        time.measure_clock_offset()

    monkeypatch.setattr(time.clock, "set_offset", held)
    for one in hold.side_by_side(lambda: measure("old"), lambda: measure("new"), locks):
        one.result()
    now_primary = measuring.who = "new"
    assert time.now().timestamp() - steady_clock() < offsets["old"] / 2, "the old offset passes for that of the new one"


async def test_listener_that_another_thread_removes_keeps_no_other_from_its_event(db: Database) -> None:
    monque = Monque(db)
    heard: list[Event] = []

    class OnIsInstance(type(JobCancelled)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(remove).result(20)
            return False

    class Held(JobCancelled, metaclass=OnIsInstance): ...

    remove = monque.on(Held, heard.append)
    monque.on(JobCancelled, heard.append)
    job = await monque.enqueue("greet")
    await monque.cancel_job(job.id)
    assert [type(one) for one in heard] == [JobCancelled]
