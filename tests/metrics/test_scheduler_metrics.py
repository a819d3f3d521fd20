"""What a scheduler shows Prometheus: real scrapes of real schedulers."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest
import trio
from prometheus_client import CollectorRegistry
from pymongo import MongoClient
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.support.interception import Interceptor, Recorder, is_claim
from trio_monque import Discard, Monque, NewJob, RunningJob, Snooze, Workers, open_job_nursery
from trio_monque.embedded import EmbeddedServer
from trio_monque.engine import pauses
from trio_monque.errors import InvalidOptionError
from trio_monque.events import JobFailed
from trio_monque.metrics import CollectionMetrics, SchedulerMetrics
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, crash, fail_next

from .scrapes import Scrape

workers = Workers()


@workers.register("takes-a-minute", concurrency=2)
async def takes_a_minute(job: RunningJob[None]) -> None:
    await trio.sleep(60)


@workers.register("fails", max_attempts=2)
async def fails(job: RunningJob[None]) -> None:
    raise ValueError("no luck")


@workers.register("gives-up")
async def gives_up(job: RunningJob[None]) -> None:
    raise Discard("no use")


@workers.register("snoozes")
async def snoozes(job: RunningJob[None]) -> None:
    raise Snooze(after=3600)


async def scraped(registry: CollectorRegistry) -> Scrape:
    """As it is served: in a thread."""
    return await trio.to_thread.run_sync(Scrape, registry)


async def test_scrape_shows_what_a_scheduler_did_and_does(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    registry = CollectorRegistry()
    async with open_test_scheduler(workers, retry_jitter=0, base_retry_interval=1) as scheduler:
        async with SchedulerMetrics(scheduler, registry=registry, collection_interval=0):
            for _ in range(5):
                await scheduler.enqueue("takes-a-minute")
            for name in ("fails", "gives-up", "snoozes"):
                await scheduler.enqueue(name)
            await scheduler.enqueue("takes-a-minute", delay=500)
            await advance(90)
            scrape = await scraped(registry)

            assert scrape.by("verdict", "runs_total", name="fails") == {"retried": 1, "failed": 1}
            assert scrape.by("verdict", "runs_total", name="gives-up") == {"discarded": 1}
            assert scrape.by("verdict", "runs_total", name="snoozes") == {"snoozed": 1}
            assert scrape.by("verdict", "runs_total", name="takes-a-minute") == {"completed": 2}
            running = scrape.by("name", "running_jobs")
            assert running == {"takes-a-minute": 2, "fails": 0, "gives-up": 0, "snoozes": 0}
            assert scrape.value("held_claims") == 2
            assert scrape.value("claims_total") == 8
            assert scrape.value("healthy") == 1
            assert scrape.value("instance_info", id=scheduler.id, kind="scheduler") == 1

            status = scrape.by("status", "jobs", name="takes-a-minute")
            assert status == {"pending": 2, "processing": 2, "completed": 2, "failed": 0, "cancelled": 0}
            assert scrape.value("jobs", name="fails", status="failed") == 1
            assert scrape.value("oldest_due_age_seconds", name="takes-a-minute") == 90
            assert scrape.value("oldest_due_age_seconds", name="snoozes") == 0
            assert scrape.value("stuck_jobs", name="takes-a-minute") == 0

            # Two start at once, and the next two when these end, after a minute.
            lags = scrape.by("le", "job_start_lag_seconds_bucket", name="takes-a-minute")
            assert (lags["0.005"], lags["30.0"], lags["60.0"], lags["+Inf"]) == (2, 2, 4, 4)
            assert scrape.value("job_start_lag_seconds_sum", name="takes-a-minute") == 120
            assert scrape.value("job_wait_seconds_count", name="takes-a-minute") == 4
            assert scrape.value("job_run_seconds_count", name="takes-a-minute") == 2
            assert scrape.value("job_run_seconds_sum", name="takes-a-minute") == 120
            assert scrape.value("job_run_seconds_count", name="fails") == 2
            assert scrape.value("job_wait_seconds_count", name="fails") == 1

            assert scrape.value("batch_size_sum", operation="claim") == 8
            claims = scrape.value("batch_size_count", operation="claim")
            assert claims == scheduler.statistics().claim_batches
            assert scrape.value("batch_size_bucket", operation="claim", le="1.0") <= claims
            assert scrape.value("renewals_total") == scheduler.statistics().renewals > 0
            await advance(1000)
        assert Scrape(registry).samples == []


async def test_runs_outside_of_the_block_are_in_the_counters_and_not_in_the_histograms(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    registry = CollectorRegistry()
    async with open_test_scheduler(workers) as scheduler:
        metrics = SchedulerMetrics(scheduler, registry=registry)
        for runs in (1, 2):
            with metrics:
                await scheduler.enqueue("gives-up")
                await advance(1)
            await scheduler.enqueue("gives-up")
            await advance(1)
            with metrics:
                scrape = await scraped(registry)
                assert scrape.value("runs_total", name="gives-up") == 2 * runs
                assert scrape.value("job_run_seconds_count", name="gives-up") == runs


async def test_job_that_is_given_up_after_deaths_has_no_time_of_a_run(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    registry = CollectorRegistry()
    failed: list[JobFailed] = []
    async with AsyncExitStack() as stack:
        dying = await stack.enter_async_context(open_test_scheduler(workers, heartbeat_interval=10))
        await dying.enqueue("takes-a-minute", max_rescues=0)
        await advance(5)
        await crash(dying)
        options: Any = {"listeners": {JobFailed: failed.append}}
        other = await stack.enter_async_context(open_test_scheduler(workers, heartbeat_interval=10, **options))
        with SchedulerMetrics(other, registry=registry, collection_interval=0):
            await other.enqueue("gives-up")
            await advance(60)
            scrape = await scraped(registry)
            assert scrape.value("jobs", name="takes-a-minute", status="failed") == 1
            assert scrape.values("runs_total", name="takes-a-minute") == []
            assert list(scrape.by("name", "job_run_seconds_count")) == ["gives-up"]
    assert {event.job.name: event.duration for event in failed} == {"gives-up": 0.0, "takes-a-minute": None}


async def test_claims_that_cannot_be_renewed_are_counted(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "REAL_TIME_BUDGET", 0.0)  # The outage takes virtual time.
    registry = CollectorRegistry()
    async with open_test_scheduler(workers, heartbeat_interval=10) as scheduler:
        with SchedulerMetrics(scheduler, registry=registry, collection_interval=None):
            await scheduler.enqueue("takes-a-minute")
            await advance(1)
            with fail_next(scheduler, AutoReconnect("gone"), command="renew claims", times=None) as fault:
                await advance(40)
            scrape = await scraped(registry)
            assert scrape.value("renewal_failures_total") == len(fault.hits) > 1
            assert scrape.value("claims_lost_total") == 1
            assert scrape.value("healthy") == 0
            assert scrape.values("jobs") == []
            assert scrape.values("event_loop_lag_seconds") == []
            await advance(60)
            assert (await scraped(registry)).value("healthy") == 1


async def test_job_that_another_instance_takes_first_is_counted_as_lost(
    mongod: EmbeddedServer, db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    interceptor, registry = Interceptor(), CollectorRegistry()
    with MongoClient(mongod.uri, event_listeners=[interceptor], tz_aware=True) as client:  # type: ignore[var-annotated]
        async with SchedulerOpener(client[db.name])(workers) as scheduler:
            with SchedulerMetrics(scheduler, registry=registry):
                interceptor.before(is_claim, lambda: jobs.update_one({}, {"$set": {"status": "completed"}}))
                await Monque(db).enqueue_many([NewJob(name="gives-up")] * 3)
                await advance(1)
                scrape = await scraped(registry)
                assert scrape.value("claim_candidates_lost_total") == 1
                assert scrape.value("claims_total") == 2


async def test_job_of_a_dead_instance_is_stuck_until_another_rescues_it(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    registry = CollectorRegistry()
    async with AsyncExitStack() as stack:
        dying = await stack.enter_async_context(open_test_scheduler(workers, heartbeat_interval=10))
        await dying.enqueue("takes-a-minute")
        await advance(5)
        await crash(dying)
        other = await stack.enter_async_context(open_test_scheduler(Workers(), recover_stale_jobs=False))
        with SchedulerMetrics(other, registry=registry, collection_interval=0):
            assert (await scraped(registry)).value("stuck_jobs", name="takes-a-minute") == 0
            await advance(30)
            assert (await scraped(registry)).value("stuck_jobs", name="takes-a-minute") == 1
        rescuer = await stack.enter_async_context(open_test_scheduler(workers, heartbeat_interval=10))
        with SchedulerMetrics(rescuer, registry=registry, collection_interval=0):
            await advance(35)
            scrape = await scraped(registry)
            assert scrape.value("stuck_jobs", name="takes-a-minute") == 0
            assert scrape.value("rescues_total") == 1
            assert scrape.value("batch_size_count", operation="rescue") == 1
            assert scrape.value("running_jobs", name="takes-a-minute") == 1
            # It waited for its first start only once.
            assert scrape.values("job_wait_seconds_count") == []


async def test_runs_that_wait_for_their_children_are_parked_and_not_running(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    registry = CollectorRegistry()
    flows = Workers()

    @flows.register("takes-a-minute", concurrency=2)
    async def minute(job: RunningJob[None]) -> None:
        await trio.sleep(60)

    @flows.register("waits")
    async def waits(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("takes-a-minute")

    async with open_test_scheduler(flows) as scheduler:
        async with SchedulerMetrics(scheduler, registry=registry):
            for _ in range(2):
                await scheduler.enqueue("waits")
            await advance(30)
            scrape = await scraped(registry)
            assert scrape.value("parked_runs") == 2
            assert scrape.by("name", "running_jobs") == {"takes-a-minute": 2}
            assert scrape.value("held_claims") == 4
            await advance(60)
            assert (await scraped(registry)).value("parked_runs") == 0


async def commands_of_some_hours(mongod: EmbeddedServer, database: str, *, metrics: bool) -> list[str]:
    """The commands of a scheduler, in order, as a seed decides it."""
    recorder = Recorder()
    with MongoClient(mongod.uri, event_listeners=[recorder], tz_aware=True) as client:  # type: ignore[var-annotated]
        async with AsyncExitStack() as stack:
            opener = SchedulerOpener(client[database])
            scheduler = await stack.enter_async_context(opener(workers, deterministic=True, seed=1))
            if metrics:
                await stack.enter_async_context(SchedulerMetrics(scheduler, registry=CollectorRegistry()))
            await advance(1)  # Or the first look and the first enqueue race: a step more of the metrics decides it.
            for name in ("takes-a-minute", "fails", "gives-up", "snoozes"):
                for delay in range(5):
                    await scheduler.enqueue(name, delay=delay)
            await advance(6 * 3600)
    return [name for name, _ in recorder.commands if name != "hello"]


@pytest.mark.full
def test_scheduler_with_metrics_sends_not_one_command_more_than_one_without(
    mongod: EmbeddedServer, db: Database
) -> None:
    counts = []
    for metrics in (False, True):
        clock = MockClock(autojump_threshold=0)
        sent = trio.run(partial(commands_of_some_hours, mongod, f"{db.name}", metrics=metrics), clock=clock)
        db.client.drop_database(db)
        counts.append(Counter(sent))
    assert counts[0] == counts[1]
    assert counts[0].total() > 50


async def test_names_beyond_the_cap_are_counted_together(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    registry = CollectorRegistry()
    many = Workers()
    for number in range(5):
        many.register(f"name-{number}", lambda _: None)
    async with open_test_scheduler(many) as scheduler:
        with SchedulerMetrics(scheduler, registry=registry, most_names=2, collection_interval=0):
            for number in range(5):
                await scheduler.enqueue(f"name-{number}")
            await scheduler.enqueue("without-a-worker")
            await advance(1)
            scrape = await scraped(registry)
            for metric in ("runs_total", "job_start_lag_seconds_count", "job_run_seconds_count"):
                found = scrape.by("name", metric)
                assert len(found) == 3
                assert found["other"] == 3
            jobs = scrape.by("name", "jobs", status="completed")
            assert len(jobs) == 3
            assert sum(jobs.values()) == 5
            # Names with jobs to run come first.
            assert scrape.value("jobs", name="without-a-worker", status="pending") == 1


def test_registry_refuses_two_sources_of_one_collection_and_an_ended_one_makes_room(monque: Monque) -> None:
    registry = CollectorRegistry()
    with CollectionMetrics(monque, registry=registry):
        with pytest.raises(InvalidOptionError, match=rf"metrics of {monque.namespace} already"):
            with CollectionMetrics(monque, registry=registry):
                pass
        assert Scrape(registry).value("collection_age_seconds") >= 0
    with CollectionMetrics(monque, registry=registry):
        assert Scrape(registry).value("collection_failures_total") == 0


@pytest.mark.parametrize("given", [{"most_names": 0}, {"interval": -1}], ids=str)
def test_invalid_options_are_refused(monque: Monque, given: dict[str, int]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(given))):
        CollectionMetrics(monque, registry=CollectorRegistry(), **given)


async def test_invalid_options_of_a_scheduler_are_refused_by_their_names(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    async with open_test_scheduler() as scheduler:
        with pytest.raises(InvalidOptionError, match="collection_interval"):
            SchedulerMetrics(scheduler, registry=CollectorRegistry(), collection_interval=-1)
        with pytest.raises(InvalidOptionError, match="most_names"):
            SchedulerMetrics(scheduler, registry=CollectorRegistry(), most_names=0)


def test_package_does_not_import_prometheus_client_and_says_which_extra_has_it() -> None:
    program = """
import sys, trio_monque, trio_monque.cli
assert "prometheus_client" not in sys.modules
sys.modules["prometheus_client"] = None  # As if it were not installed.
try:
    import trio_monque.metrics
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "trio_monque.metrics needs prometheus_client: python -m pip install prometheus_client"
