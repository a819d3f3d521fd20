"""Workers: a declaration, checked when it is made and copied when a scheduler opens."""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from pymongo import MongoClient
from trio.testing import MockClock

from trio_monque import MonqueError, RunningJob, Worker, Workers, open_scheduler
from trio_monque.errors import InvalidJobIdentifierError, InvalidOptionError, WorkerRegistrationError
from trio_monque.testing import SchedulerOpener, assert_enqueued, drain


def test_decorated_function_is_callable_as_it_was_and_has_a_name() -> None:
    workers = Workers()

    @workers.register("greet", concurrency=3, timeout=2.5)
    def greet(job: RunningJob[Any], polite: bool = False) -> str:
        """Says hello."""
        return "good day" if polite else "hello"

    assert isinstance(greet, Worker)
    assert (greet.name, greet.__doc__, greet.is_async) == ("greet", "Says hello.", False)
    job: Any = None
    assert greet(job, polite=True) == "good day"
    assert (greet.settings.concurrency, greet.settings.timeout, greet.settings.max_attempts) == (3, 2.5, None)


def test_registration_distinguishes_async_handlers_from_plain_ones() -> None:
    class Called:
        async def __call__(self, job: RunningJob[Any]) -> None: ...

        async def method(self, job: RunningJob[Any]) -> None: ...

    async def function(x: int, job: RunningJob[Any]) -> None: ...

    workers = Workers()
    handlers: list[Any] = [Called(), Called().method, partial(function, 1), partial(partial(function), 1)]
    assert all(workers.register(f"w{n}", handler).is_async for n, handler in enumerate(handlers))
    assert not workers.register("plain", print).is_async


@pytest.mark.parametrize("name", ["", "a b", "x" * 256])
def test_name_that_no_job_can_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidJobIdentifierError):
        Workers().register(name, print)


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"timeout": 0}, {"max_attempts": -1}])
def test_option_that_cannot_be_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        Workers().register("greet", print, **options)
    assert caught.value.option in options


def test_handler_that_cannot_be_called_is_refused() -> None:
    def generates(job: RunningJob[Any]) -> Any:
        yield 1

    wrong: Any = "print"
    for handler in (wrong, generates):
        with pytest.raises(WorkerRegistrationError, match="'greet'"):
            Workers().register("greet", handler)


def test_name_is_taken_once_unless_it_is_replaced() -> None:
    workers = Workers()
    workers.register("greet", print)
    with pytest.raises(WorkerRegistrationError, match="'greet': is already registered"):
        workers.register("greet", repr)
    assert workers.register("greet", repr, replace=True).handler is repr


async def test_declaration_is_copied_when_a_scheduler_opens(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    ran: list[str] = []
    workers.register("greet", lambda job: ran.append("first"))
    async with open_test_scheduler(workers) as scheduler:
        workers.register("greet", lambda job: ran.append("second"), replace=True)
        await scheduler.enqueue("greet")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)

        @scheduler.register("late")
        def late(job: RunningJob[Any]) -> None:
            ran.append("late")

        await scheduler.enqueue(late)
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=2)
    assert ran == ["first", "late"]
    assert workers.get("late") is None


who: ContextVar[str] = ContextVar("who", default="nobody")


async def test_handlers_run_in_the_context_of_open_schedulers_caller(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()
    seen: list[str] = []

    @workers.register("asynchronous")
    async def asynchronous(job: RunningJob[Any]) -> None:
        seen.append(who.get())
        who.set("a handler")

    workers.register("plain", lambda job: seen.append(who.get()))
    who.set("the caller")
    async with open_test_scheduler(workers) as scheduler:
        who.set("the body")
        for name in ("asynchronous", "asynchronous", "plain"):
            await scheduler.enqueue(name)
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=3)
    assert seen == ["the caller"] * 3


def test_scheduler_without_an_event_loop_says_what_to_do() -> None:
    with MongoClient[Any]("localhost:1", connect=False) as client:
        entering = open_scheduler(client["x"]).__aenter__()
        with pytest.raises(MonqueError, match=r"trio.run, asyncio.run or anyio.run"):
            entering.__await__().send(None)


class Mailer:
    def send(self, job: RunningJob[Any]) -> None: ...

    async def send_all(self, job: RunningJob[Any], folder: str) -> None: ...


async def asynchronous(job: RunningJob[Any]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (lambda: None, "takes no argument, but is called with one argument, the job: add it"),
        (lambda job, pool: None, r"takes 2 arguments \(job, pool\), .* functools.partial, or use resources="),
        (lambda *, job: None, r"takes 1 argument \(job\)"),
        (Mailer.send, r"takes 2 arguments \(self, job\), .* register the method of an instance"),
        (Mailer().send_all, r"takes 2 arguments \(job, folder\)"),
        (Mailer, "is the class Mailer"),
        (partial(lambda a, b: None, 1, 2), "takes no argument"),
        ("greet", "'greet' is not callable"),
    ],
)  # fmt: skip
def test_handler_that_does_not_take_one_job_is_refused_at_registration(handler: Any, problem: str) -> None:
    with pytest.raises(WorkerRegistrationError, match=problem):
        Workers().register("greet", handler)


