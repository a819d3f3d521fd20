"""A loop of the application that is closed, or never runs again, and a run whose end the loop does not note."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from tests.bridge.support import AppRunner, Engine, move_clock, open_engine, until
from tests.support.internals import canary_of, run_has_ended, thread_of
from tests.support.waiting import wait_until
from trio_monque.bridge import app_loop as app_loop_module
from trio_monque.bridge.app_loop import AppLoop
from trio_monque.bridge.app_loop_watch import LOOK_INTERVAL
from trio_monque.bridge.lifetime import open_in_runtime
from trio_monque.bridge.runtime import Runtime
from trio_monque.engine.loop_blocks import BLOCKED_AFTER
from trio_monque.errors import MonqueError

LOOKS_UNTIL_BLOCKED = 1 + round(BLOCKED_AFTER / LOOK_INTERVAL)


async def _answer() -> int:
    return 42


async def _make() -> AppLoop:
    return AppLoop(lambda function: None, lambda: None)


def _leave_quietly(loop: asyncio.AbstractEventLoop, engine: Engine) -> None:
    """The tasks of a closed loop never end, and asyncio would log that."""
    canary_of(engine.app_loop)._log_destroy_pending = False
    for one in asyncio.all_tasks(loop):
        one._log_destroy_pending = False  # type: ignore[attr-defined]


class Program:
    """A block in a loop that a test stops, and closes or not.

    Attributes:
        engine: What the block holds.
        task: The task of the block.
    """

    def __init__(self, app: AppRunner, **options: Any) -> None:
        self._engines: list[Engine] = []
        self.loop = app.new_loop()
        self.task = self.loop.create_task(self._run(options))
        self.run(until(lambda: self._engines))
        (self.engine,) = self._engines

    async def _run(self, options: dict[str, Any]) -> None:
        async with open_engine(**options) as engine:
            self._engines.append(engine)
            await asyncio.sleep(60)

    def run(self, function: Any) -> None:
        self.loop.run_until_complete(function)

    def close(self) -> None:
        self.loop.close()
        _leave_quietly(self.loop, self.engine)
        self.task._log_destroy_pending = False  # type: ignore[attr-defined]

    def wait_for_thread(self) -> None:
        wait_until(lambda: not thread_of(self.engine.runtime).is_alive(), "the end of the thread", 20)


@pytest.mark.full
def test_loop_that_is_closed_after_the_watch_has_asked_is_found(app: AppRunner) -> None:
    """The watch asks nothing more before it has an answer, so no post finds it."""
    program = Program(app)
    wait_until(lambda: not program.engine.app_loop.is_answering, "the watch waits for an answer")
    program.close()
    program.wait_for_thread()
    assert program.engine.log == ["cut"]


def test_caller_with_a_shield_goes_on_when_the_loop_is_closed(app: AppRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cancellation does not reach it, so the loss of the loop must. Otherwise the thread would never end."""
    monkeypatch.setattr(app_loop_module, "LONGEST_WAIT_FOR_CUT", 0.02)
    log: list[str] = []

    async def listener() -> None:
        log.append("began")
        await asyncio.sleep(60)

    async def deliver(engine: Engine) -> None:
        with trio.CancelScope(shield=True), trio.move_on_after(20):
            try:
                await engine.app_loop.call(listener)
            except MonqueError as error:
                log.append(str(error))

    program = Program(app)
    program.engine.runtime.post(lambda: program.engine.nursery.start_soon(deliver, program.engine))
    program.run(until(lambda: log))
    program.close()
    program.wait_for_thread()
    assert log == ["began", "the event loop of the application has ended, or has cancelled all its tasks"]


@pytest.mark.usefixtures("moved_by_hand")
def test_closed_loop_does_not_count_as_blocked(app: AppRunner, caplog: pytest.LogCaptureFixture) -> None:
    """The run goes on for as long as it cleans up, and the watch has nothing left to do."""
    may_end = threading.Event()

    async def clean_up() -> None:
        await trio.to_thread.run_sync(may_end.wait)

    program = Program(app, cleanup=clean_up)
    move_clock(program.engine.runtime, LOOK_INTERVAL)  # The watch asks.
    program.close()
    for _ in range(2 * LOOKS_UNTIL_BLOCKED):
        move_clock(program.engine.runtime, LOOK_INTERVAL)
    blocked = program.engine.app_loop.blocks.count
    may_end.set()
    program.wait_for_thread()
    assert blocked == 0
    assert [
        record
        for record in caplog.records
        if record.name.startswith("trio_monque") and record.levelno >= logging.WARNING
    ] == []


# --- The main thread has ended ---


