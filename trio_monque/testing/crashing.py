"""A scheduler that dies as a killed process does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..scheduler.scheduler_client import SchedulerClient
from ..store.types import ConnectionFailure

T = TypeVar("T")


class _Dead:
    """Takes every command of a scheduler that is no more."""

    def takes(self, purpose: str) -> bool:
        return True

    def befall(self, call: Callable[[], T]) -> T:
        raise ConnectionFailure("the scheduler has crashed, as its test said")


async def crash(scheduler: SchedulerClient) -> None:
    """Ends a scheduler as a kill would: nothing is settled, nothing given back; returns when it has ended.

    Its jobs stay `processing` under its claims. What it had sent before may still be applied. Handlers
    are cancelled, as a task cannot be made to vanish: their clean-ups run without their shields, and
    whatever they want of the database through this scheduler fails. A plain handler runs on in its thread.
    """
    scheduler._context.jobs.interference.append(_Dead())
    scheduler._engine.die()
    await scheduler.wait_drained()
