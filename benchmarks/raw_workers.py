"""One of several raw processes that share a server and no job: `python -m benchmarks.raw_workers URI NAME`.

Each claims and completes the jobs of its own name, as the floor P100 does. So two cores can do no more with so many
processes, however these share a backlog.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import trio
from pymongo import MongoClient

from . import floors
from .measuring import NAME, Bench
from .processes import Child, answer, child, next_request, requests, worked_off

BATCH = 100


@contextmanager
def started(bench: Bench, number: int) -> Iterator[list[Child]]:
    """So many of them."""
    with ExitStack() as stack:
        yield [stack.enter_context(child("raw_workers", bench.uri, _name_of(one))) for one in range(number)]


def rate(bench: Bench, workers: Sequence[Child], backlog: int) -> float:
    """Jobs a second of all of them together."""
    with bench.database() as database:
        jobs = floors.jobs_of(database)
        jobs.create_indexes(list(floors.LEAN))
        jobs.insert_many(
            [{**one, "name": _name_of(at % len(workers))} for at, one in enumerate(floors.backlog(backlog))]
        )
        took, _ = worked_off(workers, database)
        return backlog / took


def _name_of(number: int) -> str:
    return f"{NAME}-{number}"


async def main(uri: str, name: str) -> None:
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        async for asked in requests():
            jobs = floors.jobs_of(client[asked["database"]])
            answer("ready")
            await next_request()
            await trio.to_thread.run_sync(partial(floors.overlapping, jobs, BATCH, name))
            await next_request()
            answer({})


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
