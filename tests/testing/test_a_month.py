"""A schedule of thirty days with the engine that runs in production, on a real server."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import trio
from pymongo import MongoClient

from tests.support.interception import Recorder
from trio_monque import RunningJob, Workers
from trio_monque.embedded import EmbeddedServer
from trio_monque.events import Event, JobFailed, JobStarted
from trio_monque.store.driver.types import Database
from trio_monque.testing import SchedulerOpener, drain, now, run_virtual

# Summer time began in Berlin on 29 March 2026, at 1:00 UTC.
START = datetime(2026, 3, 26, tzinfo=UTC)
DAYS = 30
END = START + timedelta(days=DAYS)
AGAIN_UNTIL = START + timedelta(days=5)

Happened = tuple[datetime, str, str, int]


async def month(db: Database, until: datetime, takes: float, heartbeat: float) -> list[Happened]:
    workers = Workers()
    happened: list[Happened] = []

    @workers.cron("0 * * * *", "hourly")
    async def hourly(job: RunningJob[Any]) -> None:
        await trio.sleep(takes)
        if job.next_run_at.hour == 5 and job.fail_count < 2:
            raise ConnectionError("early in the morning")

    @workers.cron("30 2 * * *", "daily", timezone="Europe/Berlin")
    async def daily(job: RunningJob[Any]) -> None:
        await trio.sleep(1)

    async def hear(event: Event) -> None:
        job = getattr(event, "job", None)
        assert job is not None, event
        happened.append((now(), type(event).__name__, job.name, job.fail_count))

    opener = SchedulerOpener(db)
    options: dict[str, Any] = {"heartbeat_interval": heartbeat, "base_retry_interval": 60.0}
    async with opener(workers, listeners={Event: hear}, **options) as scheduler:
        await drain(scheduler, until=until)
    return happened


# A real server does the work of a month: some thousands of statements, most of them beats where runs take long.
@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("takes", "heartbeat", "commands_at_most"),
    [
        pytest.param(95.0, 30.0, 8_000, id="short runs"),
        pytest.param(300.0, 10.0, 30_000, id="long runs"),
    ],
)
def test_a_month_of_schedules_runs_to_the_minute_and_twice_the_same(
    mongod: EmbeddedServer, monque_db: Database, takes: float, heartbeat: float, commands_at_most: int
) -> None:
    commands = Recorder()
    months, sent = [], list[Counter[str]]()
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        for until in (END, AGAIN_UNTIL):
            played = partial(month, until=until, takes=takes, heartbeat=heartbeat)
            months.append(run_virtual(played, client[monque_db.name], start=START, deterministic=True, seed=30))
            client.drop_database(monque_db.name)
            sent.append(Counter(name for name, _ in commands.commands))
    one, again = months

    # Five days of it once more, with the change: the same, but for what ran when they were over.
    begun = [one_of for one_of in one if one_of[0] < AGAIN_UNTIL]
    assert [one_of for one_of in again if one_of[0] < AGAIN_UNTIL] == begun
    assert len(begun) > 2 * 24 * (AGAIN_UNTIL - START).days
    starts = [(at, name, fail_count) for at, event, name, fail_count in one if event == JobStarted.__name__]
    hourly = [at for at, name, fail_count in starts if name == "hourly" and fail_count == 0]
    assert hourly == [START + timedelta(hours=hour) for hour in range(1, DAYS * 24 + 1)]
    # Two tries of each morning failed.
    assert Counter(name for _, event, name, _ in one if event == JobFailed.__name__) == {"hourly": 2 * DAYS}
    # At half past two in Berlin: 1:30 UTC in winter. There was no half past two on the day of the change.
    daily = [at for at, name, _ in starts if name == "daily"]
    of_thirty_days = [
        *(datetime(2026, 3, day, 1, 30, tzinfo=UTC) for day in range(26, 29)),
        datetime(2026, 3, 29, 1, 0, tzinfo=UTC),
        *(datetime(2026, 3, day, 0, 30, tzinfo=UTC) for day in range(30, 32)),
        *(datetime(2026, 4, day, 0, 30, tzinfo=UTC) for day in range(1, 25)),
    ]
    assert daily == of_thirty_days
    # For each of the runs, 810 in thirty days, a look, a claim, its beats and its end.
    assert sent[0].total() < commands_at_most, sent
