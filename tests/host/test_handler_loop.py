"""Where handlers run: on trio, in the task of their run, with nothing in between. So it is with claims."""

from __future__ import annotations

from functools import partial
from typing import Any

import trio

from tests.support.documents import DONE, OPEN, fill
from trio_monque import Claim, RunningJob, Workers, open_claims, run_claims
from trio_monque.store.driver.types import Database
from trio_monque.testing import run_job


def coroutines_of(task: trio.lowlevel.Task) -> list[str]:
    return [frame.f_code.co_name for frame, _ in task.iter_await_frames()]


async def test_an_async_handler_on_trio_waits_in_the_coroutines_of_its_run_alone() -> None:
    """Ten thousand handlers may wait: each further coroutine would take a quarter of a kilobyte of each."""
    workers, waits_in = Workers(), list[str]()

    @workers.register("a")
    async def handle(job: RunningJob[Any]) -> None:
        task = trio.lowlevel.current_task()

        async def look() -> None:
            waits_in.extend(coroutines_of(task))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)

    worker = workers.get("a")
    assert worker is not None
    await run_job(worker)
    assert waits_in[1:4] == ["call_handler", "handle", "__aexit__"]  # The first is that of the run.


async def test_the_work_on_a_claim_on_trio_waits_in_its_own_coroutines_alone(db: Database) -> None:
    things, waits_in = db["things"], dict[str, list[str]]()
    fill(things, 1)

    async def handle(claim: Claim[Any]) -> None:
        task = trio.lowlevel.current_task()

        async def look() -> None:
            waits_in.setdefault("handler", coroutines_of(task))  # It is released, and claimed again.

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
        await claim.release()

    async def work(claims: Any, *, task_status: trio.TaskStatus[trio.lowlevel.Task]) -> None:
        task_status.started(trio.lowlevel.current_task())
        claim = await anext(claims)
        await claim.finish(DONE)

    async with trio.open_nursery() as nursery:
        running = await nursery.start(partial(run_claims, things, OPEN, handle, poll_interval=0.1))
        while not waits_in:
            await trio.sleep(0.01)
        running.drain()
    async with open_claims(things, OPEN) as claims, trio.open_nursery() as nursery:
        task = await nursery.start(work, claims)
        while nursery.child_tasks:
            chain = coroutines_of(task)
            for last in ("take", "settle_early"):
                if last in chain:
                    waits_in[last] = chain[: chain.index(last) + 1]
            await trio.lowlevel.checkpoint()
    # Those before it are those of its run. It is the first of its kind, so it is looked at whether it waits.
    assert waits_in["handler"][3:6] == ["_work", "handle", "__aexit__"]
    assert waits_in["take"] == ["work", "__anext__", "take"]
    assert waits_in["settle_early"] == ["work", "finish", "_end", "settle_early"]
