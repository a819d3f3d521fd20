"""Later runs of a handler with job nurseries: after crashes, lost claims, shutdowns and retries by hand."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.nursery.flows import Flow, live, only, statuses
from tests.support.rescues import LEASE, PASS
from trio_monque import JobFailedError, JobNurseryError, RunningJob, Workers, open_job_nursery
from trio_monque.errors import JobStateError, MonqueError
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, crash, drain, quiesce

RESCUED = LEASE + 2 * PASS


async def test_killed_handler_goes_on_where_it_was(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            first = await nursery.run("child", "first")
            slow, other = await nursery.start("child", 500), await nursery.start("child", "other")
        return [first, slow.result, other.result]

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as killed:
        parent = await killed.enqueue("parent")
        await trio.sleep(10)
        await quiesce()
        await crash(killed)
        async with open_test_scheduler(flow.workers) as scheduler:
            result = (await scheduler.wait_job(parent)).result
    assert result == ["first", 500, "other"]
    assert flow.attempts == [1, 2]
    assert flow.runs == {"first": 1, "500": 2, "other": 1}, "only what had died with the process runs again"
    assert live(jobs) == 0


async def test_failed_child_stays_failed_for_the_next_run_of_the_same_try(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N11 and N12: without them, the handler undoes the order, is killed, and then finds that all has succeeded."""
    undone: list[Any] = []

    async def body(job: RunningJob[Any]) -> str:
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.start("child", 300)
                if job.attempt == 1:
                    await trio.sleep(5)  # The next run comes to the failure before it has asked for all.
                await nursery.start("child", "fail" if job.attempt == 1 else "well", key="charge")
        except JobNurseryError as failed:
            undone.append((job.attempt, *(one.fail_reason for one in failed.jobs)))
            if job.attempt == 1:
                await trio.sleep_forever()  # Killed here.
            return "undone"
        return "shipped"

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as killed:
        parent = await killed.enqueue("parent")
        await trio.sleep(60)
        await quiesce()
        await crash(killed)
        async with open_test_scheduler(flow.workers) as scheduler:
            result = (await scheduler.wait_job(parent)).result
    assert result == "undone"
    assert undone == [(1, "it was told to"), (2, "it was told to")]
    assert flow.runs["fail"] == 1
    assert flow.runs["well"] == 0


