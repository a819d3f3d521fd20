"""Calls of the application's functions from the runtime: results, errors, cancellation, contexts."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import anyio
import outcome
import pytest
import trio
import trio.testing

from tests.bridge.support import AppRunner, Engine, open_engine, until
from tests.support.internals import run_now
from trio_monque.bridge import app_loop as app_loop_module
from trio_monque.bridge.app_loop import AppLoop
from trio_monque.bridge.app_loop_task import AppCall, StrayCancelledError
from trio_monque.errors import MonqueError
from trio_monque.grace import Grace, grace_owner_of_task, using_grace

COLOUR: ContextVar[str] = ContextVar("colour", default="none")


def test_call_runs_as_a_task_of_the_application_and_returns_its_result(app: AppRunner) -> None:
    async def double(x: int) -> tuple[int, int, bool]:
        await asyncio.sleep(0)
        return 2 * x, threading.get_ident(), asyncio.current_task() is not None

    async def main() -> None:
        async with open_engine() as engine:
            assert await engine.call(double, 21) == (42, threading.get_ident(), True)

    app.run(main)


def test_call_is_one_task_of_the_application_and_none_of_the_runtime(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            made: list[Any] = []

            class Spawned(trio.abc.Instrument):
                def task_spawned(self, task: trio.lowlevel.Task) -> None:
                    made.append(task)

            instrument = Spawned()

            async def call_often() -> None:
                trio.lowlevel.add_instrument(instrument)
                for _ in range(10):
                    assert await engine.app_loop.call(tasks_now) == tasks + 1
                trio.lowlevel.remove_instrument(instrument)

            async def tasks_now() -> int:
                return len(asyncio.all_tasks())

            tasks = len(asyncio.all_tasks())
            await engine.in_runtime(call_often)
            assert made == []

    app.run(main)


def test_error_crosses_with_its_traceback_cause_and_notes(app: AppRunner) -> None:
    async def fails() -> None:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            error = ValueError("of the handler")
            error.add_note("a note")
            raise error from cause

    async def main() -> None:
        async with open_engine() as engine:
            with pytest.raises(ValueError, match="of the handler") as raised:
                await engine.call(fails)
            assert isinstance(raised.value.__cause__, KeyError)
            assert raised.value.__notes__ == ["a note"]
            assert "in fails" in "".join(traceback.format_exception(raised.value))

    app.run(main)


@pytest.mark.parametrize(
    "error", [StopIteration(1), StopAsyncIteration(), SystemExit(3), KeyboardInterrupt(), GeneratorExit()]
)
def test_errors_that_loops_treat_specially_cross_too(app: AppRunner, error: BaseException) -> None:
    """They end the call only: the loop of the application goes on."""

    async def fails() -> None:
        if isinstance(error, StopIteration):
            await _Raises(error)
        raise error

    class _Raises:
        def __init__(self, error: BaseException) -> None:
            self._error = error

        def __await__(self) -> Any:
            yield from asyncio.sleep(0).__await__()
            raise RuntimeError("a coroutine cannot raise StopIteration") from self._error

    async def catch(engine: Engine) -> BaseException:
        try:
            await engine.app_loop.call(fails)
        except BaseException as caught:  # noqa: BLE001
            return caught
        raise AssertionError

    async def main() -> None:
        async with open_engine() as engine:
            caught = await engine.in_runtime(catch, engine)
            assert caught is error or caught.__cause__ is error

    app.run(main)


# --- Cancellation by the caller ---


def test_cancelled_caller_cancels_the_function_at_each_checkpoint_and_awaits_it(app: AppRunner) -> None:
    """As anyio services know it: who swallows the cancellation gets it again."""
    log: list[str] = []

    async def stubborn() -> None:
        log.append("began")
        for _ in range(3):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                log.append("swallowed")
        try:
            await asyncio.sleep(60)
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0.01)
            log.append("cleaned up")

    async def main() -> None:
        async with open_engine() as engine:
            cancel = trio.Event()
            call = asyncio.create_task(engine.call_until(cancel, stubborn))
            await until(lambda: log)
            engine.runtime.post(cancel.set)
            await call
            assert log == ["began", *["swallowed"] * 3, "cleaned up"]

    app.run(main)


def test_result_and_error_of_a_cancelled_function_reach_its_caller(app: AppRunner) -> None:
    began = 0

    async def ends(how: str) -> str:
        nonlocal began
        began += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if how == "error":
                raise ValueError("while cancelled") from None
            if how == "group":
                raise BaseExceptionGroup("both", [ValueError("while cancelled"), asyncio.CancelledError()]) from None
        return "result"

    async def cancelled_call(engine: Engine, how: str) -> object:
        caught: list[object] = []
        async with trio.open_nursery() as nursery:

            async def call() -> None:
                try:
                    caught.append(await engine.app_loop.call(ends, how))
                except (ValueError, BaseExceptionGroup) as error:
                    caught.append(error)

            nursery.start_soon(call)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_poll, lambda: began)
            nursery.cancel_scope.cancel()
        return caught[0]

    async def main() -> None:
        nonlocal began
        async with open_engine() as engine:
            assert await engine.in_runtime(cancelled_call, engine, "result") == "result"
            began = 0
            assert isinstance(await engine.in_runtime(cancelled_call, engine, "error"), ValueError)
            began = 0
            group = await engine.in_runtime(cancelled_call, engine, "group")
            assert isinstance(group, ExceptionGroup)
            assert [type(error) for error in group.exceptions] == [ValueError]

    app.run(main)


def _poll(condition: Any) -> None:
    waited = threading.Event()
    while not condition():
        waited.wait(0.001)


def test_call_that_is_cancelled_before_the_loop_takes_it_never_begins(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            log: list[str] = []
            is_blocked, go_on = threading.Event(), threading.Event()

            async def handler() -> None:
                log.append("ran")

            async def cancelled_call() -> None:
                await trio.to_thread.run_sync(is_blocked.wait)
                with trio.move_on_after(0.01) as scope:
                    await engine.app_loop.call(handler, never_began=lambda: log.append("never began"))
                assert scope.cancelled_caught
                go_on.set()

            ended = asyncio.create_task(engine.in_runtime(cancelled_call))
            await asyncio.sleep(0)
            is_blocked.set()
            assert go_on.wait(20)  # The loop stands still.
            await ended
            assert log == ["never began"]

    app.run(main)


@pytest.mark.parametrize("is_cancelled_here_too", [False, True])
def test_call_that_is_cancelled_between_the_creation_of_its_task_and_the_first_step_never_begins(
    app: AppRunner, is_cancelled_here_too: bool
) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            log: list[str] = []
            cancelled = threading.Event()

            async def handler() -> None:
                log.append("ran")

            def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
                task = asyncio.Task(coroutine, loop=loop, **options)
                if "AppCall._run" in repr(coroutine):
                    engine.runtime.post(scope.cancel)
                    assert cancelled.wait(20)
                    if is_cancelled_here_too:
                        task.cancel()
                return task

            async def cancelled_call() -> None:
                with scope:
                    await engine.app_loop.call(handler, never_began=lambda: log.append("never began"))
                cancelled.set()

            scope = trio.CancelScope()
            errors: list[Any] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
            asyncio.get_running_loop().set_task_factory(factory)
            await engine.in_runtime(cancelled_call)
            await asyncio.sleep(0)
            assert (log, errors) == (["never began"], [])

    app.run(main)


def test_error_of_a_task_factory_does_not_resume_a_caller_that_was_cancelled_before(app: AppRunner) -> None:
    """It has gone on. To resume it a second time would end the whole runtime."""

    async def main() -> None:
        async with open_engine() as engine:
            cancelled = threading.Event()

            def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
                if "AppCall._run" in repr(coroutine):
                    engine.runtime.post(scope.cancel)
                    assert cancelled.wait(20)
                    raise LookupError("broken factory")
                return asyncio.Task(coroutine, loop=loop, **options)

            async def cancelled_call() -> None:
                with scope:
                    await engine.app_loop.call(_answer)
                cancelled.set()

            scope = trio.CancelScope()
            asyncio.get_running_loop().set_task_factory(factory)
            await engine.in_runtime(cancelled_call)
            asyncio.get_running_loop().set_task_factory(None)
            assert await engine.call(_answer) == 42

    app.run(main)


def test_call_that_begins_a_second_time_keeps_its_task() -> None:
    """A Ctrl-C at the last line of a delivery: the loop keeps a weak reference only to the first task."""

    async def main() -> None:
        app_loop = AppLoop(lambda function: None, lambda: None)
        call = AppCall(app_loop, _answer, cast(Any, None), None, None)
        call.begin()
        task = call.task
        call.begin()
        assert call.task is task
        await asyncio.sleep(0)
        app_loop.end()

    asyncio.run(main())


def test_call_whose_begin_an_interrupt_hits_is_answered_and_begins_no_more() -> None:
    """The mailbox repeats what a Ctrl-C has hit. The function would run for a caller that has gone on."""
    ran: list[str] = []

    async def function() -> None:
        ran.append("ran")

    async def main() -> None:
        interrupts = [KeyboardInterrupt()]

        def interrupted(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
            if interrupts:
                raise interrupts.pop()
            return asyncio.Task(coroutine, loop=loop, **options)

        app_loop = AppLoop(lambda function: None, lambda: None)
        call = AppCall(app_loop, function, cast(Any, None), None, None)
        asyncio.get_running_loop().set_task_factory(interrupted)
        with pytest.raises(KeyboardInterrupt):
            call.begin()
        call.begin()
        await asyncio.sleep(0)
        end = call.take_end()
        assert isinstance(end, outcome.Error)
        assert isinstance(end.error, KeyboardInterrupt)
        app_loop.end()

    asyncio.run(main())
    assert ran == []


def test_result_stays_although_an_interrupt_hits_its_way_to_the_runtime() -> None:
    """The function has returned. As an error, the interrupt would make its job run again."""
    interrupts = [KeyboardInterrupt()]

    def answer(function: Callable[[], object]) -> None:
        if interrupts:
            raise interrupts.pop()

    async def make() -> AppLoop:
        return AppLoop(answer, lambda: None)

    def turn() -> None:
        loop.call_soon(loop.stop)
        loop.run_forever()

    loop = asyncio.new_event_loop()
    app_loop = loop.run_until_complete(make())
    call = AppCall(app_loop, _answer, cast(Any, None), None, None)
    loop.call_soon(call.begin)
    turn()
    with pytest.raises(KeyboardInterrupt):
        turn()
    turn()
    turn()
    end = call.take_end()
    assert isinstance(end, outcome.Value)
    assert end.value == 42
    app_loop.end()
    turn()
    loop.close()


def test_result_stays_although_an_interrupt_hits_it_at_any_line_of_the_answer() -> None:
    async def make() -> AppLoop:
        return AppLoop(lambda function: None, lambda: None)

    def interrupted_answer(steps: int) -> bool:
        """Return whether the answer was interrupted at this step."""
        left = steps

        def trace(frame: Any, event: str, _: Any) -> Any:
            nonlocal left
            if frame.f_code.co_qualname != "AppCall._answer" or left < 0:
                return None
            if event in ("call", "line"):
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
            return trace

        async def function() -> int:
            sys.settrace(trace)
            return 42

        loop = asyncio.new_event_loop()
        app_loop = loop.run_until_complete(make())
        call = AppCall(app_loop, function, cast(Any, None), None, None)
        loop.call_soon(call.begin)
        before = sys.gettrace()
        for _ in range(6):
            loop.call_soon(loop.stop)
            with suppress(KeyboardInterrupt):
                loop.run_forever()
        sys.settrace(before)
        end = call.take_end()
        assert isinstance(end, outcome.Value), steps
        app_loop.end()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        return left < 0

    steps = 0
    while interrupted_answer(steps):
        steps += 1
    assert steps > 3


def test_group_that_is_nested_too_deep_to_be_split_is_the_error_as_it_is() -> None:
    error: BaseException = ValueError("v")
    for _ in range(20_000):
        error = BaseExceptionGroup("deep", [error])

    async def fails() -> None:
        raise error

    async def main() -> None:
        app_loop = AppLoop(lambda function: None, lambda: None)
        call = AppCall(app_loop, fails, cast(Any, None), None, None)
        call.begin()
        assert call.task is not None
        await asyncio.wait([call.task])
        end = call.take_end()
        assert isinstance(end, outcome.Error)
        is_the_same = end.error is error  # pytest could not show the group.
        assert is_the_same
        app_loop.end()

    asyncio.run(main())


def test_answer_to_a_runtime_that_has_ended_is_dropped() -> None:
    def has_ended(function: Callable[[], object]) -> None:
        raise RuntimeError

    async def main() -> None:
        app_loop = AppLoop(has_ended, lambda: None)
        call = AppCall(app_loop, _answer, cast(Any, None), None, None)
        call.begin()
        assert call.task is not None
        await call.task
        app_loop.end()

    asyncio.run(main())


def test_group_of_cancellations_of_a_cancelled_function_is_not_an_error(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            began = asyncio.Event()

            async def handler() -> str:
                began.set()
                try:
                    return await asyncio.sleep(60, "not cancelled")
                except asyncio.CancelledError as error:
                    raise BaseExceptionGroup("of two tasks", [error, asyncio.CancelledError()]) from None

            cancel = trio.Event()
            called = asyncio.create_task(engine.call_until(cancel, handler))
            await began.wait()
            engine.runtime.post(cancel.set)
            assert await called is None

    app.run(main)


def test_function_that_is_left_behind_is_cancelled_and_its_answer_dropped(app: AppRunner) -> None:
    """Its caller has gone on before. The answer may still come in the last turns of the runtime."""

    async def main() -> None:
        async with open_engine() as engine:
            log: list[str] = []

            async def handler() -> None:
                log.append("began")
                try:
                    await asyncio.sleep(60)
                finally:
                    log.append("ended")

            async def left_behind() -> None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(engine.app_loop.call, handler)
                    await trio.to_thread.run_sync(_poll, lambda: log)
                    engine.app_loop.leave_calls_behind()
                    nursery.cancel_scope.cancel()
                await trio.to_thread.run_sync(_poll, lambda: len(log) == 2)

            await engine.in_runtime(left_behind)
            assert await engine.call(_answer) == 42
            assert log == ["began", "ended"]

    app.run(main)


def test_call_that_is_left_behind_before_the_loop_takes_it_never_begins(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            log: list[str] = []
            is_blocked, go_on = threading.Event(), threading.Event()

            async def handler() -> None:
                log.append("ran")

            async def call() -> None:
                try:
                    await engine.app_loop.call(handler)
                finally:
                    log.append("resumed")

            async def lost_call() -> None:
                await trio.to_thread.run_sync(is_blocked.wait)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(call)
                    await trio.lowlevel.checkpoint()
                    await trio.testing.wait_all_tasks_blocked()
                    engine.app_loop.leave_calls_behind()
                    nursery.cancel_scope.cancel()
                go_on.set()

            errors: list[Any] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
            ended = asyncio.create_task(engine.in_runtime(lost_call))
            await asyncio.sleep(0)
            is_blocked.set()
            assert go_on.wait(20)  # The loop stands still.
            await ended
            await asyncio.sleep(0)
            assert await engine.call(_answer) == 42
            assert (log, errors) == (["resumed"], [])

    app.run(main)


def test_caller_that_is_cancelled_after_its_loop_was_closed_goes_on_at_once() -> None:
    """Without the watch, which would find the closed loop too: the end of a run may have ended it."""
    log: list[str] = []

    async def make() -> AppLoop:
        return AppLoop(lambda function: None, lambda: None)

    async def handler() -> None:
        log.append("began")
        await asyncio.sleep(60)

    async def call() -> None:
        try:
            await app_loop.call(handler)
        finally:
            log.append("resumed")

    async def has_begun() -> None:
        await until(lambda: log)

    def run_until_it_has_begun_and_close() -> None:
        loop.run_until_complete(has_begun())
        loop.close()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync(run_until_it_has_begun_and_close)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            log.append("watch")
            app_loop.lost()

    loop = asyncio.new_event_loop()
    app_loop = loop.run_until_complete(make())
    trio.run(main)
    assert log == ["began", "resumed", "watch"]


@pytest.mark.parametrize("has_gone_on", [True, False])
def test_closed_coroutine_of_a_closed_loop_is_not_an_error_and_resumes_its_caller_once(has_gone_on: bool) -> None:
    """Python closes the coroutines of the loop, at any moment. To resume their callers again would end the runtime."""
    tasks: list[asyncio.Task[Any]] = []
    answers: list[Callable[[], object]] = []
    cuts: list[str] = []

    async def make() -> AppLoop:
        return AppLoop(answers.append, lambda: cuts.append("cut"))

    async def handler() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        await asyncio.sleep(60)

    async def has_begun() -> None:
        await until(lambda: tasks)

    def run_until_it_has_begun_and_close() -> None:
        loop.run_until_complete(has_begun())
        loop.close()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(app_loop.call, handler)
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync(run_until_it_has_begun_and_close)
            if has_gone_on:
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()
            (task,) = tasks
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task.get_coro().close()
            (answer,) = answers
            answer()
            if not has_gone_on:
                await trio.testing.wait_all_tasks_blocked()
                assert cuts == ["cut"]
                nursery.cancel_scope.cancel()

    loop = asyncio.new_event_loop()
    app_loop = loop.run_until_complete(make())
    trio.run(main)


def test_caller_with_a_shield_gets_an_error_from_a_loop_that_is_lost_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is called there any more, and nothing would resume the caller: the shield would hold the end for ever."""
    monkeypatch.setattr(app_loop_module, "LONGEST_WAIT_FOR_CUT", 0.02)

    async def make() -> AppLoop:
        return AppLoop(lambda function: None, lambda: None)

    async def main() -> None:
        app_loop.lost()
        with trio.fail_after(20), pytest.raises(MonqueError, match="has ended"):
            await app_loop.call(_answer)

    loop = asyncio.new_event_loop()
    app_loop = loop.run_until_complete(make())
    loop.close()
    trio.run(main)


