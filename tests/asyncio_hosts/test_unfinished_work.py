"""A handler that returns work instead of doing it has failed: on trio, asyncio and uvloop, with and without middleware.

The suite turns warnings into errors, so each test also shows that Python has nothing to say about the work.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial, wraps
from itertools import starmap
from typing import Any

import pytest
import sniffio

from tests.asyncio_hosts.conftest import Run
from tests.asyncio_hosts.scenes import QUICK, only_document, until
from tests.support.documents import OPEN, fill, lock_of
from tests.support.thoroughly import one_in
from trio_monque import Claim, RunningJob, Workers, open_scheduler, run_claims
from trio_monque.errors import MiddlewareError
from trio_monque.scheduler.middleware import Middleware
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import Failed, Succeeded, run_job

done: list[str] = []


async def work() -> None:
    done.append("work")


async def steps() -> AsyncIterator[int]:
    done.append("steps")
    yield 1


def items() -> Iterator[int]:
    done.append("items")
    yield 1


@contextmanager
def opened() -> Iterator[None]:
    done.append("opened")
    yield


@asynccontextmanager
async def opened_async() -> AsyncIterator[None]:
    done.append("opened")
    yield


class OwnAwaitable:
    def __await__(self) -> Generator[Any, None, None]:
        done.append("own")
        yield


class OwnGenerator(Generator[int, None, None]):
    def send(self, value: None) -> int:
        raise StopIteration

    def throw(self, *_: Any) -> int:
        raise StopIteration


UNFINISHED: dict[str, tuple[Callable[[], Any], str]] = {
    "a coroutine": (work, "returned the coroutine work, which would never run: await it"),
    "an async generator": (steps, "returned the async generator steps, which would never run: loop over it"),
    "a generator": (items, "returned the generator items, which would never run: loop over it"),
    "a map": (lambda: map(done.append, "ab"), "returned a map object, which calls nothing by itself"),
    "a starmap": (lambda: starmap(done.append, ["a"]), "returned a starmap object, which calls nothing by itself"),
    "a context manager": (opened, "returned the context manager opened, which was not entered"),
    "an async context manager": (opened_async, "returned the context manager opened_async, which was not entered"),
    "an awaitable": (OwnAwaitable, "returned an awaitable (OwnAwaitable), which nothing awaited: await it"),
    "an own generator": (OwnGenerator, "returned a generator (OwnGenerator), which would never run"),
    "a future of a thread": (concurrent.futures.Future, "returned a future, which it did not wait for"),
}


class Handlers:
    """An object that can be called, with an async method."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    async def __call__(self, job: RunningJob[Any]) -> Any:
        return self.make()


