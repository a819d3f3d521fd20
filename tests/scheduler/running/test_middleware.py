"""Middleware of Workers: what it may be, and what it means for a run on trio. `asyncio_hosts` has the other loops."""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.pages import DOCS
from tests.support.programs import fenced_blocks
from trio_monque import Discard, NewJob, RunningJob, Snooze, Workers
from trio_monque.errors import InvalidOptionError, MiddlewareError, WorkerRegistrationError
from trio_monque.store.driver.types import Database as MongoDatabase
from trio_monque.testing import Discarded, Failed, SchedulerOpener, Snoozed, Succeeded, drain, now, run_job

Run = Callable[[], Any]
Middleware = Callable[[RunningJob[Any], Run], Any]


def logging_as(name: str, log: list[str]) -> Middleware:
    async def middleware(job: RunningJob[Any], run: Run) -> None:
        log.append(f"{name} before {job.data}")
        log.append(f"{name} after {await run()}")

    return middleware


async def double(job: RunningJob[int]) -> int:
    return 2 * job.data


def double_in_thread(job: RunningJob[int]) -> int:
    return 2 * job.data


# --- Around a run ---


@pytest.mark.parametrize("handler", [double, double_in_thread])
async def test_first_middleware_is_the_outermost_and_sees_what_the_handler_returned(
    handler: Callable[..., Any],
) -> None:
    log: list[str] = []
    workers = Workers(middleware=[logging_as("outer", log), logging_as("inner", log)])
    ran = await run_job(workers.register("double", handler, store_result=True), 21)
    assert ran.outcome == Succeeded(42)  # Although the middleware has returned None.
    assert log == ["outer before 21", "inner before 21", "inner after 42", "outer after 42"]


async def test_plain_middleware_runs_in_the_thread_of_the_handler_inside_of_the_async_ones() -> None:
    log: list[tuple[str, bool]] = []
    on_loop = threading.get_ident()

    async def outer(job: RunningJob[Any], run: Run) -> None:
        log.append(("outer", threading.get_ident() == on_loop))
        await run()

    def inner(job: RunningJob[Any], run: Run) -> None:
        log.append(("inner", threading.get_ident() == on_loop))
        log.append((f"inner got {run()}", threading.get_ident() == on_loop))

    ran = await run_job(Workers(middleware=[outer, inner]).register("double", double_in_thread), 4)
    assert (ran.value, log) == (8, [("outer", True), ("inner", False), ("inner got 8", False)])


class Database:
    """A callable object, which is async."""

    async def __call__(self, job: RunningJob[Any], run: Run, *, seen: list[Any]) -> None:
        seen.append(job.data)
        await run()


async def test_middleware_may_be_a_partial_of_an_object() -> None:
    seen: list[Any] = []
    workers = Workers(middleware=[partial(Database(), seen=seen)])
    assert (await run_job(workers.register("double", double), 1)).value == 2
    assert seen == [1]


