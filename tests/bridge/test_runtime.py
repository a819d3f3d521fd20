"""Calls of the runtime's functions from the application: results, errors, cancellation, other loops, the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import pytest
import trio
import trio.lowlevel
import trio.testing

from tests.bridge.support import AppRunner, Engine, open_engine, starting_nothing_more, until
from tests.support.internals import calls_waiting
from tests.support.waiting import wait_until
from trio_monque.bridge.call_into_runtime import RuntimeCall
from trio_monque.bridge.lifetime import open_in_runtime
from trio_monque.bridge.mirrored_scope import mirrored_scope
from trio_monque.bridge.runtime import Runtime
from trio_monque.errors import MonqueError

COLOUR: ContextVar[str] = ContextVar("colour", default="none")


def test_call_runs_in_the_runtime_with_the_context_of_its_caller(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:

            async def seen(x: int) -> tuple[int, str, bool]:
                await trio.lowlevel.checkpoint()
                return x, COLOUR.get(), threading.get_ident() == here

            here = threading.get_ident()
            COLOUR.set("of the caller")
            assert await engine.runtime.call(seen, 5) == (5, "of the caller", False)

    app.run(main)


@pytest.mark.parametrize("error", [ValueError("v"), StopAsyncIteration(), KeyboardInterrupt(), SystemExit(2)])
def test_error_reaches_the_caller_with_its_cause_and_the_runtime_goes_on(app: AppRunner, error: BaseException) -> None:
    async def fails() -> None:
        raise error from KeyError("cause")

    async def main() -> None:
        async with open_engine() as engine:
            with pytest.raises(type(error)) as raised:
                await engine.runtime.call(fails)
            assert raised.value is error
            assert isinstance(error.__cause__, KeyError)
            assert await engine.runtime.call(_answer) == 42

    app.run(main)


async def _answer() -> int:
    return 42


@pytest.mark.parametrize("natively", [True, False])
def test_cancelled_caller_cancels_the_function_and_awaits_it(app: AppRunner, natively: bool) -> None:
    log: list[str] = []

    async def slow() -> None:
        log.append("began")
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.01)
            log.append("ended")

    async def main() -> None:
        async with open_engine() as engine:
            scope = anyio.CancelScope()

            async def caller() -> None:
                with scope:
                    await engine.runtime.call(slow)

            task = asyncio.create_task(caller())
            await until(lambda: log)
            if natively:
                for _ in range(3):
                    task.cancel()
                    await asyncio.sleep(0)
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                scope.cancel()
                await task
                assert scope.cancelled_caught
            assert log == ["began", "ended"]

    app.run(main)


def test_result_that_a_cancelled_caller_does_not_get_goes_to_the_orphan_callback(app: AppRunner) -> None:
    """A scope of anyio cancels again, so its caller gets the result; a native cancellation comes once."""

    async def main() -> None:
        async with open_engine() as engine:
            orphans: list[str] = []
            began = threading.Event()
            may_end: list[trio.Event] = []

            async def takes_something() -> str:
                may_end.append(trio.Event())
                with trio.CancelScope(shield=True):
                    began.set()
                    await may_end[-1].wait()
                return "taken"

            def let_it_end() -> None:
                engine.runtime.post(may_end[-1].set)

            async def caller() -> str:
                return await engine.runtime.call(takes_something, orphan=orphans.append)

            task = asyncio.create_task(caller())
            await until(began.is_set)
            task.cancel()
            await asyncio.sleep(0)  # The task has met it.
            let_it_end()
            with pytest.raises(asyncio.CancelledError):
                await task
            await engine.runtime.call(_answer)
            assert orphans == ["taken"]

            began.clear()

            async def cancel_scope() -> None:
                await until(began.is_set)
                scope.cancel()
                await asyncio.sleep(0)
                let_it_end()

            results = list[str]()
            with anyio.CancelScope() as scope:
                cancelling = asyncio.create_task(cancel_scope())
                results.append(await caller())
            await cancelling
            assert scope.cancel_called
            await engine.runtime.call(_answer)
            assert (results, orphans) == (["taken"], ["taken"])

    app.run(main)


def test_call_from_the_runtime_itself_is_a_plain_call(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:

            async def outer() -> bool:
                return await engine.runtime.call(same_task, trio.lowlevel.current_task())

            async def same_task(task: trio.lowlevel.Task) -> bool:
                return trio.lowlevel.current_task() is task

            assert await engine.runtime.call(outer)

    app.run(main)


def test_call_from_another_asyncio_loop_and_from_another_trio_run(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            answers = await asyncio.to_thread(lambda: app.run(lambda: both(engine)))
            assert answers == [42, "ValueError"]
            with pytest.raises(MonqueError, match="another trio run"):
                await asyncio.to_thread(trio.run, engine.runtime.call, _answer)

    async def both(engine: Engine) -> list[object]:
        async def fails() -> None:
            raise ValueError

        answers: list[object] = [await engine.runtime.call(_answer)]
        try:
            await engine.runtime.call(fails)
        except ValueError as error:
            answers.append(type(error).__name__)
        return answers

    app.run(main)


def test_call_after_the_end_and_one_that_the_end_interrupts(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            waiting = asyncio.create_task(engine.runtime.call(trio.sleep_forever))
            elsewhere = asyncio.create_task(
                asyncio.to_thread(lambda: app.run(lambda: engine.runtime.call(trio.sleep_forever)))
            )
            await until(lambda: calls_waiting(engine.runtime) == 2)
        for task in (waiting, elsewhere):
            with pytest.raises(MonqueError, match="the engine has ended"):
                await task
        with pytest.raises(MonqueError, match="the engine has ended"):
            await engine.runtime.call(_answer)
        engine.runtime.cut()  # Nothing happens.

    app.run(main)


def test_answer_that_comes_while_the_run_ends_does_not_change_how_it_ends(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:

            def again() -> None:
                engine.app_loop.answer_to_runtime(again)  # As the application may in its thread, at any moment.

            engine.app_loop.answer_to_runtime(again)
            await engine.runtime.call(_answer)
        assert engine.log == ["drained"]

    app.run(main)


def test_call_that_another_loop_posts_while_the_run_ends_is_answered(
    app: AppRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was posted then may be dropped without an error: the last message of the run answers each caller."""

    async def main() -> None:
        has_posted, has_ended = threading.Event(), threading.Event()

        def dropped(function: Callable[[], object]) -> None:
            has_posted.set()
            assert has_ended.wait(10)

        async with open_engine() as engine:
            with monkeypatch.context() as patched:
                patched.setattr(engine.runtime, "post", dropped)
                caller = asyncio.create_task(asyncio.to_thread(lambda: app.run(lambda: engine.runtime.call(_answer))))
                await until(has_posted.is_set)
        has_ended.set()
        with pytest.raises(MonqueError, match="the engine has ended"):
            await asyncio.wait_for(caller, 10)

    app.run(main)


