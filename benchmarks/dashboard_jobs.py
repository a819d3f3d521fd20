"""The jobs that `dashboard` shows: 20 names, 200 tenants, all states in shares as a queue has them after some weeks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from bson import ObjectId

from tests.support.many_jobs import insert_all
from tests.support.store import handle
from trio_monque import Monque
from trio_monque.clock import to_milliseconds
from trio_monque.jobs.instance import Instance
from trio_monque.jobs.minutes import (
    BUCKETS,
    DONE,
    FAILED_ATTEMPTS,
    FAILED_FOR_GOOD,
    ROW,
    RUN_BUCKETS,
    RUN_MS,
    WAIT_BUCKETS,
    WAIT_MS,
    Part,
    minute_of,
)
from trio_monque.options_and_defaults import LONGEST_BEAT
from trio_monque.store.jobs import instances as stored
from trio_monque.store.jobs.minutes_written import document_of, name_of_minutes

from .measuring import Db

JOBS: Final = "monque_jobs"
NAMES: Final = tuple(f"name-{number:02}" for number in range(19))
COMMON: Final = NAMES[7]
RARE: Final = "rare"
TENANTS: Final = 200
INSTANCES: Final = 8
RUNNING: Final = 160
SCHEDULES: Final = 50

SHARES: Final = ((60, "due"), (50, "later"), (40, "failed"), (20, "cancelled"))
"""Of a thousand jobs; the rest has completed. With 2,000,000 jobs each name has 6,000 due ones, and 11,000 pending."""

SPAN: Final = timedelta(days=14)
REASONS: Final = (
    "SMTPRecipientsRefused: 550 mailbox unavailable: user{}@example.com",
    "ConnectTimeout: hooks.example.com:443",
    "SupplierFormatError: row {}: price is not a number",
    "KeyError: 'account-{}'",
    "TimeoutError: the run took longer than 30 s",
)
ERROR_SHOWN: Final = "SMTPRecip"
ERROR_NOWHERE: Final = "no such error"
LONGEST_COMMAND: Final = 900.0  # Seconds: to make the indexes takes its time.


def fill(database: Db, jobs: int) -> None:
    """Insert the jobs, and then make the indexes: that is faster."""
    now = datetime.now(UTC)
    insert_all(database[JOBS], documents(jobs, now))
    monque = Monque(database, operation_timeout=LONGEST_COMMAND).sync
    for number in range(SCHEDULES):
        monque.schedule("0 6 * * *", NAMES[number % len(NAMES)], None, unique_key=f"schedule {number}")
    for one in instances(to_milliseconds(now)):
        assert stored.insert(handle(database), one)
    database[name_of_minutes(JOBS)].insert_many(minutes(now))
    monque.pause(NAMES[3], by="dana")


def documents(number: int, now: datetime) -> Iterator[dict[str, Any]]:
    for one in range(number):
        # A multiple of a prime, so that states, names and tenants do not go with each other.
        state = state_of(one * 7919 % 1_000)
        created = now - SPAN + SPAN * one / number
        yield {
            "_id": ObjectId(),
            "name": RARE if one % 1_009 == 0 else NAMES[one % len(NAMES)],
            "data": {"number": one, "to": f"user{one}@example.com"},
            "meta": {"tenant": f"tenant-{one % TENANTS:03}"},
            "status": "pending" if state in ("due", "later") else state,
            "failCount": 3 if state == "failed" else 0,
            "nextRunAt": now + timedelta(seconds=60 + one % 86_400) if state == "later" else created,
            "createdAt": created,
            "updatedAt": created if state in ("due", "later") else created + timedelta(seconds=one % 97),
            **({"failReason": REASONS[one % len(REASONS)].format(one)} if state == "failed" else {}),
            **({"uniqueKey": f"key {one}"} if state == "later" else {}),
        }
    for one in range(RUNNING):
        yield {
            "name": NAMES[one % len(NAMES)],
            "data": {"number": one},
            "meta": {"tenant": f"tenant-{one:03}"},
            "status": "processing",
            "failCount": 0,
            **dict.fromkeys(("nextRunAt", "createdAt", "updatedAt", "lockedAt", "lastHeartbeat"), now),
            "claimedBy": f"worker-{one % INSTANCES}",
        }


def state_of(place: int) -> str:
    for share, state in SHARES:
        if place < share:
            return state
        place -= share
    return "completed"


def instances(now: datetime) -> Iterator[Instance]:
    for one in range(INSTANCES):
        yield Instance(
            id=f"worker-{one}",
            incarnation="1",
            host=f"host-{one}",
            pid=41,
            names=(*NAMES, RARE),
            started_at=now,
            last_heartbeat=now,
            heartbeat_interval=LONGEST_BEAT,
            held=RUNNING // INSTANCES,
            slots=24,
            version="1",
        )


def minutes(now: datetime) -> Iterator[dict[str, Any]]:
    """What eight schedulers did in the last hour, with full histograms."""
    row = [0] * ROW
    row[DONE], row[FAILED_ATTEMPTS], row[FAILED_FOR_GOOD], row[RUN_MS], row[WAIT_MS] = 40, 3, 1, 9_000, 22_000
    for place in range(BUCKETS // 2):
        row[RUN_BUCKETS + place] = row[WAIT_BUCKETS + place] = 3
    for minute in range(1, 61):
        at = minute_of(now) - timedelta(minutes=minute)
        for one in range(INSTANCES):
            part = Part(at, 24, dict.fromkeys((*NAMES, RARE), row))
            yield document_of(part, f"worker-{one}", f"{minute}")
