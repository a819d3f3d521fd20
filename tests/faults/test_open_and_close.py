"""A scheduler that has been left leaves nothing behind: no thread, no connection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import pytest
import trio
from pymongo import MongoClient, monitoring

from tests.support.open_resources import RELAY, Connections, threads
from tests.support.thoroughly import in_full
from trio_monque import RunningJob, Workers, open_scheduler
from trio_monque.events import JobCompleted
from trio_monque.store.driver.types import Database

CYCLES: Final = in_full(10, 100)
# More at once than in any later cycle: what trio and the driver keep of threads and connections is then at its peak.
AT_ONCE_IN_THE_FIRST: Final = 10


class Together(monitoring.CommandListener):
    """Sends the first keyed enqueues together, each on a connection of its own."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._lock = threading.Lock()
        self._complete = threading.Event()

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if event.command_name == "findAndModify":
            with self._lock:
                self._missing -= 1
                if self._missing == 0:
                    self._complete.set()
            self._complete.wait(20)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


def is_lasting(name: str) -> bool:
    """Not a question that is under way, and not a watchdog: it is not joined, and ends when it gets the processor."""
    return " from " not in name and not name.endswith("watchdog")


async def wait_only(is_expected: Callable[[str], bool]) -> None:
    """Until all threads are, or have had more time than any command has."""
    with trio.move_on_after(45):
        while not all(map(is_expected, threads())):
            await trio.sleep(0.002)
    assert [name for name in threads() if not is_expected(name)] == []


async def open_and_close(db: Database, at_once: int) -> None:
    """Runs `at_once` jobs of each kind, and leaves."""
    workers, completed, all_completed = Workers(), 0, trio.Event()

    @workers.register("async", concurrency=at_once)
    async def is_async(job: RunningJob[Any]) -> None:
        await trio.lowlevel.checkpoint()

    @workers.register("plain", concurrency=at_once)
    def is_plain(job: RunningJob[Any]) -> None:
        all_there.wait(20)

    def count(_: JobCompleted) -> None:
        nonlocal completed
        completed += 1
        if completed == 2 * at_once:
            trio.from_thread.run_sync(all_completed.set)

    all_there = threading.Barrier(at_once)
    async with open_scheduler(db, workers, listeners={JobCompleted: count}) as scheduler:
        async with trio.open_nursery() as nursery:
            for number in range(at_once):
                for name in ("async", "plain"):
                    # With a key of its own each is a command of its own.
                    nursery.start_soon(lambda n, k: scheduler.enqueue(n, unique_key=k), name, str(number))
        with trio.fail_after(20):
            await all_completed.wait()


@pytest.mark.full
@pytest.mark.larger_in_full
async def test_hundred_cycles_leave_no_more_threads_and_connections_than_the_first(db: Database) -> None:
    connections, together = Connections(), Together(AT_ONCE_IN_THE_FIRST)
    address = ":".join(str(part) for part in db.client.address or ())
    with MongoClient[dict[str, Any]](
        f"mongodb://{address}/?directConnection=true", tz_aware=True, event_listeners=[connections, together]
    ) as client:
        # What other tests have left behind ends by itself; a wait for it later would outlast idle threads.
        await wait_only(is_lasting)
        await open_and_close(client[db.name], AT_ONCE_IN_THE_FIRST)
        await wait_only(is_lasting)
        first_threads, first_connections = threads(), connections.open
        for _ in range(CYCLES - 1):
            await open_and_close(client[db.name], 1)
            assert connections.open <= first_connections
            # An abandoned query may still be under way.
            await wait_only(first_threads.__contains__)
            now = threads()
            assert all(count <= first_threads[name] for name, count in now.items()), (now, first_threads)
    assert first_connections >= AT_ONCE_IN_THE_FIRST


def test_relays_that_other_tests_keep_are_not_counted() -> None:
    ends = threading.Event()
    relay = threading.Thread(target=ends.wait, name=RELAY)
    relay.start()
    counted = threads()
    ends.set()
    relay.join()
    assert RELAY not in counted
