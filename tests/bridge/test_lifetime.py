"""A block of the application and the run in its runtime: how each ends the other."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Iterator

import anyio
import pytest
import trio

from tests.bridge.support import AppRunner, Engine, open_engine, until
from trio_monque.bridge import app_loop
from trio_monque.bridge.lifetime import open_in_runtime
from trio_monque.bridge.runtime import Runtime
from trio_monque.errors import MonqueError, ShortageError


def test_end_of_the_block_drains(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            pass
        assert engine.log == ["drained"]
        assert not _runtimes()

    app.run(main)


def test_error_of_the_body_cuts_and_is_raised_as_it_is(app: AppRunner) -> None:
    async def main() -> None:
        error = ValueError("of the body")
        with pytest.raises(ValueError, match="of the body") as raised:
            async with open_engine() as engine:
                raise error from KeyError("cause")
        assert raised.value is error
        assert isinstance(error.__cause__, KeyError)
        assert engine.log == ["cut"]

    app.run(main)


@pytest.mark.parametrize("times", [1, 3])
def test_cancelled_body_cuts_and_waits_for_the_end(app: AppRunner, times: int) -> None:
    """Also if it is cancelled again while it waits: what has begun is cleaned up."""
    log: list[str] = []

    async def main() -> None:
        clean = threading.Event()

        async def clean_up() -> None:
            log.append("cleaning up")
            await trio.to_thread.run_sync(clean.wait)
            log.append("clean")

        async def service() -> None:
            async with open_engine(cleanup=clean_up):
                log.append("open")
                await asyncio.sleep(60)

        task = asyncio.create_task(service())
        await until(lambda: log)
        for _ in range(times):
            task.cancel()
            await until(lambda: log[-1] == "cleaning up")
        assert not task.done()
        clean.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log == ["open", "cleaning up", "clean"]

    app.run(main)


async def _drains_for_ever(runtime: Runtime, task_status: trio.TaskStatus[list[str]]) -> None:
    log: list[str] = []
    task_status.started(log)
    try:
        await trio.sleep_forever()
    finally:
        log.append("cut")


def test_cancellation_while_draining_cuts(app: AppRunner) -> None:
    async def main() -> None:
        draining: list[str] = []

        def drain(log: list[str]) -> None:
            draining.append("draining")
            asyncio.get_running_loop().call_later(0.01, cancel)

        with anyio.CancelScope() as scope:
            cancel = scope.cancel
            async with open_in_runtime(_drains_for_ever, drain, "engine") as log:
                pass
        assert scope.cancelled_caught
        assert (draining, log) == (["draining"], ["cut"])

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as timeout:

                def limit(log: list[str]) -> None:
                    timeout.reschedule(asyncio.get_running_loop().time())

                async with open_in_runtime(_drains_for_ever, limit, "engine") as log:
                    pass
        task = asyncio.current_task()
        assert task is not None
        assert (log, task.cancelling()) == (["cut"], 0)

    app.run(main)


def test_crash_of_the_cut_is_raised_in_place_of_the_cancellation_while_draining(app: AppRunner) -> None:
    async def crashes(runtime: Runtime, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            raise LookupError("bug")

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        cancel = task.cancel

        def cancel_soon(_: None) -> None:
            asyncio.get_running_loop().call_soon(cancel)

        with pytest.raises(LookupError, match="bug"):
            async with open_in_runtime(crashes, cancel_soon, "engine"):
                pass
        assert task.cancelling() == 1

    app.run(main)


@pytest.mark.parametrize("turns", range(6))
def test_cancellation_while_starting_leaves_nothing_behind(app: AppRunner, turns: int) -> None:
    async def main() -> None:
        async def service() -> None:
            async with open_engine():
                await asyncio.sleep(60)

        task = asyncio.create_task(service())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not _runtimes()
        with anyio.move_on_after(0.0005 * turns) as scope:
            await service()
        assert scope.cancelled_caught
        assert not _runtimes()

    app.run(main)


def _runtimes() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "trio_monque runtime"]


def test_block_may_be_left_in_another_task_than_entered(app: AppRunner) -> None:
    async def main() -> None:
        block = open_engine()
        engine = await asyncio.create_task(block.__aenter__())
        assert await engine.call(_answer) == 42
        await asyncio.create_task(_leave(block))
        assert engine.log == ["drained"]

    app.run(main)


async def _answer() -> int:
    await asyncio.sleep(0)
    return 42


async def _leave(block: contextlib.AbstractAsyncContextManager[Engine]) -> None:
    await block.__aexit__(None, None, None)


def test_stray_cancellation_of_a_block_whose_opener_has_ended_is_an_error_of_the_call(app: AppRunner) -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    async def main() -> None:
        block = open_engine()
        engine = await asyncio.create_task(block.__aenter__())
        with pytest.raises(RuntimeError, match="nothing had cancelled it"):
            await engine.call(cancelled)
        assert await engine.call(_answer) == 42
        await block.__aexit__(None, None, None)
        assert engine.log == ["drained"]

    app.run(main)


def test_block_that_is_closed_cuts_without_a_wait(app: AppRunner) -> None:
    """An async generator around the block is closed: GeneratorExit, in which nothing may be awaited for long."""

    async def main() -> None:
        engines: list[Engine] = []

        async def generator() -> AsyncIterator[Engine]:
            async with open_engine() as engine:
                engines.append(engine)
                yield engine

        items = generator()
        await anext(items)
        await asyncio.create_task(items.aclose())  # type: ignore[attr-defined]
        (engine,) = engines
        await engine.runtime.ended
        assert engine.log == ["cut"]

    app.run(main)


@pytest.mark.parametrize("moment", ["starting", "running", "draining"])
def test_block_that_is_closed_at_any_moment_cuts_without_a_wait(app: AppRunner, moment: str) -> None:
    """Python closes the coroutine of a task that its loop has left behind."""
    log: list[str] = []

    async def main_of_runtime(runtime: Runtime, task_status: trio.TaskStatus[None]) -> None:
        if moment != "starting":
            task_status.started()
        log.append("runs")
        try:
            await trio.sleep_forever()
        finally:
            log.append("cut")

    async def main() -> None:
        async def service() -> None:
            async with open_in_runtime(main_of_runtime, lambda _: None, "engine"):
                if moment == "running":
                    await asyncio.get_running_loop().create_future()

        block = service()
        waits_for = block.send(None)
        await until(lambda: log)
        if moment != "starting":
            await until(waits_for.done)
            block.send(None)
        block.close()
        await until(lambda: log == ["runs", "cut"])

    app.run(main)


def test_end_of_the_run_that_an_interrupt_hits_is_noted_all_the_same(
    app: AppRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second Ctrl-C may come at any line. Without that end, the program would wait for ever."""

    async def main() -> None:
        async with open_engine() as engine:
            end = engine.app_loop.end

            def interrupted() -> None:
                engine.app_loop.end = end  # type: ignore[method-assign]
                raise KeyboardInterrupt

            monkeypatch.setattr(engine.app_loop, "end", interrupted)

    with pytest.raises(KeyboardInterrupt):
        app.run(main)


