"""Blocks in several tasks, one in the other, in plain handlers; children that are too large, broken, or Node's."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from tests.nursery.flows import Flow, live, only, statuses
from tests.support.node_peer import NodePeer
from trio_monque import (
    CancelReason,
    JobFailedError,
    JobNursery,
    JobNurseryError,
    RunningJob,
    Snooze,
    Workers,
    open_job_nursery,
)
from trio_monque.client.opening_nurseries import BLOCK_TRACE
from trio_monque.errors import InvalidOptionError, MonqueError, PayloadTooLargeError
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, crash, now, quiesce


@pytest.mark.parametrize("fails", [False, True])
async def test_blocks_in_two_tasks_with_keys_go_on_after_a_kill(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, fails: bool
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        got: dict[str, Any] = {}

        async def block(key: str, data: list[Any]) -> None:
            try:
                async with open_job_nursery(job, key=key) as nursery:
                    children = await nursery.map("child", data)
                got[key] = [child.result for child in children]
            except JobNurseryError:
                got[key] = "failed"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(block, "a", [1, "fail" if fails else 200])
            tasks.start_soon(block, "b", [2, 300])
        return got

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as killed:
        parent = await killed.enqueue("parent")
        await trio.sleep(50)
        assert killed.statistics().parked == 1
        await quiesce()
        await crash(killed)
        async with open_test_scheduler(flow.workers) as scheduler:
            ended = await scheduler.wait_job(parent)
    assert ended.result == {"a": "failed" if fails else [1, 200], "b": [2, 300]}
    assert flow.runs["2"] == 1
    assert live(jobs) == 0


async def test_blocks_in_two_tasks_without_keys_are_an_error_and_end_what_was_started(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    said: list[str] = []

    async def body(job: RunningJob[Any]) -> None:
        async def block(after: float) -> None:
            await trio.sleep(after)
            try:
                async with open_job_nursery(job) as nursery:
                    await nursery.start("child", 100)
            except MonqueError as error:
                said.append(str(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(block, 0)
            tasks.start_soon(block, 10)

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        await scheduler.wait_job(await scheduler.enqueue("parent"))
    (error,) = said
    assert "in another task" in error
    assert statuses(jobs) == {"completed": 1}


async def test_block_within_a_block_fails_without_the_outer_one_if_its_error_is_handled(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as outer:
            slow = await outer.start("child", 300)
            try:
                async with open_job_nursery(job) as inner:
                    await inner.map("child", ["fail", 5000])
            except JobNurseryError as failed:
                return [len(failed.jobs), await slow.wait()]
        return None

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        assert (await scheduler.wait_job(await scheduler.enqueue("parent"))).result == [1, 300]
    assert statuses(jobs) == {"completed": 1, "failed": 1, "cancelled": 1}


async def test_failure_of_the_outer_block_ends_the_inner_one(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        try:
            async with open_job_nursery(job) as outer:
                await outer.start("child", "fail", delay=50)
                async with open_job_nursery(job) as inner:
                    await inner.map("child", [5000, 6000])
        except JobNurseryError as failed:
            return [job.data for job in failed.jobs], live(jobs)
        return None

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        assert (await scheduler.wait_job(await scheduler.enqueue("parent"))).result == [["fail"], 0]
    assert only(jobs)["scopeFailed" if "scopeFailed" in only(jobs) else "status"] == "completed"


async def test_children_are_started_by_tasks_beside_the_body(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """Also while the body waits for others; the block waits for all that were started before its body is over."""

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery, anyio.create_task_group() as tasks:

            async def more(number: int) -> None:
                first = await nursery.run("child", number)
                await nursery.start("child", first * 10)

            for number in (1, 2, 3):
                tasks.start_soon(more, number)
        return sorted([child.result async for child in nursery.as_completed()])

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        ended = await scheduler.wait_job(await scheduler.enqueue("parent"))
    assert ended.result == [1, 2, 3, 10, 20, 30]


async def test_task_around_a_failed_block_starts_nothing_of_it(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N11: the scope of the block does not cancel it, and the body may take its time to clean up."""
    said: list[str] = []
    lived: list[int] = []

    async def body(job: RunningJob[Any]) -> None:
        async def around(nursery: JobNursery) -> None:
            await trio.sleep(50)
            with pytest.raises(MonqueError, match="is over") as caught:
                await nursery.start("child", "ship")
            said.append(str(caught.value))

        async with anyio.create_task_group() as tasks:
            with pytest.raises(JobNurseryError):
                async with open_job_nursery(job) as nursery:
                    tasks.start_soon(around, nursery)
                    await nursery.start("child", "fail")
                    try:
                        await trio.sleep_forever()
                    finally:
                        with anyio.CancelScope(shield=True):
                            await trio.sleep(100)
            lived.append(live(jobs))

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.wait_job(await scheduler.enqueue("parent"))
    assert lived == [0]
    assert len(said) == 1
    assert flow.runs == {"fail": 1}