def decorated(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    @wraps(handler)
    def wrapper(job: RunningJob[Any]) -> Any:
        return handler(job)

    return wrapper


async def async_handler(make: Callable[[], Any], job: RunningJob[Any]) -> Any:
    return make()


def plain_handler(make: Callable[[], Any], job: RunningJob[Any]) -> Any:
    return make()


KINDS: dict[str, Callable[[Callable[[], Any]], Callable[..., Any]]] = {
    "async": lambda make: partial(async_handler, make),
    "plain": lambda make: partial(plain_handler, make),
    "object": Handlers,
}


async def passing(job: RunningJob[Any], run: Callable[[], Awaitable[Any]]) -> Any:
    return await run()


def passing_in_thread(job: RunningJob[Any], run: Callable[[], Any]) -> Any:
    return run()


@pytest.fixture(autouse=True)
def nothing_is_done() -> Iterator[None]:
    done.clear()
    yield
    gc.collect()  # A coroutine that was never awaited says it now, and the warning is an error.
    assert done == []


@pytest.mark.full
@pytest.mark.parametrize(("kind", "what"), one_in(4, list(KINDS), list(UNFINISHED)))
def test_work_that_is_returned_is_a_failed_attempt_whose_error_has_the_advice(run: Run, kind: str, what: str) -> None:
    make, problem = UNFINISHED[what]
    handler = KINDS[kind](make)

    async def main() -> None:
        chains: list[list[Middleware]] = [[], [passing], [passing, passing]]
        if kind == "plain":
            chains += [[passing_in_thread], [passing, passing_in_thread]]
        for middleware in chains:
            worker = Workers(middleware=middleware).register("job", handler, store_result=True)
            ran = await run_job(worker, reraise=False)
            assert isinstance(ran.outcome, Failed)
            assert isinstance(ran.error, TypeError)
            assert "the handler" in str(ran.error)
            assert problem in str(ran.error)

    run(main)


@pytest.mark.full
def test_handler_behind_a_plain_decorator_is_a_failed_attempt(run: Run) -> None:
    @decorated
    async def handler(job: RunningJob[Any]) -> None:
        done.append("handler")

    async def main() -> None:
        ran = await run_job(handler, reraise=False)
        assert "a plain function, returned the coroutine" in str(ran.error)

    run(main)


@pytest.mark.full
@pytest.mark.parametrize("value", [[1], (1, 2), {"a": [1]}, {1, 2}, "text", iter([1]), range(3), b"", work, object()])
def test_results_that_are_no_work_are_results(run: Run, value: Any) -> None:
    async def main() -> None:
        for handler in (partial(async_handler, lambda: value), partial(plain_handler, lambda: value)):
            ran = await run_job(handler)
            assert ran.outcome == Succeeded()
            assert ran.value is value

    run(main)


@pytest.mark.full
def test_task_that_is_returned_is_cancelled_and_the_attempt_has_failed(run: Run) -> None:
    tasks: list[asyncio.Task[None]] = []

    async def forever() -> None:
        await asyncio.sleep(3600)

    async def handler(job: RunningJob[Any]) -> Any:
        tasks.append(asyncio.create_task(forever()))
        return tasks[0]

    async def main() -> None:
        if sniffio.current_async_library() != "asyncio":
            return
        ran = await run_job(handler, reraise=False)
        assert "returned a Task of asyncio, which it did not wait for" in str(ran.error)
        await until(tasks[0].cancelled)

    run(main)


# --- Middleware ---


async def forgets_to_await(job: RunningJob[Any], run: Callable[[], Awaitable[Any]]) -> None:
    run()  # type: ignore[unused-awaitable, unused-ignore]


async def returns_the_call(job: RunningJob[Any], run: Callable[[], Awaitable[Any]]) -> Any:
    return run()


async def forgets_its_own(job: RunningJob[Any], run: Callable[[], Awaitable[Any]]) -> Any:
    await run()
    return work()


def forgets_its_own_in_thread(job: RunningJob[Any], run: Callable[[], Any]) -> Any:
    run()
    return items()


@pytest.mark.full
@pytest.mark.parametrize(
    ("middleware", "problem"),
    [
        (forgets_to_await, "forgets_to_await called run() and did not await it, so the handler did not run"),
        (returns_the_call, "returns_the_call called run() and did not await it, so the handler did not run"),
        (forgets_its_own, "forgets_its_own returned the coroutine work, which would never run"),
        (forgets_its_own_in_thread, "forgets_its_own_in_thread returned the generator items, which would never run"),
    ],
)
def test_middleware_that_leaves_work_undone_is_a_failed_attempt(run: Run, middleware: Middleware, problem: str) -> None:
    async def handle(job: RunningJob[Any]) -> None: ...

    def handle_in_thread(job: RunningJob[Any]) -> None: ...

    async def main() -> None:
        handlers: list[Callable[..., Any]] = [handle_in_thread]
        if middleware is not forgets_its_own_in_thread:
            handlers.append(handle)
        for handler in handlers:
            ran = await run_job(Workers(middleware=[middleware]).register("job", handler), reraise=False)
            assert isinstance(ran.error, MiddlewareError)
            assert problem in str(ran.error)

    run(main)


@pytest.mark.full
def test_middleware_sees_that_the_handler_has_failed(run: Run) -> None:
    seen: list[Any] = []

    async def committing(job: RunningJob[Any], run: Callable[[], Awaitable[Any]]) -> None:
        try:
            await run()
        except TypeError as error:
            seen.append(error)
            raise

    async def main() -> None:
        worker = Workers(middleware=[committing]).register("job", partial(async_handler, work))
        await run_job(worker, reraise=False)
        assert "which would never run" in str(seen[0])

    run(main)


# --- In the database ---


@pytest.mark.full
def test_job_whose_work_never_began_is_tried_again_and_fails_for_good(db: Database, run: Run) -> None:
    workers = Workers()
    workers.register("job", partial(async_handler, work), max_attempts=2)

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            await scheduler.enqueue("job")
            await until(lambda: only_document(db)["status"] == "failed")
        assert scheduler.report is not None
        assert (scheduler.report.completed, scheduler.report.failed) == (0, 2)

    run(main)
    assert only_document(db)["failReason"].startswith("TypeError: the handler returned the coroutine work")


@pytest.mark.full
def test_document_whose_work_never_began_is_not_finished(things: Collection, run: Run) -> None:
    fill(things, 1)

    async def handler(claim: Claim[Any]) -> Any:
        return steps()

    async def main() -> None:
        report = await run_claims(things, OPEN, handler, wait=False, max_attempts=2, **QUICK)
        assert (report.finished, report.failed) == (0, 2)

    run(main)
    assert "returned the async generator steps" in lock_of(things, 0)["error"]