# --- A crash of the runtime ---


def test_crash_cancels_a_body_that_waits_and_is_raised(app: AppRunner) -> None:
    async def main() -> None:
        crash = LookupError("bug")
        crash.__cause__ = KeyError("cause")
        with pytest.raises(LookupError, match="bug") as raised:
            async with open_engine() as engine:
                engine.crash(crash)
                await asyncio.sleep(60)
        assert raised.value is crash
        assert isinstance(crash.__cause__, KeyError)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # No cancellation is left behind.

    app.run(main)


def test_crash_cancels_a_body_in_task_groups_and_scopes(app: AppRunner) -> None:
    """As a crashed child of a nursery does, and no scope around the block takes it for its own cancellation."""

    async def main() -> None:
        with anyio.CancelScope() as outer:
            with pytest.raises(LookupError, match="bug"):
                async with asyncio.timeout(60):
                    async with open_engine() as engine:
                        with anyio.CancelScope(shield=True) as inner:
                            async with anyio.create_task_group() as group, asyncio.TaskGroup() as other:
                                group.start_soon(asyncio.sleep, 60)
                                other.create_task(asyncio.sleep(60))
                                engine.crash(LookupError("bug"))
                                await asyncio.sleep(60)
            await asyncio.sleep(0)
        assert not outer.cancelled_caught
        assert not inner.cancelled_caught

    app.run(main)


