"""What handlers do, each run as it was drawn; they write down when they start and how they end, by themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import trio

from trio_monque import Discard, Retry, RunningJob, Snooze, Workers
from trio_monque.scheduler.scheduler_client import SchedulerClient

from .clients import Clients
from .plan import PLAIN, Behaviour, behaviour
from .records import Played


class Handlers:
    """Of all names, for all instances.

    Attributes:
        spawn: Whether handlers enqueue further jobs.
    """

    def __init__(self, seed: int, played: Played, clients: Clients, kill: Callable[[SchedulerClient], None]) -> None:
        self.spawn = True
        self._seed = seed
        self._played = played
        self._clients = clients
        self._kill = kill

    def workers(self, names: tuple[str, ...]) -> Workers:
        workers = Workers()
        for name in names:
            timeout = 12.0 if name == "birch" else None
            workers.register(name, self._plain if name == PLAIN else self._handler, timeout=timeout)
        return workers

    async def _handler(self, job: RunningJob[Any]) -> None:
        how = behaviour(self._seed, job.data["marker"], job.attempt)
        write = partial(self._played.write, job.scheduler.id, job=job.id, attempt=job.attempt)
        write(what="start", detail=(job.fail_count, job.data["marker"], job.job.rescues, job.job.internals.rev))
        ends = "returned"
        try:
            try:
                for what, seconds in how.steps:
                    await self._step(job, what, seconds)
            except trio.Cancelled:
                ends = f"cancelled {job.cancel_reason}"
                await self._when_cancelled(job, how)
                ends = "returned"
                return
            if how.end != "return":
                await self._end(job, how)
        except trio.Cancelled:
            ends = f"cancelled {job.cancel_reason}"
            raise
        except BaseException as error:
            ends = f"raised {type(error).__name__}"
            raise
        finally:
            write(what="end", detail=ends)

    async def _step(self, job: RunningJob[Any], what: str, seconds: float) -> None:
        match what:
            case "sleep":
                await trio.sleep(seconds)
            case "save":
                await job.save({"at": job.attempt})
            case "spawn" if self.spawn:
                await self._clients.enqueue(job.scheduler, "enqueue", job.name, Random(0))

    async def _end(self, job: RunningJob[Any], how: Behaviour) -> None:
        match how.end:
            case "raise":
                raise ValueError("as it was drawn")
            case "retry":
                raise Retry("later", after=3)
            case "snooze":
                raise Snooze(after=how.clean_up % 7)
            case "discard":
                raise Discard("no use")
            case "crash":
                self._kill(job.scheduler)
                await trio.sleep_forever()

    async def _when_cancelled(self, job: RunningJob[Any], how: Behaviour) -> None:
        """Raises, or swallows the cancellation."""
        if how.when_cancelled == "clean up":
            with job.cleanup(how.clean_up):
                await trio.sleep(how.clean_up / 2)
                await job.save({"cleaned up by": job.attempt})
                await trio.sleep(how.clean_up / 2)
        if how.when_cancelled == "raise":
            raise ValueError("instead of ending")
        if how.when_cancelled != "return":
            await trio.sleep_forever()

    def _plain(self, job: RunningJob[Any]) -> None:
        job.from_thread(self._handler, job)
