"""A block of a job nursery in one run of its handler: what it waits for, and what its failures mean."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import trio
from trio.testing import MockClock

from tests.nursery.flows import Flow, live, only, statuses
from trio_monque import (
    JobCancelledError,
    JobDeletedError,
    JobFailedError,
    JobNursery,
    JobNurseryError,
    RunningJob,
    Snooze,
    Workers,
    open_job_nursery,
)
from trio_monque.errors import InvalidOptionError, MonqueError
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, drain


async def test_block_waits_for_the_longest_child_exactly(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        began = trio.current_time()
        async with open_job_nursery(job) as nursery:
            children = await nursery.map("child", [3600, 7200, 10800])
            assert not any(child.has_ended for child in children)
            with pytest.raises(MonqueError, match="has not ended"):
                _ = children[0].result
        return [trio.current_time() - began, [child.result for child in children]]

    async with open_test_scheduler(Flow(body).workers, lock_timeout=None) as scheduler:
        parent = await scheduler.enqueue("parent")
        result = (await scheduler.wait_job(parent)).result
    assert result == [pytest.approx(10800, abs=0.5), [3600, 7200, 10800]]
    assert statuses(jobs) == {"completed": 3}
    assert "ownScope" not in only(jobs), "it lives as long as the work"


async def test_results_come_as_children_end_and_by_run_and_wait(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            first = await nursery.run("child", "at once")
            waited = await (await nursery.start("child", 5)).wait()
            await nursery.map("child", [30, 10, 20])
            order = [child.result async for child in nursery.as_completed()]
        return [first, waited, order]

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        assert (await scheduler.wait_job(parent)).result == ["at once", 5, ["at once", 5, 10, 20, 30]]


async def test_first_failure_cancels_the_body_and_the_other_children(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    seen: list[Any] = []

    async def body(job: RunningJob[Any]) -> Any:
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.map("child", [1000, 2000])
                await nursery.start("child", 50, delay=10_000)
                await nursery.start("child", "fail")
                try:
                    await trio.sleep_forever()
                finally:
                    seen.append("cancelled")
        except JobNurseryError as failed:
            seen.append([job.data for job in failed.jobs])
            (error,) = failed.exceptions
            assert isinstance(error, JobFailedError)
            assert live(jobs) == 0, "nothing outlives the block"
            return "handled"

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        assert (await scheduler.wait_job(parent)).result == "handled"
    assert seen == ["cancelled", ["fail"]]
    assert statuses(jobs) == {"cancelled": 3, "failed": 1}


async def test_failure_that_the_handler_does_not_handle_fails_the_parent_for_good(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", "fail")

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        with pytest.raises(JobFailedError, match="it was told to"):
            await scheduler.wait_job(parent)
    assert flow.attempts == [1], "another attempt would find the same failure"


async def test_failure_in_the_nursery_of_a_program_within_a_handler_is_retried(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    """N16: another attempt opens another one, and does not find the same failure."""

    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", "own")
        async with open_job_nursery(job.scheduler) as nursery:
            await nursery.start("child", "fail")

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        await advance(10_000)
    assert flow.attempts == [1, 2, 3]
    assert flow.runs == {"own": 1, "fail": 3}


async def test_error_that_the_handler_makes_of_it_is_retried(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.start("child", "fail")
        except JobNurseryError:
            raise OSError("the mail server is away") from None

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        await drain(scheduler)
        await trio.sleep(10_000)
    assert flow.attempts == [1, 2, 3]
    assert flow.runs == {"fail": 1}


async def test_fail_wait_lets_the_others_go_on_and_raises_then(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        began = trio.current_time()
        try:
            async with open_job_nursery(job, fail="wait") as nursery:
                await nursery.map("child", ["fail", 100])
        except JobNurseryError as failed:
            return [len(failed.exceptions), trio.current_time() - began]

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        assert (await scheduler.wait_job(parent)).result == [1, pytest.approx(100, abs=0.5)]
    assert statuses(jobs) == {"failed": 1, "completed": 1}


async def test_fail_keep_raises_nothing(open_test_scheduler: SchedulerOpener, autojump_clock: MockClock) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job, fail="keep") as nursery:
            bad, good = await nursery.map("child", ["fail", 100])
        assert isinstance(bad.error, JobFailedError)
        with pytest.raises(JobFailedError):
            _ = bad.result
        return [good.error, good.result]

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        assert (await scheduler.wait_job(parent)).result == [None, 100]


async def test_error_of_the_body_cancels_the_children_and_comes_in_a_group(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    caught: list[BaseException] = []

    async def body(job: RunningJob[Any]) -> None:
        try:
            async with open_job_nursery(job) as nursery:
                await nursery.map("child", [1000, 2000])
                raise KeyError("x")
        except BaseException as error:
            caught.append(error)
            assert live(jobs) == 0
            raise

    flow = Flow(body, max_attempts=1)
    async with open_test_scheduler(flow.workers) as scheduler:
        await scheduler.enqueue("parent")
        await drain(scheduler)
    (group,) = caught
    assert isinstance(group, ExceptionGroup)
    assert [type(one) for one in group.exceptions] == [KeyError]
    assert statuses(jobs) == {"cancelled": 2}
    assert "scopeFailed" not in only(jobs), "no child had failed"


async def test_children_of_a_failed_attempt_run_again_in_the_next_one(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            done, other = await nursery.start("child", "done"), await nursery.start("child", 100)
            await done.wait()
            await trio.sleep(1)
            if job.attempt == 1:
                raise OSError
        return [done.result, other.result]

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        assert (await scheduler.wait_job(parent)).result == ["done", 100]
    assert flow.runs == {"done": 1, "100": 2}, "what had completed is not run again"


async def test_cancel_scope_gives_up_the_rest(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> str:
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", [10_000, 20_000])
            nursery.cancel_scope.cancel()
            await anyio.sleep_forever()
        assert live(jobs) == 0
        return "gave up"

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        assert (await scheduler.wait_job(parent)).result == "gave up"


async def test_scope_of_the_caller_around_the_block_ends_it_with_its_children(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> str:
        with anyio.move_on_after(50) as scope:
            async with open_job_nursery(job) as nursery:
                await nursery.map("child", [10_000, 20_000])
        assert scope.cancelled_caught
        assert live(jobs) == 0
        return "too long"

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        assert (await scheduler.wait_job(parent)).result == "too long"
    assert statuses(jobs) == {"cancelled": 2}


async def test_cancelled_and_deleted_children_are_failures(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    kinds: list[Any] = []

    async def body(job: RunningJob[Any]) -> None:
        try:
            async with open_job_nursery(job, fail="wait") as nursery:
                children = await nursery.map("child", [1, 2, 3], delay=1000)
                await nursery.start("child", 4, delay=1000, start_by=None)
                await job.scheduler.cancel_job(children[0].id)
                await job.scheduler.delete_job(children[1].id)
        except JobNurseryError as failed:
            kinds.extend(type(one) for one in failed.exceptions)

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        await scheduler.wait_job(parent)
    assert set(kinds) == {JobCancelledError, JobDeletedError}


async def test_children_store_results_whatever_their_worker_says(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("quiet", store_result=False, max_attempts=1)
    async def quiet(job: RunningJob[Any]) -> Any:
        return object() if job.data == "odd" else "said"

    @workers.register("parent", store_result=True, max_attempts=1)
    async def parent(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job, fail="keep") as nursery:
            said, odd = await nursery.map(quiet, [None, "odd"])
        assert isinstance(odd.error, JobFailedError)
        return [said.result, odd.error.job.fail_reason]

    async with open_test_scheduler(workers) as scheduler:
        job = await scheduler.enqueue(parent)
        said, reason = (await scheduler.wait_job(job)).result
    assert said == "said"
    assert "result" in reason


async def test_snooze_leaves_the_children_to_the_next_run(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> Any:
        async with open_job_nursery(job) as nursery:
            child = await nursery.start("child", 100)
            if job.attempt == 1:
                raise Snooze(after=10)
        return child.result

    flow = Flow(body)
    async with open_test_scheduler(flow.workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        assert (await scheduler.wait_job(parent)).result == 100
    assert flow.runs == {"100": 1}
    assert only(jobs)["failCount"] == 0


async def test_child_has_the_meta_of_its_parent_unless_it_is_given_one(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", "own", meta={"tenant": "b"})
            await nursery.start("child", "inherited")

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        await scheduler.enqueue("parent", meta={"tenant": "a"})
        await drain(scheduler)
    metas = {one["data"]: one["meta"] for one in jobs.find({"name": "child"})}
    assert metas == {"own": {"tenant": "b"}, "inherited": {"tenant": "a"}}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"unique_key": "a"}, "unique_key"),
        ({"on_conflict": "replace"}, "on_conflict"),
        ({"max_wait": 3}, "max_wait"),
        ({"colour": 3}, "colour"),
        ({"key": ""}, "key"),
        ({"key": 3}, "key"),
    ],
)
async def test_options_that_children_do_not_have_are_refused(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, options: Any, problem: str
) -> None:
    errors: list[Exception] = []

    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            with pytest.raises(InvalidOptionError) as caught:
                await nursery.start("child", 1, **options)
            errors.append(caught.value)

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        await scheduler.wait_job(parent)
    (error,) = errors
    assert problem in str(error)
    assert jobs.count_documents({"name": "child"}) == 0


async def test_equal_children_are_as_many_as_were_asked_for_and_a_key_twice_is_an_error(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", ["same", "same"])
            await nursery.start("child", "same")
            await nursery.start("child", "x", key="k")
            with pytest.raises(InvalidOptionError, match="another child of this block"):
                await nursery.start("child", "y", key="k")

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        await scheduler.wait_job(parent)
    assert sorted(one["data"] for one in jobs.find({"name": "child"})) == ["same", "same", "same", "x"]


async def test_key_names_one_block_of_a_run(open_test_scheduler: SchedulerOpener, autojump_clock: MockClock) -> None:
    """The second one would take the children of the first for its own."""

    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job, key="a") as nursery:
            await nursery.start("child", 1)
        with pytest.raises(InvalidOptionError, match="opened already"):
            async with open_job_nursery(job, key="a"):
                pass

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        await scheduler.wait_job(await scheduler.enqueue("parent"))


@pytest.mark.parametrize("wrong", [{"fail": "never"}, {"key": ""}, {"key": 3}, {"key": "3"}])
def test_arguments_of_the_block_are_checked(wrong: Any) -> None:
    with pytest.raises(InvalidOptionError):
        open_job_nursery(None, **wrong)


def test_other_parents_are_refused_with_what_to_do() -> None:
    with pytest.raises(TypeError, match="enqueue a job"):
        open_job_nursery(object())


async def test_nothing_is_started_after_the_block(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        kept: list[JobNursery] = []
        async with open_job_nursery(job) as nursery:
            kept.append(nursery)
        with pytest.raises(MonqueError, match="is over"):
            await kept[0].start("child", 1)

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        await scheduler.wait_job(parent)
    assert jobs.count_documents({"name": "child"}) == 0


async def test_cancelled_children_end_at_once_in_virtual_time(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> float:
        began = trio.current_time()
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", [1000, 2000])
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
        return trio.current_time() - began

    async with open_test_scheduler(Flow(body).workers) as scheduler:
        parent = await scheduler.enqueue("parent")
        assert (await scheduler.wait_job(parent)).result == pytest.approx(10, abs=0.5)
