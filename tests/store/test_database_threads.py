"""DatabaseThreads: what cancellation leaves behind, on trio and on asyncio."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import cast

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio
from trio.testing import MockClock

from tests.support.store import PAST, claim_due, handle, insert, stamp
from trio_monque.jobs.claim_stamps_and_fences import ClaimStamp
from trio_monque.store.driver.database_threads import Channel, DatabaseThreads, Handoff
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import claiming
from trio_monque.testing import quiesce

BACKENDS = [("trio", {}), ("asyncio", {}), ("asyncio", {"use_uvloop": True})]


async def test_claims_that_are_cancelled_at_any_moment_strand_nothing(db: Database, jobs: Collection) -> None:
    """On the real clock, as the moments are those of real threads: most waits end before the answer, some after."""
    store, db_threads = handle(db), DatabaseThreads()
    for _ in range(40):
        insert(store)
    chance = random.Random(13)
    ended = 0

    def claim(mark: ClaimStamp) -> object:
        return claim_due(store, {"greet": 2}, mark)

    def give_back(mark: ClaimStamp, _: object) -> None:
        claiming.release_all(store, mark, PAST)

    async def claim_and_be_cancelled() -> None:
        nonlocal ended
        mark = stamp()
        with trio.move_on_after(chance.uniform(0, 0.02)):
            await db_threads.hand_over(partial(claim, mark), partial(give_back, mark), channel=Channel.CLAIMS)
            claiming.release_all(store, mark, PAST)
        ended += 1

    for _ in range(15):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(claim_and_be_cancelled)
    assert ended == 150
    await quiesce()
    assert jobs.count_documents({"status": "processing"}) == 0


class CancellingLock:
    """Cancels the waiting task at the worst moment: its thread has decided that the task owns the result."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope
        self._token = trio.lowlevel.current_trio_token()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        with suppress(RuntimeError):  # In the task itself, which is already cancelled.
            trio.from_thread.run_sync(self._scope.cancel, trio_token=self._token)


async def test_result_that_was_decided_for_the_task_and_never_reached_it_goes_to_the_orphanage() -> None:
    orphaned = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def orphan(result: str | None) -> None:
        assert result == "granted"
        trio.from_thread.run_sync(orphaned.set, trio_token=token)

    with trio.CancelScope() as scope:
        handoff = Handoff(lambda: "granted", orphan, lock=cast("threading.Lock", CancellingLock(scope)))
        try:
            await DatabaseThreads().call(handoff.produce, abandon_on_cancel=True)
        except trio.Cancelled:
            handoff.abandon()
            raise
    assert scope.cancelled_caught
    await orphaned.wait()


async def test_failure_that_never_reached_the_task_is_given_to_the_orphanage_as_well() -> None:
    """What failed may have been applied all the same, and no caller looks up its outcome."""
    orphaned = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def orphan(result: str | None) -> None:
        assert result is None
        trio.from_thread.run_sync(orphaned.set, trio_token=token)

    def fails() -> str:
        raise ConnectionError("the answer was lost")

    with trio.CancelScope() as scope:
        handoff = Handoff(fails, orphan, lock=cast("threading.Lock", CancellingLock(scope)))
        try:
            await DatabaseThreads().call(handoff.produce, abandon_on_cancel=True)
        except trio.Cancelled:
            handoff.abandon()
            raise
    assert scope.cancelled_caught
    await orphaned.wait()


async def test_result_that_comes_after_the_cancellation_goes_to_the_orphanage(autojump_clock: MockClock) -> None:
    db_threads = DatabaseThreads()
    entered, release = threading.Event(), threading.Event()
    orphans: list[str | None] = []

    def slow() -> str:
        entered.set()
        release.wait(50)
        return "granted"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(db_threads.hand_over, slow, orphans.append, channel=Channel.CLAIMS))
        while not entered.is_set():
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert orphans == []
    release.set()
    await quiesce()
    assert orphans == ["granted"]


