"""How the end is asked for (`Stop`), and what a bug in one of our own loops or callbacks causes: the end, in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from ..error_types import ClientClosedError
from ..foreign_errors import is_a
from ..log import exc_info_of, logger_of
from ..safe_text import name_of
from .progress import Progress

logger = logger_of("engine")


class Stop:
    """How the end was asked for; `shutdown` carries it out. A drain may become a cut, and never the reverse.

    Attributes:
        cause: Why the engine ends, in words: the first cause that was given.
        crashes: What the engine raises when it has ended; the first one decides.
    """

    def __init__(self) -> None:
        self.cause = ""
        self.draining = trio.Event()
        self.cutting = trio.Event()
        self.crashes: list[BaseException] = []

    def drain(self, cause: str = "drain() was called") -> None:
        """Asks for a drain: nothing new starts, and what runs may end by itself."""
        self.cause = self.cause or cause
        self.draining.set()

    def cut(self, cause: str = "it was cancelled") -> None:
        """Asks for a cut: what runs is cancelled too."""
        self.cause = self.cause or cause
        self.draining.set()
        self.cutting.set()

    def end_with(self, error: Exception) -> None:
        """Ends in order, as a drain does, and raises this when it has ended, if it is the first."""
        if not self.crashes:
            self.crashes.append(error)
        self.drain(str(error))

    def crash(self, error: BaseException) -> None:
        """Asks for a cut because of this error, which is raised when the engine has ended."""
        # All loops fail as soon as the client is closed: the first one says it, and a group of them would say no more.
        if not (is_a(error, ClientClosedError) and any(is_a(one, ClientClosedError) for one in self.crashes)):
            self.crashes.append(error)
        self.cut(f"it crashed with {name_of(error)}")


def cause_of(error: BaseException, where: str = "") -> str:
    """What ended some code, in words for the log. `where` is appended to an error."""
    if is_a(error, trio.Cancelled):
        return "it was cancelled"
    return "it was interrupted" if is_a(error, KeyboardInterrupt) else f"{name_of(error)} was raised{where}"


def end_for_bug(stop: Stop, what: str, bug: BaseException) -> None:
    """Logs a bug of ours, of the source or of the observer, and ends the engine in order."""
    logger.error("%s; shutting down", what, exc_info=exc_info_of(bug))
    stop.crash(bug)


# Protected from Ctrl-C, and with it all that it calls, because tasks do not inherit the protection: a Ctrl-C between
# the claim of a job and the start of its run would strand the job. Handlers are not protected (see the scheduler's
# job_run).
@trio.lowlevel.enable_ki_protection
async def guard(
    stop: Stop,
    loop: Callable[[], Awaitable[None]],
    progress: Progress | None = None,
    ended: Callable[[], object] | None = None,
) -> None:
    """Runs a loop, and then calls `ended`. Its crash ends the engine in order, and does not leave this function."""
    try:
        await loop()
    except Exception as error:  # noqa: BLE001  # A bug, or the end of what all loops need.
        # Raised on into the nursery, a bug in one loop would cancel its siblings. The settler is one of them: every
        # running job would be stranded by a bug in any other loop.
        _log_crash(stop, getattr(loop, "__qualname__", loop), error)
        if progress is not None:
            progress.crash(error)
        stop.crash(error)
    finally:
        if progress is not None:
            progress.end()
    if ended is not None:
        ended()


def _log_crash(stop: Stop, loop: object, error: Exception) -> None:
    """Log a bug with its traceback. A client that the program closed is not a bug, and gets one line."""
    if not is_a(error, ClientClosedError):
        logger.error("%s crashed; shutting down", loop, exc_info=exc_info_of(error))
    elif not any(is_a(one, ClientClosedError) for one in stop.crashes):
        logger.error("%s; shutting down", error)


@trio.lowlevel.enable_ki_protection
async def guard_all(stop: Stop, calls: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Makes these calls at the same time, each guarded, and returns when the last one has ended."""
    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(guard, stop, call)
