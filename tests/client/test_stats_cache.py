"""The cache of statistics: one question for all who ask at once, and it belongs to none of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
import trio
from pymongo import MongoClient
from pymongo import errors as driver
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.interception import Recorder
from trio_monque import Monque, clock, open_scheduler
from trio_monque.client import stats_cache
from trio_monque.client.stats_cache import StatsCache
from trio_monque.clock import VirtualTime
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import InvalidOptionError, MonqueConnectionError
from trio_monque.jobs import QueueStats
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import advance, fail_next

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Question:
    """Stands for the query to the database: the test decides when it returns."""

    def __init__(self) -> None:
        self.times = 0
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.error: Exception | None = None

    def __call__(self) -> QueueStats:
        self.times += 1
        self.asked.set()
        assert self.may_answer.wait(50)
        if self.error is not None:
            raise self.error
        return QueueStats(pending=self.times)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def watched(mongod: EmbeddedServer, db: Database, recorder: Recorder) -> Iterator[Database]:
    with MongoClient[Any](mongod.uri, event_listeners=[recorder], tz_aware=True) as client:
        yield client[db.name]


def counts(recorder: Recorder) -> int:
    return recorder.count(lambda name, _: name == "aggregate")


async def test_cached_statistics_are_reused_for_their_time_by_the_clock_of_the_run(
    watched: Database, recorder: Recorder, autojump_clock: MockClock
) -> None:
    monque = Monque(watched)
    await monque.enqueue("a")
    assert (await monque.get_queue_stats()).pending == 1
    await monque.enqueue("a")
    await trio.sleep(4.9)
    assert (await monque.get_queue_stats()).pending == 1
    assert await trio.to_thread.run_sync(monque.sync.get_queue_stats) == await monque.get_queue_stats()
    assert counts(recorder) == 1
    await trio.sleep(0.1)
    assert (await monque.get_queue_stats()).pending == 2
    assert counts(recorder) == 2


async def test_statistics_are_cached_by_name(watched: Database, recorder: Recorder, autojump_clock: MockClock) -> None:
    monque = Monque(watched)
    await monque.enqueue("a")
    for _ in range(2):
        assert [(await monque.get_queue_stats(name=name)).total for name in ("a", "b", None)] == [1, 0, 1]
    assert counts(recorder) == 3


def test_statistics_are_not_cached_with_a_time_of_zero(watched: Database, recorder: Recorder) -> None:
    monque = Monque(watched, stats_cache_ttl=0)
    for _ in range(3):
        monque.sync.get_queue_stats()
    assert counts(recorder) == 3
    with pytest.raises(InvalidOptionError, match="stats_cache_ttl"):
        Monque(watched, stats_cache_ttl=-1)


async def test_caller_may_ask_for_a_younger_answer_than_others(autojump_clock: MockClock) -> None:
    cache: StatsCache[str] = StatsCache(5.0)
    assert cache.get("name", lambda: "old") == "old"
    await trio.sleep(1)
    assert cache.known("name") == cache.known("name", 1.5) == "old"
    assert cache.known("name", 1.0) is None
    assert cache.get("name", lambda: "young", 1.0) == "young"
    assert cache.known("name") == "young"  # Now all have it.
    await trio.sleep(4)
    assert cache.known("name", 60.0) == "young"
    await trio.sleep(1)
    assert cache.known("name", 60.0) is None  # Nothing is kept longer than the option says.


def test_statistics_cache_keeps_a_hundred_names_and_drops_the_oldest_first() -> None:
    cache: StatsCache[QueueStats] = StatsCache(5.0)
    for number in range(stats_cache.MOST_NAMES + 1):
        cache.get(str(number), lambda number=number: QueueStats(pending=number))  # type: ignore[misc]
    known = [number for number in range(stats_cache.MOST_NAMES + 1) if cache.known(str(number)) is not None]
    assert len(known) == stats_cache.MOST_NAMES
    assert cache.known("0") is None
    assert cache.known("1") == QueueStats(pending=1)


async def test_statistics_cache_is_cleared_when_the_scheduler_ends(db: Database, jobs: Collection) -> None:
    async with open_scheduler(db) as scheduler:
        assert (await scheduler.get_queue_stats()).total == 0
        await scheduler.enqueue("nobody-runs-it")
        assert (await scheduler.get_queue_stats()).total == 0
    assert scheduler.sync_in_loop.get_queue_stats().total == 1


def test_cached_statistics_of_one_timeline_are_not_used_in_another(db: Database) -> None:
    monque = Monque(db)

    async def count() -> int:
        return (await monque.get_queue_stats()).total

    assert trio.run(count, clock=MockClock(autojump_threshold=0)) == 0
    monque.sync.enqueue("a")
    assert trio.run(count, clock=MockClock(autojump_threshold=0)) == 1


def asking(monque: Monque, question: Question, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_monque.store.reads.job_counts.queue_stats", lambda *_: question())


async def test_cancelled_first_caller_leaves_the_question_to_the_others(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monque, question, got = Monque(db), Question(), []
    asking(monque, question, monkeypatch)

    async def ask() -> None:
        got.append(await monque.get_queue_stats())

    async with trio.open_nursery() as nursery:
        first = trio.CancelScope()

        async def ask_first() -> None:
            with first:
                await ask()

        nursery.start_soon(ask_first)
        await trio.to_thread.run_sync(question.asked.wait)
        for _ in range(3):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        first.cancel()
        await wait_all_tasks_blocked()
        assert not got
        question.may_answer.set()
    assert got == [QueueStats(pending=1)] * 3
    assert question.times == 1


def test_question_is_one_for_trio_asyncio_and_threads_at_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monque, question = Monque(db), Question()
    asking(monque, question, monkeypatch)
    got: list[QueueStats] = []

    async def ask() -> None:
        got.append(await monque.get_queue_stats())

    def ask_blocking() -> None:
        got.append(monque.sync.get_queue_stats())

    asks: list[Callable[[], None]] = [
        lambda: trio.run(ask),
        lambda: asyncio.run(ask()),
        lambda: anyio.run(ask, backend="asyncio", backend_options={"use_uvloop": True}),
        ask_blocking,
    ]
    threads = [threading.Thread(target=one) for one in asks]
    threads[0].start()
    assert question.asked.wait(50)
    for thread in threads[1:]:
        thread.start()
    question.may_answer.set()
    for thread in threads:
        thread.join(50)
    assert got == [QueueStats(pending=1)] * 4
    assert question.times == 1


async def test_thread_that_asks_the_loop_for_the_time_does_not_block_a_call_in_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of trio.to_thread asks the loop for the time of the run: with a lock held, both would wait for ever."""
    cache: StatsCache[QueueStats] = StatsCache(5.0)
    cache.get(None, QueueStats)
    token, known = trio.lowlevel.current_trio_token(), []

    def virtual_time() -> VirtualTime | None:
        if not trio.lowlevel.in_trio_task():
            # The loop does this first, and then answers the thread.
            token.run_sync_soon(lambda: known.append(cache.known(None)))
        return clock.virtual_time()

    monkeypatch.setattr(stats_cache, "virtual_time", virtual_time)
    await trio.to_thread.run_sync(cache.get, None, QueueStats)
    assert known == [QueueStats()]


