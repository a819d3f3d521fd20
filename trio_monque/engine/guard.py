"""How the end is asked for, and what a crash of one of our own loops means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from ..log import logger_of
from .progress import Progress

logger = logger_of("engine")


class Stop:
    """How the end was asked for. A drain may turn into a cut; nothing turns back.

    Attributes:
        cause: Why it ends, in words: the first reason that was given.
    """

    def __init__(self) -> None:
        self.cause = ""
        self.draining = trio.Event()
        self.cutting = trio.Event()
        self.crashes: list[BaseException] = []

    def drain(self, cause: str = "drain() was called") -> None:
        """Nothing new is started; what runs may end."""
        self.cause = self.cause or cause
        self.draining.set()

    def cut(self, cause: str = "it was cancelled") -> None:
        """What runs is cancelled, too."""
        self.cause = self.cause or cause
        self.draining.set()
        self.cutting.set()

    def end_with(self, error: Exception) -> None:
        """Ends in order, as a drain does, and raises this when it has ended, if it is the first."""
        if not self.crashes:
            self.crashes.append(error)
        self.drain(str(error))

    def crash(self, error: BaseException) -> None:
        """Ends everything in order, and is raised when it has ended."""
        self.crashes.append(error)
        self.cut(f"it crashed with {type(error).__name__}")


def cause_of(error: BaseException, where: str = "") -> str:
    """What ended the code around it, in words for the log; `where` that was, for an error."""
    if isinstance(error, trio.Cancelled):
        return "it was cancelled"
    return "it was interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__} was raised{where}"


# Protected, and with it all that it calls: tasks do not inherit protection, and a Ctrl-C between the claim of a
# job and the start of its run would strand it. Handlers are called without (see the scheduler's job_run).
@trio.lowlevel.enable_ki_protection
async def guard(stop: Stop, loop: Callable[[], Awaitable[None]], progress: Progress | None = None) -> None:
    """Runs a loop; a crash ends the scheduler in order.

    It must not cancel the loop's siblings, as a plain nursery would: the settler is one, and every job
    would be stranded by a bug in the pruner.
    """
    try:
        await loop()
    except Exception as error:
        logger.exception("%s crashed: the scheduler ends", getattr(loop, "__qualname__", loop))
        if progress is not None:
            progress.crash(error)
        stop.crash(error)
    finally:
        if progress is not None:
            progress.end()


@trio.lowlevel.enable_ki_protection
async def guard_all(stop: Stop, calls: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Makes these calls at once, each of them guarded, and returns when the last one has ended."""
    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(guard, stop, call)
