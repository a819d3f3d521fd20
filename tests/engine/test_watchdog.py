"""Whatever keeps the loop or the end from going on is named, with the job and its frames."""

from __future__ import annotations

import math
import threading
import time

import pytest
import trio
from trio.testing import MockClock

from tests.support.engine_log import LogLine, block_the_loop_until, hearing
from tests.support.internals import answered_at
from tests.support.shelf import Shelf, engine_of, running
from trio_monque.engine import watchdog as watchdog_module
from trio_monque.engine.run import Run
from trio_monque.engine.shutdown import HARD_END_AFTER


async def run_blocking(shelf: Shelf, blocked: LogLine, going_on: LogLine) -> None:
    """On the real clock. Each block is counted once; a busy machine may add some of its own."""
    engine = engine_of(shelf)
    with hearing("the event loop stood still") as stood_still:
        async with running(engine):
            while not shelf.settled or not going_on.logged.is_set():
                await trio.sleep(0.01)
            assert engine.watchdog.blocks.count == len(going_on.messages) + len(stood_still.messages)
    assert len(blocked.messages) >= 1


@pytest.mark.full
async def test_handler_that_blocks_the_loop_is_named_with_its_frames() -> None:
    with hearing("the event loop is blocked") as blocked, hearing("the event loop was blocked") as going_on:

        async def blocks(run: Run[int]) -> None:
            block_the_loop_until(blocked)

        await run_blocking(Shelf(items=[4711], handler=blocks), blocked, going_on)
    assert "by the handler of 4711" in blocked.messages[0]
    # The frames of trio and of the engine, which are the same for every handler, are left out.
    assert blocked.messages[0].splitlines()[1].endswith("in execute")  # Of the source in this test.
    assert "block_the_loop_until(blocked)" in blocked.messages[0]


@pytest.mark.full
async def test_task_of_a_handlers_nursery_is_the_handlers() -> None:
    with hearing("the event loop is blocked") as blocked, hearing("the event loop was blocked") as going_on:

        async def child() -> None:
            block_the_loop_until(blocked)

        async def spawns(run: Run[int]) -> None:
            async with trio.open_nursery() as nursery, trio.open_nursery() as inner:
                nursery.start_soon(trio.lowlevel.checkpoint)
                inner.start_soon(child)

        await run_blocking(Shelf(items=[4711], handler=spawns), blocked, going_on)
    assert "by the handler of 4711" in blocked.messages[0]


@pytest.mark.full
async def test_others_that_block_the_loop_are_not_blamed_on_a_handler() -> None:
    shelf = Shelf(items=[4711])
    with hearing("the event loop is blocked") as blocked, hearing("the event loop was blocked") as going_on:
        engine = engine_of(shelf)
        async with running(engine):
            while answered_at(engine.watchdog) == 0.0:  # A thread of an earlier engine may still be there.
                await trio.sleep(0.01)
            block_the_loop_until(blocked)
            while not going_on.logged.is_set():
                await trio.sleep(0.01)
    assert "something outside of the handlers" in blocked.messages[0]
    assert "block_the_loop_until(blocked)" in blocked.messages[0]


async def test_watchdog_ends_with_the_engine() -> None:
    shelf = Shelf()
    async with running(engine_of(shelf)):
        while "trio_monque watchdog" not in [thread.name for thread in threading.enumerate()]:
            await trio.lowlevel.checkpoint()
    while "trio_monque watchdog" in [thread.name for thread in threading.enumerate()]:
        await trio.lowlevel.checkpoint()


async def test_process_that_was_frozen_did_not_block_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog was frozen as well, and knows it by its own clock."""
    thawed_at = math.inf

    class Clock:
        @staticmethod
        def monotonic() -> float:
            now = time.monotonic()
            return now + 100 if now >= thawed_at else now

    monkeypatch.setattr(watchdog_module, "time", Clock)
    engine = engine_of(Shelf())
    with hearing("the event loop") as reported:
        async with running(engine):
            while answered_at(engine.watchdog) == 0.0:
                await trio.lowlevel.checkpoint()
            thawed_at = time.monotonic()
            while answered_at(engine.watchdog) < thawed_at + 100:
                await trio.lowlevel.checkpoint()
    assert reported.messages == []
    assert engine.watchdog.blocks.count == 0


async def test_handler_that_swallows_its_cancellation_is_named_every_second(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def swallows(run: Run[int]) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    shelf = Shelf(items=[4711, 4712], handler=swallows)
    async with running(engine_of(shelf, shutdown_timeout=10.0, cleanup_timeout=5.0)):
        await trio.sleep(1)
    assert trio.current_time() == 60
    reported = [record.getMessage() for record in caplog.records if "swallows its cancellation" in record.getMessage()]
    assert all("await trio.sleep(60)" in message for message in reported)
    # From its hard end on: two handlers, each second.
    assert len(reported) == 2 * len(range(int(1 + 10 + 5 + HARD_END_AFTER) + 1, 61))
    assert {message.split(",")[0].split()[-1] for message in reported} == {"4711", "4712"}


async def test_handler_that_ends_in_time_is_not_named(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def cleans_up(run: Run[int]) -> None:
        try:
            await trio.sleep(60)
        finally:
            with run.cleaning_up(100):
                await trio.sleep(100)

    async with running(engine_of(Shelf(items=[1], handler=cleans_up), shutdown_timeout=0.0)):
        await trio.sleep(1)
    assert trio.current_time() == 6
    assert "swallows" not in caplog.text