async def test_asyncio_task_that_is_cancelled_natively_leaves_the_question_to_the_others() -> None:
    def main() -> None:
        asyncio.run(cancelled_first())

    async def cancelled_first() -> None:
        cache, question = StatsCache[QueueStats](5.0), Question()
        first = asyncio.create_task(asyncio.to_thread(cache.get, None, question))
        await asyncio.to_thread(question.asked.wait)
        second = asyncio.create_task(asyncio.to_thread(cache.get, None, question))
        first.cancel()
        question.may_answer.set()
        assert await second == QueueStats(pending=1)
        assert question.times == 1

    await trio.to_thread.run_sync(main)


async def test_error_reaches_all_waiting_callers_and_is_not_cached(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monque, question, reported = Monque(db), Question(), []
    asking(monque, question, monkeypatch)
    question.error = MonqueConnectionError("gone")

    async def ask() -> None:
        with pytest.raises(MonqueConnectionError, match="gone") as caught:
            await monque.get_queue_stats()
        reported.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.to_thread.run_sync(question.asked.wait)
        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        question.may_answer.set()
    assert len({id(error) for error in reported}) == 2  # Each has a traceback of its own.
    question.error = None
    assert (await monque.get_queue_stats()).pending == question.times


async def test_other_errors_of_statistics_are_connection_errors(db: Database, autojump_clock: MockClock) -> None:
    monque = Monque(db, stats_cache_ttl=0)
    gone = driver.AutoReconnect("gone")
    with fail_next(monque, gone, command="^count jobs$"), pytest.raises(MonqueConnectionError) as caught:
        await monque.get_queue_stats()
    assert type(caught.value) is MonqueConnectionError
    assert caught.value.__cause__ is gone
    await advance(1)


def test_what_was_asked_before_a_clearing_is_not_kept() -> None:
    cache, question = StatsCache[QueueStats](5.0), Question()
    got: list[QueueStats] = []
    thread = threading.Thread(target=lambda: got.append(cache.get(None, question)))
    thread.start()
    assert question.asked.wait(50)
    cache.clear()
    question.may_answer.set()
    thread.join(50)
    assert got == [QueueStats(pending=1)]
    assert cache.known(None) is None
