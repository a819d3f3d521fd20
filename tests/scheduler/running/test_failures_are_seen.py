"""Failures are printed with any logging configuration; start, drain and end are logged."""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_monque import (
    Retention,
    RunningJob,
    Workers,
    open_claims,
    open_job_nursery,
    open_scheduler,
    run_claims,
)
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import InvalidOptionError
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, drain, quiesce

WITHOUT_LOGGING = """
import sys
import trio
from pymongo import MongoClient
from trio_monque import Workers, open_scheduler, run_claims

uri, name = sys.argv[1:]
workers = Workers()

@workers.register("charge")
async def charge(job):
    job.scheduler.drain()
    raise ValueError(f"card refused, try {job.attempt}\\nERROR forged")

async def locate(claim):
    raise KeyError("no such street")

async def main():
    with MongoClient(uri) as client:
        db = client[name]
        async with open_scheduler(db, workers, base_retry_interval=60) as scheduler:
            await scheduler.enqueue("charge", 1)
            await scheduler.wait_drained()
        db.letters.insert_one({"done": False})
        await run_claims(db.letters, {"done": False}, locate, wait=False, max_attempts=1)

trio.run(main)
"""


@pytest.mark.full
def test_program_without_logging_configuration_prints_failures(
    mongod: EmbeddedServer, db: Database, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(WITHOUT_LOGGING)
    ran = subprocess.run(
        [sys.executable, str(program), mongod.uri, db.name], capture_output=True, text=True, check=True
    )
    printed = ran.stderr
    assert re.search(r"^job charge \w+ \(pending, attempt 1\) failed \(failure 1 of 10\); retrying at ", printed)
    assert r"ValueError: card refused, try 1\nERROR forged" in printed.splitlines()[0]
    assert "Traceback (most recent call last)" in printed
    assert 'raise ValueError(f"card refused' in printed
    assert re.search(
        r"^document ObjectId\('\w+'\) \(attempt 1\) failed, and is now a dead letter: KeyError: 'no such", printed, re.M
    )
    assert 'raise KeyError("no such street")' in printed
    assert "started" not in printed  # INFO is for those who ask for it.


async def test_every_failed_try_is_a_warning_and_the_last_one_an_error(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    workers = Workers()

    @workers.register("plain", max_attempts=2)
    def plain(job: RunningJob[Any]) -> None:
        raise ValueError("of a thread")

    async with open_test_scheduler(workers) as scheduler:
        plain_job = await scheduler.enqueue(plain)
        await advance(60)
        await drain(scheduler)
    failed = [one for one in caplog.records if "failed" in one.message]
    assert sorted((one.levelname, str(one.exc_info[1])) for one in failed if one.exc_info) == [
        ("ERROR", "of a thread"),
        ("WARNING", "of a thread"),
    ]
    (warning,) = (one for one in failed if one.levelname == "WARNING")
    assert (warning.job_id, warning.job_name, warning.attempt) == (str(plain_job.id), "plain", 1)  # type: ignore[attr-defined]
    assert "(failure 1 of 2)" in warning.message
    assert warning.message.endswith(": ValueError: of a thread")


def life_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if one.levelno == logging.INFO and one.name != "trio_monque.engine"]


async def test_start_drain_and_end_are_logged_with_their_cause(
    db: Database, jobs: Collection, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_monque")
    workers = Workers()
    workers.register("greet", lambda job: None, concurrency=3)
    workers.register("charge", lambda job: None)
    async with open_scheduler(db, workers, instance_id="one", concurrency=20) as scheduler:
        await scheduler.enqueue("greet")
        await drain(scheduler)
    assert life_of(caplog) == [
        f"scheduler one started on {jobs.full_name}: runs greet (3 at a time), charge (5 at a time), at most 20 in all",
        "scheduler one stopped claiming and is draining: the body of open_scheduler has ended",
        "scheduler one ended (the body of open_scheduler has ended): 1 completed, 0 failed, 0 released, 0 unfinished",
    ]


@pytest.mark.parametrize(
    ("retention", "shown"),
    [
        (
            Retention(completed=86_400, failed=1e6, keep_last=1_000_000),
            "completed=86400 s, failed=1000000 s, keep_last=1000000",
        ),
        (Retention(cancelled=0.5), "cancelled=0.5 s"),
        (Retention(keep_last=10), "keep_last=10"),
    ],
)
async def test_start_names_the_retention(
    db: Database, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, retention: Retention, shown: str
) -> None:
    caplog.set_level(logging.INFO, "trio_monque")
    async with open_scheduler(db, retention=retention) as scheduler:
        scheduler.drain()
    assert life_of(caplog)[0].endswith(f": runs nothing (no workers); retention: {shown}")


async def test_drain_names_the_runs_that_it_waits_for(
    db: Database, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_monque")
    workers, started = Workers(), trio.Event()

    @workers.register("works")
    async def works(job: RunningJob[Any]) -> None:
        await trio.sleep(10)

    @workers.register("waits")
    async def waits(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("works", delay=3600)
            started.set()

    async with open_scheduler(db, workers, instance_id="one", shutdown_timeout=20) as scheduler:
        for name in ("works", "waits"):
            await scheduler.enqueue(name)
        await started.wait()
        await quiesce()
    (line,) = (one for one in life_of(caplog) if "draining: " in one)
    assert line.endswith("has ended (runs left, for 20 s at most: 2; waiting for jobs: 1)")


async def test_causes_of_the_end(db: Database, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trio_monque")
    async with open_scheduler(db) as scheduler:
        scheduler.drain()
    with pytest.raises(KeyError):
        async with open_scheduler(db):
            raise KeyError("body")
    with trio.CancelScope() as scope:
        async with open_scheduler(db):
            scope.cancel()
            await trio.sleep_forever()
    causes = [message.partition("draining: ")[2] for message in life_of(caplog) if "draining: " in message]
    assert causes == [
        "drain() was called",
        "KeyError was raised in the body of open_scheduler",
        "it was cancelled",
    ]


SIGNALLED = """
import logging, sys, os, signal
import trio
from functools import partial
from pymongo import MongoClient
from trio_monque import Workers, run_until_signalled

logging.basicConfig(level=logging.INFO)
workers = Workers()

@workers.register("stop")
async def stop(job):
    os.kill(os.getpid(), signal.SIGTERM)

client = MongoClient(sys.argv[1])
trio.run(partial(run_until_signalled, client[sys.argv[2]], workers))
"""


@pytest.mark.full
def test_signal_is_the_cause_of_a_drain(mongod: EmbeddedServer, db: Database, monque: Any, tmp_path: Path) -> None:
    monque.sync.enqueue("stop")
    program = tmp_path / "program.py"
    program.write_text(SIGNALLED)
    ran = subprocess.run(
        [sys.executable, str(program), mongod.uri, db.name], capture_output=True, text=True, check=True
    )
    assert f"{signal.SIGTERM.name} was received" in ran.stderr


async def test_claims_log_their_start_drain_and_end(
    db: Database, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_monque")
    db["letters"].insert_one({"done": False})

    async def locate(claim: Any) -> None:
        await claim.finish({"$set": {"done": True}})

    await run_claims(db["letters"], {"done": False}, locate, wait=False, instance_id="one")
    assert life_of(caplog) == [
        f"claims one started on {db.name}.letters: documents that match {{'done': False}} (5 at a time)",
        "claims one stopped claiming and is draining: nothing is left",
        "claims one ended (nothing is left): 1 finished, 0 failed, 0 released, 0 lost, 0 unfinished",
    ]
    async with open_claims(db["letters"], {"done": False}) as claims:
        claims.drain()
    assert "drain() was called" in life_of(caplog)[-1]


# --- What is stored of an error ---


async def stored_errors(
    open_test_scheduler: SchedulerOpener, jobs: Collection, **options: Any
) -> tuple[str, dict[str, Any]]:
    workers = Workers()

    @workers.register("charge", max_attempts=1)
    async def charge(job: RunningJob[Any]) -> None:
        raise ValueError("card 4111-1111 refused by mongodb://root:hunter2@h")

    async with open_test_scheduler(workers, **options) as scheduler:
        await scheduler.enqueue(charge)
        await drain(scheduler)
    document = jobs.find_one({"name": "charge"})
    assert document is not None
    (error,) = document["errors"]
    return document["failReason"], error


async def test_connection_strings_are_stored_without_their_passwords(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    reason, error = await stored_errors(open_test_scheduler, jobs)
    assert reason == error["error"] == "ValueError: card 4111-1111 refused by mongodb://***@h"
    assert "mongodb://***@h" in error["traceback"]
    assert "hunter2" not in str(error)


async def test_tracebacks_are_not_stored_where_that_is_turned_off(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    reason, error = await stored_errors(open_test_scheduler, jobs, store_tracebacks=False)
    assert "card 4111-1111" in reason
    assert error.keys() == {"at", "attempt", "by", "error", "ran"}


async def test_hook_redacts_what_is_stored_and_what_is_logged(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    reason, error = await stored_errors(
        open_test_scheduler, jobs, redact_errors=lambda text: text.replace("4111-1111", "****")
    )
    assert reason == error["error"] == "ValueError: card **** refused by mongodb://***@h"
    assert "card ****" in error["traceback"]
    assert "4111-1111" not in str(error) + caplog.text
    assert "card ****" in caplog.text


@pytest.mark.parametrize("hook", [lambda text: 1 / 0, lambda text: None, lambda text: text.encode()])
async def test_hook_that_fails_lets_nothing_out(
    open_test_scheduler: SchedulerOpener,
    jobs: Collection,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    hook: Any,
) -> None:
    reason, error = await stored_errors(open_test_scheduler, jobs, redact_errors=hook)
    assert reason.startswith("(omitted: redact_errors r")
    assert "4111-1111" not in reason + str(error) + caplog.text
    assert "redact_errors" in caplog.text


async def test_hook_redacts_what_is_stored_in_locks(
    db: Database, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    db["letters"].insert_one({"done": False})

    async def locate(claim: Any) -> None:
        raise ValueError("of 4111-1111")

    await run_claims(
        db["letters"],
        {"done": False},
        locate,
        wait=False,
        max_attempts=1,
        redact_errors=lambda text: text.replace("4111-1111", "****"),
    )
    letter = db["letters"].find_one()
    assert letter is not None
    assert letter["lock"]["error"] == "ValueError: of ****"
    assert "4111-1111" not in caplog.text


async def asynchronous(text: str) -> str:
    return text


@pytest.mark.parametrize("value", [True, "x", asynchronous])
async def test_hook_is_a_plain_function(db: Database, value: Any) -> None:
    with pytest.raises(InvalidOptionError, match="redact_errors=.*plain function from str to str"):
        async with open_scheduler(db, redact_errors=value):
            pass
