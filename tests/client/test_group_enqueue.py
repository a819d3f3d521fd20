"""Group enqueue: concurrent callers share one statement, and each gets its answer, or is cancelled, on its own."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.interception import Interceptor, Recorder
from tests.support.internals import threads_of
from trio_monque import Monque
from trio_monque.client import group_enqueue
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import InvalidPayloadError, MonqueConnectionError
from trio_monque.store.driver.types import Collection, Database

BACKENDS = [("trio", {}), ("asyncio", {}), ("asyncio", {"use_uvloop": True})]
on_every_backend = pytest.mark.parametrize(("backend", "options"), BACKENDS)


class Held:
    """A client whose next insert waits, in its thread and before it is sent, until it is let go."""

    def __init__(self, uri: str, database: str, **options: Any) -> None:
        self.interceptor, self.recorder = Interceptor(), Recorder()
        self.client = MongoClient[Any](uri, event_listeners=[self.interceptor, self.recorder])
        self.monque = Monque(self.client[database], **options)
        self.monque.sync.enqueue("first")
        self.client[database]["monque_jobs"].delete_many({})
        self.entered, self.released = threading.Event(), threading.Event()
        self.hold()

    def hold(self) -> None:
        released = self.released

        def wait() -> None:
            self.entered.set()
            assert released.wait(50)

        self.interceptor.before(lambda name, _: name == "insert", wait)

    async def wait_entered(self) -> None:
        while not self.entered.is_set():
            await anyio.lowlevel.checkpoint()

    async def let_go_and_hold_the_next(self) -> None:
        held, self.released = self.released, threading.Event()
        self.entered.clear()
        self.hold()
        held.set()
        await self.wait_entered()

    @property
    def batches(self) -> list[list[Any]]:
        """The data of the jobs of each insert, as far as they were sent."""
        return [
            [document["data"] for document in command["documents"]]
            for name, command in self.recorder.commands
            if name == "insert"
        ][1:]


@pytest.fixture
def held(mongod: EmbeddedServer, db: Database) -> Iterator[Held]:
    held = Held(mongod.uri, db.name)
    yield held
    held.released.set()
    held.client.close()


async def spin() -> None:
    """Lets every other task run until it waits for something outside of the loop."""
    for _ in range(20):
        await anyio.lowlevel.checkpoint()


@on_every_backend
def test_what_piles_up_while_one_is_in_flight_is_one_batch(held: Held, backend: str, options: dict[str, Any]) -> None:
    jobs: list[int] = []

    async def enqueue(number: int) -> None:
        jobs.append((await held.monque.enqueue("greet", number)).data)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(enqueue, 0)
            await held.wait_entered()
            for number in range(1, 30):
                group.start_soon(enqueue, number)
            await spin()
            held.released.set()

    anyio.run(main, backend=backend, backend_options=options)
    first, second = held.batches
    assert first == [0]
    assert sorted(second) == list(range(1, 30))
    assert sorted(jobs) == list(range(30))


@on_every_backend
def test_callers_that_enqueue_all_the_time_stay_together(held: Held, backend: str, options: dict[str, Any]) -> None:
    """Woken together, they are one batch again, and not one and the rest by turns."""
    held.released.set()

    async def enqueue(number: int) -> None:
        for _ in range(4):
            await held.monque.enqueue("greet", number)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(enqueue, number)

    anyio.run(main, backend=backend, backend_options=options)
    assert [len(batch) for batch in held.batches] == [10, 10, 10, 10]


@on_every_backend
def test_caller_cancelled_before_its_batch_was_sent_sends_nothing_and_the_others_go_on(
    held: Held, jobs: Collection, backend: str, options: dict[str, Any]
) -> None:
    """The first that waits is to lead the next batch: it is the one that is cancelled, and the lead goes on."""
    ended: list[int] = []

    async def enqueue(number: int, scope: anyio.CancelScope) -> None:
        with scope:
            await held.monque.enqueue("greet", number)
            ended.append(number)

    async def main() -> None:
        scopes = [anyio.CancelScope() for _ in range(4)]
        async with anyio.create_task_group() as group:
            group.start_soon(enqueue, 0, scopes[0])
            await held.wait_entered()
            for number in (1, 2, 3):
                group.start_soon(enqueue, number, scopes[number])
                await spin()
            scopes[1].cancel()
            scopes[2].cancel()
            await spin()
            assert ended == []
            held.released.set()

    anyio.run(main, backend=backend, backend_options=options)
    assert ended == [0, 3]
    assert held.batches == [[0], [3]]
    assert sorted(document["data"] for document in jobs.find()) == [0, 3]


@on_every_backend
def test_caller_cancelled_after_its_batch_was_sent_awaits_it_leader_or_not(
    held: Held, jobs: Collection, backend: str, options: dict[str, Any]
) -> None:
    ended: list[int] = []

    async def enqueue(number: int) -> None:
        try:
            await held.monque.enqueue("greet", number)
            await anyio.lowlevel.checkpoint()  # On trio a leader's own call returns, and the cancellation waits here.
        finally:
            ended.append(number)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(enqueue, 0)
            await held.wait_entered()
            for number in (1, 2, 3):
                group.start_soon(enqueue, number)
            await spin()
            await held.let_go_and_hold_the_next()
            group.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await spin()
            assert ended == [0]
            held.released.set()

    anyio.run(main, backend=backend, backend_options=options)
    assert sorted(ended) == [0, 1, 2, 3]
    assert sorted(document["data"] for document in jobs.find()) == [0, 1, 2, 3]


@pytest.mark.parametrize("use_uvloop", [False, True])
@pytest.mark.parametrize("whom", ["leader", "follower"])
def test_native_cancellation_on_asyncio_awaits_the_batch_and_is_delivered(
    held: Held, jobs: Collection, use_uvloop: bool, whom: str
) -> None:
    async def main() -> None:
        first = asyncio.create_task(held.monque.enqueue("greet", 0))
        await held.wait_entered()
        second = asyncio.create_task(held.monque.enqueue("greet", 1))
        waiting = asyncio.create_task(held.monque.enqueue("greet", 2))
        await spin()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        cancelled, other = (first, second) if whom == "leader" else (second, first)
        if whom == "leader":
            for _ in range(3):  # A caller that is cancelled again waits as well.
                cancelled.cancel()
                await spin()
            assert not cancelled.done()
            held.released.set()
        else:
            third = asyncio.create_task(held.monque.enqueue("greet", 3))
            await spin()
            await held.let_go_and_hold_the_next()
            for _ in range(3):
                third.cancel()
                await spin()
            assert not third.done()
            held.released.set()
            cancelled, other = third, second
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await other

    anyio.run(main, backend="asyncio", backend_options={"use_uvloop": use_uvloop})
    assert jobs.count_documents({"data": 2}) == 0
    assert jobs.count_documents({}) == (2 if whom == "leader" else 3)


@on_every_backend
def test_leader_cancelled_while_it_waits_for_a_thread_passes_the_lead_on(
    held: Held, jobs: Collection, backend: str, options: dict[str, Any]
) -> None:
    """Ten other calls hold every thread for commands, so that the leader has its turn and nothing to run it."""
    free, running = threading.Event(), threading.Semaphore(0)
    held.interceptor.before(lambda *_: False, lambda: None)
    ended: list[int] = []

    def busy() -> None:
        running.release()
        assert free.wait(50)

    async def enqueue(number: int, scope: anyio.CancelScope) -> None:
        with scope:
            await held.monque.enqueue("greet", number)
            ended.append(number)

    async def main() -> None:
        leading = anyio.CancelScope()
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(threads_of(held.monque).call, busy)
            await spin()
            group.start_soon(enqueue, 0, leading)
            await spin()
            for number in (1, 2):
                group.start_soon(enqueue, number, anyio.CancelScope())
            await spin()
            leading.cancel()
            await spin()
            free.set()

    anyio.run(main, backend=backend, backend_options=options)
    assert sorted(ended) == [1, 2]
    assert sorted(document["data"] for document in jobs.find()) == [1, 2]


async def test_payload_of_one_caller_that_cannot_be_stored_spoils_no_other(db: Database, jobs: Collection) -> None:
    monque = Monque(db, max_payload_size=100)
    refused = 0

    async def enqueue(number: int) -> None:
        nonlocal refused
        if number % 5:
            await monque.enqueue("greet", number)
            return
        with pytest.raises(InvalidPayloadError):
            await monque.enqueue("greet", object() if number % 2 else "x" * 200)
        refused += 1

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(enqueue, number)
    assert refused == 10
    assert jobs.count_documents({}) == 40


async def test_each_caller_of_a_group_gets_its_own_outcome(db: Database, jobs: Collection) -> None:
    db.create_collection("monque_jobs", validator={"data": {"$mod": [5, 1]}} | {"data": {"$ne": 7}})
    monque = Monque(db)
    outcomes: dict[int, object] = {}

    async def enqueue(number: int) -> None:
        try:
            outcomes[number] = (await monque.enqueue("greet", number)).data
        except MonqueConnectionError as error:
            outcomes[number] = str(error)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(enqueue, number)
    assert "Document failed validation" in str(outcomes.pop(7))
    assert outcomes == {number: number for number in range(20) if number != 7}
    assert jobs.count_documents({}) == 19


async def test_batch_is_bounded_by_count_and_by_bytes(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_enqueue, "MOST_JOBS", 3)
    monkeypatch.setattr(group_enqueue, "MOST_BYTES", 1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.monque.enqueue, "greet", 0)
        await held.wait_entered()
        for data in (1, 2, 3, 4, "x" * 2000, 5, "y" * 700, "z" * 700):
            nursery.start_soon(held.monque.enqueue, "greet", data)
            await spin()
        held.released.set()
    shown = [[data[0] if isinstance(data, str) else data for data in batch] for batch in held.batches]
    assert shown == [[0], [1, 2, 3], [4], ["x"], [5, "y"], ["z"]]


async def test_enqueues_in_flight_hold_virtual_time(held: Held, autojump_clock: MockClock) -> None:
    ended = trio.Event()

    async def enqueue_all() -> None:
        async with trio.open_nursery() as enqueuing:
            enqueuing.start_soon(held.monque.enqueue, "greet", 0)
            await held.wait_entered()
            for number in range(5):
                enqueuing.start_soon(held.monque.enqueue, "greet", number)
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(enqueue_all)
        await trio.testing.wait_all_tasks_blocked()
        assert autojump_clock.autojump_threshold == math.inf
        held.released.set()
        # Nothing else is left to do: a clock without a hold would jump to this end.
        with trio.fail_after(3600):
            await ended.wait()
    assert trio.current_time() == 0


def test_loops_in_several_threads_share_one_client(db: Database, jobs: Collection) -> None:
    monque = Monque(db)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(monque.enqueue, "greet", number)

    threads = [
        threading.Thread(target=partial(anyio.run, main, backend=backend, backend_options=options))
        for backend, options in [*BACKENDS, *BACKENDS]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert jobs.count_documents({}) == 180


async def test_callers_cancelled_at_any_moment_leave_no_caller_waiting(db: Database, jobs: Collection) -> None:
    """On the real clock, as the moments are those of real threads: each caller that was not cancelled has its job."""
    monque = Monque(db)
    stored: set[object] = set()

    async def enqueue(number: int) -> None:
        with trio.move_on_after(number % 7 * 0.0005 if number % 3 else math.inf):
            stored.add((await monque.enqueue("greet", number)).id)

    for _ in range(10):
        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(enqueue, number)
    assert len(stored) >= 200
    assert stored <= {document["_id"] for document in jobs.find()}
