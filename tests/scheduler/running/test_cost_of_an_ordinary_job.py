"""What a job costs that uses no extras: its commands, the keys and bytes of its document, and its entries in indexes.

Options such as unique keys, transactions, waiting or limits on the start may cost something where they are used. A job
that uses none must not pay for them. Counted, not timed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import bson
import pytest
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.interception import Recorder
from trio_monque import RunningJob, Workers
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, quiesce

DATA: Final = {"to": "you"}

PENDING: Final = frozenset({"_id", "name", "data", "status", "failCount", "nextRunAt", "createdAt", "updatedAt"})
HELD: Final = frozenset(
    {"attempts", "claimToken", "claimedBy", "heartbeatInterval", "lastHeartbeat", "lockedAt", "renewedAt"}
)
ENDED: Final = frozenset({"attempts", "finishedAt", "receipt", "startedAt"})

AT_REST: Final = frozenset(
    {"_id_", "trio_monque_claim", "trio_monque_created", "trio_monque_listing", "trio_monque_updated"}
)
IN_HAND: Final = frozenset({"_id_", "trio_monque_created", "trio_monque_held", "trio_monque_listing"})


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def recorded(mongod: EmbeddedServer, db: Database, recorder: Recorder) -> Iterator[Database]:
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        yield client[db.name]


def sent(recorder: Recorder) -> Counter[str]:
    return Counter(name for name, _ in recorder.commands if name not in ("getMore", "hello", "endSessions"))


def entered(jobs: Collection) -> frozenset[str]:
    """The indexes in which the one job is."""
    entries = jobs.database.command("validate", jobs.name)["keysPerIndex"]
    assert set(entries.values()) <= {0, 1}
    return frozenset(name for name, count in entries.items() if count)


def stored(jobs: Collection) -> Mapping[str, Any]:
    document: Mapping[str, Any]
    (document,) = jobs.find()
    return document


async def test_ordinary_job_costs_three_commands_and_only_its_own_fields_and_index_entries(
    recorded: Database, recorder: Recorder, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers, running = Workers(), list[tuple[frozenset[str], frozenset[str]]]()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        running.append((frozenset(stored(jobs)), entered(jobs)))

    async with SchedulerOpener(recorded)(workers) as scheduler:
        await quiesce()
        recorder.commands.clear()
        await scheduler.enqueue("greet", DATA, delay=10)
        assert (frozenset(stored(jobs)), entered(jobs)) == (PENDING, AT_REST)
        assert len(bson.encode(stored(jobs))) == 153
        await advance(20)
        assert running == [(PENDING | HELD, IN_HAND)]
        assert (frozenset(stored(jobs)), entered(jobs)) == (PENDING | ENDED, AT_REST)
        assert len(bson.encode(stored(jobs))) == 240
    on_job = Counter(name for name, command in recorder.commands if command.get(name) == jobs.name)
    del on_job["find"]  # Questions when the next job is due.
    assert on_job == {"insert": 1, "findAndModify": 1, "update": 1}


async def test_idle_hour_costs_four_questions_when_the_next_job_is_due(
    recorded: Database, recorder: Recorder, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("greet", noop)
    async with SchedulerOpener(recorded)(workers):
        await quiesce()
        assert sent(recorder) == {"createIndexes": 1, "listCollections": 1, "find": 6, "listIndexes": 1, "insert": 1}
        recorder.commands.clear()
        await advance(3600)
        assert sent(recorder) == {"find": 4}


async def noop(job: RunningJob[Any]) -> None: ...
