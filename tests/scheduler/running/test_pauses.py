"""No scheduler of the fleet claims a paused name, and no job is lost by that."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio
from pymongo import errors as driver
from trio.testing import MockClock

from tests.support.internals import candidates_of, interference_of, names_known_as_paused
from tests.support.thoroughly import one_in
from trio_monque import Monque, NewJob, RunningJob, Scheduler, Worker, Workers, open_scheduler
from trio_monque.engine.contention import Contention
from trio_monque.errors import InvalidJobIdentifierError, InvalidOptionError, MonqueConnectionError
from trio_monque.scheduler import paused_names
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, drain, fail_next, quiesce

T = TypeVar("T")


class During:
    """Something that happens while a call of that purpose is made for the first time."""

    def __init__(self, scheduler: Scheduler, purpose: str, happens: Callable[[], object]) -> None:
        self._interference = interference_of(scheduler)
        self._interference.append(self)
        self._purpose = purpose
        self._happens = happens

    def takes(self, purpose: str) -> bool:
        if purpose != self._purpose or self not in self._interference:
            return False
        self._interference.remove(self)
        return True

    def inject(self, call: Callable[[], T]) -> T:
        self._happens()
        return call()


class Jobs:
    """Workers of two names, which write down when they start."""

    def __init__(self, *, takes: float = 0.0) -> None:
        self.starts: list[tuple[str, float]] = []
        self.ends: list[str] = []
        self.takes = takes
        self.workers = Workers()
        for name in ("a", "b"):
            self.workers.register(name, self.handler)

    @property
    def started(self) -> list[str]:
        return [name for name, _ in self.starts]

    async def handler(self, job: RunningJob[Any]) -> None:
        self.starts.append((job.name, trio.current_time()))
        await trio.sleep(self.takes)
        self.ends.append(job.name)


async def elsewhere(call: Callable[[], T]) -> T:
    """In a thread outside of any run, as in another process: it wakes no scheduler of this run."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    while thread.is_alive():
        await trio.sleep(0.002)
    return results[0]


