"""Health: the answer of `health()` of a scheduler, and of claims on a collection."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..clock import to_milliseconds
from ..engine.vitals import Examined, LoopExamined


@dataclass(frozen=True, kw_only=True)
class LoopHealth:
    """The health of one loop of a scheduler or of claims.

    Moments are UTC by the server's clock; durations are in seconds.

    Attributes:
        name: claimer, waker, settler, heartbeat, orphan releaser (releases claims whose answer was lost), reaper;
            and those beside them, such as the pruner (retention), the follow-ups and the start limits of a scheduler,
            or the filter watcher of claims.
        healthy: Whether the loop makes progress, or waits on purpose.
        reason: Why it is not healthy; None if it is.
        last_progress: When it last made progress; the start counts.
        last_progress_age: How long ago that was. It grows while the loop waits on purpose.
        last_error: The last error that it met, also if it has recovered; None if there was none.
        last_error_at: When it met that error.
        lag: How late it is: the time since its next planned action was due, or since its first attempt that has not
            succeeded yet. 0 while it waits on purpose.
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
    """The health of a scheduler, or of claims on a collection, at one moment.

    Moments are UTC by the server's clock; durations are in seconds.

    Attributes:
        healthy: Whether it works. False before it has started and after it has ended.
        reasons: Why it is not healthy, one sentence each, for operators; empty if it is healthy.
        warnings: What an operator must repair although the scheduler is healthy: plain handlers that go on for more
            than a second after their run was cancelled, and hold their slots; the last ten schedules that ended because
            their stored cron expression or time zone is invalid; and what this machine lacks, so that jobs wait for
            another one. Claims have none.
        draining: It shuts down and claims nothing more. This alone is healthy.
        loops: The loops that have started, in the order of their start.
        event_loop_lag: How long the event loop has not answered the watchdog, or how long its last answer took. None in
            virtual time, where the watchdog does not run.
        application_loop_lag: In a program on asyncio: the same for its event loop, which runs the handlers. Otherwise
            None.
        broken: The number of documents that this instance has met and skips. This alone is healthy, as it works on all
            others. For a scheduler: broken documents, pending jobs that have an owner, and jobs on which the server
            refuses every claim, which `get_broken_documents` lists; and jobs that only another machine can run. For
            claims: documents in which the server refuses a
            lock, and those whose lock or `_id` is unreadable. The log names them. An unreadable one counts until the
            claims end, also after its repair.
        last_database_contact: When the database last answered a loop; None before the start.
        last_database_contact_age: How long ago that was. An idle scheduler in virtual time sends no commands.
    """

    healthy: bool
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    draining: bool
    loops: tuple[LoopHealth, ...]
    event_loop_lag: float | None
    application_loop_lag: float | None = None
    broken: int
    last_database_contact: datetime | None
    last_database_contact_age: float | None


def health_of(found: Examined, now: datetime, *, broken: int, warnings: tuple[str, ...] = ()) -> Health:
    """Return the answer of `health()`; `now` is the server's time of the examination."""
    has_begun = found.answered_at > -math.inf
    return Health(
        healthy=not found.reasons,
        reasons=found.reasons,
        warnings=(*_about_threads(found.overdue_threads), *warnings),
        draining=found.is_draining,
        loops=tuple(_loop_health(loop, found.now, now) for loop in found.loops),
        event_loop_lag=found.event_loop_lag,
        application_loop_lag=found.handler_loop_lag,
        broken=broken,
        last_database_contact=_moment(found.answered_at, found.now, now) if has_begun else None,
        last_database_contact_age=found.now - found.answered_at if has_begun else None,
    )


def _about_threads(number: int) -> tuple[str, ...]:
    if number == 0:
        return ()
    return (f"plain handlers are still running although their runs were cancelled; slots occupied: {number}",)


def _loop_health(loop: LoopExamined, found_at: float, now: datetime) -> LoopHealth:
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
