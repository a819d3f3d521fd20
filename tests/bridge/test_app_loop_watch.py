"""The runtime watches the application loop: what blocks it is named, and its end is noticed."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final

import pytest
import trio

from tests.bridge.support import AppRunner, Engine, move_clock, open_engine, until
from tests.support.internals import canary_of, thread_of, without_wake_ups
from tests.support.waiting import wait_until
from trio_monque.bridge.app_loop_watch import LOOK_INTERVAL, PAUSED_AFTER, AppLoopWatch
from trio_monque.bridge.mailbox import Mailbox
from trio_monque.engine.loop_blocks import BLOCKED_AFTER

LOOKS_UNTIL_BLOCKED: Final = 1 + round(BLOCKED_AFTER / LOOK_INTERVAL)
"""At the first look, the watch asks."""

MOVED_BY_HAND: Final = pytest.mark.usefixtures("moved_by_hand")
"""The clock of the runtime, by which the watch looks: else a busy machine would make the loop late by itself."""


def look_often(engine: Engine, looks: int) -> None:
    """Let so much time pass that the watch looks so often. This blocks the loop of the application."""
    for _ in range(looks):
        move_clock(engine.runtime, LOOK_INTERVAL)


@MOVED_BY_HAND
def test_handler_that_blocks_the_loop_is_named_with_its_stack(app: AppRunner, caplog: pytest.LogCaptureFixture) -> None:
    async def rude(engine: Engine) -> list[tuple[float, bool, int]]:
        seen = list[tuple[float, bool, int]]()
        look_often(engine, 1)  # The watch asks.
        while not engine.app_loop.blocks.count:
            look_often(engine, 1)
            seen.append((engine.app_loop.lag, engine.app_loop.is_answering, engine.app_loop.blocks.count))
        return seen

    async def main() -> None:
        async with open_engine() as engine:
            recovered: list[bool] = []
            engine.app_loop.when_recovered(lambda: recovered.append(engine.app_loop.is_answering))
            seen = await engine.call(rude, engine, label="the handler of job 7")
            assert seen == [(0.25, True, 0), (PAUSED_AFTER, False, 0), (0.75, False, 0), (BLOCKED_AFTER, False, 1)]
            await until(lambda: recovered)
            assert recovered == [True]
            assert (engine.app_loop.blocks.count, engine.app_loop.lag) == (1, BLOCKED_AFTER)
            look_often(engine, 1)
            await engine.in_runtime(trio.lowlevel.checkpoint)  # By then the loop has answered.
            look_often(engine, 1)
            assert engine.app_loop.lag == 0.0

    app.run(main)
    error, warning, *rest = [record for record in caplog.records if record.name == "trio_monque.bridge"]
    assert rest == []
    assert (error.levelno, warning.levelno) == (logging.ERROR, logging.WARNING)
    assert "by the handler of job 7." in error.getMessage()
    assert "in rude" in error.getMessage()
    assert "the event loop of the application was blocked for 1.0 s" in warning.getMessage()


@MOVED_BY_HAND
def test_block_by_something_else_names_no_handler(app: AppRunner, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            look_often(engine, LOOKS_UNTIL_BLOCKED)
            assert engine.app_loop.blocks.count == 1

    app.run(main)
    assert "by something outside of the handlers." in caplog.text


@MOVED_BY_HAND
def test_runtime_goes_on_while_the_loop_is_blocked(app: AppRunner) -> None:
    """What renews leases is there."""

    async def main() -> None:
        async with open_engine() as engine:
            renewed_at = list[float]()

            async def renew() -> None:
                while True:
                    await trio.sleep(LOOK_INTERVAL)
                    renewed_at.append(trio.current_time())

            engine.runtime.post(lambda: engine.nursery.start_soon(renew))
            look_often(engine, LOOKS_UNTIL_BLOCKED)
            assert engine.app_loop.blocks.count == 1
            assert renewed_at == [LOOK_INTERVAL * number for number in range(1, LOOKS_UNTIL_BLOCKED + 1)]

    app.run(main)


def test_answer_reaches_the_runtime_although_its_turn_of_the_loop_blocks(app: AppRunner) -> None:
    """Answers wait for the end of their turn, to share a wake-up. That turn may be the longest of all."""
    answered, delivered = list[str](), list[str]()

    def block() -> None:
        wait_until(lambda: answered, "the answer")
        delivered.append("while blocked")

    async def answer() -> str:
        asyncio.get_running_loop().call_soon(block)
        return "the answer"

    async def main() -> None:
        async with open_engine() as engine:

            async def call() -> None:
                answered.append(await engine.app_loop.call(answer))

            await engine.runtime.call(call)

    app.run(main)
    assert (answered, delivered) == (["the answer"], ["while blocked"])


@MOVED_BY_HAND
def test_stall_of_the_runtime_itself_is_not_taken_for_one_of_the_application(
    app: AppRunner, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a busy machine would close the application for claims again and again."""

    async def main() -> None:
        async with open_engine() as engine:
            look_often(engine, 1)  # The watch asks, and this loop could not answer yet.
            for _ in range(5):
                move_clock(engine.runtime, 2 * BLOCKED_AFTER)
                assert engine.app_loop.is_answering
            assert engine.app_loop.blocks.count == 0

    app.run(main)
    assert [record for record in caplog.records if record.name.startswith("trio_monque")] == []