@pytest.mark.parametrize(("backend", "options"), BACKENDS)
def test_call_cancelled_before_its_turn_sends_nothing_and_one_that_was_sent_is_awaited(
    backend: str, options: dict[str, object]
) -> None:
    sent: list[int] = []
    ended: list[int] = []
    running, release = threading.Semaphore(0), threading.Event()

    def call(number: int) -> None:
        sent.append(number)
        running.release()
        assert release.wait(50)

    async def main() -> None:
        db_threads = DatabaseThreads()
        most = Channel.COMMANDS.value

        async def one(number: int) -> None:
            try:
                await db_threads.call(partial(call, number))
            finally:
                ended.append(number)

        async def let_go_when_the_others_have_ended() -> None:
            with anyio.CancelScope(shield=True):
                while len(ended) < 3:
                    await anyio.lowlevel.checkpoint()
            release.set()

        async with anyio.create_task_group() as group:
            for number in range(most + 3):
                group.start_soon(one, number)
            for _ in range(most):
                assert await anyio.to_thread.run_sync(running.acquire, True, 50)
            group.start_soon(let_go_when_the_others_have_ended)
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert len(sent) == most
        assert sorted(ended[:3]) == sorted(set(range(most + 3)) - set(sent))  # The others never were sent,
        assert sorted(ended[3:]) == sorted(sent)  # and those that were sent were awaited.

    anyio.run(main, backend=backend, backend_options=options)


@pytest.mark.parametrize("use_uvloop", [False, True])
def test_native_cancellation_on_asyncio_awaits_the_thread_and_is_delivered(use_uvloop: bool) -> None:
    steps: list[str] = []
    entered, release = threading.Event(), threading.Event()

    def call() -> None:
        entered.set()
        assert release.wait(50)
        steps.append("thread ended")
        raise ValueError("nobody hears of it")

    async def main() -> None:
        task = asyncio.create_task(DatabaseThreads().call(call))
        assert await asyncio.to_thread(entered.wait, 50)
        for _ in range(3):  # A caller that is cancelled again waits as well.
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        steps.append("cancelled")

    anyio.run(main, backend="asyncio", backend_options={"use_uvloop": use_uvloop})
    assert steps == ["thread ended", "cancelled"]


@pytest.mark.parametrize("turns", range(3))
def test_native_cancellation_of_a_call_before_it_is_sent_keeps_its_turn_for_others(turns: int) -> None:
    """The limiter of many versions of anyio loses a turn here, and after ten such calls every call waits for ever."""

    async def main() -> None:
        db_threads = DatabaseThreads()
        for _ in range(2 * Channel.COMMANDS.value):
            task = asyncio.create_task(db_threads.call(lambda: 7))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await db_threads.call(lambda: 7) == 7

    asyncio.run(main())


@pytest.mark.parametrize(("backend", "options"), BACKENDS)
def test_errors_and_results_of_the_thread_are_the_calls(backend: str, options: dict[str, object]) -> None:
    def broken() -> None:
        raise KeyError("x")

    async def main() -> None:
        db_threads = DatabaseThreads()
        assert await db_threads.call(lambda: 7) == 7
        with pytest.raises(KeyError):
            await db_threads.call(broken)

    anyio.run(main, backend=backend, backend_options=options)


async def test_call_that_is_sent_after_the_end_of_its_grace_is_not_awaited_once_it_is_cancelled() -> None:
    db_threads, began, goes_on = DatabaseThreads(), trio.Event(), threading.Event()
    db_threads.grace.end()
    token, scope, ended = trio.lowlevel.current_trio_token(), trio.CancelScope(), trio.Event()

    def work() -> None:
        token.run_sync_soon(began.set)
        goes_on.wait(20)

    async def call() -> None:
        with scope:
            await db_threads.call(work)
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await began.wait()
        scope.cancel()
        with trio.move_on_after(5) as wait:
            await ended.wait()
        goes_on.set()
    assert scope.cancelled_caught
    assert not wait.cancelled_caught


async def test_renewals_do_not_wait_behind_commands(autojump_clock: MockClock) -> None:
    db_threads = DatabaseThreads()
    release = threading.Event()
    waiting: Callable[[], object] = partial(release.wait, 50)
    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(partial(db_threads.call, waiting))
        await trio.testing.wait_all_tasks_blocked()
        assert await db_threads.call(lambda: "renewed", channel=Channel.RENEWALS) == "renewed"
        release.set()