def test_last_message_answers_each_caller_although_those_before_it_leave_the_list_meanwhile(
    app: AppRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers of other loops take their answers in their own threads."""
    answer = RuntimeCall.answer

    def answer_and_wait(call: RuntimeCall[Any], ended: Any) -> None:
        before = calls_waiting(engines[0].runtime)
        answer(call, ended)
        wait_until(lambda: calls_waiting(engines[0].runtime) < before, "the caller has its answer")

    engines: list[Engine] = []

    async def main() -> None:
        async with open_engine() as engine:
            engines.append(engine)
            with monkeypatch.context() as patched:
                patched.setattr(engine.runtime, "post", lambda function: None)  # The run ends before it is delivered.
                callers = [
                    asyncio.create_task(asyncio.to_thread(lambda: app.run(lambda: engine.runtime.call(_answer))))
                    for _ in range(3)
                ]
                await until(lambda: calls_waiting(engine.runtime) == 3)
            monkeypatch.setattr(RuntimeCall, "answer", answer_and_wait)
        for caller in callers:
            with pytest.raises(MonqueError, match="the engine has ended"):
                await asyncio.wait_for(caller, 10)

    app.run(main)


@pytest.mark.usefixtures("moved_by_hand")
def test_answer_of_another_thread_wakes_the_runtime_in_debug_mode_too(app: AppRunner) -> None:
    """The loop refuses to plan a wake-up for it then, and the watch would bring one a quarter of a second later."""

    async def main() -> None:
        asyncio.get_running_loop().slow_callback_duration = 60
        async with open_engine() as engine:
            has_come = threading.Event()

            def answer_and_wait() -> bool:
                engine.app_loop.answer_to_runtime(has_come.set)
                return has_come.wait(10)

            assert await asyncio.to_thread(answer_and_wait)

    app.run(main, debug=True)


def test_service_with_a_shield_that_begins_after_main_has_ended_does_not_keep_the_run(app: AppRunner) -> None:
    async def main() -> None:
        ended: list[bool] = []

        async def main_of_runtime(runtime: Runtime, task_status: trio.TaskStatus[None]) -> None:
            over = trio.Event()

            async def service() -> None:
                with runtime.calling_at_end(over.set), trio.CancelScope(shield=True):
                    await over.wait()
                ended.append(True)

            task_status.started()
            runtime.start_service(service)

        async with asyncio.timeout(20), open_in_runtime(main_of_runtime, lambda _: None, "engine"):
            pass
        assert ended == [True]

    app.run(main)


def test_service_with_a_shield_calls_the_application_after_main_has_ended(app: AppRunner) -> None:
    """What otherwise wakes the loop for calls ends with `main`."""

    async def main() -> None:
        answers: list[int] = []

        async def main_of_runtime(runtime: Runtime, task_status: trio.TaskStatus[None]) -> None:
            over = trio.Event()

            async def service() -> None:
                with runtime.calling_at_end(over.set), trio.CancelScope(shield=True), trio.fail_after(20):
                    await over.wait()
                    answers.append(await runtime.app_loop.call(_answer))
                    await trio.testing.wait_all_tasks_blocked()
                    answers.append(await runtime.app_loop.call(_answer))

            runtime.start_service(service)
            await trio.testing.wait_all_tasks_blocked()
            task_status.started()

        async with open_in_runtime(main_of_runtime, lambda _: None, "engine"):
            pass
        assert answers == [42, 42]

    app.run(main)


def test_crash_of_a_service_ends_the_block_with_its_error(app: AppRunner) -> None:
    """It cancels `main`, and the error of the run is not that cancellation."""

    async def fails() -> None:
        raise LookupError("bug")

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as raised:
            async with open_engine() as engine:
                engine.runtime.post(lambda: engine.runtime.start_service(fails))
                await asyncio.sleep(60)
        assert [repr(error) for error in raised.value.exceptions] == ["LookupError('bug')"]
        assert engine.log == ["cut"]

    app.run(main)


# --- Mirrored scopes ---


def _entering(scope: trio.CancelScope) -> Callable[[], AbstractContextManager[object]]:
    @contextmanager
    def enter() -> Any:
        with scope:
            yield

    return enter


def test_mirrored_scope_is_cancelled_with_the_one_in_the_runtime(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            original = trio.CancelScope()
            with mirrored_scope(engine.runtime, _entering(original)) as scope:
                engine.runtime.post(original.cancel)
                await asyncio.sleep(60)
            assert scope.cancelled_caught

    app.run(main)


def test_mirrored_scope_ends_at_once_if_the_runtime_starts_nothing_more(app: AppRunner) -> None:
    """The runtime ends between the post and its delivery. Otherwise the block would go on without it."""

    async def main() -> None:
        async with open_engine() as engine:
            with starting_nothing_more():
                with mirrored_scope(engine.runtime, _entering(trio.CancelScope())) as scope:
                    await asyncio.sleep(60)
            assert scope.cancelled_caught

    app.run(main)


def test_mirrored_scope_is_left_with_its_block_and_cancels_nothing_later(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            left: list[bool] = []

            @contextmanager
            def enter() -> Any:
                yield
                left.append(True)

            with mirrored_scope(engine.runtime, enter) as scope:
                await asyncio.sleep(0.01)
            await until(lambda: left)
            await engine.runtime.call(_answer)
            assert not scope.cancel_called
            with mirrored_scope(engine.runtime, enter):
                pass  # Ended before it was entered there.
            await until(lambda: len(left) == 2)

    app.run(main)


def test_mirrored_scope_of_another_loop_is_cancelled_there(app: AppRunner) -> None:
    """By way of the application loop, it would wait for that, and nothing would wake the other loop."""

    async def main() -> None:
        async with open_engine() as engine:
            original = trio.CancelScope()

            async def block() -> bool:
                with anyio.fail_after(10), mirrored_scope(engine.runtime, _entering(original)) as scope:
                    engine.runtime.post(original.cancel)
                    await asyncio.sleep(60)
                return scope.cancelled_caught

            with ThreadPoolExecutor(1) as elsewhere:
                assert elsewhere.submit(app.run, block).result(20)  # The application loop stands still.

    app.run(main)


def test_mirrored_scope_of_another_loop_may_end_after_that_is_closed(app: AppRunner) -> None:
    """As where `asyncio.run` ends with the block. An error would be a crash of all that the runtime runs."""

    async def main() -> None:
        async with open_engine() as engine:
            is_closed = threading.Event()

            async def block() -> None:
                with mirrored_scope(engine.runtime, _entering(trio.CancelScope())):
                    await engine.runtime.call(_answer)  # By then the runtime has entered its scope.
                    engine.runtime.post(lambda: is_closed.wait(20))  # It takes the end of the block after that.

            await asyncio.to_thread(lambda: app.run(block))
            is_closed.set()
            assert await engine.runtime.call(_answer) == 42
        assert engine.log == ["drained"]

    app.run(main)


@pytest.mark.parametrize("app", ["joined"], indirect=True)
def test_mirrored_scope_has_a_shield_and_a_time_limit_of_its_own(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            log: list[str] = []
            began_at = anyio.current_time()
            with anyio.CancelScope() as outer:
                outer.cancel()
                with mirrored_scope(engine.runtime, _entering(trio.CancelScope()), shield=True, seconds=20) as scope:
                    await asyncio.sleep(19)
                    log.append("shielded")
                    await asyncio.sleep(60)
                log.append("limited")
                assert scope.cancelled_caught
                assert anyio.current_time() == began_at + 20
            assert log == ["shielded", "limited"]

    app.run(main)


def test_mirrored_scope_ends_with_the_runtime_although_the_original_has_a_shield(app: AppRunner) -> None:
    async def main() -> None:
        caught: list[bool] = []

        async def block(engine: Engine) -> None:
            with mirrored_scope(engine.runtime, _entering(trio.CancelScope(shield=True))) as scope:
                entered.set()
                await asyncio.sleep(60)
            caught.append(scope.cancelled_caught)

        entered = asyncio.Event()
        async with open_engine() as engine:
            task = asyncio.create_task(block(engine))
            await entered.wait()
            await engine.runtime.call(_answer)
        await task
        assert caught == [True]

    app.run(main)
