"""Tests of `tests.support.joined_time`: an asyncio loop and the runtimes beside it share one virtual time."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import anyio
import anyio.to_thread
import trio

from tests.bridge.support import AppRunner, open_engine
from trio_monque.store.driver.database_threads import DatabaseThreads

A_MINUTE = 60.0


run: Final = AppRunner("joined").run


def test_earliest_deadline_of_loop_and_runtimes_comes_first_and_exactly() -> None:
    log = list[tuple[str, float]]()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        began_at = loop.time()

        async def in_loop(seconds: float) -> None:
            await asyncio.sleep(seconds)
            log.append(("loop", loop.time() - began_at))

        async def in_runtime(seconds: float) -> None:
            await trio.sleep(seconds)
            log.append(("runtime", trio.current_time() - began_at))

        async with open_engine() as engine, open_engine() as other, asyncio.TaskGroup() as tasks:
            tasks.create_task(in_loop(2 * A_MINUTE))
            tasks.create_task(engine.in_runtime(in_runtime, A_MINUTE))
            tasks.create_task(other.in_runtime(in_runtime, 3 * A_MINUTE))

    run(main)
    assert log == [("runtime", A_MINUTE), ("loop", 2 * A_MINUTE), ("runtime", 3 * A_MINUTE)]


def test_messages_between_loop_and_runtime_take_no_time() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def there_and_back() -> None:
            for _ in range(300):
                await engine.app_loop.call(asyncio.sleep, 0)

        async with open_engine() as engine:
            # Each jump would be to one of these.
            alarms = [loop.call_later(number / 1000, list) for number in range(1, 100)]
            began_at = loop.time()
            await engine.in_runtime(there_and_back)
            assert loop.time() == began_at
            for alarm in alarms:
                alarm.cancel()

    run(main)


def test_threads_of_loop_and_runtime_hold_the_time() -> None:
    async def main() -> None:
        loop, threads = asyncio.get_running_loop(), DatabaseThreads()
        began_at = loop.time()

        def work() -> None:
            time.sleep(0.05)  # What the database does takes real time.

        async def in_runtime() -> None:
            await threads.call(work)

        async with open_engine() as engine:
            with anyio.fail_after(0.01):  # In virtual seconds, nothing of it takes any.
                await engine.in_runtime(in_runtime)
                await threads.call(work)
                await asyncio.to_thread(work)
                await anyio.to_thread.run_sync(work)
            assert loop.time() == began_at
        assert loop.time() == began_at  # Nor does the end of the runtime.

    run(main)
