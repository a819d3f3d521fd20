"""Who is woken in virtual time when a job may have ended."""

from __future__ import annotations

import gc
import weakref

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_monque.client.local_wakeups import announce_ends, noticing_ends
from trio_monque.threads_and_frozen_time import call_in_thread


async def test_only_waits_for_jobs_of_that_collection_are_woken(autojump_clock: MockClock) -> None:
    woken = list[str]()

    async def wait(namespace: str, task_status: trio.TaskStatus[None]) -> None:
        with noticing_ends(namespace) as ends:
            task_status.started()
            await ends.wait()
            woken.append(namespace)

    async with trio.open_nursery() as nursery:
        for namespace in ("shop.jobs", "other.jobs"):
            await nursery.start(wait, namespace)
        announce_ends("shop.jobs")
        await wait_all_tasks_blocked()
        assert woken == ["shop.jobs"]
        nursery.cancel_scope.cancel()


async def test_thread_that_works_for_a_task_wakes_the_waits_of_its_run(autojump_clock: MockClock) -> None:
    with noticing_ends("shop.jobs") as ends:
        await call_in_thread(lambda: announce_ends("shop.jobs"), limiter=trio.CapacityLimiter(1))
        with trio.fail_after(1):
            await ends.wait()


@pytest.mark.full
async def test_wait_that_is_over_is_forgotten(autojump_clock: MockClock) -> None:
    with noticing_ends("shop.jobs") as ends:
        left = weakref.ref(ends)
    del ends
    gc.collect()
    assert left() is None