async def test_retry_by_hand_begins_a_new_try_in_which_failed_children_run_again(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    fails = [True]

    async def child(job: RunningJob[Any]) -> Any:
        if job.data == "card" and fails[0]:
            raise ValueError("no money")
        return job.data

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            children = await nursery.map("child", ["card", "done"])
        return [child.result for child in children]

    flow = Flow(body)
    flow.workers.register("child", child, replace=True, max_attempts=1)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        with pytest.raises(JobFailedError):
            await scheduler.wait_job(parent)
        (failed,) = jobs.find({"name": "child", "status": "failed"})
        with pytest.raises(JobStateError, match="retry that job"):
            await scheduler.retry_job(failed["_id"])
        fails[0] = False
        await scheduler.retry_job(parent.id)
        assert (await scheduler.wait_job(parent)).result == ["card", "done"]
    assert statuses(jobs) == {"completed": 2}


async def test_bulk_retry_refuses_children_and_retries_their_parents(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", ["fail", 1000])

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        with pytest.raises(JobFailedError):
            await scheduler.wait_job(parent)
        result = await scheduler.retry_jobs(status=["failed", "cancelled"], spread=0)
        assert (result.count, result.refused) == (1, 2)
        assert all(f"child of job {parent.id}" in error.reason for error in result.errors)


async def test_child_of_a_deleted_parent_becomes_a_job_of_its_own(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", ["fail", "fail"])

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        with pytest.raises(JobFailedError):
            await scheduler.wait_job(parent)
        await scheduler.delete_job(parent.id)
        one, _ = jobs.find({"name": "child"})
        await scheduler.retry_job(one["_id"])
        await drain(scheduler)
        assert flow.runs["fail"] == 3
        assert (await scheduler.retry_jobs(name="child", spread=0)).refused == 0
        await drain(scheduler)
        assert flow.runs["fail"] == 5
    assert all("scope" not in one and "parent" not in one for one in jobs.find({"name": "child"}))


async def test_children_that_a_changed_handler_does_not_ask_for_are_cancelled(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            wanted = [800, 900] if job.attempt == 1 else [800]
            children = await nursery.map("child", wanted)
        assert live(jobs) == 0
        return [child.result for child in children]

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as killed:
        parent = await killed.enqueue("parent")
        await trio.sleep(10)
        await crash(killed)
        async with open_test_scheduler(flow.workers) as scheduler:
            assert (await scheduler.wait_job(parent)).result == [800]
    assert "1 children of block '0'" in caplog.text
    assert statuses(jobs) == {"completed": 1, "cancelled": 1}


async def test_handler_that_returns_on_another_way_leaves_nothing_alive(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> str:
        if job.attempt == 2:
            return "another way"
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", [800, 900])
        return "by its block"

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as killed:
        parent = await killed.enqueue("parent")
        await trio.sleep(10)
        await crash(killed)
        async with open_test_scheduler(flow.workers) as scheduler:
            assert (await scheduler.wait_job(parent)).result == "another way"
            assert live(jobs) == 0
    assert statuses(jobs) == {"cancelled": 2}


async def test_other_worker_under_the_same_key_is_an_error(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        name = "child" if job.attempt == 1 else "newer"
        async with open_job_nursery(job) as nursery:
            with pytest.raises(MonqueError, match="was started as 'child'") if job.attempt == 2 else nullcontext():
                await nursery.start(name, 500, key="charge")
            if job.attempt == 2:
                return "refused"
        return "done"

    flow = Flow(body)
    flow.workers.register("newer", flow.child)
    async with open_test_scheduler(flow.workers) as killed:
        parent = await killed.enqueue("parent")
        await trio.sleep(10)
        await crash(killed)
        async with open_test_scheduler(flow.workers) as scheduler:
            assert (await scheduler.wait_job(parent)).result == "refused"
            assert live(jobs) == 0


@pytest.mark.parametrize("ends", ["cancel", "delete", "bulk cancel", "bulk delete"])
async def test_tree_of_an_ended_parent_ends(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, ends: str
) -> None:
    """Two levels: the middle ones are parents, too."""
    workers = Workers()

    @workers.register("leaf", concurrency=50)
    async def leaf(job: RunningJob[Any]) -> None:
        await trio.sleep_forever()

    @workers.register("middle", concurrency=50)
    async def middle(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.map(leaf, [None] * 3)

    @workers.register("parent")
    async def parent(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.map(middle, [None] * 3)

    async with open_test_scheduler(workers) as scheduler:
        top = await scheduler.enqueue(parent)
        await trio.sleep(10)
        await quiesce()
        assert statuses(jobs, "leaf") == {"processing": 9}
        match ends:
            case "cancel":
                await scheduler.cancel_job(top.id)
            case "delete":
                await scheduler.delete_job(top.id)
            case "bulk delete":
                await scheduler.delete_jobs(name="parent")
            case "bulk cancel":
                # Only pending jobs are cancelled in bulk: the children go on.
                await scheduler.cancel_jobs(name="parent")
                await scheduler.cancel_job(top.id)
        await advance(2 * LEASE + 2 * PASS)
        assert live(jobs) == 0
    assert statuses(jobs, "leaf") == {"cancelled": 9}


async def test_tree_of_a_parent_that_died_too_often_ends(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", [5000, 6000])
            await trio.sleep_forever()  # Not a wait of the nursery: its deaths count.

    parents, children = Flow(body, max_attempts=1), Flow(body)
    only_children = Workers()
    only_children.register("child", children.child, concurrency=50)
    async with open_test_scheduler(only_children, max_rescues=0):
        async with open_test_scheduler(parents.workers) as killed:
            await killed.enqueue("parent")
            await trio.sleep(10)
            await quiesce()
            await crash(killed)
            await advance(2 * RESCUED)
        await advance(LEASE)
        assert only(jobs)["status"] == "failed"
        assert live(jobs) == 0


async def test_shutdown_leaves_the_children_to_the_next_run(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            children = await nursery.map("child", [500, 600])
        return [child.result for child in children]

    parents, children = Flow(body), Workers()
    children.register("child", parents.child, concurrency=50)
    only_parents = Workers()
    only_parents.register("parent", parents.parent, store_result=True)
    async with open_test_scheduler(children):
        async with open_test_scheduler(only_parents, shutdown_timeout=5) as scheduler:
            parent = await scheduler.enqueue("parent")
            await trio.sleep(10)
        assert only(jobs)["status"] == "pending"
        assert live(jobs) == 2
        async with open_test_scheduler(only_parents) as scheduler:
            assert (await scheduler.wait_job(parent)).result == [500, 600]
    assert parents.runs == {"500": 1, "600": 1}
    assert only(jobs)["failCount"] == 0


async def test_recurring_parent_begins_anew_with_each_occurrence(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            return await nursery.run("child", "report")

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.schedule("*/10 * * * *", "parent", unique_key="k")
        await trio.sleep(3 * 600 + 60)
    # Three, or four if it began just before an occurrence.
    assert flow.runs["report"] == len(flow.attempts) >= 3
    assert "ownScope" not in only(jobs)


@pytest.mark.parametrize("when", ["pending", "running"])
async def test_replaced_data_begin_anew(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, when: str
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            got = await nursery.run("child", "same")
            if when == "pending" and job.data == "old":
                raise OSError
            await trio.sleep(50)
        return got

    flow = Flow(body, backoff=1000)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent", "old", unique_key="k")
        await trio.sleep(10)
        await scheduler.enqueue("parent", "new", unique_key="k", on_conflict="replace")
        await drain(scheduler)
        await trio.sleep(200)
        assert (await scheduler.wait_job(parent)).result == "same"
    assert flow.runs["same"] == 2, "the data are others, so the work is another one"


async def test_transaction_and_block_exclude_each_other(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    said: list[str] = []

    async def body(job: RunningJob[Any]) -> None:
        def work(session: Any) -> None: ...

        async with open_job_nursery(job) as nursery:
            await nursery.start("child", 1)
            with pytest.raises(MonqueError) as first:
                await job.transaction(work)
        await job.transaction(work)
        with pytest.raises(MonqueError) as second:
            async with open_job_nursery(job):
                raise AssertionError
        said.extend([str(first.value), str(second.value)])

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        await scheduler.wait_job(parent)
        await drain(scheduler)
    assert "leave the block before" in said[0]
    assert "transaction" in said[1]


async def test_transaction_ends_what_an_earlier_run_has_left(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    lived: list[int] = []

    async def body(job: RunningJob[Any]) -> None:
        if job.attempt == 2:
            await job.transaction(lambda session: lived.append(live(jobs)))
            return
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", [800, 900])

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as killed:
        parent = await killed.enqueue("parent")
        await trio.sleep(10)
        await crash(killed)
        async with open_test_scheduler(flow.workers) as scheduler:
            await scheduler.wait_job(parent)
    assert lived == [0]
    assert statuses(jobs) == {"cancelled": 2}


async def test_stale_run_does_no_harm(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """A run whose claim another program took back goes on for a while, and the next run has the children."""

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            children = await nursery.map("child", [200, 300])
            if job.attempt == 1:
                # Monque for Node recovers the job by the age of its lock.
                jobs.update_one(
                    {"name": "parent"},
                    {"$set": {"status": "pending"}, "$unset": {"claimedBy": "", "lockedAt": "", "lastHeartbeat": ""}},
                )
        return [child.result for child in children]

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as first, open_test_scheduler(flow.workers):
        parent = await first.enqueue("parent")
        assert (await first.wait_job(parent)).result == [200, 300]
    assert flow.runs == {"200": 1, "300": 1}
    assert statuses(jobs) == {"completed": 2}
