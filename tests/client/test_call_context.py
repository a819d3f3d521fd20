"""Async calls where nothing could await them, and blocking calls where every task would wait: refused at the call."""

from __future__ import annotations

import asyncio
import inspect
import threading
import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio
from pymongo import MongoClient
from trio.testing import MockClock

from trio_monque import Monque, MonqueError, RunningJob, Scheduler, Workers, open_claims
from trio_monque.client.operation import is_in_event_loop
from trio_monque.client.sync_monque import SyncMonque
from trio_monque.errors import CallContextError
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, drain

BACKENDS = [("trio", {}), ("asyncio", {}), ("asyncio", {"use_uvloop": True})]


def async_methods(cls: type) -> set[str]:
    return {name for name, method in inspect.getmembers(cls) if name[0] != "_" and inspect.iscoroutinefunction(method)}


# --- Async calls in threads ---


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda job: job.scheduler.enqueue("next", 1), "job.scheduler.sync.enqueue"),
        (lambda job: job.scheduler.get_job(job.id), "job.scheduler.sync.get_job"),
        (lambda job: job.scheduler.wait_drained(), "job.from_thread"),
        (lambda job: job.save({"page": 1}), r"job.from_thread\(job.save"),
        (lambda job: job.set_progress(5), r"job.from_thread\(job.set_progress"),
    ],
    ids=["enqueue", "get_job", "wait_drained", "save", "set_progress"],
)
async def test_async_call_in_a_plain_handler_fails_the_job_and_says_what_to_call(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, call: Any, advice: str
) -> None:
    workers = Workers()

    @workers.register("plain", max_attempts=1)
    def plain(job: RunningJob[Any]) -> None:
        call(job)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue(plain)
        await drain(scheduler)
    (job,) = jobs.find()
    assert job["status"] == "failed"
    with pytest.raises(CallContextError, match=advice):
        raise CallContextError(job["failReason"])