async def test_scheduler_runs_the_middleware_also_of_handlers_that_are_registered_later(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    log: list[str] = []
    workers = Workers(middleware=[logging_as("first", log)])
    workers.register("double", double)
    others = Workers(middleware=[logging_as("second", log)])
    others.register("other", double)
    bare = Workers()
    bare.register("bare", double)
    united = workers.subset(["double"]).with_resources("shop").union(others, bare)
    async with open_test_scheduler(united) as scheduler:
        scheduler.register("late", double_in_thread)
        for place, name in enumerate(("double", "other", "late", "bare")):
            await scheduler.enqueue(name, place)
            await drain(scheduler)
    assert log == [
        *("first before 0", "first after 0"),
        *("second before 1", "second after 2"),
        *("first before 2", "first after 4"),
    ]


# --- Errors ---


@pytest.mark.parametrize("handler", [double, double_in_thread])
@pytest.mark.parametrize("is_before", [True, False])
async def test_error_of_a_middleware_is_a_failed_attempt(handler: Callable[..., Any], is_before: bool) -> None:
    error = ValueError("no")

    async def refusing(job: RunningJob[Any], run: Run) -> None:
        if not is_before:
            await run()
        raise error

    worker = Workers(middleware=[refusing]).register("double", handler)
    ran = await run_job(worker, 1, reraise=False)
    assert (ran.outcome, ran.job.fail_count) == (Failed(error), 1)


async def test_middleware_sees_the_error_of_the_handler_and_may_raise_a_outcome_for_it() -> None:
    async def giving_up(job: RunningJob[Any], run: Run) -> None:
        try:
            await run()
        except KeyError as error:
            raise Discard("unknown customer") from error

    async def fails(job: RunningJob[Any]) -> None:
        raise KeyError(job.data)

    ran = await run_job(Workers(middleware=[giving_up]).register("fails", fails), "Ada")
    assert isinstance(ran.outcome, Discarded)
    assert ran.job.fail_reason == "unknown customer"


async def test_error_that_a_middleware_swallows_does_not_fail_the_attempt() -> None:
    def swallowing(job: RunningJob[Any], run: Run) -> None:
        with pytest.raises(ZeroDivisionError):
            run()

    def divides(job: RunningJob[int]) -> float:
        return 1 / job.data

    worker = Workers(middleware=[swallowing]).register("divides", divides, store_result=True)
    assert (await run_job(worker, 0)).outcome == Succeeded(None)


async def test_middleware_may_leave_the_handler_out_with_a_outcome() -> None:
    async def closed(job: RunningJob[Any], run: Run) -> None:
        raise Snooze(after=3600)

    ran = await run_job(Workers(middleware=[closed]).register("double", double), 1)
    assert isinstance(ran.outcome, Snoozed)
    assert ran.value is None


async def forgets(job: RunningJob[Any], run: Run) -> None: ...


def forgets_in_thread(job: RunningJob[Any], run: Run) -> None: ...


async def tries_twice(job: RunningJob[Any], run: Run) -> None:
    await run()
    await run()


def tries_twice_in_thread(job: RunningJob[Any], run: Run) -> None:
    run()
    run()


def returns_a_coroutine(job: RunningJob[Any], run: Run) -> Any:
    return forgets(job, run)


@pytest.mark.parametrize(
    ("middleware", "handler", "problem"),
    [
        (forgets, double, "the middleware forgets returned without run(), so the handler did not run"),
        (forgets, double_in_thread, "returned without run()"),
        (forgets_in_thread, double_in_thread, "returned without run()"),
        (tries_twice, double, "called run() a second time"),
        (tries_twice, double_in_thread, "called run() a second time"),
        (tries_twice_in_thread, double_in_thread, "called run() a second time"),
        (returns_a_coroutine, double_in_thread, "returned the coroutine forgets, which would never run"),
    ],
)
async def test_middleware_that_does_not_run_the_handler_once_is_a_failed_attempt(
    middleware: Middleware, handler: Callable[..., Any], problem: str
) -> None:
    ran = await run_job(Workers(middleware=[middleware]).register("double", handler), 1, reraise=False)
    assert isinstance(ran.outcome, Failed)
    assert isinstance(ran.error, MiddlewareError)
    assert problem in str(ran.error)


async def test_middleware_that_returns_before_the_handler_is_a_failed_attempt() -> None:
    async with trio.open_nursery() as nursery:

        async def hasty(job: RunningJob[Any], run: Callable[[], Awaitable[Any]]) -> None:
            nursery.start_soon(run)
            await trio.testing.wait_all_tasks_blocked()

        async def waits(job: RunningJob[Any]) -> None:
            await trio.sleep_forever()

        ran = await run_job(Workers(middleware=[hasty]).register("waits", waits), reraise=False)
        nursery.cancel_scope.cancel()
    assert "returned before run() had ended: await it" in str(ran.error)


# --- Cancellation ---


@pytest.mark.parametrize("is_plain", [True, False])
async def test_cancellation_passes_through(autojump_clock: MockClock, is_plain: bool) -> None:
    log: list[str] = []

    async def outer(job: RunningJob[Any], run: Run) -> None:
        try:
            await run()
        except Exception:
            log.append("the cancellation is not an Exception")
            raise
        finally:
            log.append(f"outer: {job.cancel_reason}")

    def inner(job: RunningJob[Any], run: Run) -> None:
        try:
            run()
        except Exception:
            log.append("nor is that of a thread")
            raise
        finally:
            log.append(f"inner: {job.cancel_reason}")

    async def sleeps(job: RunningJob[Any]) -> None:
        await trio.sleep(60)

    def sleeps_in_thread(job: RunningJob[Any]) -> None:
        job.from_thread(trio.sleep, 60)

    worker = (
        Workers(middleware=[outer, inner]).register("sleeps", sleeps_in_thread)
        if is_plain
        else Workers(middleware=[outer]).register("sleeps", sleeps)
    )
    ran = await run_job(worker, timeout=5)
    assert isinstance(ran.error, TimeoutError)
    assert (ran.cancel_reason, ran.duration) == ("timeout", 5)
    assert log == (["inner: timeout", "outer: timeout"] if is_plain else ["outer: timeout"])


async def test_shield_around_a_cancelled_thread_does_not_make_a_success_of_it(autojump_clock: MockClock) -> None:
    async def shielding(job: RunningJob[Any], run: Run) -> None:
        with job.cleanup(30):
            await run()

    def waits(job: RunningJob[Any]) -> None:
        job.from_thread(trio.sleep, 60)

    ran = await run_job(Workers(middleware=[shielding]).register("waits", waits), timeout=5)
    assert isinstance(ran.error, TimeoutError)


# --- What is refused ---


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (double, "must be a list of functions"),
        ("timing", "must be a list of functions"),
        ([1], "must be a function"),
        ([double], "is called with two arguments, the job and run"),
        ([Database], "is a class"),
        ([forgets_in_thread, forgets], "comes after forgets_in_thread, a plain function"),
    ],
)
def test_what_cannot_be_middleware_is_refused(given: Any, problem: str) -> None:
    with pytest.raises(InvalidOptionError, match=problem):
        Workers(middleware=given)


