"""The ways to leave a scheduler: how long each takes, and what the database holds afterwards."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.internals import engine_of
from trio_monque import Monque, NewJob, RunningJob, Workers, open_scheduler, run_scheduler
from trio_monque.events import JobStarted, ShutdownTimedOut
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import claiming, leases, settling
from trio_monque.testing import advance, quiesce
from trio_monque.threads_and_frozen_time import clock_freeze

CLAIM_FIELDS = ("claimedBy", "lockedAt", "lastHeartbeat", "heartbeatInterval", "claimToken")


class Sleepers:
    """Workers whose jobs sleep for as many seconds as they say, and what became of their runs."""

    def __init__(self) -> None:
        self.started = 0
        self.reasons: list[str] = []
        self.workers = Workers()
        self.workers.register("sleep", self._sleep, concurrency=20)

    async def _sleep(self, job: RunningJob[float]) -> None:
        self.started += 1
        try:
            await trio.sleep(job.data)
        except trio.Cancelled:
            self.reasons.append(str(job.cancel_reason))
            raise

    async def start(self, monque: Monque, *seconds: float) -> None:
        """Returns when these runs are under way; their jobs are `processing` earlier, while the claim is in flight."""
        wanted = self.started + len(seconds)
        for one in seconds:
            await monque.enqueue("sleep", one)
        await quiesce()
        assert self.started == wanted


LONG = (1000.0, 1000.0, 1000.0)


@pytest.fixture
def sleepers() -> Sleepers:
    return Sleepers()


def assert_given_back(jobs: Collection, count: int) -> None:
    """Pending at once, uncounted, and nothing of the claim left."""
    given_back = list(jobs.find({"status": "pending"}))
    assert len(given_back) == count
    for document in given_back:
        assert document["failCount"] == 0
        assert "failReason" not in document
        assert not document.keys() & set(CLAIM_FIELDS)


async def test_normal_end_gives_running_jobs_the_shutdown_timeout_and_then_cuts(
    db: Database, jobs: Collection, autojump_clock: MockClock, sleepers: Sleepers
) -> None:
    reported: list[ShutdownTimedOut] = []
    async with open_scheduler(
        db, sleepers.workers, shutdown_timeout=30, listeners={ShutdownTimedOut: reported.append}
    ) as scheduler:
        await sleepers.start(scheduler, *LONG)
        await sleepers.start(scheduler, 20.0)
        left = trio.current_time()
    assert trio.current_time() - left == 30
    assert sleepers.reasons == ["shutdown"] * 3
    assert jobs.count_documents({"status": "completed"}) == 1  # The one that could end in time.
    assert_given_back(jobs, 3)
    assert scheduler.report is not None
    assert (scheduler.report.completed, scheduler.report.released, scheduler.report.unfinished) == (1, 3, ())
    assert [len(event.jobs) for event in reported] == [3]


async def test_normal_end_waits_no_longer_than_the_jobs_run(
    db: Database, jobs: Collection, autojump_clock: MockClock, sleepers: Sleepers
) -> None:
    async with open_scheduler(db, sleepers.workers) as scheduler:
        await sleepers.start(scheduler, 5.0)
        await scheduler.enqueue("sleep", 5.0, delay=0.5)
        left = trio.current_time()
    assert trio.current_time() - left == 5
    assert jobs.count_documents({"status": "completed"}) == 1
    assert jobs.count_documents({"status": "pending"}) == 1  # Not claimed any more.


async def test_idle_scheduler_ends_at_once(db: Database, autojump_clock: MockClock, sleepers: Sleepers) -> None:
    async with open_scheduler(db, sleepers.workers):
        await advance(10.2)
        left = trio.current_time()
    assert trio.current_time() == left


async def test_cancelled_while_draining_cuts_at_once(
    db: Database, jobs: Collection, autojump_clock: MockClock, sleepers: Sleepers
) -> None:
    with trio.CancelScope() as scope:
        async with open_scheduler(db, sleepers.workers) as scheduler:
            await sleepers.start(scheduler, *LONG)
            left = trio.current_time()
            scope.deadline = left + 7
    assert scope.cancelled_caught
    assert trio.current_time() - left == 7
    assert_given_back(jobs, 3)


async def test_cancelled_in_the_body_cuts_at_once(
    db: Database, jobs: Collection, autojump_clock: MockClock, sleepers: Sleepers
) -> None:
    with trio.CancelScope() as scope:
        async with open_scheduler(db, sleepers.workers) as scheduler:
            await sleepers.start(scheduler, *LONG)
            cancelled_at = trio.current_time() + 3
            scope.deadline = cancelled_at
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() == cancelled_at
    assert_given_back(jobs, 3)


class BodyError(Exception):
    pass


@pytest.mark.parametrize(
    "error", [BodyError("from the body"), ExceptionGroup("a group of the body's own", [BodyError()])]
)
async def test_body_that_raises_cuts_and_its_error_travels_as_it_is(
    db: Database, jobs: Collection, autojump_clock: MockClock, sleepers: Sleepers, error: Exception
) -> None:
    with pytest.raises(type(error)) as caught:
        async with open_scheduler(db, sleepers.workers) as scheduler:
            await sleepers.start(scheduler, *LONG)
            left = trio.current_time()
            raise error
    # A nursery copies the groups that pass through it; what is in them stays the same.
    assert str(caught.value) == str(error)
    assert getattr(caught.value, "exceptions", (caught.value,))[0] is getattr(error, "exceptions", (error,))[0]
    assert trio.current_time() == left
    assert_given_back(jobs, 3)


async def test_crash_of_a_loop_cuts_in_order_and_is_raised_alone(
    db: Database, jobs: Collection, autojump_clock: MockClock, sleepers: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = ZeroDivisionError("a bug in the heartbeat")
    cancelled: list[bool] = []

    def broken(*_: object) -> None:
        raise crash

    with pytest.raises(ZeroDivisionError) as caught:
        async with open_scheduler(db, sleepers.workers, heartbeat_interval=10) as scheduler:
            await sleepers.start(scheduler, *LONG)
            monkeypatch.setattr(leases, "renew", broken)
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                cancelled.append(True)
                raise
    assert caught.value is crash
    assert cancelled == [True]  # The body gets it.
    assert trio.current_time() == 10
    assert_given_back(jobs, 3)
    assert scheduler.report is not None
    assert scheduler.report.crashed == (crash,)


async def test_crash_while_draining_cuts_too(
    db: Database, jobs: Collection, autojump_clock: MockClock, sleepers: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with open_scheduler(db, sleepers.workers, heartbeat_interval=10) as scheduler:
            await sleepers.start(scheduler, *LONG)
            monkeypatch.setattr(leases, "renew", broken)
    assert trio.current_time() == 10
    assert_given_back(jobs, 3)


async def test_crash_of_the_settler_strands_no_job_but_what_it_was_writing(
    db: Database, jobs: Collection, autojump_clock: MockClock, sleepers: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = settling.settle
    calls: list[int] = []

    def broken_once(*arguments: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == 1:
            raise ZeroDivisionError("a bug in the settler")
        return settle(*arguments)

    with pytest.raises(ZeroDivisionError, match="settler"):
        async with open_scheduler(db, sleepers.workers) as scheduler:
            await sleepers.start(scheduler, *LONG)
            monkeypatch.setattr(settling, "settle", broken_once)
            await scheduler.enqueue("sleep", 0.0)
            await trio.sleep_forever()
    # The last act, one release for the three that went on.
    assert len(calls) == 2
    assert_given_back(jobs, 3)
    # It may be what crashed the settler: the end of its lease counts as a death, and deaths are limited.
    assert jobs.count_documents({"status": "processing", "data": 0.0}) == 1


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


# Ctrl-C that arrives while our own code runs is delivered to the main task.
trio.lowlevel.enable_ki_protection(interrupt)


def test_ctrl_c_while_draining_cuts_at_once(db: Database, jobs: Collection, sleepers: Sleepers) -> None:
    clock = MockClock(autojump_threshold=0)

    async def main() -> None:
        async with trio.open_nursery() as nursery, open_scheduler(db, sleepers.workers) as scheduler:
            await sleepers.start(scheduler, *LONG)

            async def press_ctrl_c() -> None:
                await trio.sleep(4)
                interrupt()

            nursery.start_soon(press_ctrl_c)

    with pytest.raises(BaseException) as caught:  # noqa: PT011
        trio.run(main, clock=clock)
    assert _leaves(caught.value) == [KeyboardInterrupt]
    assert clock.current_time() == 4
    assert_given_back(jobs, 3)


def test_ctrl_c_in_a_program_that_is_only_a_scheduler_cuts_at_once(
    db: Database, jobs: Collection, sleepers: Sleepers
) -> None:
    clock = MockClock(autojump_threshold=0)
    started: list[float] = []

    async def started_all(event: JobStarted) -> None:
        started.append(trio.current_time())
        if len(started) == 3:
            interrupt()

    async def main() -> None:
        for _ in range(3):
            await Monque(db).enqueue("sleep", 1000.0)
        await run_scheduler(db, sleepers.workers, listeners={JobStarted: started_all})

    with pytest.raises(KeyboardInterrupt):
        trio.run(main, clock=clock)
    assert len(started) == 3
    assert clock.current_time() == started[-1] == 0
    assert_given_back(jobs, 3)


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_keyboard_interrupt_in_a_handler_is_settled_and_then_raised_on(
    db: Database, jobs: Collection, autojump_clock: MockClock, sleepers: Sleepers, asynchronous: bool
) -> None:
    workers = sleepers.workers

    async def interrupted(job: RunningJob[Any]) -> None:
        raise KeyboardInterrupt

    def interrupted_in_thread(job: RunningJob[Any]) -> None:
        raise KeyboardInterrupt

    workers.register("interrupted", interrupted if asynchronous else interrupted_in_thread)
    with pytest.raises(KeyboardInterrupt):
        async with open_scheduler(db, workers) as scheduler:
            await sleepers.start(scheduler, *LONG)
            await scheduler.enqueue("interrupted")
            await trio.sleep_forever()
    document = jobs.find_one({"name": "interrupted"})
    assert document is not None
    assert (document["status"], document["failCount"], document["failReason"]) == ("pending", 1, "KeyboardInterrupt")
    assert jobs.count_documents({"status": "pending", "failCount": 0}) == 3


@pytest.mark.parametrize(("way", "count"), [("take", 3), ("take_one", 1)])
async def test_claim_that_lands_while_leaving_is_given_back_before_leaving_ends(
    way: str, count: int, db: Database, jobs: Collection, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several new jobs are claimed by a look; one that comes alone while nothing else waits is claimed by its id."""
    take = getattr(claiming, way)
    started: list[str] = []
    token = trio.lowlevel.current_trio_token()
    workers = Workers()
    workers.register("greet", lambda job: started.append("ran"), concurrency=count)

    def taken_while_leaving(*arguments: Any) -> Any:
        trio.from_thread.run_sync(scheduler.drain, trio_token=token)
        return take(*arguments)

    async with open_scheduler(db, workers, listeners={JobStarted: lambda _: started.append("told")}) as scheduler:
        await quiesce()
        monkeypatch.setattr(claiming, way, taken_while_leaving)
        if count == 1:
            await Monque(db).enqueue("greet")
        else:
            await Monque(db).enqueue_many([NewJob(name="greet") for _ in range(count)])
        await scheduler.wait_drained()
        assert_given_back(jobs, count)
        assert jobs.count_documents({"attempts": 1}) == count
    assert started == []


