"""A job with `start_by`, on asyncio and in real time: the loop of the runtime ends it, and a listener receives it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run
from tests.asyncio_hosts.scenes import QUICK
from trio_monque import JobCancelledError, Workers, open_scheduler
from trio_monque.events import JobCancelled
from trio_monque.store.driver.types import Database

pytestmark = ON_ASYNCIO


@pytest.mark.full
def test_job_of_an_unknown_name_is_cancelled_at_its_moment(db: Database, run: Run) -> None:
    cancelled, waited = list[Any](), list[Any]()

    async def listen(event: JobCancelled) -> None:
        cancelled.append(event.job.id)

    async def main() -> None:
        async with open_scheduler(db, Workers(), listeners={JobCancelled: listen}, **QUICK) as scheduler:
            job = await scheduler.enqueue("unknown", start_by=datetime.now(UTC) + timedelta(seconds=1.5))
            with pytest.raises(JobCancelledError, match="start_by: not started by"):
                await scheduler.wait_job(job, timeout=40)
            waited.append(job.id)

    run(main)
    assert len(waited) == 1
    assert cancelled == waited
