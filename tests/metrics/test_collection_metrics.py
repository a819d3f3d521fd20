"""The numbers of the collection: one command for all who scrape, and never a scrape that waits for the database."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio
from prometheus_client import CollectorRegistry
from pymongo import MongoClient
from pymongo.errors import AutoReconnect

from tests.support.interception import Recorder
from tests.support.interference import Slow
from tests.support.internals import interference_of
from tests.support.waiting import wait_until
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.metrics import CollectionMetrics
from trio_monque.store.driver.types import Database
from trio_monque.testing import fail_next

from .scrapes import Scrape

COUNT = "count the jobs of each name"


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def slow(monque: Monque, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    """A database that does not answer, once this is among what interferes with the client."""
    monkeypatch.setattr("trio_monque.metrics.collection_metrics.LONGEST_WAIT", 0.02)
    one = Slow(COUNT)
    yield one
    one.may_go_on.set()
    wait_until(lambda: "trio_monque metrics" not in [one.name for one in threading.enumerate()], "the thread ends")


def test_scrape_shows_the_last_numbers_and_their_age_while_the_database_does_not_answer(
    monque: Monque, registry: CollectorRegistry, slow: Slow
) -> None:
    monque.sync.enqueue("mail", delay=60)
    with CollectionMetrics(monque, registry=registry, interval=0):
        wait_until(lambda: Scrape(registry).values("jobs", status="pending") == [1], "the first answer")
        interference_of(monque).append(slow)
        monque.sync.enqueue("mail", delay=60)
        first = Scrape(registry)
        assert slow.has_begun.is_set()
        second = Scrape(registry)
        assert first.value("jobs", status="pending") == second.value("jobs", status="pending") == 1
        assert 0 < first.value("collection_age_seconds") < second.value("collection_age_seconds")
        assert second.value("collection_failures_total") == 0
        slow.may_go_on.set()
        wait_until(lambda: Scrape(registry).value("jobs", status="pending") == 2, "the next answer")


def test_scrape_before_the_first_answer_says_that_there_is_none(
    monque: Monque, registry: CollectorRegistry, slow: Slow
) -> None:
    interference_of(monque).append(slow)
    with CollectionMetrics(monque, registry=registry):
        scrape = Scrape(registry)
        assert scrape.value("collection_age_seconds") == math.inf
        assert scrape.values("jobs") == []


async def test_scrape_on_an_event_loop_does_not_wait(
    monque: Monque, registry: CollectorRegistry, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A scrape that waits never ends.
    monkeypatch.setattr("trio_monque.metrics.collection_metrics.LONGEST_WAIT", 3600.0)
    interference_of(monque).append(slow)
    with CollectionMetrics(monque, registry=registry):
        assert Scrape(registry).value("collection_age_seconds") == math.inf
        await trio.to_thread.run_sync(slow.has_begun.wait)
        slow.may_go_on.set()


def of_metrics(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "trio_monque.metrics"]


def test_failures_are_counted_and_logged_once_in_an_outage(
    monque: Monque, registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "trio_monque.metrics")
    monque.sync.enqueue("mail")
    with CollectionMetrics(monque, registry=registry, interval=0):
        with fail_next(monque, AutoReconnect("gone"), command=COUNT, times=3):
            for failures in (1, 2, 3):
                assert Scrape(registry).value("collection_failures_total") == failures
        assert Scrape(registry).value("jobs", status="pending") == 1
        assert len(of_metrics(caplog)) == 1
        assert "could not read the collection metrics: could not count" in caplog.text
        with fail_next(monque, AutoReconnect("gone"), command=COUNT):
            assert Scrape(registry).value("jobs", status="pending") == 1
        assert len(of_metrics(caplog)) == 2


def test_all_who_scrape_share_one_command_for_some_seconds(
    mongod: EmbeddedServer, db: Database, registry: CollectorRegistry
) -> None:
    recorder = Recorder()
    with MongoClient(mongod.uri, event_listeners=[recorder]) as client:  # type: ignore[var-annotated]
        monque = Monque(client[db.name], stats_cache_ttl=0)
        monque.sync.enqueue("mail")
        with CollectionMetrics(monque, registry=registry), ThreadPoolExecutor(8) as pool:
            recorder.commands.clear()
            scrapes = list(pool.map(lambda _: Scrape(registry), range(24)))
        assert [one.value("jobs", status="pending") for one in scrapes] == [1] * 24
        assert [name for name, _ in recorder.commands if name == "aggregate"] == ["aggregate"]


def test_name_without_jobs_makes_room_for_another(monque: Monque, registry: CollectorRegistry) -> None:
    first = monque.sync.enqueue("mail")
    with CollectionMetrics(monque, registry=registry, most_names=1, interval=0):
        assert Scrape(registry).by("name", "jobs", status="pending") == {"mail": 1}
        monque.sync.enqueue("post")
        assert Scrape(registry).by("name", "jobs", status="pending") == {"mail": 1, "other": 1}
        monque.sync.delete_job(first.id)
        assert Scrape(registry).by("name", "jobs", status="pending") == {"post": 1}


def test_metrics_that_are_not_scraped_send_nothing(mongod: EmbeddedServer, db: Database) -> None:
    recorder = Recorder()
    with MongoClient(mongod.uri, event_listeners=[recorder]) as client:  # type: ignore[var-annotated]
        with CollectionMetrics(Monque(client[db.name]), registry=CollectorRegistry()):
            pass
    assert recorder.commands == []
