"""How one call of the runtime ends: groups, results of cancelled callers, a run or a loop that is over by then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import outcome
import pytest
import trio

from tests.bridge.support import AppRunner, Engine, open_engine, starting_nothing_more, until
from tests.support.internals import calls_waiting, run_has_ended
from tests.support.waiting import wait_until
from trio_monque.bridge import call_into_runtime
from trio_monque.bridge.app_loop import AppLoop
from trio_monque.bridge.call_into_runtime import RuntimeCall
from trio_monque.bridge.lifetime import open_in_runtime
from trio_monque.bridge.runtime import Runtime
from trio_monque.errors import MonqueError


async def _answer() -> int:
    return 42


def test_caller_that_is_cancelled_already_calls_nothing(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            log: list[str] = []

            async def function() -> None:
                log.append("called")

            with anyio.CancelScope() as scope:
                scope.cancel()
                await engine.runtime.call(function)
            assert scope.cancelled_caught
            assert await engine.runtime.call(_answer) == 42
            assert log == []

    app.run(main)


def test_call_that_has_ended_is_listed_no_more(app: AppRunner) -> None:
    """Otherwise a program that runs for months would keep each of its calls."""

    async def main() -> None:
        async with open_engine() as engine:
            assert await engine.runtime.call(_answer) == 42
            with pytest.raises(TypeError):
                await engine.runtime.call(_answer, 1)  # type: ignore[arg-type]
            assert calls_waiting(engine.runtime) == 0

    app.run(main)


def test_first_answer_stays() -> None:
    """The last message of a run answers all that are listed, also one whose answer is on its way."""

    class Ended:
        def __init__(self, app_loop: AppLoop) -> None:
            self.app_loop = app_loop

        def post(self, function: Callable[[], object]) -> None:
            raise RuntimeError

        def start_service(self, function: Callable[[], Awaitable[None]]) -> None:
            raise RuntimeError

        def ended_error(self) -> MonqueError:
            return MonqueError("ended")

    async def main() -> None:
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        app_loop = AppLoop(lambda function: None, lambda: None)
        call = RuntimeCall[int](Ended(app_loop), _answer, None)
        call.answer(outcome.Value(42))
        call.answer(outcome.Error(MonqueError("ended")))
        assert await call.wait() == 42
        app_loop.end()
        assert errors == []

    asyncio.run(main())


def test_call_that_arrives_while_the_services_end_gets_an_error(app: AppRunner) -> None:
    """As an error of the delivery, it would end the whole run."""

    async def main() -> None:
        async with open_engine() as engine:
            with starting_nothing_more():
                with pytest.raises(MonqueError, match="the engine has ended"):
                    await engine.runtime.call(_answer)
            assert await engine.runtime.call(_answer) == 42

    app.run(main)


def test_call_whose_loop_is_closed_does_not_harm_the_runtime(app: AppRunner) -> None:
    """The loop of another thread, which its program has left. The answer has nowhere to go."""

    async def main() -> None:
        async with open_engine() as engine:
            began, ended = threading.Event(), threading.Event()

            async def function() -> None:
                began.set()
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(ended.wait)

            def call_and_leave() -> None:
                loop = app.new_loop()
                task = loop.create_task(engine.runtime.call(function))
                loop.run_until_complete(until(began.is_set))
                loop.close()
                task._log_destroy_pending = False  # type: ignore[attr-defined]

            await asyncio.to_thread(call_and_leave)
            ended.set()
            assert await engine.runtime.call(_answer) == 42
        assert engine.log == ["drained"]

    app.run(main)


def test_application_function_that_keeps_the_run_gets_the_answer_of_a_call_that_the_end_cancels(app: AppRunner) -> None:
    """The run waits for a service with a shield, that for the function, and the function for this answer."""
    answers: list[str] = []

    async def main() -> None:
        async def main_of_runtime(runtime: Runtime, task_status: trio.TaskStatus[None]) -> None:
            async def calls_back() -> None:
                has_begun.set()
                try:
                    await runtime.call(trio.sleep_forever)
                except MonqueError as error:
                    answers.append(str(error))

            async def service() -> None:
                with trio.CancelScope(shield=True), trio.move_on_after(10):
                    await runtime.app_loop.call(calls_back)

            runtime.start_service(service)
            await trio.to_thread.run_sync(wait_until, lambda: calls_waiting(runtime), "the call")
            task_status.started()

        has_begun = asyncio.Event()
        async with open_in_runtime(main_of_runtime, lambda _: None, "engine"):
            await has_begun.wait()

    app.run(main)
    assert answers == ["the engine has ended"]


# --- Callers that are cancelled ---


async def _raises() -> str:
    raise ValueError("while cancelled")


@pytest.mark.parametrize("is_ignored", [True, False])
@pytest.mark.parametrize("ends", [_answer, _raises])
def test_caller_that_is_cancelled_natively_meets_only_that(
    app: AppRunner, ends: Callable[[], Awaitable[Any]], is_ignored: bool
) -> None:
    """Whatever the function did meanwhile, and whether anything takes its result."""

    async def main() -> None:
        async with open_engine() as engine:
            orphans: list[Any] = []
            began = threading.Event()

            async def function() -> Any:
                began.set()
                try:
                    await trio.sleep_forever()
                except trio.Cancelled:
                    return await ends()

            orphan = None if is_ignored else orphans.append
            task = asyncio.create_task(engine.runtime.call(function, orphan=orphan))
            await until(began.is_set)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await engine.runtime.call(_answer) == 42
            assert orphans == ([42] if ends is _answer and not is_ignored else [])

    app.run(main)


@pytest.mark.parametrize("has_ended_by_itself", [True, False])
def test_caller_that_is_cancelled_after_the_end_of_the_run_meets_only_that(
    app: AppRunner, has_ended_by_itself: bool
) -> None:
    """What the function returned has ended with the run, so the orphan callback is not called."""

    async def main() -> None:
        orphans: list[int] = []
        async with open_engine() as engine:
            may_end, has_begun, has_ended = trio.Event(), threading.Event(), threading.Event()

            async def function() -> int:
                has_begun.set()
                try:
                    await may_end.wait()
                    return 42
                finally:
                    has_ended.set()

            task = asyncio.create_task(engine.runtime.call(function, orphan=orphans.append))
            await until(has_begun.is_set)
            # The loop stands still from here on, so the caller knows of nothing.
            if has_ended_by_itself:
                engine.runtime.post(may_end.set)
                assert has_ended.wait(20)
            engine.runtime.cut()
            wait_until(lambda: run_has_ended(engine.runtime), "the end of the run")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert orphans == []

    app.run(main)


async def _under_scope(engine: Engine, function: Callable[[], Awaitable[None]], began: threading.Event) -> list[Any]:
    """Call it in a scope of anyio that is cancelled when it has begun; what it raised, or "cancelled"."""
    scope = anyio.CancelScope()

    async def cancel() -> None:
        await until(began.is_set)
        scope.cancel()

    cancelling = asyncio.create_task(cancel())
    seen: list[Any] = []
    with scope:
        try:
            await engine.runtime.call(function)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        except BaseException as error:  # noqa: BLE001
            seen.append(error)
    await cancelling
    return seen


def test_group_of_a_cancelled_call_keeps_its_errors_and_loses_its_cancellations(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            began = threading.Event()

            async def mixed() -> None:
                began.set()
                try:
                    await trio.sleep_forever()
                except trio.Cancelled as cancelled:
                    raise BaseExceptionGroup("mixed", [cancelled, ValueError("v")]) from None

            (error,) = await _under_scope(engine, mixed, began)
            assert isinstance(error, ExceptionGroup)
            assert [repr(one) for one in error.exceptions] == ["ValueError('v')"]

    app.run(main)


def test_group_of_cancellations_only_is_the_cancellation(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            began = threading.Event()

            async def cancelled_twice() -> None:
                began.set()
                try:
                    await trio.sleep_forever()
                except trio.Cancelled as cancelled:
                    raise BaseExceptionGroup("both", [cancelled, cancelled]) from None

            assert await _under_scope(engine, cancelled_twice, began) == ["cancelled"]

    app.run(main)


class _CannotBeSplit(BaseExceptionGroup[Any]):
    def split(self, *_: Any) -> Any:
        raise LookupError("of the author")


def test_group_whose_author_broke_its_split_is_raised_as_it_is(app: AppRunner) -> None:
    async def main() -> None:
        async with open_engine() as engine:
            error = _CannotBeSplit("broken", [ValueError("v")])

            async def fails() -> None:
                raise error

            with pytest.raises(_CannotBeSplit) as raised:
                await engine.runtime.call(fails)
            assert raised.value is error
            assert await engine.runtime.call(_answer) == 42

    app.run(main)


def test_cancelled_caller_sleeps_until_the_function_has_ended(app: AppRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scope of anyio would wake it in each turn of the loop."""
    waits: list[object] = []

    class Counted:
        """asyncio, for the module that waits."""

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def wait(self, futures: Any) -> Any:
            waits.append(futures)
            return await asyncio.wait(futures)

    async def main() -> None:
        async with open_engine() as engine:
            may_end, began = threading.Event(), threading.Event()

            async def function() -> None:
                began.set()
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(may_end.wait)

            async def cancel() -> None:
                await until(began.is_set)
                scope.cancel()
                for _ in range(100):
                    await asyncio.sleep(0)
                may_end.set()

            monkeypatch.setattr(call_into_runtime, "asyncio", Counted())
            with anyio.CancelScope() as scope:
                cancelling = asyncio.create_task(cancel())
                await engine.runtime.call(function)
            await cancelling
            assert scope.cancel_called
            monkeypatch.undo()
        assert len(waits) == 2

    app.run(main)
