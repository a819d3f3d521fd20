"""How a scheduler gets on: the answer of `Scheduler.health`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..clock import to_milliseconds
from ..engine.health import Examined, LoopExamined


@dataclass(frozen=True, kw_only=True)
class LoopHealth:
    """One of a scheduler's own loops. Moments are UTC by the server's clock, times are seconds.

    Attributes:
        name: claimer, waker, settler, heartbeat, orphan releaser (releases claims whose answer was lost), reaper;
            and those beside them, such as the pruner (retention).
        healthy: Whether it gets on. One that waits on purpose does.
        reason: Why not; None where it is healthy.
        last_progress: When it did something last, the start of the scheduler included.
        last_progress_age: How long ago that was. Grows while the loop waits on purpose.
        last_error: The last error that it met, also if it has got over it; None if there was none.
        last_error_at: When.
        lag: How late it is: since the act that it planned was due, or since it began the first attempt that has
            not succeeded. 0 while it waits on purpose.
    """

    name: str
    healthy: bool
    reason: str | None
    last_progress: datetime
    last_progress_age: float
    last_error: str | None
    last_error_at: datetime | None
    lag: float


@dataclass(frozen=True, kw_only=True)
class Health:
    """How a scheduler gets on, at one moment. Moments are UTC by the server's clock, times are seconds.

    Attributes:
        healthy: Whether it does what it is there for. Not before it has started, and not after it has ended.
        reasons: Why not, one sentence each, for an operator; empty where it is healthy.
        warnings: What needs an operator although the scheduler is healthy, and no restart would help: schedules that
            ended, as their stored line cannot be understood. The last ten.
        draining: It claims nothing more and ends. That alone is healthy.
        loops: Each loop that has begun, in the order of their beginning.
        event_loop_lag: How long the event loop has not answered the watchdog, or took to answer last. None in virtual
            time, where nobody asks.
        broken: Documents that this scheduler has met and passes over: broken documents, pending jobs that bear an
            owner, and jobs on which the server refuses every claim. `get_broken_documents` lists them. They alone are
            healthy: all other jobs run.
        last_database_contact: When the database last answered one of the loops; None before the start.
        last_database_contact_age: How long ago that was. An idle scheduler in virtual time asks nothing.
    """

    healthy: bool
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    draining: bool
    loops: tuple[LoopHealth, ...]
    event_loop_lag: float | None
    broken: int
    last_database_contact: datetime | None
    last_database_contact_age: float | None


def health_of(found: Examined, now: datetime, warnings: tuple[str, ...], broken: int) -> Health:
    """The answer of `Scheduler.health`: what its loops came to at that moment, by the server's time `now`."""
    has_begun = found.answered_at > -math.inf
    return Health(
        healthy=not found.reasons,
        reasons=found.reasons,
        warnings=warnings,
        draining=found.is_draining,
        loops=tuple(_told_loop(loop, found.now, now) for loop in found.loops),
        event_loop_lag=found.event_loop_lag,
        broken=broken,
        last_database_contact=_moment(found.answered_at, found.now, now) if has_begun else None,
        last_database_contact_age=found.now - found.answered_at if has_begun else None,
    )


def _told_loop(loop: LoopExamined, found_at: float, now: datetime) -> LoopHealth:
    return LoopHealth(
        name=loop.name,
        healthy=loop.complaint is None,
        reason=loop.complaint,
        last_progress=_moment(loop.progressed_at, found_at, now),
        last_progress_age=found_at - loop.progressed_at,
        last_error=None if loop.fault is None else loop.fault.text,
        last_error_at=None if loop.fault is None else _moment(loop.fault.at, found_at, now),
        lag=loop.lag,
    )


def _moment(at: float, found_at: float, now: datetime) -> datetime:
    return to_milliseconds(now - timedelta(seconds=found_at - at))
