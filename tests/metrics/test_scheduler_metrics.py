"""What a scheduler shows Prometheus: real scrapes of real schedulers."""

from __future__ import annotations

import subprocess
import sys

import pytest
import trio
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from trio_monque import Discard, Monque, RunningJob, Snooze, Workers
from trio_monque.errors import InvalidOptionError
from trio_monque.metrics import CollectionMetrics, SchedulerMetrics
from trio_monque.testing import SchedulerOpener, advance

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
            assert scrape.by("name", "running_jobs") == {"takes-a-minute": 2}
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
    assert done.stdout.strip() == 'trio_monque.metrics needs prometheus_client: pip install "trio-monque[metrics]"'