def test_function_that_began_is_not_reported_as_one_that_never_did(app: AppRunner) -> None:
    """Its job would be released without the attempt that it made."""

    async def main() -> None:
        async with open_engine() as engine:
            began, never_began = asyncio.Event(), list[str]()

            async def handler() -> str:
                began.set()
                return await asyncio.sleep(60, "not cancelled")

            cancel = trio.Event()
            never = partial(never_began.append, "never began")
            called = asyncio.create_task(engine.call_until(cancel, handler, never_began=never))
            await began.wait()
            engine.runtime.post(cancel.set)
            assert await called is None
            assert never_began == []

    app.run(main)


def test_never_began_may_replace_the_cancellation(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:

            def never_began() -> None:
                raise LookupError("not begun")

            async def cancelled_call() -> str:
                with trio.CancelScope() as scope:
                    scope.cancel()
                    try:
                        await engine.app_loop.call(anyio.sleep, 0, never_began=never_began)
                    except LookupError as error:
                        return str(error)
                raise AssertionError

            assert await engine.in_runtime(cancelled_call) == "not begun"

    app.run(main)


# --- CancelledError that no caller caused ---


async def _raises() -> None:
    raise asyncio.CancelledError("mine")


async def _cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


async def _awaits_a_cancelled_task() -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    await task


async def _raises_a_group_of_cancellations() -> None:
    raise BaseExceptionGroup("all", [asyncio.CancelledError(), asyncio.CancelledError()])


@pytest.mark.parametrize(
    "function", [_raises, _cancels_itself, _awaits_a_cancelled_task, _raises_a_group_of_cancellations]
)
def test_cancelled_error_of_the_function_itself_is_an_error(app: AppRunner, function: Any) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            with pytest.raises(StrayCancelledError) as raised:
                await engine.call(function)
            assert isinstance(raised.value.__cause__, asyncio.CancelledError | BaseExceptionGroup)
            assert await engine.call(_answer) == 42

    app.run(main)


async def _answer() -> int:
    return 42


def test_task_that_the_application_cancels_before_its_first_step_answers(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            log: list[str] = []

            async def handler() -> None:
                log.append("ran")

            def cancelling(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
                task = asyncio.Task(coroutine, loop=loop, **options)
                if "AppCall._run" in repr(coroutine):
                    task.cancel("by the application")
                return task

            asyncio.get_running_loop().set_task_factory(cancelling)
            with pytest.raises(StrayCancelledError, match="before it called the function") as raised:
                await engine.call(handler)
            assert isinstance(raised.value.__cause__, asyncio.CancelledError)
            asyncio.get_running_loop().set_task_factory(None)
            assert await engine.call(_answer) == 42
            assert log == []

    app.run(main)


def test_task_that_is_cancelled_with_all_others_before_its_first_step_cuts_its_caller(app: AppRunner) -> None:
    ended: list[type[BaseException]] = []

    async def main() -> None:
        async with open_engine() as engine:

            def leaving(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
                task = asyncio.Task(coroutine, loop=loop, **options)
                if "AppCall._run" in repr(coroutine):
                    for one in asyncio.all_tasks():
                        one.cancel()
                return task

            async def call() -> None:
                try:
                    await engine.app_loop.call(_answer)
                except BaseException as error:
                    ended.append(type(error))
                    raise

            asyncio.get_running_loop().set_task_factory(leaving)
            await engine.in_runtime(call)

    with pytest.raises(asyncio.CancelledError):
        app.run(main)
    assert ended == [trio.Cancelled]


def test_group_keeps_its_errors_and_loses_its_cancellations(app: AppRunner) -> None:
    async def mixed() -> None:
        raise BaseExceptionGroup("mixed", [ValueError("v"), asyncio.CancelledError()])

    async def main() -> None:
        async with open_engine() as engine:
            with pytest.raises(ExceptionGroup) as raised:
                await engine.call(mixed)
            assert [repr(error) for error in raised.value.exceptions] == ["ValueError('v')"]

    app.run(main)


# --- Contexts, tasks, task factories ---


def test_each_call_has_a_copy_of_the_context_of_the_opener(app: AppRunner) -> None:
    async def change() -> str:
        seen = COLOUR.get()
        COLOUR.set("of a call")
        return seen

    async def main() -> None:
        COLOUR.set("of the opener")
        async with open_engine() as engine:
            COLOUR.set("later")
            assert [await engine.call(change), await engine.call(change)] == ["of the opener"] * 2
        assert COLOUR.get() == "later"

    app.run(main)


def test_grace_of_the_calling_task_goes_with_the_context_and_comes_back(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            grace = Grace()

            async def back_again() -> bool:
                return await engine.runtime.call(grace_here)

            async def grace_here() -> bool:
                return grace_owner_of_task() is grace

            async def there_and_back() -> bool:
                with using_grace(grace):
                    return await engine.app_loop.call(back_again)

            assert await engine.in_runtime(there_and_back)
            assert not await engine.in_runtime(grace_here)

    app.run(main)


def test_garbage_collection_does_not_take_tasks_that_wait(app: AppRunner) -> None:
    """The loop keeps weak references to its tasks."""

    async def waits(gates: list[Any], number: int) -> int:
        future = asyncio.get_running_loop().create_future()
        gates.append((weakref.ref(future), number))
        return await future  # type: ignore[no-any-return]

    async def main() -> None:
        async with open_engine() as engine:
            gates: list[Any] = []
            calls = [asyncio.create_task(engine.call(waits, gates, number)) for number in range(50)]
            await until(lambda: len(gates) == 50)
            gc.collect()
            for gate, number in gates:
                gate().set_result(number)
            assert await asyncio.gather(*calls) == list(range(50))

    app.run(main)


def _strict(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    assert not options.pop("context", None), "this factory knows no context"
    return asyncio.Task(coroutine, loop=loop, **options)


def test_foreign_task_factory_that_knows_no_context(app: AppRunner) -> None:
    async def main() -> None:
        COLOUR.set("of the opener")
        asyncio.get_running_loop().set_task_factory(_strict)
        async with open_engine() as engine:
            assert await engine.call(colour) == "of the opener"

    async def colour() -> str:
        await asyncio.sleep(0)
        return COLOUR.get()

    app.run(main)


@pytest.mark.parametrize("waits", [False, True])
def test_eager_task_factory(app: AppRunner, waits: bool) -> None:
    """Tasks that run up to their first wait before `create_task` returns; before Python 3.12 by a loop of its own."""

    async def handler() -> str:
        if waits:
            await asyncio.sleep(0)
        return COLOUR.get()

    async def fails() -> None:
        raise GeneratorExit

    async def main() -> None:
        COLOUR.set("of the opener")
        async with open_engine() as engine:
            asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory", _eager))
            assert await engine.call(handler) == "of the opener"
            assert await engine.call(handler) == "of the opener"
            with pytest.raises(GeneratorExit):  # An error of the function, also in the first step.
                await engine.call(fails)
            asyncio.get_running_loop().set_task_factory(None)

    app.run(main)


def _eager(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """The first step at once, as far as Python 3.11 allows it: a task is in `_ready` once it is made, so run that."""
    task = asyncio.Task(coroutine, loop=loop, **options)
    ready = getattr(loop, "_ready", None)
    if ready is None or not hasattr(ready, "pop"):
        return task
    outer = asyncio.current_task()
    handle = ready.pop()
    if outer is not None:
        asyncio.tasks._leave_task(loop, outer)
    try:
        run_now(handle)
    finally:
        if outer is not None:
            asyncio.tasks._enter_task(loop, outer)
    return task


def test_task_factory_that_raises_fails_the_call_only(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:

            def broken(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
                if "AppCall._run" in repr(coroutine):
                    raise LookupError("broken factory")
                return asyncio.Task(coroutine, loop=loop, **options)

            asyncio.get_running_loop().set_task_factory(broken)
            with pytest.raises(LookupError, match="broken factory"):
                await engine.call(_answer)
            asyncio.get_running_loop().set_task_factory(None)
            assert await engine.call(_answer) == 42

    app.run(main)


# --- For log lines ---


def test_stack_and_label_of_a_call(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            seen: list[object] = []
            tasks: list[trio.lowlevel.Task] = []

            async def call() -> None:
                tasks.append(trio.lowlevel.current_task())
                await engine.app_loop.call(handler, label="job 7")

            async def handler() -> None:
                seen.append(engine.app_loop.label_of_current())
                await deep_inside()

            async def deep_inside() -> None:
                await asyncio.sleep(0.01)
                seen.append(engine.app_loop.stack_of(tasks[0]))
                await wait.wait()

            wait = asyncio.Event()
            called = asyncio.create_task(engine.in_runtime(call))
            await until(lambda: len(seen) == 2)
            waiting = engine.app_loop.stack_of(tasks[0])
            assert engine.app_loop.label_of_current() is None
            wait.set()
            await called
            assert seen[0] == "job 7"
            for name in ("in handler", "in deep_inside"):
                assert str(seen[1]).count(name) == 1
            assert waiting is not None
            for name in ("in handler", "in deep_inside", "in wait"):
                assert name in waiting
            assert engine.app_loop.stack_of(tasks[0]) is None

    app.run(main)


def test_call_whose_task_has_not_taken_its_first_step_has_no_stack() -> None:
    async def main() -> None:
        app_loop = AppLoop(lambda function: None, lambda: None)
        call = AppCall(app_loop, _answer, cast(Any, None), None, None)
        assert "not begun yet" in call.stack()
        call.begin()
        assert "not begun yet" in call.stack()
        assert call.task is not None
        await call.task
        assert "not begun yet" not in call.stack()
        app_loop.end()

    asyncio.run(main())


class _Compiled:
    """An awaitable as an extension module may make it: it has the attributes of a coroutine, and no frame of Python."""

    cr_frame = "no frame"

    def __init__(self, awaitable: Any) -> None:
        self._steps = awaitable.__await__()

    def __await__(self) -> _Compiled:
        return self

    def __iter__(self) -> _Compiled:
        return self

    def __next__(self) -> Any:
        return next(self._steps)


def test_stack_ends_at_an_awaitable_without_a_frame(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            tasks: list[trio.lowlevel.Task] = []
            has_begun, wait = asyncio.Event(), asyncio.Event()

            async def call() -> None:
                tasks.append(trio.lowlevel.current_task())
                await engine.app_loop.call(handler)

            async def handler() -> None:
                has_begun.set()
                await _Compiled(wait.wait())  # type: ignore[misc]

            called = asyncio.create_task(engine.in_runtime(call))
            await has_begun.wait()
            stack = engine.app_loop.stack_of(tasks[0])
            wait.set()
            await called
            assert stack is not None
            assert "in handler" in stack.splitlines()[-2]

    app.run(main)
