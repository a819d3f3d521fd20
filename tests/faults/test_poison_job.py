"""A job that kills every process that runs it ends failed, and takes no innocent one with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until
from trio_monque import Monque
from trio_monque.store.driver.types import Database

from .processes import OwnServer, worker_process
from .records import read

INNOCENTS = 10


@pytest.mark.full
@pytest.mark.timeout(120)
def test_ten_innocent_jobs_beside_one_that_kills_its_process_all_complete(
    own_server: OwnServer, own_db: Database, tmp_path: Path
) -> None:
    records, jobs = tmp_path / "records", own_db["monque_jobs"]
    options: dict[str, Any] = {
        "concurrency_per_name": 20,
        "heartbeat_interval": 0.2,
        "poll_interval": 0.02,
        "base_retry_interval": 0.01,
    }
    for _ in range(INNOCENTS):
        Monque(own_db).sync.enqueue("works", {"first": 0.3, "later": 0.3})
    # One try each: a death does not count as a failure.
    Monque(own_db).sync.enqueue("kills", max_attempts=1)
    deaths = 0
    while jobs.count_documents({"status": {"$in": ["pending", "processing"]}}):
        with worker_process(f"worker-{deaths}", own_server.uri, own_db.name, records, **options) as worker:
            worker.process.begin()

            def is_over() -> bool:
                live = jobs.count_documents({"status": {"$in": ["pending", "processing"]}})
                return worker.process.poll() is not None or not live

            wait_until(is_over, "it dies, or everything has ended", seconds=30)
            deaths += worker.process.poll() is not None
    poison = jobs.find_one({"name": "kills"})
    assert poison is not None
    assert (poison["status"], poison["failCount"], poison["attempts"]) == ("failed", 0, 4)
    assert poison["failReason"] == "died 4 times while running"
    assert deaths == 4
    assert jobs.count_documents({"name": "works", "status": "completed", "failCount": 0}) == INNOCENTS
    starts = [one for one in read(records) if one.job == str(poison["_id"]) and one.what == "start"]
    assert [one.attempt for one in starts] == [1, 2, 3, 4]
