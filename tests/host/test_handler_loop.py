"""Where handlers run: on trio, in the task of their run, with nothing in between."""

from __future__ import annotations

from typing import Any

import trio

from trio_monque import RunningJob, Workers
from trio_monque.testing import run_job


async def test_an_async_handler_on_trio_waits_in_the_coroutines_of_its_run_alone() -> None:
    """Ten thousand handlers may wait: each further coroutine would take a quarter of a kilobyte of each."""
    workers, waits_in = Workers(), list[str]()

    @workers.register("a")
    async def handle(job: RunningJob[Any]) -> None:
        task = trio.lowlevel.current_task()

        async def look() -> None:
            awaited: Any = task.coro
            while awaited is not None and hasattr(awaited, "cr_code"):
                waits_in.append(awaited.cr_code.co_name)
                awaited = awaited.cr_await

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)

    worker = workers.get("a")
    assert worker is not None
    await run_job(worker)
    assert waits_in[1:4] == ["call_handler", "handle", "__aexit__"]  # The first is that of the run.
