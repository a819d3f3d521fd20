"""run_job: a handler alone, judged and checked as in production. None of these tests has a database."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_monque import Discard, JobStatus, MonqueError, NewJob, Retry, RunningJob, Snooze, Workers
from trio_monque.errors import InvalidOptionError, InvalidPayloadError, PayloadTooLargeError, WorkerRegistrationError
from trio_monque.testing import Discarded, Failed, Snoozed, Succeeded, run_job

workers = Workers()


@dataclass
class Order:
    number: int
    at: datetime | None = None


@workers.register("charge", payload=Order, timeout=20, retry_on=ConnectionError, store_result=True, backoff=60)
async def charge(job: RunningJob[Order]) -> Any:
    await trio.lowlevel.checkpoint()
    return job.data.number


async def test_handler_gets_the_job_and_run_job_returns_its_outcome(autojump_clock: MockClock) -> None:
    async def handler(job: RunningJob[Any]) -> str:
        assert (job.data, job.attempt, job.fail_count, job.fail_reason) == ({"a": [1]}, 3, 2, "no")
        assert (job.saved, job.resources, job.unique_key) == ("half", "pool", "k")
        assert job.job.status is JobStatus.PROCESSING
        assert job.cancel_reason is None
        begun = job.now()
        await trio.sleep(3)
        assert job.now() - begun == timedelta(seconds=3)
        return "done"

    ran = await run_job(
        handler, {"a": (1,)}, fail_count=2, fail_reason="no", saved="half", resources="pool", unique_key="k"
    )
    assert ran.outcome == Succeeded()
    assert (ran.value, ran.error, ran.cancel_reason) == ("done", None, None)
    assert ran.duration == pytest.approx(3)
    assert ran.job.status is JobStatus.COMPLETED
    assert ran.job.claim is None


async def test_plain_handler_runs_in_a_thread_and_speaks_to_the_run(autojump_clock: MockClock) -> None:
    def handler(job: RunningJob[int]) -> int:
        assert not trio.lowlevel.in_trio_task()
        job.from_thread(job.save, {"step": job.data})
        job.from_thread(trio.sleep, 100)
        job.check_cancelled()
        job.scheduler.sync.enqueue("next", job.data + 1)
        return job.data

    ran = await run_job(handler, 7)
    assert (ran.value, ran.saved, ran.duration) == (7, {"step": 7}, 100)
    assert ran.enqueued == (NewJob(name="next", data=8),)


# --- Outcomes ---


async def test_worker_decides_what_its_errors_mean() -> None:
    errors: list[Exception] = [ConnectionError("reset"), ValueError("a bug")]
    several = Workers()

    @several.register("several", retry_on=ConnectionError, discard_on=KeyError, backoff=60)
    async def handler(job: RunningJob[Any]) -> None:
        raise errors[job.data]

    ran = await run_job(handler, 0, fail_count=1)
    assert ran.outcome == Failed(errors[0])
    assert ran.error is errors[0]
    assert (ran.job.status, ran.job.fail_count) == (JobStatus.PENDING, 2)
    assert ran.job.next_run_at - ran.job.updated_at == timedelta(seconds=60)
    errors[0] = KeyError("gone")
    ran = await run_job(handler, 0)
    assert ran.outcome == Discarded(errors[0])
    assert (ran.job.status, ran.job.fail_reason) == (JobStatus.FAILED, "KeyError: 'gone'")
    with pytest.raises(ValueError, match="a bug") as caught:  # The worker names it nowhere.
        await run_job(handler, 1)
    assert caught.value is errors[1]


async def test_control_exceptions_are_outcomes() -> None:
    raised: list[Exception] = []

    async def handler(job: RunningJob[Any]) -> None:
        async with trio.open_nursery():
            raise raised[-1]

    raised.append(Retry("later", after=90))
    ran = await run_job(handler)
    assert ran.outcome == Failed(raised[-1], after=90)
    assert ran.job.next_run_at - ran.job.updated_at == timedelta(seconds=90)
    raised.append(Snooze(after=30))
    ran = await run_job(handler, saved="kept")
    assert isinstance(ran.outcome, Snoozed)
    assert (ran.error, ran.job.fail_count, ran.job.saved) == (None, 0, "kept")
    raised.append(Discard("enough"))
    ran = await run_job(handler)
    assert ran.outcome == Discarded(raised[-1])
    assert ran.job.fail_reason == "enough"


async def test_other_error_is_raised_unchanged_or_returned() -> None:
    bug = ExceptionGroup("both", [Discard("enough"), ZeroDivisionError()])

    async def handler(job: RunningJob[Any]) -> None:
        raise bug

    with pytest.raises(ExceptionGroup, match="both") as caught:
        await run_job(handler)
    assert caught.value.exceptions == bug.exceptions
    ran = await run_job(handler, reraise=False)
    assert ran.outcome == Discarded(bug.exceptions[0])
    assert isinstance(ran.error, ExceptionGroup)
    assert ran.error.exceptions == bug.exceptions


async def test_exit_is_raised_whatever_was_asked() -> None:
    async def handler(job: RunningJob[Any]) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await run_job(handler, reraise=False)


async def test_last_try_fails_for_good() -> None:
    async def handler(job: RunningJob[Any]) -> None:
        raise Retry

    for fail_count, status in ((1, JobStatus.PENDING), (2, JobStatus.FAILED)):
        ran = await run_job(handler, fail_count=fail_count, max_attempts=3)
        assert ran.job.status is status


async def test_result_is_stored_if_the_worker_stores_results_and_must_be_storable() -> None:
    ran = await run_job(charge, Order(7))
    assert ran.outcome == Succeeded(7)
    assert ran.job.result == 7
    with pytest.raises(InvalidPayloadError):
        await run_job(charge, {"number": {1}})  # type: ignore[arg-type]
    with pytest.raises(InvalidPayloadError):
        await run_job(Workers().register("set", _returns_a_set, store_result=True))


async def _returns_a_set(job: RunningJob[Any]) -> Any:
    return {1}


# --- Data ---


async def test_data_comes_to_the_worker_as_from_the_database() -> None:
    seen: list[Any] = []
    several = Workers()

    @several.register("see", payload=Order)
    async def see(job: RunningJob[Order]) -> None:
        seen.append(job.data)

    moment = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
    await run_job(see, Order(1, moment))
    assert seen == [Order(1, moment.replace(microsecond=123000))]
    await run_job(see, stored={"number": 2})  # The stored document of an older version.
    assert seen[1] == Order(2)
    await run_job(see, stored={"number": 3, "of_a_newer_version": True})
    assert seen.pop() == Order(3)
    ran = await run_job(see, stored={"count": 2})
    assert isinstance(ran.outcome, Failed)
    assert len(seen) == 2
    with pytest.raises(InvalidPayloadError, match="takes Order"):
        await run_job(see, Other(1))  # type: ignore[arg-type]
    with pytest.raises(InvalidPayloadError, match="takes Order as its data, not dict"):
        await run_job(see, {"number": 2})  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="stored"):
        await run_job(see, Order(1), stored={"number": 2})  # type: ignore[call-overload]


@dataclass
class Other:
    number: int


async def test_what_could_not_be_enqueued_is_refused() -> None:
    for data, error in ((object(), InvalidPayloadError), ("x" * 100, PayloadTooLargeError)):
        with pytest.raises(error):
            await run_job(charge, stored=data, max_payload_size=50)
    with pytest.raises(InvalidOptionError, match="attempt=1"):
        await run_job(charge, Order(1), attempt=1, fail_count=1)
    with pytest.raises(InvalidOptionError, match="timeout=0"):
        await run_job(charge, Order(1), timeout=0)
    with pytest.raises(InvalidOptionError, match="no_such_option"):
        await run_job(charge, Order(1), no_such_option=1)  # type: ignore[call-overload]
    with pytest.raises(WorkerRegistrationError):
        await run_job(7)  # type: ignore[call-overload]


# --- The run ---


async def test_deadline_is_the_workers_or_the_callers_and_ends_the_run(autojump_clock: MockClock) -> None:
    deadlines: list[float] = []
    several = Workers()

    @several.register("slow", timeout=20)
    async def slow(job: RunningJob[Any]) -> None:
        deadlines.append(job.deadline - trio.current_time())
        try:
            await trio.sleep_forever()
        finally:
            assert job.cancel_reason == "timeout"
            with job.cleanup(1000):
                await trio.sleep(2)
                await job.save("half")
                await trio.sleep_forever()

    ran = await run_job(slow, cleanup_timeout=5)
    assert isinstance(ran.outcome, Failed)
    assert isinstance(ran.error, TimeoutError)
    assert (ran.cancel_reason, ran.duration, ran.saved) == ("timeout", 25, "half")
    assert ran.job.saved == "half"
    await run_job(slow, timeout=3)
    assert deadlines == [20, 3]


async def test_plain_handler_is_stopped_by_its_timeout(autojump_clock: MockClock) -> None:
    def handler(job: RunningJob[Any]) -> None:
        while True:
            job.from_thread(trio.sleep, 1)
            job.check_cancelled()

    ran = await run_job(handler, timeout=3)
    assert isinstance(ran.error, TimeoutError)


async def test_cancelled_it_cancels_the_run_as_a_scheduler_that_is_left(autojump_clock: MockClock) -> None:
    reasons: list[Any] = []

    async def handler(job: RunningJob[Any]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            reasons.append(job.cancel_reason)
            with job.cleanup(2):
                await trio.sleep(1)
                reasons.append("cleaned up")

    with trio.move_on_after(5) as scope:
        await run_job(handler)
    assert scope.cancelled_caught
    assert reasons == ["shutdown", "cleaned up"]
    assert trio.current_time() == 6


async def test_what_is_saved_is_checked_and_kept(autojump_clock: MockClock) -> None:
    async def handler(job: RunningJob[Any]) -> None:
        state = {"step": 1}
        await job.save(state)
        state["step"] = 2
        assert job.saved == {"step": 1}
        for share in (0.5, 1.0):
            await job.set_progress(share)
        with pytest.raises(InvalidPayloadError):
            await job.save({1})
        raise Retry

    ran = await run_job(handler)
    assert ran.saved == ran.job.saved == {"step": 1}
    assert ran.progress == (0.5, 1.0)
    assert ran.job.progress == 1.0


def test_run_job_outside_of_an_event_loop_raises_with_advice() -> None:
    with pytest.raises(MonqueError, match=r"run_job needs an event loop: .* run by trio\.run, asyncio\.run"):
        run_job(charge, Order(1)).send(None)
