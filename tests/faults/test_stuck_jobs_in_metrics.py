"""A frozen worker is seen from outside: its jobs are stuck in the metrics of another process until they are rescued."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry

from tests.metrics.scrapes import Scrape
from tests.support.waiting import wait_until
from trio_monque import Monque
from trio_monque.metrics import CollectionMetrics
from trio_monque.store.driver.types import Database

from .processes import OwnServer, frozen, worker_process

JOBS: Final = 3
OPTIONS: Final[dict[str, Any]] = {"concurrency_per_name": JOBS, "heartbeat_interval": 0.4, "poll_interval": 0.02}


@pytest.mark.full
def test_jobs_of_a_frozen_process_are_stuck_until_they_are_rescued(
    own_server: OwnServer, own_db: Database, tmp_path: Path
) -> None:
    records, later, registry = tmp_path / "records", tmp_path / "later", CollectorRegistry()
    monque = Monque(own_db, stats_cache_ttl=0)

    def numbers() -> tuple[float, float]:
        scrape = Scrape(registry)
        return scrape.value("stuck_jobs", name="lasts"), scrape.value("jobs", name="lasts", status="processing")

    with (
        worker_process("holder", own_server.uri, own_db.name, records, **OPTIONS) as holder,
        worker_process("successor", own_server.uri, own_db.name, records, **OPTIONS) as successor,
        CollectionMetrics(monque, registry=registry, interval=0),
    ):
        for _ in range(JOBS):
            monque.sync.enqueue("lasts", {"until": str(later)})
        holder.open()
        holder.wait_for("start", JOBS)
        wait_until(lambda: numbers() == (0, JOBS), "all jobs run, and none is stuck")
        with frozen(holder.pid):
            wait_until(lambda: numbers() == (JOBS, JOBS), "all jobs are stuck")
            successor.open()
            successor.wait_for("start", JOBS, attempt=2)
            wait_until(lambda: numbers() == (0, JOBS), "all jobs run elsewhere")
            later.touch()
            wait_until(lambda: numbers() == (0, 0), "all jobs have ended")
            assert Scrape(registry).value("jobs", name="lasts", status="completed") == JOBS
        holder.wait_for("end", JOBS)
        holder.end()
        successor.end()
