"""A fleet to look at: names, failures, a silent instance and a paused name, the same in each run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.support.store import handle
from tests.web.pages.job_documents import job_document
from trio_monque import Monque
from trio_monque.jobs.instance import Instance
from trio_monque.jobs.minutes import (
    DONE,
    FAILED_ATTEMPTS,
    FAILED_FOR_GOOD,
    ROW,
    RUN_BUCKETS,
    RUN_MS,
    WAIT_BUCKETS,
    WAIT_MS,
    Part,
    bucket_of,
)
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs import instances
from trio_monque.store.jobs.minutes_written import document_of

NAMES: Final = {
    "mail.send": (412, 0.18, 0.9),
    "image.resize": (388, 0.64, 1.9),
    "search.index": (240, 0.075, 0.2),
    "push.notify": (122, 0.035, 0.095),
    "session.expire": (96, 0.004, 0.06),
    "billing.charge": (61, 1.2, 0.09),
    "webhook.deliver": (48, 0.5, 0.2),
    "import.catalogue": (2, 160.0, 0.08),
}
"""Runs a minute, and the seconds of a run and of a wait."""

TRACEBACK: Final = """Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/anyio/_core/_tasks.py", line 88, in run
    return await call(data)
  File "/srv/shop/mail.py", line 88, in send
    await smtp.send(message)
  File "/srv/shop/smtp.py", line 131, in send
    raise SMTPRecipientsRefused(address)
SMTPRecipientsRefused: 550 mailbox unavailable: j.lind@example.com
"""


def fill(db: Database) -> dict[str, Any]:
    """Insert all of it, and return ids: "failed" and "running"."""
    chance = random.Random(4)
    now = datetime.now(UTC)
    monque = Monque(db)
    db["monque_jobs"].insert_many([*_failed(chance, now), *_waiting(now)])
    running = [
        job_document(
            "import.catalogue",
            status="processing",
            claimed_by="worker-4",
            data={"supplier": "acme-gmbh", "feed": "https://feeds.acme.example/catalogue.csv", "dry_run": False,
                  "max_price": 99999999999999999, "options": {"currency": "EUR", "batch": 500}},
            progress={"done": 37410, "total": 60233}, unique_key=f"acme-gmbh:2026-11-2{day}", meta={"tenant": "acme"},
        )
        for day in (4, 5, 6)
    ]  # fmt: skip
    db["monque_jobs"].insert_many(running)
    monque.sync_in_loop.schedule("40 * * * *", "ledger.reconcile", {}, unique_key="ledger")
    monque.sync_in_loop.schedule("0 6 * * *", "report.daily", {}, unique_key="daily", timezone="Europe/Berlin")
    monque.sync_in_loop.pause("webhook.deliver", by="dana")
    _instances(db, now)
    minute = now.replace(second=0, microsecond=0)
    parts = [_minute(minute - timedelta(minutes=ago), chance) for ago in range(1, 61)]
    db["monque_jobs.minutes"].insert_many([document_of(part, "worker-1", "abcd") for part in parts])
    failed = db["monque_jobs"].find_one({"status": "failed", "name": "mail.send"})
    assert failed is not None
    return {"failed": failed["_id"], "running": running[0]["_id"]}


def _failed(chance: random.Random, now: datetime) -> Iterator[dict[str, Any]]:
    for number in range(214):
        who = chance.choice(["j.lind", "rosa.k", "mia.b", "paul.s", "ines"])
        error = f"SMTPRecipientsRefused: 550 mailbox unavailable: {who}@example.com"
        at = now - timedelta(seconds=6 * number + 3)
        errors = [
            {"at": at, "attempt": one, "by": "worker-1", "ran": chance.randint(80, 900), "error": error}
            for one in (1, 2)
        ]
        errors[-1]["traceback"] = TRACEBACK
        yield job_document(
            "mail.send", status="failed", fail_reason=error, updated_at=at, finishedAt=at, errors=errors, attempts=2,
            meta={"tenant": chance.choice(["acme", "globex", "initech"])},
            data={"to": f"{who}@example.com", "n": number},
        )  # fmt: skip
    for number in range(61):
        at = now - timedelta(seconds=40 * number + 60)
        yield job_document(
            "webhook.deliver", status="failed", fail_reason="ConnectTimeout: hooks.example.com:443", updated_at=at
        )
    for number in range(9):
        at = now - timedelta(minutes=6 * number + 1)
        yield job_document(
            "billing.charge", status="failed", fail_reason="CardDeclined: insufficient_funds", updated_at=at
        )


def _waiting(now: datetime) -> Iterator[dict[str, Any]]:
    for number in range(904):
        yield job_document("webhook.deliver", next_run_at=now - timedelta(seconds=372 - number / 3))
    for number in range(12):
        yield job_document("export.accounts", next_run_at=now - timedelta(hours=3, minutes=4 - number / 12))
    for number in range(340):
        yield job_document("mail.send", next_run_at=now - timedelta(seconds=41 - number / 10))
    for number in range(120):
        yield job_document("session.expire", next_run_at=now + timedelta(minutes=number + 5))
    for _ in range(40):
        yield job_document("image.resize", status="completed", startedAt=now - timedelta(seconds=2), finishedAt=now)


def _instances(db: Database, now: datetime) -> None:
    for number in range(1, 8):
        is_silent = number == 7
        instance = Instance(
            id="media-2" if is_silent else f"worker-{number}",
            incarnation=str(number),
            host="gpu-3" if is_silent else f"app-{number}",
            pid=40 + number,
            names=tuple(name for name in NAMES),
            started_at=now - timedelta(hours=9),
            last_heartbeat=now - timedelta(seconds=72 if is_silent else number),
            heartbeat_interval=30.0,
            held=4 if is_silent else 24 - 3 * number,
            slots=8 if is_silent else 24,
            version="0.1.0",
        )
        assert instances.insert(handle(db), instance)


def _minute(at: datetime, chance: random.Random) -> Part:
    rows = {}
    for name, (rate, run, wait) in NAMES.items():
        row = [0] * ROW
        done = round(rate * chance.uniform(0.8, 1.2))
        late = name == "mail.send" and at.minute % 60 > 40
        failed = chance.randint(6, 20) if late else chance.choice([0, 0, 1]) if rate > 50 else 0
        row[DONE], row[FAILED_ATTEMPTS], row[FAILED_FOR_GOOD] = done, failed, failed // 2
        row[RUN_MS], row[WAIT_MS] = round(done * run * 1000), round(done * wait * 1000)
        for _ in range(40):
            row[RUN_BUCKETS + bucket_of(round(run * 1000 * chance.uniform(0.2, 1.2)))] += max(1, done // 40)
            row[WAIT_BUCKETS + bucket_of(round(wait * 1000 * chance.uniform(0.1, 3 if late else 1)))] += max(
                1, done // 40
            )
        rows[name] = row
    return Part(at, 176, rows)