async def test_what_a_plain_handler_may_call(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("next", lambda job: None)

    @workers.register("plain")
    def plain(job: RunningJob[Any]) -> None:
        job.scheduler.sync.enqueue("next", 1)
        job.scheduler.sync_in_loop.enqueue("next", 2)
        job.from_thread(job.scheduler.enqueue, "next", 3)
        job.from_thread(partial(job.scheduler.enqueue, "next", 4))
        job.from_thread(job.save, "page 2")

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue(plain)
        await drain(scheduler)
    assert sorted(one["data"] for one in jobs.find({"name": "next"})) == [1, 2, 3, 4]
    assert jobs.count_documents({"status": "completed"}) == 5


def test_async_call_in_a_bare_thread_names_the_blocking_one(db: Database) -> None:
    monque = Monque(db)
    caught: list[BaseException] = []

    def enqueue() -> None:
        try:
            monque.enqueue("lost")  # type: ignore[unused-coroutine]
        except MonqueError as error:
            caught.append(error)

    thread = threading.Thread(target=enqueue)
    thread.start()
    thread.join()
    with pytest.raises(CallContextError) as here:
        monque.enqueue("lost")  # type: ignore[unused-coroutine]
    assert len(caught) == 1
    for error in (*caught, here.value):
        assert "monque.sync.enqueue(...)" in str(error)


@pytest.mark.parametrize("cls", [Monque, Scheduler, RunningJob])
def test_every_async_method_is_checked(cls: Any) -> None:
    """Frameworks still see that it is async, with its signature; an unbound one is the method itself."""
    assert len(async_methods(cls)) >= 2
    for name in async_methods(cls):
        method = getattr(object.__new__(cls), name)
        assert inspect.iscoroutinefunction(method)
        assert inspect.signature(method).parameters.keys() < inspect.signature(getattr(cls, name)).parameters.keys()
        with pytest.raises(CallContextError, match=rf"^{name}\(\) is async"):
            method()


@pytest.mark.parametrize(("backend", "options"), BACKENDS)
def test_async_calls_work_in_every_loop_however_they_are_handed_over(
    client: MongoClient[Any], db: Database, backend: str, options: dict[str, Any]
) -> None:
    monque = Monque(db)

    async def main() -> None:
        await monque.enqueue("a", 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(monque.enqueue, "a", 2))
            tasks.start_soon(monque.enqueue, "a", 3)
        await anyio.to_thread.run_sync(partial(anyio.from_thread.run, monque.enqueue, "a", 4))
        await anyio.to_thread.run_sync(monque.sync.enqueue, "a", 5)

    anyio.run(main, backend=backend, backend_options=options)
    anyio.run(monque.enqueue, "a", 6, backend=backend, backend_options=options)
    assert sorted(job.data for job in monque.sync.get_jobs()) == [1, 2, 3, 4, 5, 6]


def _called(function: Callable[[], object]) -> None:
    function()


async def test_claim_in_a_thread_names_from_thread(db: Database, autojump_clock: MockClock) -> None:
    db["letters"].insert_one({"done": False})
    async with open_claims(db["letters"], {"done": False}, wait=False) as claims:
        async for claim in claims:
            async with claim:
                with pytest.raises(CallContextError, match=r"trio.from_thread.run\(claim.finish"):
                    await trio.to_thread.run_sync(partial(_called, claim.finish))
                finish = partial(trio.from_thread.run, claim.finish, {"$set": {"done": True}})
                await trio.to_thread.run_sync(finish)
    assert db["letters"].count_documents({"done": True}) == 1


# --- Blocking calls in tasks ---


@pytest.mark.parametrize(("backend", "options"), BACKENDS)
def test_blocking_call_in_a_task_is_refused_unless_it_is_asked_for_by_name(
    db: Database, backend: str, options: dict[str, Any]
) -> None:
    monque = Monque(db)

    async def main() -> None:
        with pytest.raises(CallContextError, match=r"await enqueue\(\.\.\.\).*sync_in_loop.enqueue"):
            monque.sync.enqueue("a")
        with pytest.raises(CallContextError, match="get_queue_stats"):
            monque.sync.get_queue_stats()
        monque.sync_in_loop.enqueue("a")

    anyio.run(main, backend=backend, backend_options=options)
    assert monque.sync.get_queue_stats().pending == 1


async def test_every_blocking_method_is_checked(monque: Monque) -> None:
    public = [name for name, method in inspect.getmembers(SyncMonque, inspect.isfunction) if name[0] != "_"]
    assert {"enqueue", "get_jobs", "cancel_job", "retry_jobs", "recover_stale_jobs", "pause"} <= set(public)
    for name in public:
        with pytest.raises(CallContextError, match=rf"^sync.{name}\(\) blocks"):
            getattr(monque.sync, name)()


def test_scripts_threads_and_callbacks_of_transactions_may_block(client: MongoClient[Any], db: Database) -> None:
    monque = Monque(db)
    monque.sync.enqueue("script")
    thread = threading.Thread(target=monque.sync.enqueue, args=("thread",))
    thread.start()
    thread.join()
    with client.start_session() as session:
        session.with_transaction(lambda session: monque.sync.enqueue("transaction", session=session))
    assert [job.name for job in monque.sync.get_jobs()] == ["script", "thread", "transaction"]


def test_calls_as_asgiref_and_django_make_them(db: Database) -> None:
    """A sync view under ASGI is called in a thread, while the loop runs in another; async_to_sync brings a loop."""
    monque = Monque(db)

    async def view() -> None:
        await asyncio.to_thread(monque.sync.enqueue, "view")

    asyncio.run(view())
    loop = asyncio.new_event_loop()  # What async_to_sync does with a callable: it is called inside.

    async def called(function: Callable[..., Any]) -> Any:
        return await function("async-view")

    loop.run_until_complete(called(monque.enqueue))
    loop.close()
    assert monque.sync.get_queue_stats().pending == 2


async def test_check_costs_next_to_nothing() -> None:
    """A call takes a millisecond, and this a tenth of a microsecond. Best of five: the machine does other things."""
    assert is_in_event_loop()
    assert min(timeit.repeat(is_in_event_loop, number=10_000, repeat=5)) / 10_000 < 5e-6