def test_crash_and_error_of_the_body_are_raised_in_a_group(app: AppRunner) -> None:
    async def main() -> None:
        with pytest.raises(ExceptionGroup) as raised:
            async with open_engine() as engine:
                engine.crash(LookupError("bug"))
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    raise ValueError("of the body") from None
        assert [repr(error) for error in raised.value.exceptions] == ["LookupError('bug')", "ValueError('of the body')"]

    app.run(main)


def test_cancellation_by_a_crash_that_the_body_requests_again_beside_its_error_is_taken_back(app: AppRunner) -> None:
    """As `asyncio.TaskGroup` does from Python 3.13 on: then it is still to come when the block is left."""

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(ExceptionGroup, match="the engine crashed, and the block raised"):
            async with open_engine() as engine:
                engine.crash(LookupError("bug"))
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    task.uncancel()
                    task.cancel()
                    raise ValueError("of the body") from None
        assert task.cancelling() == 0
        await asyncio.sleep(0)

    app.run(main)


@pytest.mark.parametrize("turns", range(4))
def test_crash_while_the_body_ends_by_itself(app: AppRunner, turns: int) -> None:
    """The cancellation comes too late for the body. It must not hit what follows the block."""

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(LookupError, match="bug"):
            async with open_engine() as engine:
                engine.crash(LookupError("bug"))
                while not engine.runtime.ended.done():
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.sleep(0)
                for _ in range(turns):
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.sleep(0)
        assert task.cancelling() == 0
        await asyncio.sleep(0)

    app.run(main)


def test_crash_before_the_start_is_raised(app: AppRunner) -> None:
    async def crashes(runtime: Runtime, task_status: trio.TaskStatus[None]) -> None:
        raise LookupError("no database")

    async def returns(runtime: Runtime, task_status: trio.TaskStatus[None]) -> None:
        pass

    async def main() -> None:
        with pytest.raises(LookupError, match="no database"):
            async with open_in_runtime(crashes, lambda _: None, "engine"):
                raise AssertionError
        with pytest.raises(MonqueError, match="the engine ended before it had started"):
            async with open_in_runtime(returns, lambda _: None, "engine"):
                raise AssertionError
        assert not _runtimes()

    app.run(main)