async def test_plain_handler_that_checks_is_cut_and_given_back(
    db: Database, jobs: Collection, autojump_clock: MockClock, sleepers: Sleepers
) -> None:
    workers = Workers()
    token = trio.lowlevel.current_trio_token()
    steps: list[str] = []

    @workers.register("thread")
    def thread(job: RunningJob[Any]) -> None:
        assert job.cancel_reason is None
        job.check_cancelled()
        trio.from_thread.run_sync(engine_of(scheduler).stop.cut, trio_token=token)
        while True:
            trio.from_thread.run(trio.lowlevel.checkpoint, trio_token=token)
            steps.append("step")
            job.check_cancelled()

    async with open_scheduler(db, workers) as scheduler:
        await scheduler.enqueue("thread")
        await scheduler.wait_drained()
        assert steps
        assert_given_back(jobs, 1)


@pytest.mark.parametrize("at_once", [0.0, 60.0], ids=["", "and its process stands still in between"])
async def test_plain_handler_that_does_not_end_keeps_its_claim_and_is_named_in_the_report(
    db: Database, jobs: Collection, mock_clock: MockClock, caplog: pytest.LogCaptureFixture, at_once: float
) -> None:
    """A running thread freezes virtual time: it is moved on by hand, while no other thread is under way.

    With the shortest bounds there are.
    """
    release, entered = threading.Event(), threading.Event()
    workers = Workers()

    @workers.register("stuck")
    def stuck(job: RunningJob[Any]) -> None:
        entered.set()
        release.wait(50)

    async def pass_time() -> None:
        await engine_of(scheduler).stop.cutting.wait()
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(at_once)
        while True:
            await trio.testing.wait_all_tasks_blocked()
            if clock_freeze().freezing == 1:
                mock_clock.jump(0.05)

    async with trio.open_nursery() as nursery:
        async with open_scheduler(db, workers, shutdown_timeout=0, cleanup_timeout=0) as scheduler:
            await scheduler.enqueue("stuck")
            await trio.to_thread.run_sync(entered.wait, 50)
            nursery.start_soon(pass_time)
            left = trio.current_time()
        took = trio.current_time() - left
        nursery.cancel_scope.cancel()
    release.set()
    assert took < at_once + 2.0
    assert scheduler.report is not None
    assert [job.name for job in scheduler.report.unfinished] == ["stuck"]
    assert jobs.count_documents({"status": "processing", "claimedBy": scheduler.id}) == 1
    assert "other workers rescue them when their leases expire: stuck" in caplog.text


