"""Floors with Python in them: the statements of the floors, sent by one process that also does something for each job.

`in_trio`      each job is run by trio, in a task and a cancel scope with a deadline, as a scheduler must
`with_python`  each job costs so much processor time in Python, whatever that does

Nothing else is done: no copies of jobs, fences of runs, receipts, events, heartbeats, limits or ways to end early. Both
read whole documents, once and a window ahead, which costs the server less than P100's reading.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import trio

from .floors import EARLIEST, Jobs, claim, complete, due, now

T = TypeVar("T")
Ids = Sequence[Any]

WINDOW: Final = 1000
# As many as are the fastest here. With 10 and 100 slots a second one makes the statements smaller, and gains nothing.
CLAIMERS: Final = {10: 1, 100: 1, 500: 2}
LEASE: Final = 30.0  # Seconds. Nothing reaches it; a deadline costs trio what it costs all the same.


def batches(jobs: Jobs, size: int) -> Iterator[Ids]:
    found = jobs.find(due(now()), sort=EARLIEST, batch_size=max(WINDOW, size))
    while ids := [one["_id"] for one in islice(found, size)]:
        yield ids


def in_trio(jobs: Jobs, slots: int) -> None:
    """At most so many are claimed and have not ended. Their completion overlaps the next claim."""
    trio.run(_in_trio, jobs, slots // CLAIMERS[slots], CLAIMERS[slots])


async def _in_trio(jobs: Jobs, size: int, claimers: int) -> None:
    in_thread = partial(trio.to_thread.run_sync, limiter=trio.CapacityLimiter(8))

    async def read() -> None:
        ahead = batches(jobs, size)
        async with sender:
            # A window at a time: the way to a thread and back is not paid for each batch.
            while found := await in_thread(lambda: list(islice(ahead, max(1, WINDOW // size)))):
                for ids in found:
                    await sender.send(ids)

    async def claim_all() -> None:
        async for ids in receiver:
            token = await in_thread(claim, jobs, ids)
            async with trio.open_nursery() as running:
                for _ in ids:
                    running.start_soon(run)
            completing.start_soon(in_thread, complete, jobs, token, ids)

    async def run() -> None:
        with trio.CancelScope(deadline=trio.current_time() + LEASE):
            await handler()

    async def handler() -> None:
        pass

    sender, receiver = trio.open_memory_channel[Ids](max(1, WINDOW // size))
    async with trio.open_nursery() as completing:
        completing.start_soon(read)
        for _ in range(claimers):
            completing.start_soon(claim_all)


def with_python(jobs: Jobs, batch: int, each: float) -> None:
    """`each` is in seconds. One thread reads, one claims, one works, one completes; Python lets one at a time work."""

    def worked(taken: tuple[str, Ids]) -> tuple[str, Ids]:
        until = time.thread_time() + each * len(taken[1])
        while time.thread_time() < until:
            pass
        return taken

    found = made_ahead(max(1, WINDOW // batch), batches(jobs, batch))
    claimed = made_ahead(1, ((claim(jobs, ids), ids) for ids in found))
    for token, ids in made_ahead(1, map(worked, claimed)):
        complete(jobs, token, ids)


def made_ahead(most: int, items: Iterable[T]) -> Iterator[T]:
    """By a thread of its own. Where one of them fails the rest is missing, and so are jobs at the end."""
    made: queue.Queue[T | None] = queue.Queue(maxsize=most)

    def make() -> None:
        try:
            for item in items:
                made.put(item)
        finally:
            made.put(None)

    threading.Thread(target=make, daemon=True).start()
    return iter(made.get, None)
