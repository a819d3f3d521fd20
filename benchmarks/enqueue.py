"""E: jobs enqueued a second, beside documents that are built in the same loop and inserted raw."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import trio
from pymongo import IndexModel

from trio_monque import Monque, NewJob

from . import floors
from .measuring import NAME, Bench, Db
from .report import Comparison, Figure

TASKS = 20
SLICE = 1_000


def measure(bench: Bench) -> list[Figure]:
    size = bench.size

    def on_ours(act: Callable[[Db, int], None], number: int) -> float:
        """Of a collection that has the indexes of Monque's client, which its first enqueue makes."""
        with bench.database() as database:
            Monque(database).sync.enqueue(NAME)
            return _rate(database, act, number)

    def on_lean(act: Callable[[Db, int], None], number: int, indexes: Sequence[IndexModel] = floors.LEAN) -> float:
        with bench.database() as database:
            floors.jobs_of(database).create_indexes(list(indexes))
            return _rate(database, act, number)

    found = bench.in_turns(
        {
            "insert_one": partial(on_ours, _insert_one, size.single),
            "enqueue": partial(on_ours, _enqueue, size.single),
            "insert_one in threads": partial(on_ours, _insert_one_in_threads, size.grouped),
            "enqueue in tasks": partial(on_ours, _enqueue_in_tasks, size.grouped),
            "insert_many": partial(on_ours, _insert_many, size.many),
            "enqueue_many": partial(on_ours, _enqueue_many, size.many),
            "insert_many lean": partial(on_lean, _insert_many, size.many),
            "enqueue_many by thousands": partial(on_ours, _enqueue_many_by_thousands, size.many),
        }
    )
    same, lean = "insert_many by thousands, same indexes", "insert_many by thousands, two indexes"

    def figure(name: str, what: str, *beside: Comparison) -> Figure:
        return Figure(part="E", key=f"E.{name}", what=what, unit="jobs/s", values=found[name], floors=beside)

    return [
        figure("enqueue", "enqueue, one by one", Comparison(floor="insert_one", values=found["insert_one"])),
        figure(
            "enqueue in tasks",
            f"enqueue, one by one in each of {TASKS} tasks",
            Comparison(floor="enqueue, one by one", values=found["enqueue"], at_least=4.0),
            Comparison(floor=f"insert_one in {TASKS} threads", values=found["insert_one in threads"]),
        ),
        figure(
            "enqueue_many",
            f"enqueue_many of {size.many:,}",
            Comparison(floor=same, values=found["insert_many"], at_least=0.7),
            Comparison(floor=lean, values=found["insert_many lean"]),
        ),
        figure(
            "enqueue_many by thousands",
            "enqueue_many, a thousand each",
            Comparison(floor=same, values=found["insert_many"]),
        ),
    ]


def _rate(database: Db, act: Callable[[Db, int], None], number: int) -> float:
    jobs = database["monque_jobs"]
    before = jobs.count_documents({})
    begun = time.perf_counter()
    act(database, number)
    took = time.perf_counter() - begun
    assert jobs.count_documents({}) == before + number
    return number / took


def _document(number: int) -> floors.Document:
    at = floors.now()
    return floors.new_document(number, at, at)


def _insert_one(database: Db, number: int) -> None:
    jobs = floors.jobs_of(database)
    for one in range(number):
        jobs.insert_one(_document(one))


def _insert_one_in_threads(database: Db, number: int) -> None:
    with ThreadPoolExecutor(TASKS) as threads:
        for done in [threads.submit(_insert_one, database, number // TASKS) for _ in range(TASKS)]:
            done.result()


def _insert_many(database: Db, number: int) -> None:
    jobs = floors.jobs_of(database)
    for begin in range(0, number, SLICE):
        jobs.insert_many([_document(one) for one in range(begin, min(begin + SLICE, number))], ordered=False)


def _new(number: int) -> NewJob:
    return NewJob(name=NAME, data={"i": number})


def _enqueue(database: Db, number: int) -> None:
    trio.run(_enqueue_each, Monque(database), number)


async def _enqueue_each(monque: Monque, number: int) -> None:
    for one in range(number):
        await monque.enqueue(NAME, {"i": one})


def _enqueue_in_tasks(database: Db, number: int) -> None:
    async def main() -> None:
        monque = Monque(database)
        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(_enqueue_each, monque, number // TASKS)

    trio.run(main)


def _enqueue_many(database: Db, number: int) -> None:
    trio.run(Monque(database).enqueue_many, [_new(one) for one in range(number)])


def _enqueue_many_by_thousands(database: Db, number: int) -> None:
    async def main() -> None:
        monque = Monque(database)
        for begin in range(0, number, SLICE):
            await monque.enqueue_many([_new(one) for one in range(begin, min(begin + SLICE, number))])

    trio.run(main)