def test_generator_is_refused_as_middleware() -> None:
    def yields(job: RunningJob[Any], run: Run) -> Any:
        yield

    with pytest.raises(InvalidOptionError, match="does not yield"):
        Workers(middleware=[yields])


def test_plain_middleware_is_refused_around_an_async_handler() -> None:
    workers = Workers(middleware=[forgets_in_thread])
    with pytest.raises(WorkerRegistrationError, match="forgets_in_thread is a plain function, which runs in the"):
        workers.register("double", double)


async def test_middleware_sees_transactions_follow_ups_and_the_runs_of_a_replaced_job(
    open_test_scheduler: SchedulerOpener, db: MongoDatabase, autojump_clock: MockClock
) -> None:
    seen, effects = list[tuple[Any, ...]](), db["effects"]

    async def sees(job: RunningJob[Any], run: Run) -> None:
        before = effects.count_documents({})
        value = await run()
        written = effects.count_documents({}) - before
        seen.append(
            (job.name, job.data, value, written, job.job.follows is not None, job.job.limits.start_by is not None)
        )

    workers = Workers(middleware=[sees])
    options: dict[str, Any] = {"unique_key": "k", "on_conflict": "replace", "start_by": now() + timedelta(hours=1)}

    @workers.register("pay", then=lambda job: NewJob("receipt", job.data))
    async def pay(job: RunningJob[int]) -> str:
        if job.data == 1:
            await job.scheduler.enqueue("pay", 2, **options)
        await job.transaction(lambda session: effects.insert_one({"of": job.data}, session=session).acknowledged)
        return "paid"

    @workers.register("receipt")
    async def receipt(job: RunningJob[int]) -> None: ...

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("pay", 1, **options)
        await drain(scheduler)
    assert seen == [
        ("pay", 1, "paid", 1, False, True),
        ("pay", 2, "paid", 1, False, True),
        ("receipt", 2, None, 0, True, False),
    ]


async def test_programs_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    closed: list[int] = []
    names: dict[str, Any] = {
        "close_connections": lambda: closed.append(threading.get_ident()),
        "count_orders": lambda year: year - 2000,
        "shop": SimpleNamespace(is_open=False),
    }
    for block in fenced_blocks(DOCS / "how-to/wrap-handlers-with-middleware.md", "python"):
        exec(compile(block, "the page", "exec"), names)
    await run_job(names["greet"], "Ada")
    greeting, time = capsys.readouterr().out.splitlines()
    assert greeting == "Hello, Ada!"
    assert re.fullmatch(r"greet took 0\.\d{3} s", time)
    assert (await run_job(names["all_workers"].get("report"), 2026)).value == 26
    assert len(closed) == 1
    assert closed != [threading.get_ident()]
    snoozing = Workers(middleware=[names["only_if_open"]]).register("double", double)
    assert isinstance((await run_job(snoozing, 1)).outcome, Snoozed)