@MOVED_BY_HAND  # Otherwise the watch may ring meanwhile.
def test_calls_that_begin_together_share_a_wake_up(app: AppRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all have begun: a loop that is woken by the first would take the interpreter lock, and get one of them."""
    rings: list[tuple[int, int]] = []
    started: list[int] = []
    ring = Mailbox.ring

    def counted(mailbox: Mailbox) -> None:
        rings.append((threading.get_ident(), len(started)))
        ring(mailbox)

    async def main() -> None:
        async with open_engine() as engine:
            begun = threading.Event()

            async def call() -> None:
                started.append(len(started))
                await engine.app_loop.call(asyncio.sleep, 0)

            async def calls() -> None:
                monkeypatch.setattr(Mailbox, "ring", counted)
                async with trio.open_nursery() as nursery:
                    for _ in range(100):
                        nursery.start_soon(call)
                    await trio.testing.wait_all_tasks_blocked()
                    begun.set()
                monkeypatch.undo()

            here = threading.get_ident()
            called = asyncio.create_task(engine.runtime.call(calls))
            await asyncio.sleep(0)
            assert begun.wait(20)
            to_application = [calls for thread, calls in rings if thread == thread_of(engine.runtime).ident]
            await called
            assert to_application == [100]
            assert 1 <= len([thread for thread, _ in rings if thread == here]) < 50

    app.run(main)


@MOVED_BY_HAND
def test_answer_in_time_does_not_wake_the_runtime(app: AppRunner) -> None:
    """The next look notes it. Only one that ends a pause cannot wait for that."""
    posts: list[Callable[[], None]] = []

    async def main() -> None:
        async with open_engine() as engine:

            async def watch() -> None:
                await AppLoopWatch(engine.app_loop, posts.append, lambda: None, lambda: None).run()

            engine.runtime.post(lambda: engine.nursery.start_soon(watch))
            look_often(engine, 1)  # Both watches ask.
            await engine.call(asyncio.sleep, 0)  # By then the loop has answered.
            assert posts == []
            engine.runtime.cut()
            await engine.runtime.ended

    app.run(main)


@MOVED_BY_HAND
def test_watch_asks_on_although_its_question_was_lost(app: AppRunner) -> None:
    """A Ctrl-C may hit any delivery before its first line, also that of the watch."""

    async def main() -> None:
        async with open_engine() as engine:
            with without_wake_ups(engine.app_loop) as lost:
                look_often(engine, LOOKS_UNTIL_BLOCKED)
            assert lost
            assert not engine.app_loop.is_answering
            look_often(engine, 1)
            await until(lambda: engine.app_loop.is_answering)
            engine.runtime.cut()
            await engine.runtime.ended

    app.run(main)


@pytest.mark.full
@pytest.mark.parametrize("is_closed", [True, False])
def test_loop_that_is_closed_cuts_and_resumes_the_callers(app: AppRunner, is_closed: bool) -> None:
    """A stopped loop may go on, so only a closed one counts, as long as the main thread lives."""
    engines: list[Engine] = []
    log: list[str] = []

    async def handler() -> None:
        log.append("began")
        await asyncio.sleep(60)

    async def job(engine: Engine) -> None:
        try:
            await engine.app_loop.call(handler)
        finally:
            log.append("resumed")

    async def main() -> None:
        async with open_engine() as engine:
            engines.append(engine)
            engine.runtime.post(lambda: engine.nursery.start_soon(job, engine))
            await asyncio.sleep(60)

    loop = app.new_loop()
    task = loop.create_task(main())
    loop.run_until_complete(until(lambda: log))
    (engine,) = engines
    if is_closed:
        loop.close()
    else:
        engine.runtime.post(lambda: log.append("still there"))
        wait_until(lambda: not engine.app_loop.is_answering, "the watch notices the block")
        assert log == ["began", "still there"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()
    wait_until(lambda: not thread_of(engine.runtime).is_alive(), "the runtime ends")
    assert (log[0], log[-1]) == ("began", "resumed")
    assert engine.log == ["cut"]
    canary_of(engine.app_loop)._log_destroy_pending = False
    for one in (task, *asyncio.all_tasks(loop)):
        one._log_destroy_pending = False  # type: ignore[attr-defined]