def test_run_that_ends_by_itself_leaves_the_body_alone(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            engine.drain()
            await engine.runtime.ended
            await asyncio.sleep(0.01)
        assert engine.log == ["drained"]

    app.run(main)


def test_keyboard_interrupt_of_a_called_function_ends_the_block(app: AppRunner) -> None:
    """It takes the way of each error of a handler: through the engine, which ends with it."""

    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        async with open_engine() as engine:
            engine.runtime.post(lambda: engine.nursery.start_soon(engine.app_loop.call, interrupted))
            await asyncio.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        app.run(main)


# --- All tasks are cancelled ---


def test_cancellation_of_all_tasks_is_a_cut_and_no_error_of_the_functions(app: AppRunner) -> None:
    log: list[str] = []

    async def handler() -> None:
        log.append("began")
        await asyncio.sleep(60)

    async def job(engine: Engine) -> None:
        try:
            await engine.app_loop.call(handler)
        except BaseException as error:
            log.append(type(error).__name__)
            raise

    async def main() -> None:
        async def service() -> None:
            async with open_engine() as engine:
                engine.runtime.post(lambda: engine.nursery.start_soon(job, engine))
                await asyncio.sleep(60)

        task = asyncio.create_task(service())
        await until(lambda: log)
        for one in asyncio.all_tasks() - {asyncio.current_task()}:
            one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log == ["began", "Cancelled"]

    app.run(main)


def test_cancellation_of_all_other_tasks_cuts_although_the_body_goes_on(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            for one in asyncio.all_tasks() - {asyncio.current_task()}:
                one.cancel()
            await engine.runtime.ended
        assert engine.log == ["cut"]

    app.run(main)


def test_caller_with_a_shield_gets_an_error_where_the_cut_cannot_reach_it(
    app: AppRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tasks of the application were cancelled. Without the error, the shield would hold the end for ever."""
    monkeypatch.setattr(app_loop, "LONGEST_WAIT_FOR_CUT", 0.02)
    log: list[str] = []

    async def listener() -> None:
        log.append("began")
        await asyncio.sleep(60)

    async def deliver(engine: Engine) -> None:
        with trio.CancelScope(shield=True):
            try:
                await engine.app_loop.call(listener)
            except MonqueError as error:
                log.append(str(error))

    async def main() -> None:
        async with open_engine() as engine:
            engine.runtime.post(lambda: engine.nursery.start_soon(deliver, engine))
            await until(lambda: log)
            for one in asyncio.all_tasks() - {asyncio.current_task()}:
                one.cancel()
            await engine.runtime.ended
        assert log == ["began", "the event loop of the application has ended, or has cancelled all its tasks"]

    app.run(main)


def test_end_of_the_run_waits_for_no_function_that_a_task_beside_main_awaits(app: AppRunner) -> None:
    """The block waits for that end, and the function may wait for the end of the block."""

    async def main() -> None:
        began, has_ended = threading.Event(), asyncio.Event()

        async def handler() -> None:
            began.set()
            with anyio.CancelScope(shield=True):
                await has_ended.wait()

        async def main_of_runtime(runtime: Runtime, task_status: trio.TaskStatus[None]) -> None:
            trio.lowlevel.spawn_system_task(runtime.app_loop.call, handler)
            await trio.to_thread.run_sync(began.wait)
            task_status.started()

        async with asyncio.timeout(20), open_in_runtime(main_of_runtime, lambda _: None, "engine"):
            pass
        has_ended.set()

    app.run(main)


# --- Resources ---


def test_thread_that_cannot_be_started_is_a_shortage(app: AppRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        tasks = asyncio.all_tasks()
        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(ShortageError, match="could not start a thread"):
            async with open_engine():
                raise AssertionError
        monkeypatch.undo()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == tasks

    app.run(main)


@pytest.mark.full
def test_hundred_blocks_leave_nothing_behind(app: AppRunner) -> None:
    async def handler() -> None:
        await asyncio.sleep(0)

    async def once(number: int) -> weakref.ref[Runtime]:
        with contextlib.suppress(ZeroDivisionError):
            async with open_engine() as engine:
                await engine.call(handler)
                if number % 2:
                    raise ZeroDivisionError
        return weakref.ref(engine.runtime)

    async def main() -> None:
        for number in range(4):
            await once(number)
        gc.collect()
        threads, tasks, objects = threading.active_count(), len(asyncio.all_tasks()), len(gc.get_objects())
        left = [await once(number) for number in range(100)]
        gc.collect()
        assert [one for one in left if one() is not None] == []
        assert threading.active_count() <= threads  # Idle threads of earlier tests end meanwhile.
        assert len(asyncio.all_tasks()) == tasks
        assert (
            len(gc.get_objects()) < objects + 300
        )  # Less than three objects for each block; the weak references are one.

    app.run(main)


def test_calls_leave_nothing_behind(app: AppRunner) -> None:
    """Without a garbage collection, too: with thousands of jobs a second, its pauses would grow."""

    class Payload:
        pass

    async def handler(payload: Payload) -> Payload:
        await asyncio.sleep(0)
        return payload

    async def fails(payload: Payload) -> None:
        raise ValueError

    async def main() -> None:
        left: list[weakref.ref[Payload]] = []
        async with open_engine() as engine:

            async def calls() -> None:
                for _ in range(20):
                    payload = Payload()
                    left.append(weakref.ref(payload))
                    assert await engine.app_loop.call(handler, payload) is payload

            async def failing_calls() -> None:
                for _ in range(20):
                    payload = Payload()
                    left.append(weakref.ref(payload))
                    with contextlib.suppress(ValueError):
                        await engine.app_loop.call(fails, payload)

            with _without_collection():
                await engine.runtime.call(calls)
                await asyncio.sleep(0)
                assert sum(one() is not None for one in left) <= 1  # The last one is in the frame of a worker or loop.
            await engine.runtime.call(failing_calls)
            gc.collect()
            assert sum(one() is not None for one in left) <= 1

    app.run(main)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_debug_mode(app: AppRunner) -> None:
    """asyncio then checks the thread of each call of the loop, and the context of each task."""

    async def main() -> None:
        async with open_engine() as engine:
            assert await engine.call(_answer) == 42

    app.run(main, debug=True)
