"""What a Node peer leaves behind, and one that uses our instance id: neither may fool a handler or an observer."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
import trio
from bson import ObjectId
from trio.testing import MockClock

from tests.support.internals import look_for_dead_claims, look_for_jobs
from tests.support.node_peer import NodePeer
from trio_monque import JobStatus, Monque, RunningJob, Scheduler, Snooze, Workers, open_scheduler
from trio_monque.errors import InstanceCollisionError, ScheduleEndedError
from trio_monque.events import Event, JobFailed, SchedulerErrorOccurred
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, crash, drain, now, quiesce

LEASE, PASS = 90.0, 15.0
MONTHLY = "0 0 1 * *"


class Script:
    """A worker that follows a script, try by try, and keeps what it found saved."""

    def __init__(self, *steps: str) -> None:
        self.found: list[Any] = []
        self.workers = Workers()
        self._steps = list(steps)
        self.workers.register("job", self.handler, backoff=1.0)

    async def handler(self, job: RunningJob[Any]) -> None:
        self.found.append(job.saved)
        for step in self._steps.pop(0).split():
            match step:
                case "save":
                    await job.save(len(self.found))
                case "fail":
                    raise ValueError("no")
                case "snooze":
                    raise Snooze(after=1)
                case "hang":
                    await trio.sleep_forever()


def recurring(jobs: Collection, **fields: Any) -> ObjectId:
    """One that is due, as Node enqueues it."""
    return NodePeer(jobs).enqueue("job", **{"nextRunAt": now(), "repeatInterval": MONTHLY, **fields})


def node_completes_an_occurrence(jobs: Collection) -> None:
    """The one that is due after a backoff; the next one is due in two seconds."""
    node = NodePeer(jobs, instance="node")
    claimed = node.claim("job", now() + timedelta(days=1))
    assert claimed is not None
    assert node.complete_occurrence(claimed["_id"], now() + timedelta(seconds=2))


# --- A checkpoint belongs to its occurrence ---


async def test_checkpoint_of_an_occurrence_that_node_completed_does_not_reach_the_next_one(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    script = Script("save fail", "fail", "save fail", "succeed", "succeed")
    async with open_test_scheduler(script.workers) as scheduler:
        recurring(jobs)
        look_for_jobs(scheduler)
        await quiesce()
        node_completes_an_occurrence(jobs)
        # A try that found none and saved none leaves none: the stale one stays stale after any number of tries.
        for found in ([None], [None, None], [None, None, None], [None, None, None, 3]):
            await advance(1)
            assert script.found == found
        document = jobs.find_one({})
        assert document is not None
        assert not document.keys() & {"saved", "savedFor", "occurrence", "resumesAt"}


@pytest.mark.parametrize("step", ["fail", "snooze"])
async def test_checkpoint_reaches_each_further_try_at_its_occurrence(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, step: str
) -> None:
    script = Script(f"save {step}", step, f"save {step}", "succeed")
    async with open_test_scheduler(script.workers) as scheduler:
        recurring(jobs)
        for _ in range(4):
            await drain(scheduler)
            await advance(2)
    assert script.found == [None, 1, 1, 3]


async def test_checkpoint_survives_deaths_and_what_node_takes_and_gives_back(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    script = Script("save hang", "hang", "hang", "succeed")
    for _ in range(2):
        async with open_test_scheduler(script.workers, base_retry_interval=0.001) as scheduler:
            if not script.found:
                recurring(jobs)
            await quiesce()
            await advance(LEASE + PASS + 1)  # The second one rescues the first one's.
            await crash(scheduler)
    node = NodePeer(jobs)
    # Our claim is older than its lockTimeout, and its own claim it gives back.
    assert node.recover(-timedelta(days=400_000)) == 1
    claimed = node.claim("job", now() + timedelta(days=1))
    assert claimed is not None
    assert node.release(claimed["_id"])
    async with open_test_scheduler(script.workers, shutdown_timeout=0) as scheduler:
        await quiesce()
    # Given back at the end of the third scheduler.
    async with open_test_scheduler(script.workers) as scheduler:
        await drain(scheduler)
    assert script.found == [None, 1, 1, 1]


async def test_one_off_job_keeps_its_checkpoint_whatever_others_do(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    """It has one occurrence."""
    script = Script("save fail", "fail", "succeed")
    async with open_test_scheduler(script.workers, max_attempts=2) as scheduler:
        job = await scheduler.enqueue("job")
        await drain(scheduler)
        await monque.reschedule_job(job.id, now() + timedelta(seconds=5))
        await advance(6)
        await monque.retry_job(job.id)
        await drain(scheduler)
    assert script.found == [None, 1, 1]


async def test_deaths_in_an_occurrence_that_node_completed_are_not_counted(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    script = Script("hang", "hang", "hang", "hang")
    job_id = recurring(jobs)
    for deaths in (1, 2):
        async with open_test_scheduler(script.workers) as scheduler:
            await quiesce()
            await crash(scheduler)
        async with open_test_scheduler() as other:
            await advance(LEASE + PASS + 1)
            stored = await monque.get_job(job_id)
            assert stored is not None
            assert (stored.status, stored.rescues) == (JobStatus.PENDING, deaths)
            await advance(10)
            assert other.statistics().rescued == 1
    node_completes_an_occurrence(jobs)
    await advance(2)
    async with open_test_scheduler(script.workers) as scheduler:
        await quiesce()
        await crash(scheduler)
    async with open_test_scheduler(max_rescues=2):
        await advance(LEASE + PASS + 1)
        stored = await monque.get_job(job_id)
    assert stored is not None
    assert (stored.rescues, stored.errors) == (1, ())


# --- A Node process with our instance id ---


async def test_claim_of_the_dead_is_rescued_although_a_node_process_with_its_id_renews_it(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    script = Script("hang", "succeed")
    async with open_test_scheduler(script.workers, instance_id="shared") as first:
        await first.enqueue("job")
        await trio.sleep(2 * LEASE)  # It renewed its claim itself, too.
        await crash(first)
    node = NodePeer(jobs, instance="shared")
    async with open_test_scheduler(script.workers) as other:
        for beat in range(12):
            node.beat(now() + timedelta(hours=beat))  # Its clock is its own.
            await trio.sleep(10)
        assert other.statistics().rescued == 1
        await drain(other)
    assert jobs.count_documents({"status": "completed"}) == 1


async def test_live_claim_of_an_older_release_is_left_alone(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    """It renews `lastHeartbeat` alone. Its token tells."""
    at = now()
    token = f"old:{round(at.timestamp() * 1000)}:0123456789ab"
    job_id = NodePeer(jobs, instance="old").enqueue("job")
    claim = {"claimedBy": "old", "lockedAt": at, "lastHeartbeat": at, "heartbeatInterval": 30_000, "claimToken": token}
    jobs.update_one({"_id": job_id}, {"$set": {"status": "processing", **claim}})
    async with open_test_scheduler() as scheduler:
        for _ in range(20):
            jobs.update_one({"_id": job_id}, {"$max": {"lastHeartbeat": now()}, "$set": {"updatedAt": now()}})
            await trio.sleep(30)
        assert scheduler.statistics().rescued == 0
        await advance(LEASE + PASS + 1)
        assert scheduler.statistics().rescued == 1


async def sees(scheduler: Scheduler) -> None:
    """Looks at the claims, now."""
    look_for_dead_claims(scheduler)
    await quiesce()


@pytest.mark.parametrize("proof", ["renews our claim", "claims under our id"])
async def test_node_process_with_our_id_is_reported_and_keeps_the_scheduler_unhealthy_while_seen(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    proof: str,
) -> None:
    script, reported = Script("hang"), list[SchedulerErrorOccurred]()
    node = NodePeer(jobs, instance="shared")
    options: dict[str, Any] = {"instance_id": "shared", "listeners": {SchedulerErrorOccurred: reported.append}}
    async with open_test_scheduler(script.workers, shutdown_timeout=0, **options) as scheduler:
        await scheduler.enqueue("job")
        await trio.sleep(10 * LEASE)
        await sees(scheduler)
        assert scheduler.is_healthy()
        if proof == "renews our claim":
            node.beat(now() - timedelta(seconds=7))
        else:
            node.enqueue("node's")
            node.claim("node's", now() + timedelta(days=400_000))
            jobs.update_one({"name": "node's"}, {"$set": {"lockedAt": now(), "lastHeartbeat": now()}})
        for _ in range(3):
            await sees(scheduler)
        (event,) = reported
        assert isinstance(event.error, InstanceCollisionError)
        assert [record.levelname for record in caplog.records if "'shared' is in use" in record.message] == ["ERROR"]
        health = scheduler.health()
        assert not health.healthy
        assert not scheduler.is_healthy()
        assert "such as Monque for Node" in health.reasons[0]
        jobs.delete_many({"name": "node's"})
        await trio.sleep(11 * 30)
        await sees(scheduler)
        assert scheduler.is_healthy()
        assert scheduler.health().reasons == ()


@pytest.mark.full
async def test_node_process_with_our_id_is_seen_by_the_looks_that_are_made_anyway(
    db: Database, jobs: Collection
) -> None:
    script, reported = Script("hang"), trio.Event()

    async def hear(_: SchedulerErrorOccurred) -> None:
        reported.set()

    node = NodePeer(jobs, instance="shared")
    async with open_scheduler(
        db,
        script.workers,
        instance_id="shared",
        heartbeat_interval=1.5,
        shutdown_timeout=0,
        listeners={SchedulerErrorOccurred: hear},
    ) as scheduler:
        await scheduler.enqueue("job")
        while not node.beat(now() + timedelta(hours=1)):
            await trio.sleep(0.01)
        await reported.wait()


async def test_start_beside_a_node_process_that_keeps_our_old_claim_is_refused_and_says_what_it_is(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    script = Script("hang")
    async with open_test_scheduler(script.workers, instance_id="shared", recover_stale_jobs=False) as first:
        await first.enqueue("job")
        await quiesce()
        await crash(first)
    await trio.sleep(2 * LEASE)
    NodePeer(jobs, instance="shared").beat(now())
    with pytest.raises(InstanceCollisionError, match="another process, such as Monque for Node, renewed the claim"):
        async with open_test_scheduler(instance_id="shared"):
            pytest.fail("both run")


# --- A schedule that only Node understands ---


@pytest.mark.parametrize("line", [{"repeatInterval": "0 0 * * * *"}, {"timezone": "Mars, Olympus"}])
@pytest.mark.parametrize("step", ["save succeed", "save fail"])
async def test_schedule_that_is_not_understood_ends_loudly_and_truly_everywhere(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    line: dict[str, str],
    step: str,
) -> None:
    caplog.set_level(logging.INFO)
    script, reported = Script(step), list[Event]()
    async with open_test_scheduler(script.workers, max_attempts=1, listeners={Event: reported.append}) as scheduler:
        job_id = recurring(jobs, **line)
        await drain(scheduler)
        numbers, health = scheduler.statistics(), scheduler.health()
    ends = [event for event in reported if type(event).__name__ in ("JobCompleted", "JobFailed", "ScheduleExhausted")]
    (failed,) = ends
    assert isinstance(failed, JobFailed)
    assert isinstance(failed.error, ScheduleEndedError)
    assert isinstance(failed.error.__cause__, ValueError) == (step == "save fail")
    assert (failed.will_retry, failed.job.status) == (False, JobStatus.FAILED)
    assert (numbers.completed, numbers.failed, numbers.schedules_ended) == (0, 1, 1)
    assert scheduler.report is not None
    assert (scheduler.report.completed, scheduler.report.failed) == (0, 1)
    (record,) = (record for record in caplog.records if "failed for good" in record.message)
    assert record.levelname == "ERROR"
    assert str(job_id) in record.message
    assert health.healthy
    (warning,) = health.warnings
    document = jobs.find_one({"_id": job_id})
    assert document is not None
    assert (document["status"], document["failCount"]) == ("failed", 1)
    for text in (record.message, warning, document["failReason"]):
        assert "the schedule has ended" in text
        assert line.get("repeatInterval", "Mars, Olympus") in text
        assert ("its last run succeeded" if step == "save succeed" else "ValueError: no") in text
    # A try that succeeded leaves no checkpoint to one that is made by hand.
    assert ("saved" in document) == (step == "save fail")


async def test_schedule_that_is_corrected_while_its_run_is_settled_goes_on_as_completed(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        jobs.update_one({"_id": job.id}, {"$set": {"repeatInterval": MONTHLY}})

    async with open_test_scheduler(workers) as scheduler:
        recurring(jobs)
        jobs.update_many({}, {"$set": {"repeatInterval": "whenever"}})
        await drain(scheduler)
        numbers = scheduler.statistics()
    assert (numbers.completed, numbers.failed, numbers.schedules_ended) == (1, 0, 0)
    assert jobs.count_documents({"status": "pending", "failCount": 0}) == 1


async def test_schedule_that_ends_with_the_deaths_of_its_holders_is_reported_too(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script("hang")
    async with open_test_scheduler(script.workers) as scheduler:
        recurring(jobs)
        jobs.update_many({}, {"$set": {"repeatInterval": "whenever"}})
        await quiesce()
        await crash(scheduler)
    async with open_test_scheduler(max_rescues=0) as other:
        await advance(LEASE + PASS + 1)
        assert other.statistics().schedules_ended == 1
        (warning,) = other.health().warnings
    assert "it died 1 time while running" in warning
    assert any("the schedule has ended" in record.message for record in caplog.records)
