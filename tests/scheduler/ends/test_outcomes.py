"""Each row of the outcome table, against the real runner and a real server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_monque import Discard, Job, JobStatus, Monque, Retry, RunningJob, Snooze, Workers
from trio_monque.events import JobCancelled, JobCompleted, JobFailed, ScheduleExhausted
from trio_monque.store.driver.types import Collection
from trio_monque.testing import SchedulerOpener, advance, assert_enqueued, drain, quiesce

Handler = Callable[[RunningJob[Any]], Any]


async def job_after_its_first_run(open_test_scheduler: SchedulerOpener, handler: Handler, /, **options: Any) -> Job:
    """What one run leaves behind: time does not pass until it would run again."""
    workers = Workers()
    attempts: list[int] = []

    async def once(job: RunningJob[Any]) -> Any:
        attempts.append(job.attempt)
        return await handler(job)

    workers.register("job", once, **options)
    async with open_test_scheduler(workers, base_retry_interval=1000, retry_jitter=0) as scheduler:
        enqueued = await scheduler.enqueue("job")
        await drain(scheduler)
        stored = await scheduler.get_job(enqueued.id)
    assert attempts == [1]
    assert stored is not None
    return stored


def raising(error: BaseException) -> Handler:
    async def handler(job: RunningJob[Any]) -> None:
        raise error

    return handler


async def test_plain_error_is_a_failed_try_with_its_type_message_and_history(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    job = await job_after_its_first_run(open_test_scheduler, raising(ValueError("no")))
    assert (job.status, job.fail_count, job.fail_reason) == (JobStatus.PENDING, 1, "ValueError: no")
    (entry,) = job.errors
    assert (entry["attempt"], entry["error"]) == (1, "ValueError: no")
    assert "raise error" in entry["traceback"]
    assert job.next_run_at - job.updated_at == timedelta(seconds=2000)


async def test_history_has_where_and_how_long_the_run_that_failed_was(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async def handler(job: RunningJob[Any]) -> None:
        await trio.sleep(2.5)
        raise ValueError("no")

    job = await job_after_its_first_run(open_test_scheduler, handler)
    (entry,) = job.errors
    assert entry["ran"] == 2500
    assert isinstance(entry["by"], str)
    assert entry["by"]


async def test_history_keeps_the_last_errors_only(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("job", max_attempts=8, backoff=1)
    async def handler(job: RunningJob[Any]) -> None:
        raise ValueError(f"try {job.attempt}")

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("job")
        await advance(60)
        await assert_enqueued(scheduler, status="failed", count=1)
    (stored,) = await monque.get_jobs()
    assert [entry["error"] for entry in stored.errors] == [f"ValueError: try {n}" for n in range(4, 9)]


async def test_errors_of_the_handlers_own_nursery_are_named_by_their_first_leaf(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async def fail(message: str) -> None:
        raise KeyError(message)

    async def handler(job: RunningJob[Any]) -> None:
        async with trio.open_nursery() as outer, trio.open_nursery() as inner:
            inner.start_soon(fail, "x")
            outer.start_soon(trio.sleep_forever)

    job = await job_after_its_first_run(open_test_scheduler, handler)
    assert (job.fail_count, job.fail_reason) == (1, "KeyError: 'x'")


async def test_retry_says_when_the_next_try_is_and_counts(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    job = await job_after_its_first_run(open_test_scheduler, raising(Retry("busy", after=77)))
    assert (job.status, job.fail_count, job.fail_reason) == (JobStatus.PENDING, 1, "busy")
    assert job.next_run_at - job.updated_at == timedelta(seconds=77)
    last = await job_after_its_first_run(open_test_scheduler, raising(Retry(after=77)), max_attempts=1)
    assert (last.status, last.fail_reason) == (JobStatus.FAILED, "Retry")


async def test_retry_without_a_time_takes_the_backoff(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    job = await job_after_its_first_run(open_test_scheduler, raising(Retry()))
    assert job.next_run_at - job.updated_at == timedelta(seconds=2000)


async def test_snooze_counts_no_failure(open_test_scheduler: SchedulerOpener, autojump_clock: MockClock) -> None:
    job = await job_after_its_first_run(open_test_scheduler, raising(Snooze(after=77)))
    assert (job.status, job.fail_count, job.fail_reason, job.attempts) == (JobStatus.PENDING, 0, None, 1)
    assert job.next_run_at - job.updated_at == timedelta(seconds=77)
    at = datetime(2040, 1, 1, tzinfo=UTC)
    assert (await job_after_its_first_run(open_test_scheduler, raising(Snooze(until=at)))).next_run_at == at


async def test_discard_is_the_last_try(open_test_scheduler: SchedulerOpener, autojump_clock: MockClock) -> None:
    job = await job_after_its_first_run(open_test_scheduler, raising(Discard("useless")))
    assert (job.status, job.fail_count, job.fail_reason) == (JobStatus.FAILED, 1, "useless")


@pytest.mark.parametrize(
    ("group", "status", "fail_count", "reason"),
    [
        ([Retry(after=5), ValueError("no")], "pending", 1, "ValueError: no (and 1 more)"),
        ([Snooze(after=5), Retry("busy", after=5)], "pending", 1, "busy"),
        ([Snooze(after=5), Snooze(after=6)], "pending", 0, None),
        ([ValueError("no"), Discard("useless"), Snooze(after=5)], "failed", 1, "useless"),
        ([OSError("a"), ExceptionGroup("", [OSError("b"), OSError("c")])], "pending", 1, "OSError: a (and 2 more)"),
    ],
)
async def test_in_a_group_discard_comes_before_errors_before_retry_before_snooze(
    open_test_scheduler: SchedulerOpener,
    autojump_clock: MockClock,
    group: list[Exception],
    status: str,
    fail_count: int,
    reason: str | None,
) -> None:
    job = await job_after_its_first_run(open_test_scheduler, raising(ExceptionGroup("several", group)))
    assert (job.status, job.fail_count, job.fail_reason) == (status, fail_count, reason)


@pytest.mark.parametrize("raised", [Discard("useless"), KeyError("final")])
async def test_errors_beside_the_one_that_ends_the_job_are_logged_with_their_tracebacks(
    open_test_scheduler: SchedulerOpener,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    raised: Exception,
) -> None:
    group = ExceptionGroup("several", [ValueError("no"), raised, ExceptionGroup("in it", [OSError("disk")])])
    job = await job_after_its_first_run(open_test_scheduler, raising(group), discard_on=KeyError)
    assert job.status is JobStatus.FAILED
    (beside,) = (one for one in caplog.records if one.message.startswith("beside that"))
    assert beside.message == f"beside that, job {job} raised: ValueError: no (and 1 more)"
    assert beside.levelname == "ERROR"
    assert "OSError: disk" in caplog.text


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "error", "status"),
    [
        ({"retry_on": OSError}, OSError(), "pending"),
        ({"retry_on": (OSError, KeyError)}, KeyError(), "pending"),
        ({"retry_on": OSError}, ValueError(), "failed"),
        ({"retry_on": OSError}, ExceptionGroup("", [OSError(), ValueError()]), "failed"),
        ({"discard_on": ValueError}, ValueError(), "failed"),
        ({"discard_on": (ValueError,)}, OSError(), "pending"),
        ({"retry_on": Exception, "discard_on": ValueError}, ExceptionGroup("", [OSError(), ValueError()]), "failed"),
        ({"retry_on": OSError}, Retry(after=1), "pending"),
    ],
)
async def test_worker_says_which_errors_are_tried_again(
    open_test_scheduler: SchedulerOpener,
    autojump_clock: MockClock,
    options: dict[str, Any],
    error: Exception,
    status: str,
) -> None:
    assert (await job_after_its_first_run(open_test_scheduler, raising(error), **options)).status == status


async def test_workers_own_backoff_is_seconds_or_asked_for(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    asked: list[tuple[int, BaseException]] = []
    error = ValueError("no")

    def backoff(failures: int, raised: BaseException) -> float:
        asked.append((failures, raised))
        return 5.5

    fixed = await job_after_its_first_run(open_test_scheduler, raising(error), backoff=7)
    assert fixed.next_run_at - fixed.updated_at == timedelta(seconds=7)
    never_at_once = await job_after_its_first_run(open_test_scheduler, raising(error), backoff=0)
    assert never_at_once.next_run_at - never_at_once.updated_at == timedelta(milliseconds=1)
    computed = await job_after_its_first_run(open_test_scheduler, raising(error), backoff=backoff)
    assert computed.next_run_at - computed.updated_at == timedelta(seconds=5.5)
    assert asked == [(1, error)]


@pytest.mark.parametrize("answer", ["soon", float("nan"), -1.0, None])
async def test_failing_backoff_function_is_replaced_and_logged(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, answer: Any
) -> None:
    job = await job_after_its_first_run(
        open_test_scheduler, raising(ValueError()), backoff=lambda failures, error: answer
    )
    assert job.next_run_at - job.updated_at == timedelta(seconds=2000)
    assert "a backoff function failed" in caplog.text


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), BaseExceptionGroup("", [SystemExit(3)])])
async def test_other_base_exceptions_are_a_failed_try_and_end_nothing_else(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, error: BaseException
) -> None:
    job = await job_after_its_first_run(open_test_scheduler, raising(error))
    assert (job.status, job.fail_count) == (JobStatus.PENDING, 1)
    assert job.fail_reason is not None
    assert job.fail_reason.startswith(("SystemExit", "GeneratorExit"))


async def test_run_that_takes_too_long_is_a_failed_try(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async def handler(job: RunningJob[Any]) -> None:
        await trio.sleep_forever()

    job = await job_after_its_first_run(open_test_scheduler, handler, timeout=4)
    assert (job.status, job.fail_reason) == (
        JobStatus.PENDING,
        "TimeoutError: the run took longer than 4 s (the timeout of its worker)",
    )
    assert job.finished_at is not None
    assert job.started_at is not None
    assert job.finished_at - job.started_at == timedelta(seconds=4)


async def test_error_in_the_clean_up_of_a_cancelled_run_is_a_failed_try(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async def handler(job: RunningJob[Any]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("in the clean-up")

    job = await job_after_its_first_run(open_test_scheduler, handler, timeout=4)
    assert (job.fail_count, job.fail_reason) == (1, "OSError: in the clean-up")


class NastyError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even this fails")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NastyError(), "NastyError: (its message cannot be shown)"),
        (ValueError("a lone surrogate: \ud800"), "ValueError: a lone surrogate: \\ud800"),
        (ValueError("a NUL: \0"), "ValueError: a NUL: \0"),
    ],
)
async def test_error_with_a_difficult_text_still_becomes_the_fail_reason(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, error: Exception, reason: str
) -> None:
    assert (await job_after_its_first_run(open_test_scheduler, raising(error))).fail_reason == reason


async def test_exhausted_schedule_goes_on_with_a_warning_unless_on_exhausted_is_fail(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    workers = Workers()
    reported: list[Any] = []

    @workers.register("tick", max_attempts=1)
    async def tick(job: RunningJob[Any]) -> None:
        raise ValueError("no")

    async with open_test_scheduler(
        workers, listeners={ScheduleExhausted: reported.append, JobFailed: reported.append}
    ) as scheduler:
        for on_exhausted in (None, "fail"):
            job = await scheduler.enqueue("tick", delay=1)
            jobs.update_one({"_id": job.id}, {"$set": {"repeatInterval": "0 0 1 1 *", "onExhausted": on_exhausted}})
        await advance(1)
        await assert_enqueued(scheduler, status="failed", count=1)
        assert jobs.count_documents({"status": "pending", "failReason": "ValueError: no"}) == 1
    assert sorted(type(event).__name__ for event in reported) == ["JobFailed", "JobFailed", "ScheduleExhausted"]
    (exhausted,) = [event for event in reported if isinstance(event, ScheduleExhausted)]
    assert (exhausted.job.fail_count, exhausted.job.status) == (0, JobStatus.PENDING)
    assert "used up its retries" in caplog.text


@dataclass
class Email:
    to: str
    cc: tuple[str, ...] = ()


async def test_payload_makes_the_data_and_data_that_it_cannot_read_fails_the_job_after_its_retries(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()
    got: list[Any] = []

    @workers.register("email", payload=Email)
    async def email(job: RunningJob[Email]) -> None:
        got.append(job.data)

    @workers.register("number", payload=int)
    def number(job: RunningJob[int]) -> None:
        got.append(job.data)

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue("email", {"to": "a@b.c"})
        await scheduler.enqueue("number", "7")
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=2)
        await monque.enqueue("email", {"from": "a@b.c"}, max_attempts=2)
        await scheduler.enqueue("number", "seven", max_attempts=2)
        await drain(scheduler)
        await assert_enqueued(scheduler, status="pending", count=2)
        await advance(10)
        await assert_enqueued(scheduler, status="failed", count=2)
    assert sorted(map(repr, got)) == ["7", "Email(to='a@b.c', cc=())"]
    email_job, number_job = sorted(await monque.get_jobs(status="failed"), key=lambda job: job.name)
    assert email_job.fail_reason == (
        "UnreadablePayloadError: the stored data cannot be read as the payload of worker 'email' (Email): "
        "data.to: is missing: Email needs it"
    )
    assert "worker 'number' (int): ValueError: invalid literal for int()" in (number_job.fail_reason or "")


async def test_results_are_stored_where_asked_and_one_that_cannot_be_fails_its_own_job_only(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("stores", store_result=True, max_attempts=1)
    async def stores(job: RunningJob[Any]) -> Any:
        return {1, 2} if job.data == "bad" else {"n": job.data}

    @workers.register("forgets")
    async def forgets(job: RunningJob[Any]) -> Any:
        return {1, 2}

    completed: list[JobCompleted] = []
    async with open_test_scheduler(workers, listeners={JobCompleted: completed.append}) as scheduler:
        await scheduler.enqueue("forgets")
        for data in (1, "bad", 2):
            await scheduler.enqueue("stores", data)
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=3)
        await assert_enqueued(scheduler, status="failed", data="bad", count=1)
    assert sorted(str(job.result) for job in await monque.get_jobs(status="completed")) == [
        "None",
        "{'n': 1}",
        "{'n': 2}",
    ]
    assert sorted(str(event.job.result) for event in completed) == ["None", "{'n': 1}", "{'n': 2}"]


async def test_cancelled_run_of_ours_ends_cancelled_and_one_that_succeeds_all_the_same_is_completed(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "trio_monque.scheduler")
    workers = Workers()
    reasons: list[str] = []

    @workers.register("obeys")
    async def obeys(job: RunningJob[Any]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            reasons.append(str(job.cancel_reason))

    @workers.register("insists")
    async def insists(job: RunningJob[Any]) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(100)

    @workers.register("fails")
    async def fails(job: RunningJob[Any]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("in the clean-up")

    reported: list[JobCancelled] = []
    async with open_test_scheduler(
        workers, heartbeat_interval=10, listeners={JobCancelled: reported.append}
    ) as scheduler:
        made = {name: (await scheduler.enqueue(name)).id for name in ("obeys", "insists", "fails")}
        await quiesce()
        await assert_enqueued(scheduler, status="processing", count=3)
        for job_id in made.values():
            asked = await scheduler.cancel_job(job_id)
            assert asked is not None
            assert asked.status is JobStatus.PROCESSING
        await trio.sleep(10)  # With the next beat.
        await quiesce()
        await assert_enqueued(scheduler, status="cancelled", count=2)
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
    assert reasons == ["user"]
    logged = [record for record in caplog.records if "its cancellation was requested" in record.getMessage()]
    assert {vars(record)["job_id"] for record in logged} == {str(made["obeys"]), str(made["fails"])}
    assert jobs.count_documents({"_id": made["insists"], "status": "completed"}) == 1
    assert jobs.count_documents({"cancelRequestedAt": {"$exists": True}}) == 0
    assert sorted(event.job.name for event in reported) == ["fails", "obeys"]