def test_called_handler_is_refused() -> None:
    wrong: Any = asynchronous(None)  # type: ignore[arg-type]
    with pytest.raises(WorkerRegistrationError, match=r"register the function itself, asynchronous and not"):
        Workers().register("greet", wrong)


@pytest.mark.parametrize(
    "handler",
    [
        lambda job: None,
        lambda job, pool=None: None,
        lambda *args, **kwargs: None,
        partial(lambda pool, job: None, 1),
        Mailer().send,
        print,
    ],
)  # fmt: skip
def test_handler_that_takes_a_job_is_registered(handler: Any) -> None:
    assert Workers().register("greet", handler).handler is handler


def test_decorator_without_a_name_says_how_it_is_written() -> None:
    workers: Any = Workers()
    with pytest.raises(WorkerRegistrationError, match=r"'asynchronous'.*write @workers.register\('send-email'\)"):
        workers.register(asynchronous)
    with pytest.raises(WorkerRegistrationError, match=r"write @workers.cron\('0 9"):
        workers.cron("@daily", asynchronous)


def test_unknown_option_of_a_worker_is_refused_with_the_nearest() -> None:
    workers: Any = Workers()
    with pytest.raises(InvalidOptionError, match=r"is not an option of a worker: did you mean 'max_attempts'\?"):
        workers.register("greet", asynchronous, retries=3)
    with pytest.raises(InvalidOptionError, match=r"is not an option of a worker: did you mean 'timezone'\?"):
        workers.cron("@daily", "report", timezon="UTC")


@pytest.mark.parametrize("option", ["cron", "schedule", "timezone"])
def test_schedule_given_to_register_is_refused_with_the_decorator_that_takes_it(option: str) -> None:
    workers: Any = Workers()
    with pytest.raises(InvalidOptionError, match=r"is not an option of a worker: .*write @workers\.cron\('0 9"):
        workers.register("report", asynchronous, **{option: "0 9 * * *"})


async def test_one_function_runs_under_several_names(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    """The decorators are stacked: the second one gets a Worker, which is called as its function is."""
    workers, ran = Workers(), []

    @workers.register("one")
    @workers.register("two")
    async def handler(job: RunningJob[Any]) -> None:
        ran.append(job.name)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("one")
        await scheduler.enqueue("two")
        await drain(scheduler)
    assert sorted(ran) == ["one", "two"]


def test_subset_has_the_named_workers_and_their_schedules_only() -> None:
    workers = Workers()
    for name in ("daily", "hourly"):
        workers.cron(f"@{name}", name)(lambda job: None)
    workers.register("plain", lambda job: None)
    subset = workers.subset(["daily", "plain", "unknown"])
    assert (subset.names, list(subset.crons)) == (("daily", "plain"), ["daily"])
    subset.register("another", lambda job: None)
    assert workers.names == ("daily", "hourly", "plain")


async def test_workers_of_a_union_keep_their_own_resources(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    got: list[tuple[str, Any]] = []

    async def handler(job: RunningJob[Any]) -> None:
        got.append((job.name, job.resources))

    sets = [Workers() for _ in range(3)]
    for name, one in zip(("pooled", "nothing", "plain"), sets, strict=True):
        one.register(name, handler)
    sets[0].cron("@daily", "daily")(handler)
    workers = sets[0].with_resources("a pool").union(sets[1].with_resources(None), sets[2])
    assert (workers.names, list(workers.crons)) == (("pooled", "daily", "nothing", "plain"), ["daily"])
    async with open_test_scheduler(workers.subset(["pooled", "nothing", "plain"]), resources="shared") as scheduler:
        for name in ("pooled", "nothing", "plain"):
            await scheduler.enqueue(name)
        await drain(scheduler)
        assert sorted(got) == [("nothing", None), ("plain", "shared"), ("pooled", "a pool")]
        got.clear()
        scheduler.register("pooled", handler, replace=True)
        await scheduler.enqueue("pooled")
        await drain(scheduler)
    assert got == [("pooled", "shared")]


def test_union_of_workers_with_the_same_name_is_refused() -> None:
    first, second = Workers(), Workers()
    first.register("send", lambda job: None)
    second.register("send", lambda job: None)
    with pytest.raises(WorkerRegistrationError, match=r"'send'.* is registered in two sets"):
        first.union(second)
    assert second.names == ("send",)
