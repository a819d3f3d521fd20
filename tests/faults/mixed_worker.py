"""A worker process for a mixture of jobs, to be killed, frozen and cut off. Started by `processes.py`.

Its handler writes down what happens to it, by itself, whatever the scheduler believes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import trio
from pymongo import MongoClient

from tests.support.fast_driver import fast_driver
from trio_monque import RunningJob, Snooze, Workers, run_until_signalled
from trio_monque.events import JobClaimLost, JobCompleted, JobFailed, StaleJobsRecovered

from .mixture import NAME
from .records import Recorder


class PlannedError(Exception):
    """A failure that is planned."""


def token_of(job: RunningJob[Any]) -> str | None:
    return None if job.job.claim is None else job.job.claim.token


class Handlers:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.workers = Workers()
        self.workers.register(NAME, self.mixed)

    async def mixed(self, job: RunningJob[dict[str, Any]]) -> None:
        write = partial(self._write, job)
        write("start", str(token_of(job)))
        try:
            await self._work(job)
        except trio.Cancelled:
            write("cancelled", str(job.cancel_reason))
            raise
        except Snooze:
            write("outcome", "snoozed")
            raise
        except Exception as error:
            write("outcome", "failed")
            if not isinstance(error, PlannedError):
                write("error", repr(error))
            raise
        else:
            write("outcome", "succeeded")
        finally:
            write("end")

    async def _work(self, job: RunningJob[dict[str, Any]]) -> None:
        for _ in range(job.data["steps"]):
            await trio.sleep(job.data["step"])
            self._write(job, "passed")
        while (until := job.data.get("until")) is not None and not await trio.Path(until).exists():
            await trio.sleep(job.data["step"])
            self._write(job, "passed")
        if job.data["snoozes"] and job.saved is None:
            await job.save({"token": token_of(job)})
            raise Snooze(after=0.02)
        if job.fail_count < job.data["fails"]:
            raise PlannedError

    def _write(self, job: RunningJob[Any], what: str, detail: str = "") -> None:
        self._recorder.write(what, str(job.id), job.attempt, detail)


async def run(order: dict[str, Any]) -> None:
    recorder = Recorder(Path(order["records"]), order["name"])
    client: MongoClient[Any] = MongoClient(order["uri"], tz_aware=True)

    def tell(what: str, event: JobCompleted | JobFailed | JobClaimLost) -> None:
        recorder.write(what, str(event.job.id), event.job.attempts)

    def tell_recovered(event: StaleJobsRecovered) -> None:
        recorder.write("reported recovered", detail=str(event.count))

    async with trio.open_nursery() as nursery:
        await nursery.start(
            partial(
                run_until_signalled,
                client[order["database"]],
                Handlers(recorder).workers,
                listeners={
                    JobCompleted: partial(tell, "reported completed"),
                    JobFailed: partial(tell, "reported failed"),
                    JobClaimLost: partial(tell, "lost"),
                    StaleJobsRecovered: tell_recovered,
                },
                instance_id=order["name"],
                **order["options"],
            )
        )
        recorder.write("ready")
    recorder.write("left")


def work(order: dict[str, Any]) -> None:
    with fast_driver():
        trio.run(run, order)
