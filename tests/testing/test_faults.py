"""fail_next: a chosen call fails as if the driver had failed, and nothing else does."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from pymongo import errors as driver
from trio.testing import MockClock

from trio_monque import Monque, NewJob, RunningJob, Workers
from trio_monque.errors import InvalidOptionError, MonqueConnectionError
from trio_monque.events import SchedulerErrorOccurred
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, assert_enqueued, drain, fail_next

GONE = driver.AutoReconnect("gone")


async def test_call_that_fails_before_it_was_sent_changes_nothing(monque: Monque, jobs: Collection) -> None:
    job = await monque.enqueue("a")
    # Twice: what may have been applied is sent again.
    error = driver.NotPrimaryError("not primary")
    fault = fail_next(monque, error, times=2)
    with pytest.raises(MonqueConnectionError, match="could not delete the job: not primary") as caught:
        await monque.delete_job(job.id)
    assert caught.value.__cause__ is error
    assert (caught.value.transient, caught.value.unknown_outcome) == (True, True)
    assert fault.happened
    assert fault.hits == ("delete the job", "delete the job")
    assert jobs.count_documents({}) == 1
    assert await monque.delete_job(job.id)  # Twice was twice.


async def test_call_that_fails_after_it_was_applied_was_applied(monque: Monque, jobs: Collection) -> None:
    job = await monque.enqueue("a")
    fault = fail_next(monque, GONE, when="after")
    with pytest.raises(MonqueConnectionError):
        await monque.delete_job(job.id)
    assert fault.happened
    assert jobs.count_documents({}) == 0


@pytest.mark.parametrize("when", ["before", "after"])
async def test_enqueuing_whose_answer_is_lost_is_looked_up_and_happens_once(
    monque: Monque, jobs: Collection, when: Any
) -> None:
    # The client makes its indexes and asks for the time first: neither is what a test means.
    with fail_next(monque, GONE, when=when) as fault:
        job = await monque.enqueue("a")
    assert fault.hits == ("enqueue the job",)
    assert [document["_id"] for document in jobs.find()] == [job.id]


async def test_errands_of_the_client_can_be_named(monque: Monque) -> None:
    fail_next(monque, driver.OperationFailure("not authorized", 13), command="create the indexes")
    with pytest.raises(MonqueConnectionError, match="check the user") as caught:
        await monque.enqueue("a")
    assert not caught.value.transient


async def test_fault_hits_only_matching_calls_and_only_the_given_number_of_times(
    monque: Monque, jobs: Collection
) -> None:
    fault = fail_next(monque, driver.NetworkTimeout, command="^read the job$", times=2)
    job = await monque.enqueue("a")
    for hits in (1, 2):
        assert not fault.happened
        with pytest.raises(MonqueConnectionError, match="raised by fail_next"):
            await monque.get_job(job.id)
        assert len(fault.hits) == hits
    assert fault.happened
    assert await monque.get_job(job.id) == job


async def test_several_faults_are_hit_in_the_order_in_which_they_were_asked_for(monque: Monque) -> None:
    job = await monque.enqueue("a")
    with fail_next(monque, driver.AutoReconnect("first")), fail_next(monque, driver.AutoReconnect("second")):
        with pytest.raises(MonqueConnectionError, match="first"):
            await monque.get_job(job.id)
        with pytest.raises(MonqueConnectionError, match="second"):
            await monque.get_job(job.id)


async def test_fault_without_a_number_lasts_as_long_as_its_block(monque: Monque) -> None:
    job = await monque.enqueue("a")
    with fail_next(monque, GONE, times=None) as fault:
        for _ in range(3):
            with pytest.raises(MonqueConnectionError):
                await monque.get_job(job.id)
    assert len(fault.hits) == 3
    assert await monque.get_job(job.id) == job


async def test_block_whose_fault_did_not_happen_fails_and_leaves_nothing_behind(monque: Monque) -> None:
    job = await monque.enqueue("a")
    with pytest.raises(AssertionError, match="did not happen: 0 calls failed"), fail_next(monque, GONE, times=2):
        pass
    assert await monque.get_job(job.id) == job
    with pytest.raises(ZeroDivisionError), fail_next(monque, GONE):  # What the block raises is not covered up.
        _ = 1 / 0


async def test_calls_of_other_clients_are_not_hit(monque: Monque, monque_db: Database) -> None:
    fault = fail_next(monque, GONE)
    await Monque(monque_db).enqueue("a")
    assert not fault.happened
    fault.remove()
    fault.remove()


def test_each_of_many_threads_calls_is_hit_or_not_and_the_number_is_kept(monque: Monque) -> None:
    monque.sync.enqueue("a")
    failed: list[MonqueConnectionError] = []

    async def ask() -> None:
        def in_thread() -> None:
            try:
                monque.sync.get_jobs()
            except MonqueConnectionError as error:
                failed.append(error)

        await trio.to_thread.run_sync(in_thread)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(ask)

    with fail_next(monque.sync, GONE, times=7):
        trio.run(main)
    assert len(failed) == 7


def test_call_that_comes_while_another_thread_takes_the_last_hit_is_not_hit(monque: Monque) -> None:
    fault = fail_next(monque, GONE)
    # Both threads have found the fault in the list, and only then does each ask for it.
    assert [fault.takes("read the job"), fault.takes("read the job")] == [True, False]
    assert fault.hits == ("read the job",)


async def test_scheduler_survives_faults_of_each_kind_and_runs_each_job_once(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    runs: list[int] = []
    errors: list[SchedulerErrorOccurred] = []

    @workers.register("job")
    async def handler(job: RunningJob[int]) -> None:
        runs.append(job.data)

    async with open_test_scheduler(workers, listeners={SchedulerErrorOccurred: errors.append}) as scheduler:
        lost_claim = fail_next(scheduler, GONE, when="after", command="claim jobs")
        await scheduler.enqueue_many([NewJob(name="job", data=number) for number in range(5)])
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=5)
        lost_settlement = fail_next(scheduler, GONE, when="after", command="settle jobs")
        unsent_settlement = fail_next(scheduler, GONE, when="before", command="settle jobs")
        await scheduler.enqueue("job", 5)
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=6)
        assert unsent_settlement.happened
    assert lost_claim.happened
    assert lost_settlement.happened
    assert errors
    assert sorted(runs) == list(range(6))
    assert scheduler.report is not None
    assert scheduler.report.completed == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"error": ValueError("no")}, "must be an error of pymongo"),
        ({"error": driver.BulkWriteError}, "give an instance"),
        ({"error": GONE, "when": "during"}, "must be one of before, after"),
        ({"error": GONE, "times": 0}, "times=0"),
        ({"error": GONE, "command": "brew coffee"}, "matches none of: .*claim jobs.*enqueue the job"),
        ({"error": GONE, "command": "("}, "is not a regular expression"),
    ],
)
def test_fault_that_could_never_happen_is_refused(monque: Monque, arguments: Any, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        fail_next(monque, **arguments)
    with pytest.raises(InvalidOptionError, match="must be a Monque"):
        fail_next("localhost", GONE)  # type: ignore[arg-type]
    monque.sync.enqueue("a")
