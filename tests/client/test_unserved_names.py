"""A name that is enqueued and that no live instance runs is warned about, once, at the price of one look."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from pymongo import MongoClient, monitoring
from pymongo.errors import AutoReconnect

from trio_monque import Monque, NewJob, Workers
from trio_monque.client.unserved_names import MOST_FAILED, UnservedNames
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import MonqueConnectionError
from trio_monque.store.driver.types import Database
from trio_monque.testing import SchedulerOpener, fail_next

workers = Workers()


@workers.register("greet")
async def greet(job: Any) -> None: ...


class Looks(monitoring.CommandListener):
    """Counts the looks at the fleet."""

    def __init__(self) -> None:
        self.number = 0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.number += str(event.command.get(event.command_name, "")).endswith(".instances")

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_each_name_is_warned_about_once_and_looked_up_once(
    mongod: EmbeddedServer, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    looks = Looks()
    with MongoClient[Any](mongod.uri, event_listeners=[looks]) as client:
        monque = Monque(client[db.name])
        for _ in range(3):
            await monque.enqueue("greet")
        await monque.enqueue_many([NewJob("greet"), NewJob("other"), NewJob("other")])
        await monque.enqueue("other", unique_key="k", on_conflict="replace")
    assert warnings_in(caplog) == [
        f"enqueued a job of {name} in {db.name}.monque_jobs: no live instance of this library runs it: start a worker"
        for name in ("greet", "other")
    ]
    assert looks.number == 2


async def test_misspelt_name_is_warned_about_with_the_one_that_is_meant(
    db: Database, monque: Monque, open_test_scheduler: SchedulerOpener, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_test_scheduler(workers) as scheduler:
        await monque.enqueue("greet")
        await monque.enqueue("gret")
        await scheduler.enqueue("great")
        await scheduler.enqueue("greet")
    assert warnings_in(caplog) == [
        f"enqueued a job of {name} in {db.name}.monque_jobs: the only live instance does not run it: it runs 'greet': "
        "is the name misspelt?"
        for name in ("gret", "great")
    ]


async def test_scheduler_does_not_look_up_the_names_that_it_runs(
    open_test_scheduler: SchedulerOpener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks: list[object] = []

    def no_instances(context: object) -> list[Any]:
        looks.append(context)
        return []

    monkeypatch.setattr("trio_monque.client.enqueue.read_instances", no_instances)
    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue(greet)
        await scheduler.enqueue_many([NewJob("greet")])
        assert looks == []
        await scheduler.enqueue("other")
        assert len(looks) == 1
    assert len(warnings_in(caplog)) == 1


async def test_look_that_fails_changes_nothing_and_is_made_again(
    monque: Monque, jobs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with fail_next(monque, AutoReconnect("gone"), command="read the entries of the instances"):
        await monque.enqueue("greet")
    assert jobs.count_documents({}) == 1
    assert warnings_in(caplog) == []
    await monque.enqueue("greet")
    assert len(warnings_in(caplog)) == 1


def test_two_threads_that_look_at_the_same_moment_warn_once(caplog: pytest.LogCaptureFixture) -> None:
    unserved, both = UnservedNames(lambda _: False), threading.Barrier(2)

    def no_instances() -> list[Any]:
        both.wait(20)
        return []

    threads = [threading.Thread(target=unserved.notice, args=(["greet"], no_instances, "shop.jobs")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(warnings_in(caplog)) == 1


def test_names_that_a_program_makes_up_are_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_monque.client.unserved_names.MOST_REMEMBERED", 3)
    unserved = UnservedNames(lambda _: False)
    looks = [0]

    def no_instances() -> list[Any]:
        looks[0] += 1
        return []

    for number in range(10):
        unserved.notice([f"of-{number}"], no_instances, "shop.jobs")
    assert len(warnings_in(caplog)) == looks[0] == 3


def test_user_who_may_not_read_the_fleet_is_asked_for_a_few_times_only(caplog: pytest.LogCaptureFixture) -> None:
    looked = [0]

    def fail() -> list[Any]:
        looked[0] += 1
        raise MonqueConnectionError("not authorized")

    unserved = UnservedNames(lambda _: False)
    for _ in range(9):
        unserved.notice(["greet"], fail, "shop.jobs")
    assert looked[0] == MOST_FAILED
    assert warnings_in(caplog) == []


async def test_scheduler_without_workers_logs_it(
    open_test_scheduler: SchedulerOpener, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_test_scheduler(Workers()) as scheduler:
        pass
    [warning] = warnings_in(caplog)
    assert warning.startswith(f"scheduler {scheduler.id} has no workers: it runs no jobs until one is registered.")


def test_name_that_runs_here_is_settled_without_a_look() -> None:
    unserved = UnservedNames(lambda name: name == "here")

    def look() -> list[Any]:
        raise AssertionError

    unserved.notice(["here"], look, "shop.jobs")
    assert unserved.settled == {"here"}
