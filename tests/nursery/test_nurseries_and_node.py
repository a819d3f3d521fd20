"""Job nurseries beside Monque for Node, which ignores them: it runs children, and recovers parents and children."""

from __future__ import annotations

from typing import Any

import trio
import trio.lowlevel
from trio.testing import MockClock

from tests.nursery.flows import Flow, live, only, taken_back
from tests.support.node_peer import NodePeer
from trio_monque import CancelReason, JobNurseryError, RunningJob, open_job_nursery
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, now, quiesce


async def test_node_runs_children_and_their_block_waits_for_them(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """Node does not store results."""
    node = NodePeer(jobs)

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            first, second = await nursery.map("theirs", [1, 2])
            await nursery.start("child", 500)
        return [first.result, second.result]

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        await trio.sleep(10)
        await quiesce()
        for _ in range(2):
            claimed = node.claim("theirs", now())
            assert claimed is not None
            assert node.complete(claimed["_id"])
        assert (await scheduler.wait_job(parent)).result == [None, None]


async def test_node_that_takes_a_parent_for_its_own_leaves_children_to_the_next_run(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """Node recovers the job, runs it without a nursery, and fails an attempt of it."""
    ends: list[Any] = []
    node = NodePeer(jobs)

    async def body(job: RunningJob[Any]) -> Any:
        try:
            async with open_job_nursery(job) as nursery:
                child = await nursery.start("child", 500)
        finally:
            ends.append(job.cancel_reason)
        return child.result

    flow = Flow(body)
    async with open_test_scheduler(flow.only_children, lock_timeout=None) as scheduler:
        async with open_test_scheduler(flow.only_parents, lock_timeout=None) as other:
            parent = await scheduler.enqueue("parent")
            await trio.sleep(10)
            await quiesce()
            taken_back(jobs)
            claimed = node.claim("parent", now())
            assert claimed is not None
            await trio.sleep(60)
            assert ends == [CancelReason.LOST]
            assert live(jobs) == 1
            assert node.fail(claimed, now(), now())
            await advance(10)
            assert (await other.wait_job(parent)).result == 500
    assert flow.runs == {"500": 1}


async def test_block_cancels_until_no_child_is_live_even_if_node_releases_one(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N9: Node ignores the request to end, and its job may be pending once more after a pass."""
    caught: list[BaseException] = []
    node = NodePeer(jobs)

    async def body(job: RunningJob[Any]) -> None:
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.map("theirs", [1, 2])
                assert node.claim("theirs", now())
                raise KeyError
        except ExceptionGroup as error:
            caught.append(error)
            assert jobs.count_documents({"name": "theirs", "status": "cancelled"}) == 2

    async with open_test_scheduler(Flow(body).workers, lock_timeout=None) as scheduler:
        parent = await scheduler.enqueue("parent")
        await trio.sleep(60)
        await quiesce()
        assert caught == []
        (theirs,) = jobs.find({"name": "theirs", "status": "processing"})
        assert theirs["cancelRequestedAt"]
        assert node.release(theirs["_id"])
        with trio.fail_after(60):
            await scheduler.wait_job(parent)
    assert len(caught) == 1


async def test_new_try_takes_over_live_children_of_the_former_one(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N15: a later failure of that child belongs to the new try. Otherwise the child would run again for ever."""
    node = NodePeer(jobs)

    async def body(job: RunningJob[Any]) -> str:
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.start("theirs", 1)
                if job.attempt == 1:
                    assert node.claim("theirs", now())
        except JobNurseryError as failed:
            return str(failed.jobs[0].fail_reason)
        return "not failed"

    async with open_test_scheduler(Flow(body).workers, lock_timeout=None) as scheduler:
        parent = await scheduler.enqueue("parent")
        await trio.sleep(10)
        await scheduler.cancel_job(parent.id)
        await trio.sleep(60)  # Node goes on, and the clean-up is bounded.
        await quiesce()
        assert only(jobs)["status"] == "cancelled"
        await scheduler.retry_job(parent.id)
        await trio.sleep(10)
        await quiesce()
        theirs = only(jobs, "theirs")
        assert (theirs["status"], theirs["scopeRun"]) == ("processing", 2)
        failed = {"$set": {"status": "failed", "failReason": "no"}, "$unset": {"claimedBy": "", "lockedAt": ""}}
        jobs.update_one({"name": "theirs", "claimedBy": node.instance}, failed)
        await scheduler.enqueue("child", "its end lets the nursery look")
        with trio.fail_after(60):
            assert (await scheduler.wait_job(parent)).result == "no"
