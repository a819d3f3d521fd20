"""Right and wrong programs, for type checkers only: never run.

A line that ends with a mark is wrong, and each checker must find that kind of error in it. All others are free of
errors, in the strict mode of mypy and of pyright.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict
from uuid import UUID

import pydantic
from pymongo.client_session import ClientSession
from pymongo.database import Database

from trio_monque import Claim, Job, Monque, NewJob, RunningJob, Worker, Workers, open_scheduler, run_scheduler
from trio_monque.events import JobCompleted, JobFailed
from trio_monque.testing import SchedulerOpener, run_job


@dataclass
class Email:
    to: str


@dataclass
class Newsletter(Email):
    number: int = 1


class Order(pydantic.BaseModel):
    id: UUID


class Point(TypedDict):
    x: int


class Pool:
    async def put(self, data: bytes) -> int:
        return len(data)


class Other:
    pass


workers = Workers()


@workers.register("send", payload=Email)
async def send(job: RunningJob[Email]) -> int:
    return len(job.data.to) + job.data.cc  #! mypy: attr-defined, pyright: reportAttributeAccessIssue


@workers.register("plain", payload=Email, timeout=3, replace=True)
def plain(job: RunningJob[Email]) -> str:
    return job.data.to


@workers.register("order", payload=Order)
async def order(job: RunningJob[Order]) -> None: ...


@workers.register("orders", payload=list[Order])
async def orders(job: RunningJob[list[Order]]) -> None: ...


@workers.register("point", payload=Point)
async def point(job: RunningJob[Point]) -> None: ...


@workers.register("maybe", payload=Email | None)
async def maybe(job: RunningJob[Email | None]) -> None: ...


@workers.register("at", payload=datetime)
async def at(job: RunningJob[datetime]) -> None: ...


def email_of(stored: Any) -> Email:
    return Email(**stored)


@workers.register("made", payload=email_of)
async def made(job: RunningJob[Email]) -> None: ...


@workers.register("text")
async def text(job: RunningJob[str]) -> None: ...


@workers.register("nothing")
async def nothing(job: RunningJob[None]) -> None: ...


@workers.register("anything")
async def anything(job: RunningJob[Any]) -> None: ...


# --- The payload and the handler ---


@workers.register("tied", payload=Email)  #! mypy: arg-type, pyright: reportArgumentType
async def tied(job: RunningJob[Order]) -> None: ...


@workers.register("tied", payload=list[Email])  #! mypy: arg-type, pyright: reportArgumentType
def tied_plain(job: RunningJob[Email]) -> None: ...


@workers.cron("@daily", "tied", payload=Email, data=Email("a"))  #! mypy: arg-type, pyright: reportArgumentType
async def tied_cron(job: RunningJob[str]) -> None: ...


async def handler(job: RunningJob[Order]) -> None: ...


called: Worker[Order, Coroutine[Any, Any, None]] = workers.register("called", handler, payload=Order)
workers.register("called", handler, payload=Email)  #! mypy: misc, pyright: reportArgumentType
workers.register("option", handler, retries=3)  #! mypy: call-overload, pyright: reportCallIssue
workers.register("option", handler, timeout="3")  #! mypy: call-overload, pyright: reportArgumentType


@workers.cron("@daily", "right", payload=Email, data=Email("a"), timezone="Europe/Berlin", max_attempts=3)
async def right(job: RunningJob[Email]) -> None: ...


@workers.cron("@daily", "none")
async def right_without_data(job: RunningJob[None]) -> None: ...


@workers.cron("@daily", "wrong", payload=Email, data="a")  #! mypy: arg-type, pyright: reportArgumentType
async def wrong_cron(job: RunningJob[Email]) -> None: ...


workers.cron("@daily", "wrong", payload=Email)  #! mypy: call-overload, pyright: reportArgumentType


# --- What follows ---


def follow(job: Job[str]) -> NewJob | None:
    return NewJob(send, Email(job.result)) if job.fail_reason is None else None


@workers.register("followed", store_result=True, then=follow)
async def followed(job: RunningJob[int]) -> str:
    return str(job.data)


workers.register("followed", handler, payload=Order, then=lambda job: NewJob("called", job.result))
workers.register("followed", handler, payload=Order, then=lambda job: None)
workers.register("followed", handler, then=lambda: None)  #! mypy: arg-type, pyright: reportArgumentType
workers.register("followed", handler, then=lambda job: 1)  #! mypy: arg-type, pyright: reportArgumentType


# --- What a worker is ---

sending: Worker[Email, Coroutine[Any, Any, int]] = send
sending_text: Worker[Email, str] = plain
of_any_result: Worker[Email] = send
wrong_result: Worker[Email, str] = send  #! mypy: assignment, pyright: reportAssignmentType
wrong_data: Worker[Order] = send  #! mypy: assignment, pyright: reportAssignmentType


def bare(job: RunningJob[Email]) -> None:
    job.resources.whatever()  # What was not declared may be anything.


# --- Enqueuing ---


async def enqueues(monque: Monque) -> None:
    await monque.enqueue(send, Email("a"), delay=3, start_by=datetime.now(UTC), unique_key="k")
    await monque.enqueue(send, Newsletter("a"))
    await monque.enqueue_with_outcome(send, Email("a"), unique_key="k", on_conflict="replace")
    await monque.enqueue(send, Email("a"), unique_key="k", on_conflict="debounce", delay=5, max_wait=60.0)
    monque.sync.enqueue_with_outcome(text, "a", unique_key="k")
    await monque.enqueue(plain, Email("a"))
    await monque.enqueue(order, Order(id=UUID(int=1)))
    await monque.enqueue(orders, [Order(id=UUID(int=1))])
    await monque.enqueue(point, Point(x=1))
    await monque.enqueue(maybe, None)
    await monque.enqueue(maybe, Email("a"))
    await monque.enqueue(at, datetime.now(UTC))
    await monque.enqueue(made, Email("a"))
    await monque.enqueue(text, "a")
    await monque.enqueue(nothing)
    await monque.enqueue(anything)
    await monque.enqueue(anything, {"x": {1: 2}})
    await monque.enqueue("send", {"to": "a"})
    await monque.enqueue("send")
    await monque.schedule("@daily", send, Email("a"), on_conflict="update")
    await monque.schedule("@daily", nothing)
    await monque.document(send, Email("a"))
    await monque.enqueue_many([NewJob(send, Email("a")), NewJob(text, "a", delay=3), NewJob("x", 1), NewJob(nothing)])
    monque.sync.enqueue(send, Email("a"), max_attempts=1)
    monque.sync.schedule("@daily", text, "a")
    await monque.pause(send)


async def enqueues_wrongly(monque: Monque) -> None:
    await monque.enqueue(text, "a", on_conflict="swap")  #! mypy: call-overload, pyright: reportArgumentType
    await monque.enqueue_with_outcome(send)  #! mypy: arg-type, pyright: reportCallIssue
    await monque.enqueue(send, "a")  #! mypy: misc, pyright: reportArgumentType
    await monque.enqueue(send)  #! mypy: arg-type, pyright: reportArgumentType
    await monque.enqueue(send, {"to": "a"})  #! mypy: misc, pyright: reportArgumentType
    await monque.enqueue(send, Other())  #! mypy: misc, pyright: reportArgumentType
    await monque.enqueue(send, None)  #! mypy: misc, pyright: reportArgumentType
    await monque.enqueue(orders, [Email("a")])  #! mypy: misc, pyright: reportArgumentType
    await monque.enqueue(point, {"y": 1})  #! mypy: misc, pyright: reportArgumentType
    await monque.enqueue(point, {"x": "a"})  #! mypy: misc, pyright: reportArgumentType
    await monque.enqueue(maybe, "a")  #! mypy: misc, pyright: reportArgumentType
    await monque.enqueue(text, 1)  #! mypy: misc, pyright: reportArgumentType
    await monque.enqueue(text)  #! mypy: arg-type, pyright: reportArgumentType
    await monque.enqueue(nothing, "a")  #! mypy: misc, pyright: reportArgumentType
    await monque.enqueue(Other(), "a")  #! mypy: call-overload, pyright: reportArgumentType
    await monque.enqueue(5)  #! mypy: call-overload, pyright: reportArgumentType
    await monque.enqueue(send, Email("a"), dealy=3)  #! mypy: call-overload, pyright: reportCallIssue
    await monque.enqueue(send, Email("a"), delay="3")  #! mypy: call-overload, pyright: reportArgumentType
    await monque.schedule("@daily", send)  #! mypy: arg-type, pyright: reportArgumentType
    await monque.schedule("@daily", send, "a")  #! mypy: misc, pyright: reportArgumentType
    await monque.document(send, "a")  #! mypy: misc, pyright: reportArgumentType
    monque.sync.enqueue(send, "a")  #! mypy: misc, pyright: reportArgumentType
    monque.sync.enqueue(send)  #! mypy: arg-type, pyright: reportArgumentType
    monque.sync.enqueue(text, 1)  #! mypy: misc, pyright: reportArgumentType
    monque.sync.schedule("@daily", send, 1)  #! mypy: misc, pyright: reportArgumentType
    monque.sync.document(send)  #! mypy: arg-type, pyright: reportArgumentType
    NewJob(send, "a")  #! mypy: misc, pyright: reportArgumentType
    NewJob(send)  #! mypy: arg-type, pyright: reportArgumentType
    NewJob(text, 1, delay=3)  #! mypy: misc, pyright: reportArgumentType
    NewJob("a", 1, 3)  #! mypy: call-overload, pyright: reportCallIssue
    NewJob(send, Email("a"), dealy=3)  #! mypy: call-overload, pyright: reportCallIssue


# --- Results ---


@workers.register("ordered", payload=Email, result=Order)
async def ordered(job: RunningJob[Email]) -> Order:
    return Order(id=UUID(int=1))


async def waits(monque: Monque) -> list[Any]:
    job = await monque.enqueue(ordered, Email("a"))
    found: UUID = (await monque.wait_job(job, timeout=3)).result.id
    ids: list[UUID] = [ended.result.id for ended in await monque.wait_jobs([job, job], until="first")]
    length: int = (await monque.wait_job(await monque.enqueue(send, Email("a")))).result
    address: str = monque.sync.wait_job(monque.sync.enqueue(plain, Email("a"))).result
    stored: int = (await monque.wait_job(await monque.enqueue(store, b"a"))).result
    sized: UUID = ordered.loaded_result(job.result).id
    plainly: str = plain.loaded_result(None)
    unsized: str = ordered.loaded_result(None)  #! mypy: assignment, pyright: reportAssignmentType
    bare: Job = job
    typed: Job[Order] = job
    other: Job[str] = job  #! mypy: assignment, pyright: reportAssignmentType
    whatever: str = (await monque.wait_job(job.id)).result
    by_name: str = (await monque.wait_job(await monque.enqueue("ordered"))).result
    mixed: list[Any] = [ended.result for ended in await monque.wait_jobs([job, str(job.id), bare])]
    wrong: str = (await monque.wait_job(typed)).result  #! mypy: assignment, pyright: reportAssignmentType
    ended = monque.sync.wait_job(await monque.enqueue(send, Email("a")))
    unlike: str = ended.result  #! mypy: assignment, pyright: reportAssignmentType
    return [
        found,
        ids,
        length,
        address,
        stored,
        whatever,
        by_name,
        mixed,
        other,
        wrong,
        unlike,
        sized,
        plainly,
        unsized,
    ]


# --- Transactions ---


async def follows(monque: Monque) -> list[Any]:
    async with monque.events(JobCompleted) as completed, monque.events(JobCompleted, JobFailed) as ended:
        results = [event.job.result async for event in completed]
        ids = [event.job.id async for event in ended]
        retried = [event.will_retry async for event in ended]  #! mypy: union-attr, pyright: reportAttributeAccessIssue
        return [results, ids, retried]


def move(session: ClientSession) -> int:
    return 1 if session.in_transaction else 0


async def move_async(session: ClientSession) -> int:
    return 1


async def commits(job: RunningJob[Email], claim: Claim[dict[str, Any]]) -> list[int]:
    moved: int = await job.transaction(move)
    moved += await claim.transaction(move, {"$set": {"state": "done"}})
    text: str = await job.transaction(move)  #! mypy: arg-type, pyright: reportAssignmentType
    await job.transaction(lambda: 1)  #! mypy: arg-type, pyright: reportArgumentType
    await claim.transaction(move, "done")  #! mypy: arg-type, pyright: reportArgumentType
    moved = await claim.transaction(move_async)  #! mypy: arg-type, pyright: reportAssignmentType
    return [moved, len(text)]


# --- Resources ---

of_pools = Workers[Pool]()


@of_pools.register("store")
async def store(job: RunningJob[bytes, Pool]) -> int:
    job.resources.get()  #! mypy: attr-defined, pyright: reportAttributeAccessIssue
    return await job.resources.put(job.data)


@of_pools.register("untyped")
async def untyped(job: RunningJob[bytes]) -> None: ...


@of_pools.register("wrong")  #! mypy: arg-type, pyright: reportArgumentType
async def wrong_pool(job: RunningJob[bytes, Other]) -> None: ...


async def opens(db: Database[dict[str, Any]], open_test_scheduler: SchedulerOpener) -> None:
    async with open_scheduler(db, of_pools, resources=Pool()) as scheduler:
        await scheduler.enqueue(store, b"a")
        await scheduler.enqueue(store, "a")  #! mypy: misc, pyright: reportArgumentType
    async with open_scheduler(db, workers, resources=Other()):
        pass
    async with open_test_scheduler(of_pools, resources=Pool()) as scheduler:
        scheduler.register("new", handler, payload=Order)
        scheduler.register("new", handler, payload=Email)  #! mypy: misc, pyright: reportArgumentType
    async with open_scheduler(db, of_pools, resources=Other()):  #! mypy: misc, pyright: reportArgumentType
        pass
    await run_scheduler(db, of_pools, resources="pool")  #! mypy: misc, pyright: reportArgumentType


# --- A handler alone ---


async def tests() -> None:
    await run_job(send, Email("a"), fail_count=2, resources=Pool(), max_attempts=3)
    await run_job(send, stored={"to": "a", "added": 1})
    await run_job(handler, Order(id=UUID(int=1)))
    await run_job(nothing)
    await run_job(anything, 5)
    await run_job(store, b"a")
    await run_job(send)  #! mypy: arg-type, pyright: reportArgumentType
    await run_job(send, "a")  #! mypy: arg-type, pyright: reportArgumentType
    await run_job(send, {"to": "a"})  #! mypy: arg-type, pyright: reportArgumentType
    await run_job(handler, Email("a"))  #! mypy: arg-type, pyright: reportArgumentType
    await run_job(send, Email("a"), atempt=2)  #! mypy: call-overload, pyright: reportCallIssue