async def test_paused_name_is_not_claimed_while_others_are_and_resumed_at_once(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    work = Jobs()
    async with open_test_scheduler(work.workers) as scheduler:
        assert await scheduler.pause("a")
        for name in ("a", "b", "a"):
            await scheduler.enqueue(name)
        await drain(scheduler)
        assert work.started == ["b"]
        assert jobs.count_documents({"name": "a", "status": "pending", "claimedBy": None, "attempts": None}) == 2
        await trio.sleep(86400)
        assert work.started == ["b"]
        before = trio.current_time()
        assert await scheduler.resume("a")
        await drain(scheduler)
        assert work.starts[1:] == [("a", before), ("a", before)]


@pytest.mark.full
@pytest.mark.parametrize("how", ["async", "sync", "in a thread"])
async def test_pauses_of_a_client_in_the_run_apply_at_once_to_every_scheduler_of_it(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock, how: str
) -> None:
    async def change(action: str) -> None:
        if how == "async":
            await getattr(monque, action)("a")
        elif how == "sync":
            getattr(monque.sync_in_loop, action)("a")
        else:
            await trio.to_thread.run_sync(getattr(monque.sync, action), "a")

    work = Jobs()
    async with open_test_scheduler(work.workers) as one, open_test_scheduler(work.workers):
        await one.enqueue("a", delay=10)
        await one.enqueue("b", delay=10)
        await trio.sleep(5)
        await change("pause")
        await trio.sleep(100)
        assert work.started == ["b"]
        await change("resume")
        await quiesce()
        assert work.started == ["b", "a"]
        assert trio.current_time() == 105


async def test_run_of_a_paused_name_goes_on(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    work = Jobs(takes=600)
    async with open_test_scheduler(work.workers) as scheduler:
        await scheduler.enqueue("a")
        await trio.sleep(1)
        await scheduler.pause("a")
        await drain(scheduler)
    assert work.ends == ["a"]
    assert jobs.count_documents({"status": "completed"}) == 1


async def test_schedule_of_a_paused_name_waits_and_runs_once_when_it_is_resumed(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    work = Jobs()
    async with open_test_scheduler(work.workers) as scheduler:
        await scheduler.schedule("0 * * * *", "a")
        await scheduler.pause("a")
        await trio.sleep(10 * 3600)
        assert work.started == []
        await scheduler.resume("a")
        await drain(scheduler)
        assert work.started == ["a"]


async def test_pause_outlives_every_instance_and_holds_from_the_first_claim_on(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    work = Jobs()
    await monque.enqueue("a")
    await monque.pause("a")
    for _ in range(2):
        async with open_test_scheduler(work.workers) as scheduler:
            await drain(scheduler)
    assert work.started == []
    assert await monque.paused() == ["a"]


async def test_pausing_and_resuming_again_changes_nothing_and_needs_no_worker(monque: Monque, db: Database) -> None:
    assert not await monque.resume("nobody's")
    assert await monque.pause("nobody's")
    document = db["monque_jobs.instances"].find_one({"_id": "pause:nobody's"})
    assert not await monque.pause("nobody's")
    assert db["monque_jobs.instances"].find_one({"_id": "pause:nobody's"}) == document
    assert monque.sync_in_loop.pause("a")
    assert await monque.paused() == monque.sync_in_loop.paused() == ["a", "nobody's"]
    assert await monque.resume("nobody's")
    assert not monque.sync_in_loop.resume("nobody's")
    assert await monque.paused() == ["a"]


async def test_worker_can_be_named_by_itself(monque: Monque) -> None:
    worker: Worker[Any] = Jobs().workers.register("c", lambda _: None)
    await monque.pause(worker)
    assert await monque.paused() == ["c"]


@pytest.mark.parametrize("action", ["pause", "resume"])
@pytest.mark.parametrize("name", ["", "two words", "x" * 256, 7])
async def test_pause_and_resume_refuse_an_invalid_name(monque: Monque, action: str, name: Any) -> None:
    with pytest.raises(InvalidJobIdentifierError):
        await getattr(monque, action)(name)
    with pytest.raises(InvalidJobIdentifierError):
        getattr(monque.sync_in_loop, action)(name)


async def test_pause_with_a_lost_answer_takes_effect_in_this_run(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    work = Jobs()
    async with open_test_scheduler(work.workers) as scheduler:
        await drain(scheduler)
        fail_next(monque, driver.AutoReconnect("gone"), when="after", command="pause the name")
        with pytest.raises(MonqueConnectionError):
            await monque.pause("a")
        await scheduler.enqueue("a")
        await drain(scheduler)
    assert work.started == []


async def test_nothing_is_claimed_while_it_cannot_be_known_what_is_paused(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    work = Jobs()
    async with open_test_scheduler(work.workers) as scheduler:
        await drain(scheduler)
        await monque.pause("a")
        with fail_next(scheduler, driver.AutoReconnect("gone"), command="which names are paused", times=3):
            await scheduler.enqueue("a")
            await scheduler.enqueue("b")
            await drain(scheduler)
    assert work.started == ["b"]


@pytest.mark.full
@pytest.mark.parametrize("change_stream", one_in(2, [True, False]))
async def test_pause_from_elsewhere_holds_for_every_claim_a_second_later_also_under_load(
    db: Database, monque: Monque, change_stream: bool
) -> None:
    """In real time, with claims that come one after the other."""
    work = Jobs(takes=0.01)
    async with open_scheduler(db, work.workers, concurrency_per_name=2, change_stream=change_stream) as scheduler:
        await scheduler.enqueue_many([NewJob(name="a") for _ in range(2000)])
        while len(work.starts) < 50:
            await trio.sleep(0.01)
        assert await elsewhere(lambda: monque.sync.pause("a"))
        # Two of another name, which are claimed in their turn when the second is over.
        for delay in (1.0, 1.2):
            await scheduler.enqueue("b", delay=delay)
        while work.started.count("b") < 2:
            await trio.sleep(0.01)
        assert "a" not in work.started[work.started.index("b") :]
        left = 2000 - work.started.count("a")
        assert left > 0
        assert (await scheduler.get_queue_stats(name="a")).pending == left


@pytest.mark.full
@pytest.mark.parametrize("change_stream", [True, False])
async def test_resume_from_elsewhere_is_noticed_soon_although_polls_are_rare(
    db: Database, monque: Monque, change_stream: bool
) -> None:
    work = Jobs()
    await monque.pause("a")
    async with open_scheduler(db, work.workers, poll_interval=3600.0, change_stream=change_stream) as scheduler:
        await scheduler.enqueue("a")
        await scheduler.enqueue("b")
        while not work.started:
            await trio.sleep(0.01)
        assert await elsewhere(lambda: monque.sync.resume("a"))
        while work.started != ["b", "a"]:
            await trio.sleep(0.01)


async def test_pause_between_the_look_and_the_claim_holds(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    """What was read ahead is of a name that is paused by now."""
    work = Jobs()
    async with open_test_scheduler(work.workers) as scheduler:
        await quiesce()
        During(scheduler, "look for due jobs", lambda: monque.sync.pause("a"))
        await scheduler.enqueue_many([NewJob(name="a"), NewJob(name="b")])
        await drain(scheduler)
        assert work.started == ["b"]
        # And one that is alone, and would be claimed by its id.
        await scheduler.enqueue("a")
        await drain(scheduler)
    assert work.started == ["b"]
    assert jobs.count_documents({"name": "a", "status": "pending", "attempts": None}) == 2


async def test_what_is_due_later_starts_on_time_when_its_name_is_resumed_during_a_look(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    """The look that is under way has not seen the resume, nor has the question after it what is due later."""
    work = Jobs()
    await monque.pause("a")
    await monque.enqueue("a", delay=100)
    async with open_test_scheduler(work.workers) as scheduler:
        await trio.sleep(1)
        During(scheduler, "look for due jobs", lambda: monque.sync.resume("a"))
        await scheduler.enqueue_many([NewJob(name="b"), NewJob(name="b")])
        await trio.sleep(1000)
    assert work.starts == [("b", 1.0), ("b", 1.0), ("a", 100.0)]


@pytest.mark.full
async def test_what_is_due_later_starts_on_time_when_a_claim_was_the_first_to_see_the_resume(
    db: Database, monque: Monque, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paused_names, "KNOWN_FOR", 0.0)
    work = Jobs()
    await monque.pause("a")
    async with open_scheduler(db, work.workers, poll_interval=3600.0, change_stream=False) as scheduler:
        while names_known_as_paused(scheduler) != {"a"}:
            await trio.sleep(0.01)
        await elsewhere(lambda: monque.sync.enqueue("a", delay=0.7))

        def resume() -> None:
            thread = threading.Thread(target=monque.sync.resume, args=("a",))
            thread.start()
            thread.join()

        During(scheduler, "read which names are paused", resume)
        await scheduler.enqueue_many([NewJob(name="b"), NewJob(name="b")])
        while sorted(work.started) != ["a", "b", "b"]:
            await trio.sleep(0.01)


async def test_pause_while_candidates_come_from_all_over_the_queue_ends_no_scheduler(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    contention = Contention(draw=lambda batches: batches - 1)
    for _ in range(2):
        contention.took(2, 0)
    assert contention.is_spread
    work = Jobs()
    async with open_test_scheduler(work.workers) as scheduler:
        await scheduler.pause("a")
        candidates_of(scheduler).contention = contention
        for _ in range(2):
            await scheduler.enqueue_many([NewJob(name="a"), NewJob(name="b")])
            await drain(scheduler)
    assert work.started == ["b", "b"]


async def test_pause_keeps_who_made_it_and_a_scheduler_is_its_instance(
    open_test_scheduler: SchedulerOpener, monque: Monque
) -> None:
    async with open_test_scheduler(Jobs().workers, instance_id="worker-1") as scheduler:
        await scheduler.pause("a")
        await scheduler.pause("b", by="dana")
    await monque.pause("c")
    await monque.pause("a", by="mallory")
    other = f"process {os.getpid()} on {socket.gethostname()}"
    assert [(one.name, one.by) for one in await monque.pauses()] == [("a", "worker-1"), ("b", "dana"), ("c", other)]
    with pytest.raises(InvalidOptionError, match="by"):
        await monque.pause("d", by=5)  # type: ignore[arg-type]
