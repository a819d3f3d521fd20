"""What each kind of user of a database does, as that user: for the tests of the roles on the page on security."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import pymongo
import pytest
import trio
from bson import ObjectId
from pymongo import monitoring

from tests.web.http import Ask, asking
from trio_monque import (
    Claim,
    JobCancelledError,
    JobFilter,
    Monque,
    NewJob,
    Retention,
    RunningJob,
    Workers,
    open_scheduler,
    run_claims,
)
from trio_monque.claims import create_claim_index, dead_letters, readmit
from trio_monque.cli.doctor.doctor_command import examination
from trio_monque.cli.program import run_program
from trio_monque.errors import MonqueConnectionError
from trio_monque.store.driver.types import Database
from trio_monque.web import allow_all, create_app
from trio_monque.web.guard import limits_per_caller

UNAUTHORIZED: Final = 13
TENTH_OF_JANUARY: Final = datetime(2090, 1, 10, tzinfo=UTC)


class Refusals(monitoring.CommandListener):
    """The commands that the server refused for want of rights."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        pass

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        if event.failure.get("code") == UNAUTHORIZED:
            self.commands.append(f"{event.command_name}: {event.failure.get('errmsg')}")


@contextmanager
def database_of(uri: str, refusals: Refusals) -> Iterator[Database]:
    with pymongo.MongoClient[Any](uri, event_listeners=[refusals]) as client:
        yield client.get_default_database()


def refused(uri: str, scenario: Callable[[Database, str], object]) -> list[str]:
    """Run the scenario; return what the server has refused for want of rights."""
    refusals = Refusals()
    with database_of(uri, refusals) as database:
        try:
            scenario(database, uri)
        except (MonqueConnectionError, BaseExceptionGroup, trio.TooSlowError):
            if not refusals.commands:
                raise
    return refusals.commands


# --- A worker ---

workers = Workers()
began: Final = list[object]()


@workers.register("work", store_result=True)
async def work(job: RunningJob[int]) -> int:
    await job.save(job.data)
    await job.set_progress(job.data)
    await job.scheduler.enqueue("sleep", unique_key="once")
    return job.data


@workers.register("fail", max_attempts=1)
async def fail(job: RunningJob[Any]) -> None:
    raise ValueError("no")


@workers.register("sleep")
async def sleep(job: RunningJob[Any]) -> None:
    began.append(job.data)
    if job.data == "until cancelled":
        await trio.sleep_forever()


@workers.cron("0 0 1 1 *", "yearly")
async def yearly(job: RunningJob[Any]) -> None: ...


def runs_jobs(database: Database, _uri: str, **options: Any) -> None:
    trio.run(partial(_run_jobs, database, options))


async def _run_jobs(database: Database, options: Mapping[str, Any]) -> None:
    began.clear()
    chosen = {"start_timeout": 0.0, "heartbeat_interval": 0.3, "shutdown_timeout": 0.0, "cleanup_timeout": 0.1}
    with trio.fail_after(10):
        async with open_scheduler(database, workers, **{**chosen, **options}) as scheduler:
            await scheduler.enqueue("work", 1)
            await scheduler.enqueue("fail")
            job = await scheduler.enqueue("sleep", "until cancelled")
            # Both: on a busy machine, the other two may have completed before the third is claimed.
            while scheduler.statistics().completed < 2 or "until cancelled" not in began:
                await trio.sleep(0.01)
            await scheduler.cancel_job(job.id)
            while scheduler.statistics().cancelled < 1:
                await trio.sleep(0.01)
            await trio.sleep(2 * options.get("heartbeat_interval", 0.3))


def cancels_what_was_not_started_in_time(database: Database, _uri: str) -> None:
    trio.run(_cancel_what_was_not_started_in_time, database)


async def _cancel_what_was_not_started_in_time(database: Database) -> None:
    with trio.fail_after(10):
        async with open_scheduler(database, workers, start_timeout=0.0) as scheduler:
            moment = datetime.now(UTC) + timedelta(seconds=0.05)
            job = await scheduler.enqueue("without-a-worker", start_by=moment)
            with suppress(JobCancelledError):
                await scheduler.wait_job(job)


# --- The others ---


def deletes_ended_jobs(database: Database, uri: str) -> None:
    runs_jobs(database, uri, retention=Retention(completed=0, interval=0.1))


def enqueues(database: Database, _uri: str) -> None:
    monque = Monque(database)
    monque.sync.enqueue("work", 1)
    monque.sync.enqueue("work", 1, unique_key="key")
    monque.sync.enqueue("work", 1, unique_key="key")
    monque.sync.enqueue_many([NewJob("work", 1), NewJob("work", 2)])
    monque.sync.schedule("0 0 1 1 *", "yearly", unique_key="yearly", on_conflict="update")
    monque.sync.schedule("0 0 2 1 *", "yearly", unique_key="yearly", on_conflict="update")


def waits(database: Database, _uri: str) -> None:
    calls = Monque(database, skip_index_creation=True).sync
    with suppress(TimeoutError):
        calls.wait_job(calls.enqueue("work", 1), timeout=0.2)


def only_inserts(database: Database, _uri: str) -> None:
    monque = Monque(database, skip_index_creation=True)
    monque.sync.enqueue("work", 1)
    monque.sync.enqueue_many([NewJob("work", 1), NewJob("work", 2)])


