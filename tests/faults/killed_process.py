"""A process that does one thing which takes several writes, and kills itself before one of them.

    python -m tests.faults.killed_process URI DATABASE STORY

What it leaves behind is what a crash between two writes leaves; `test_failure_windows.py` looks at that, and lets
others repair it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import trio
from pymongo import MongoClient, monitoring

from trio_monque import Monque, NewJob, RunningJob, Workers, open_scheduler

MANY: Final = 1500
"""More than one slice of a bulk insert, and than one batch of a bulk action."""

HEARTBEAT: Final = 0.3
"""Seconds: a lease is three of them, and a dead claim is free soon."""


class Killer(monitoring.CommandListener):
    """Kills this process when the number-th command that matches is about to be sent."""

    def __init__(self, number: int, matches: Callable[[str, Mapping[str, Any]], bool]) -> None:
        self._left = number
        self._matches = matches

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if self._matches(event.command_name, event.command):
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


def schedules() -> Workers:
    """Two schedules that every instance declares when it starts."""
    workers = Workers()

    async def run(job: RunningJob[Any]) -> None: ...

    workers.cron("0 9 * * *", "first")(run)
    workers.cron("0 9 * * *", "second")(run)
    return workers


def greeters() -> Workers:
    """One worker whose handler returns at once."""
    workers = Workers()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None: ...

    return workers


def steppers(calls: Callable[[], object]) -> Workers:
    """One worker whose handler keeps the result of a step."""
    workers = Workers()

    @workers.register("steps")
    async def steps(job: RunningJob[Any]) -> None:
        await job.step("called", lambda: calls() and None)

    return workers


def keyed() -> list[NewJob]:
    """Many jobs, each with a key, so that the call can be repeated."""
    return [NewJob("greet", number, unique_key=str(number)) for number in range(MANY)]


async def declare(client: MongoClient[Any], database: str) -> None:
    async with open_scheduler(client[database], schedules(), heartbeat_interval=HEARTBEAT):
        pass


async def enqueue_many(client: MongoClient[Any], database: str) -> None:
    await Monque(client[database]).enqueue_many(keyed())


async def retry_jobs(client: MongoClient[Any], database: str) -> None:
    await Monque(client[database]).retry_jobs(status="failed")


async def retry_child(client: MongoClient[Any], database: str) -> None:
    (child,) = client[database]["monque_jobs"].find({"status": "failed"})
    await Monque(client[database]).retry_job(child["_id"])


async def run_jobs(client: MongoClient[Any], database: str) -> None:
    async with open_scheduler(client[database], greeters(), heartbeat_interval=HEARTBEAT) as scheduler:
        await scheduler.wait_job(await scheduler.enqueue("greet"))


async def run_steps(client: MongoClient[Any], database: str) -> None:
    calls = client[database]["calls"]
    workers = steppers(lambda: calls.insert_one({}))
    async with open_scheduler(client[database], workers, heartbeat_interval=HEARTBEAT) as scheduler:
        await scheduler.wait_job(await scheduler.enqueue("steps"))


async def rescue(client: MongoClient[Any], database: str) -> None:
    async with open_scheduler(client[database], Workers(), heartbeat_interval=HEARTBEAT):
        await trio.sleep_forever()


def _sets(command: Mapping[str, Any]) -> str:
    """The updates of a command, as text."""
    return str([one["u"] for one in command.get("updates", ())])


@dataclass(frozen=True)
class Story:
    """What the process does, and before which command it is killed.

    Attributes:
        act: What it does.
        matches: Whether a command is one of those that are counted.
        number: Which one of them is never sent.
    """

    act: Callable[[MongoClient[Any], str], Awaitable[None]]
    matches: Callable[[str, Mapping[str, Any]], bool]
    number: int = 1


STORIES: Final = {
    # Each schedule is an upsert with its key.
    "declare": Story(declare, lambda name, command: name == "findAndModify" and bool(command.get("upsert")), 2),
    "enqueue_many": Story(enqueue_many, lambda name, command: name == "update" and len(command["updates"]) > 1, 2),
    "retry_jobs": Story(retry_jobs, lambda name, command: name == "update" and len(command["updates"]) > 1, 2),
    # The child is detached from its nursery first. The retry is the next write.
    "retry_child": Story(
        retry_child, lambda name, command: name == "findAndModify" and command["findAndModify"] == "monque_jobs"
    ),
    "minutes": Story(run_jobs, lambda name, command: command.get(name) == "monque_jobs.minutes" and name == "insert"),
    # The result of the step, which was called before.
    "steps": Story(run_steps, lambda name, command: "'called'" in str(command)),
    # The write that would take the dead claim away.
    "rescue": Story(rescue, lambda name, command: name == "update" and "'rescues'" in _sets(command)),
}


def main(uri: str, database: str, story: str) -> None:
    one = STORIES[story]
    with MongoClient[Any](uri, event_listeners=[Killer(one.number, one.matches)], tz_aware=True) as client:
        trio.run(one.act, client, database)


if __name__ == "__main__":
    main(*sys.argv[1:])