async def test_task_around_a_block_that_starts_many_while_it_ends_starts_none_behind_it(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """Their data are checked in parts, and the block may be over before all are."""
    said: list[str] = []

    async def body(job: RunningJob[Any]) -> None:
        async def around(nursery: JobNursery) -> None:
            with pytest.raises(MonqueError, match="is over") as caught:
                await nursery.map("child", range(5_000))
            said.append(str(caught.value))

        async with anyio.create_task_group() as tasks:
            async with open_job_nursery(job) as nursery:
                tasks.start_soon(around, nursery)
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        await scheduler.wait_job(await scheduler.enqueue("parent"))
    assert len(said) == 1
    assert jobs.count_documents({"name": "child"}) == 0


async def test_cancellation_in_the_middle_of_a_start_leaves_nothing_alive(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    left: list[Any] = []

    async def body(job: RunningJob[Any]) -> None:
        try:
            async with open_job_nursery(job) as nursery, anyio.create_task_group() as tasks:
                tasks.start_soon(nursery.map, "child", range(3_000))
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        finally:
            left.append((job.cancel_reason, live(jobs)))

    async with open_test_scheduler(Flow(body).only_parents) as scheduler:
        await scheduler.wait_job(await scheduler.enqueue("parent"))
        await advance(100)
    assert left == [(None, 0)]
    assert live(jobs) == 0


async def test_results_and_data_that_are_too_large_are_errors_of_the_child_and_of_the_start(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def huge(job: RunningJob[Any]) -> str:
        return "x" * 17_000_000

    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job, fail="keep") as nursery:
            with pytest.raises(PayloadTooLargeError):
                await nursery.start("child", "x" * 17_000_000)
            child = await nursery.start("huge")
        assert isinstance(child.error, JobFailedError)
        return child.error.job.fail_reason

    flow = Flow(body)
    flow.workers.register("huge", huge, max_attempts=1)
    async with open_test_scheduler(flow.workers) as scheduler:
        ended = await scheduler.wait_job(await scheduler.enqueue("parent"))
    assert "result" in str(ended.result)
    assert statuses(jobs, "child") == {}


@pytest.mark.parametrize("fail", ["cancel", "keep"])
async def test_child_whose_document_another_program_has_broken_is_a_failure_of_the_block(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, fail: Any
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        kept: list[Any] = []
        try:
            async with open_job_nursery(job, fail=fail) as nursery:
                kept += await nursery.map("child", ["late", 100], delay=50)
                jobs.update_one({"data": "late"}, {"$set": {"failCount": "broken", "status": "failed"}})
        except JobNurseryError as failed:
            return [type(error).__name__ for error in failed.exceptions]
        return [type(child.error).__name__ for child in kept]

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        with trio.fail_after(3000):
            names = (await scheduler.wait_job(parent)).result
    assert names == (["BrokenDocumentError"] if fail == "cancel" else ["BrokenDocumentError", "NoneType"])
    assert live(jobs) == 0


async def nothing(job: RunningJob[Any]) -> None: ...


async def test_plain_handler_opens_a_block_by_from_thread(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    flow = Flow(nothing)
    workers.register("child", flow.child)

    @workers.register("parent", store_result=True)
    def parent(job: RunningJob[Any]) -> Any:
        async def block() -> list[Any]:
            async with open_job_nursery(job) as nursery:
                children = await nursery.map("child", [1, 100])
            return [child.result for child in children]

        return job.from_thread(block)

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue(parent)
        await trio.sleep(50)
        assert scheduler.statistics().parked == 1
        assert (await scheduler.wait_job(job)).result == [1, 100]


async def test_bulk_retry_of_parents_and_children_at_once_runs_each_child_once_more(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", ["done", f"flaky {job.data}"])

    async def child(job: RunningJob[Any]) -> Any:
        flow.runs[str(job.data)] += 1
        if job.attempt == 1 and str(job.data).startswith("flaky"):
            raise OSError

    flow = Flow(body)
    flow.workers.register("child", child, replace=True, max_attempts=1, concurrency=50)
    async with open_test_scheduler(flow.workers) as scheduler:
        parents = [await scheduler.enqueue("parent", number) for number in range(5)]
        await advance(100)
        assert statuses(jobs, "parent") == {"failed": 5}
        result = await scheduler.retry_jobs(status=["failed", "cancelled"], spread=0)
        assert result.count == 5
        await scheduler.wait_jobs(parents)
    assert statuses(jobs) == {"completed": 10}
    assert all(flow.runs[f"flaky {number}"] == 2 for number in range(5))


async def test_node_runs_children_and_their_block_waits_for_them(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """They have no results."""
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
    """It recovers the job, runs it without a nursery, and fails an attempt of it."""
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
            unset = {"claimedBy": "", "lockedAt": "", "lastHeartbeat": ""}
            jobs.update_one({"name": "parent"}, {"$set": {"status": "pending"}, "$unset": unset})
            claimed = node.claim("parent", now())
            assert claimed is not None
            await trio.sleep(60)
            assert ends == [CancelReason.LOST]
            assert live(jobs) == 1
            assert node.fail(claimed, now(), now())
            await advance(10)
            assert (await other.wait_job(parent)).result == 500
    assert flow.runs == {"500": 1}


async def test_body_that_cleans_up_for_long_after_a_failure_does_not_lose_its_run(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """The block cancels the other children meanwhile: their ends are its own doing, and not that of a newer run."""

    async def body(job: RunningJob[Any]) -> Any:
        try:
            async with open_job_nursery(job) as nursery:
                other = await nursery.start("child", 5, delay=10_000)
                await nursery.start("child", "fail")
                try:
                    await trio.sleep_forever()
                finally:
                    with trio.CancelScope(shield=True):
                        while not other.has_ended and job.cancel_reason is None:
                            await trio.sleep(1)
        except JobNurseryError as failed:
            return len(failed.jobs)

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        with trio.fail_after(100):
            assert (await scheduler.wait_job(parent)).result == 1
    assert flow.attempts == [1]


async def test_wait_for_the_next_end_goes_on_when_a_start_beside_it_fails(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        seen: list[Any] = []
        async with open_job_nursery(job) as nursery, anyio.create_task_group() as tasks:
            await nursery.run("child", "a")
            jobs.database.command("collMod", jobs.name, validator={"data": {"$ne": "refused"}})

            async def refused() -> None:
                with pytest.raises(MonqueError):
                    await nursery.start("child", "refused")

            tasks.start_soon(refused)
            for _ in range(3):  # Until it is on its way.
                await anyio.lowlevel.checkpoint()
            with anyio.move_on_after(1000) as waited:
                seen += [child.result async for child in nursery.as_completed()]
        return [seen, waited.cancelled_caught]

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        assert (await scheduler.wait_job(parent)).result == [["a"], False]


@pytest.mark.parametrize("by", ["user", "body"])
async def test_span_of_a_block_that_is_cancelled_ends(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, by: str
) -> None:
    ends: list[BaseException | None] = []

    async def body(job: RunningJob[Any]) -> None:
        BLOCK_TRACE.set(lambda _: ends.append)
        with trio.move_on_after(5 if by == "body" else 10_000):
            async with open_job_nursery(job) as nursery:
                await nursery.start("child", 5000)

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        await advance(50)
        if by == "user":
            await scheduler.cancel_job(parent.id)
        await advance(100)
    assert only(jobs)["status"] == ("cancelled" if by == "user" else "completed")
    assert len(ends) == 1


@pytest.mark.parametrize("key", ["place", None])
async def test_block_that_could_not_be_opened_is_the_same_one_at_another_try(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, key: str | None
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            async with open_job_nursery(job, key=key):
                pass
        async with open_job_nursery(job, key=key) as nursery:
            await nursery.start("child", "x")

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        await scheduler.wait_job(await scheduler.enqueue("parent"))
    assert [one["block"] for one in jobs.find({"name": "child"})] == [key or "0"]


async def test_waits_end_when_the_block_is_left_without_its_children(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    said: list[str] = []

    async def body(job: RunningJob[Any]) -> None:
        waits = []
        try:
            async with open_job_nursery(job) as nursery:
                waits += [(await nursery.start("child", 100)).wait, nursery.as_completed().__anext__]
                raise Snooze(after=5)
        except Snooze:
            for wait in waits:
                with pytest.raises(MonqueError) as raised:
                    await wait()
                said.append(str(raised.value))

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        ended = await scheduler.wait_job(await scheduler.enqueue("parent"))
        assert ended.status == "completed"
    assert ["block was left" in said[0], "nursery is over" in said[1]] == [True, True]


@pytest.mark.parametrize("key", ["\ud800", "a\0", "", 5])
async def test_key_that_cannot_be_stored_is_refused_wherever_it_is_given(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, key: Any
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        with pytest.raises(InvalidOptionError, match="must be a text of 1 to"):
            open_job_nursery(job, key=key)
        with pytest.raises(InvalidOptionError, match="must be a text of 1 to"):
            await job.step(key, lambda: 1)
        async with open_job_nursery(job) as nursery:
            with pytest.raises(InvalidOptionError, match="must be a text of 1 to"):
                await nursery.start("child", 1, key=key)

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        ended = await scheduler.wait_job(await scheduler.enqueue("parent"))
        assert (ended.status, ended.fail_reason) == ("completed", None)