def observes(database: Database, _uri: str) -> None:
    monque = Monque(database, skip_index_creation=True)
    (job,) = monque.sync.get_jobs(limit=1)
    monque.sync.get_job(job.id)
    monque.sync.get_jobs_with_cursor(filter=JobFilter(status="pending"), sort="next_run_at")
    monque.sync.get_queue_stats()
    monque.sync.get_queue_depths()
    monque.sync.get_broken_documents()
    monque.sync.get_running()
    monque.sync.get_schedules()
    monque.sync.get_error_groups()
    monque.sync.why_not_now(job)
    monque.sync.get_minutes()
    monque.sync.instances()
    monque.sync.paused()


def observes_by_commands(database: Database, uri: str) -> None:
    (job,) = Monque(database, skip_index_creation=True).sync.get_jobs(limit=1)
    for command in (["jobs"], ["show", str(job.id)], ["stats"], ["instances"], ["schedules"]):
        assert run_program([*command, "--uri", uri]) == 0, command


def operates(database: Database, _uri: str) -> None:
    observes(database, _uri)
    monque = Monque(database, skip_index_creation=True)
    first, second, *_ = monque.sync.get_jobs(status="pending")
    monque.sync.reschedule_job(first.id, TENTH_OF_JANUARY)
    monque.sync.cancel_job(first.id)
    monque.sync.retry_job(first.id)
    monque.sync.delete_job(second.id)
    monque.sync.cancel_jobs(name="work")
    monque.sync.retry_jobs(name="work")
    monque.sync.delete_jobs(name="nothing")
    monque.sync.pause("work")
    monque.sync.resume("work")
    with suppress(ValueError):
        monque.sync.recover_stale_jobs()


def operates_by_commands(database: Database, uri: str) -> None:
    first, second, *_ = (str(job.id) for job in Monque(database, skip_index_creation=True).sync.get_jobs())
    database["monque_jobs"].update_one({"_id": ObjectId(first)}, {"$set": {"nextRunAt": "tomorrow"}})
    for command in (
        ["repair", first, "--set", "nextRunAt=now", "--yes"],
        ["reschedule", first, "2h"],
        ["cancel", first],
        ["retry", first],
        ["delete", second, "--yes"],
        ["cancel", "--name", "work", "--yes"],
        ["retry", "--name", "work", "--yes"],
        ["delete", "--name", "work", "--yes"],
        ["pause", "work"],
        ["resume", "work"],
    ):
        assert run_program([*command, "--uri", uri]) == 0, command


READS_OVER_HTTP: Final = (
    "/health",
    "/queue-views",
    "/jobs?view=full",
    "/jobs/stats",
    "/errors",
    "/overview",
    "/schedules",
    "/instances",
    "/minutes",
    "/metrics",
)


def observes_over_http(database: Database, _uri: str) -> None:
    async def work(ask: Ask) -> None:
        (one, *_) = (await ask("GET", "/jobs")).json()["jobs"]
        for path in (*READS_OVER_HTTP, f"/jobs/{one['id']}", f"/jobs/{one['id']}/reasons"):
            assert (await ask("GET", path)).status_code == 200, path
        assert (await ask("POST", "/jobs/actions/count", json={"everything": True})).status_code == 200

    asking("trio", create_app(Monque(database, skip_index_creation=True)), work)


def operates_over_http(database: Database, uri: str) -> None:
    observes_over_http(database, uri)

    async def work(ask: Ask) -> None:
        first, second, *_ = ((await ask("GET", "/jobs?status=pending")).json())["jobs"]
        for action, body in (("reschedule", {"nextRunAt": "2040-01-01T00:00:00Z"}), ("cancel", {}), ("retry", {})):
            assert (await ask("POST", f"/jobs/{first['id']}/actions/{action}", json=body)).status_code == 200, action
        assert (await ask("DELETE", f"/jobs/{second['id']}")).status_code == 200
        for action in ("cancel", "retry", "delete"):
            found = await ask("POST", f"/jobs/actions/{action}", json={"name": "work"})
            assert found.status_code == 200, action
        for action in ("pause", "resume"):
            assert (await ask("POST", f"/names/actions/{action}", json={"name": "work"})).status_code == 200, action

    app = create_app(Monque(database, skip_index_creation=True), authorize=allow_all)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(limits_per_caller, "MOST_A_SECOND", 1_000_000)
        asking("trio", app, work)


def claims_documents(database: Database, _uri: str) -> None:
    trio.run(_claim, database)


async def _claim(database: Database) -> None:
    messages, new = database["messages"], {"status": "new"}
    with trio.fail_after(3):  # Without rights it would retry for ever.
        await create_claim_index(messages, new)
        ended = await run_claims(messages, new, _finish, wait=False, start_timeout=0.0, max_attempts=1)
        assert (ended.finished, ended.dead_lettered) == (1, 1)
        (dead,) = await dead_letters(messages, new)
        assert await readmit(messages, dead.id) == 1


async def _finish(claim: Claim[dict[str, Any]]) -> None:
    if claim.document["fails"]:
        raise ValueError("no")
    await claim.finish({"$set": {"status": "done"}})


def examines(database: Database, uri: str) -> None:
    examination(uri, database, "monque_jobs").facts(all_documents=True)