@pytest.fixture
def end_main_thread(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    return lambda: monkeypatch.setattr(threading, "main_thread", lambda: ended)


@pytest.mark.usefixtures("moved_by_hand")
def test_stopped_loop_is_lost_when_the_main_thread_ends(
    app: AppRunner, end_main_thread: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python waits for the thread of the runtime then."""

    def look() -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(LOOK_INTERVAL)

    program = Program(app)
    for _ in range(3):
        move_clock(program.engine.runtime, LOOK_INTERVAL)
    assert program.engine.log == []  # The loop may go on.
    end_main_thread()
    program.engine.runtime.post(look)
    program.wait_for_thread()
    monkeypatch.undo()
    assert program.engine.log == ["cut"]
    program.close()


@pytest.mark.usefixtures("moved_by_hand")
def test_loop_of_another_thread_goes_on_after_the_end_of_the_main_thread(
    app: AppRunner, end_main_thread: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            end_main_thread()
            for _ in range(3):
                move_clock(engine.runtime, LOOK_INTERVAL)
                assert await engine.call(_answer) == 42
            monkeypatch.undo()
        assert engine.log == ["drained"]

    app.run(main)


# --- The end of the run ---


def test_end_of_a_run_whose_wake_up_is_lost_is_noted_all_the_same() -> None:
    """A Ctrl-C may come before the first line of a delivery. Nothing but the thread of the run wakes the loop then."""
    lost: list[object] = []
    late: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def forgetful(*args: Any, **options: Any) -> Any:
            if loses and not lost:
                lost.append(args)
                return None
            return wake(*args, **options)

        loses: list[bool] = []
        loop.call_soon_threadsafe = forgetful  # type: ignore[assignment, method-assign]
        async with open_engine() as engine:
            loses.append(True)
            engine.runtime.cut()
            wait_until(lambda: lost, "the last message")

            def heal() -> None:
                late.append("late")
                engine.app_loop.ring()

            healing = loop.call_later(10, heal)
        healing.cancel()

    asyncio.run(main())
    assert late == []


def test_end_of_the_run_ends_its_thread_although_the_loop_stands_still(app: AppRunner) -> None:
    """The loop may never go on. When it does, it knows of the end."""
    program = Program(app)
    program.engine.crash(LookupError("bug"))
    program.wait_for_thread()
    with pytest.raises(LookupError, match="bug"):
        program.run(program.task)
    program.loop.close()


def test_end_of_the_run_that_an_interrupt_hits_at_its_last_line_is_noted_once(
    app: AppRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mailbox calls again what a Ctrl-C has hit."""
    errors: list[Any] = []
    here = threading.current_thread()
    set_event = threading.Event.set

    def interrupted(event: threading.Event) -> None:
        if threading.current_thread() is here:
            monkeypatch.setattr(threading.Event, "set", set_event)
            raise KeyboardInterrupt
        set_event(event)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        async with open_engine():
            monkeypatch.setattr(threading.Event, "set", interrupted)

    with pytest.raises(KeyboardInterrupt):
        app.run(main)
    assert errors == []


@pytest.mark.usefixtures("moved_by_hand")
def test_answer_of_the_watch_that_comes_after_the_end_of_the_run_is_dropped(app: AppRunner) -> None:
    errors: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        async with open_engine() as engine:
            for _ in range(LOOKS_UNTIL_BLOCKED):
                move_clock(engine.runtime, LOOK_INTERVAL)
            assert not engine.app_loop.is_answering
            engine.runtime.cut()
            wait_until(lambda: run_has_ended(engine.runtime), "the end of the run")
        assert engine.log == ["cut"]

    app.run(main)
    assert errors == []


@pytest.mark.usefixtures("moved_by_hand")
def test_answer_to_a_run_that_has_ended_is_dropped_without_an_error(app: AppRunner) -> None:
    errors: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        async with open_engine() as engine:
            pass
        engine.app_loop.answer_to_runtime(lambda: None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    app.run(main)
    assert errors == []


def test_what_is_posted_to_a_run_that_has_ended_is_not_kept(app: AppRunner) -> None:
    """A program may keep the runtime, for its report."""

    class Payload:
        def take(self) -> None: ...

    async def main() -> None:
        async with open_engine() as engine:
            pass
        payload = Payload()
        left = weakref.ref(payload)
        with pytest.raises(RuntimeError):
            engine.runtime.post(payload.take)
        del payload
        assert left() is None

    app.run(main)


def test_service_that_was_left_before_the_end_is_not_called_at_it(app: AppRunner) -> None:
    async def main() -> None:
        called: list[str] = []

        async def main_of_runtime(runtime: Runtime, task_status: trio.TaskStatus[None]) -> None:
            with runtime.calling_at_end(lambda: called.append("left")):
                pass
            task_status.started()

        async with open_in_runtime(main_of_runtime, lambda _: None, "engine"):
            pass
        assert called == []

    app.run(main)


# --- The application loop alone ---


def test_closed_loop_with_a_wake_up_on_its_way_is_found_by_a_ring() -> None:
    """A post leaves the wake-up to the one before it, so it finds nothing."""
    loop = asyncio.new_event_loop()
    app_loop = loop.run_until_complete(_make())
    app_loop.post(lambda: None)
    loop.close()
    app_loop.post(lambda: None)
    seen = [app_loop.is_gone]
    app_loop.ring()
    seen.append(app_loop.is_gone)
    assert seen == [False, True]
    canary_of(app_loop)._log_destroy_pending = False


def test_end_of_an_application_loop_cuts_nothing() -> None:
    cuts: list[str] = []

    async def main() -> None:
        app_loop = AppLoop(lambda function: None, lambda: cuts.append("cut"))
        app_loop.end()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert cuts == []


def test_call_that_finds_its_loop_closed_waits_for_the_watch() -> None:
    """An error of what wakes the loop for calls would be a crash of the whole run."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(app_loop.ring_for_calls)
            await trio.testing.wait_all_tasks_blocked()
            loop.close()
            nursery.start_soon(app_loop.call, _answer)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    loop = asyncio.new_event_loop()
    app_loop = loop.run_until_complete(_make())
    trio.run(main)
    canary_of(app_loop)._log_destroy_pending = False


def test_call_of_the_turn_that_ends_the_services_begins_all_the_same() -> None:
    """It counts on what wakes the loop for calls, which is cancelled in that turn."""

    async def main() -> None:
        tokens: list[trio.lowlevel.TrioToken] = []
        app_loop = AppLoop(lambda function: tokens[0].run_sync_soon(function), lambda: None)

        async def run() -> int:
            tokens.append(trio.lowlevel.current_trio_token())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(app_loop.ring_for_calls)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True), trio.fail_after(10):
                    return await app_loop.call(_answer)
            raise AssertionError

        assert await asyncio.to_thread(trio.run, run) == 42
        app_loop.end()

    asyncio.run(main())