async def test_two_schedulers_in_one_program_end_independently(
    db: Database, jobs: Collection, autojump_clock: MockClock, sleepers: Sleepers
) -> None:
    async with open_scheduler(db, sleepers.workers, instance_id="outer") as outer:
        async with open_scheduler(db, sleepers.workers, instance_id="inner", shutdown_timeout=0) as inner:
            await sleepers.start(outer, *LONG)
        assert inner.report is not None
        released = inner.report.released
        # The outer one goes on, and takes what the inner one gave back.
        await quiesce()
        assert jobs.count_documents({"status": "processing", "claimedBy": "outer"}) == 3
        await outer.enqueue("sleep", 0.0)
        await quiesce()
        assert jobs.count_documents({"status": "completed"}) == 1
        outer.drain()
    assert released <= 3
    assert outer.report is not None
    assert outer.report.completed == 1


@pytest.mark.full
async def test_hundred_schedulers_leave_no_more_threads_than_one(
    db: Database, autojump_clock: MockClock, sleepers: Sleepers
) -> None:
    async def open_and_leave() -> None:
        async with open_scheduler(db, sleepers.workers):
            pass

    for _ in range(100):
        await open_and_leave()
    assert len([thread for thread in threading.enumerate() if "trio" in thread.name.lower()]) < 25


def _leaves(error: BaseException) -> list[type[BaseException]]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [type(error)]
