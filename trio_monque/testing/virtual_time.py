"""Virtual time: start it, advance it, and wait until everything that is due at a moment has happened."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import trio
import trio.testing

from ..checks import check_seconds
from ..client.local_wakeups import LocalScheduler, local_schedulers, wake_all_schedulers
from ..clock import begin_virtual_time, skipped_time, virtual_time, wall_clock
from ..error_types import InvalidOptionError, MonqueError
from ..scheduler.events_and_report import SchedulerReport
from ..scheduler.scheduler import Scheduler
from ..store.jobs.ended_jobs import are_live
from ..threads_and_frozen_time import clock_freeze
from .stalled_time import raising_on_stall

LONGEST_DRAIN = 86400.0
"""Seconds after which `drain` gives up by default."""

SECONDS_FOR_NEWS = 0.1
"""Until a parent that waits for children has acted on the end of one, once its client knows of it."""


def start_virtual_time(moment: datetime) -> None:
    """Set the time at which virtual time begins, before the first client or scheduler of the run asks for it.

    Otherwise virtual time begins at the real time. All clients and schedulers of a run share one timeline.

    Args:
        moment: Timezone-aware; kept to the millisecond.

    Raises:
        MonqueError: The run has no virtual clock, or its time has begun already with another moment.
        InvalidOptionError: `moment` is naive.
    """
    if moment.tzinfo is None:
        raise InvalidOptionError("moment", moment, "must be timezone-aware, for example datetime(..., tzinfo=UTC)")
    if not trio.lowlevel.in_trio_run():
        raise MonqueError(
            "start_virtual_time needs a test on trio, with autojump_clock; on asyncio, time is real, and "
            "open_test_scheduler(workers, starts_at=moment) moves what is due"
        )
    begin_virtual_time(moment)


def now() -> datetime:
    """The time of this run as its jobs see it, in UTC.

    It is virtual under a virtual clock. Under a real one, it is moved by what `drain(until=...)` has skipped.
    """
    virtual = virtual_time()
    return wall_clock() + timedelta(seconds=skipped_time.seconds) if virtual is None else virtual.now()


async def quiesce() -> None:
    """Return when everything has happened that can happen without time passing.

    `trio.testing.wait_all_tasks_blocked` alone returns while threads talk to the database. `quiesce` does
    not advance the clock: sleeping tasks go on sleeping.

    Raises:
        MonqueError: The test does not run on trio.
    """
    if not trio.lowlevel.in_trio_task():
        raise MonqueError("quiesce needs a test on trio; on asyncio, drain(scheduler) runs all jobs that are due")
    with raising_on_stall("quiesce"):
        await _quiesce()


async def _quiesce() -> None:
    freeze = clock_freeze()
    while True:
        await trio.testing.wait_all_tasks_blocked()
        if not freeze.freezing:
            return
        await freeze.wait_thawed()


async def advance(seconds: float) -> None:
    """Let `seconds` of virtual time pass, with everything that is due in them, the last moment included.

    It sleeps, and the clock stops at every timer on the way: it skips no heartbeat, poll or deadline, as
    `MockClock.jump` would. First, every scheduler of the run looks for work, which also finds jobs that
    other programs have written.

    Raises:
        MonqueError: The run has no virtual clock.
    """
    check_seconds("seconds", seconds, zero=True)
    if virtual_time() is None:
        raise MonqueError(
            "only virtual time can be advanced: use a MockClock, for example pytest-trio's autojump_clock. Under a "
            "real clock, also on asyncio, drain(scheduler, until=now() + timedelta(hours=1)) runs what is due by then"
        )
    with raising_on_stall(f"advance {seconds:g} s"):
        await _settle_down()
        with clock_freeze().jumping():
            await trio.sleep(seconds)
            await _quiesce()


async def drain(
    scheduler: Scheduler, *, until: datetime | None = None, within: float = LONGEST_DRAIN
) -> SchedulerReport:
    """Run due jobs until none is due and none runs; on trio, asyncio or uvloop.

    Returns what this scheduler has done since it was opened, or since the last `drain`.

    Jobs that are due later, a retry for example, stay pending. A parent that waits for such children goes on waiting,
    and does not count as running, if the tasks that opened its blocks wait. Time passes only while running handlers
    sleep.

    Args:
        scheduler: It decides which jobs count as due: those that it has workers for. Running jobs count in
            all schedulers of this run that work on the same collection.
        until: First moves to this time, and runs what is due on the way, each job at its due date. A virtual clock is
            advanced. Under a real clock, also on asyncio, the time by which jobs are due jumps from one due date to the
            next, for all clients of this process, until the last test scheduler of the process has ended; sleeps,
            timeouts and leases stay in real time.
        within: Seconds after which it gives up waiting for handlers.

    Raises:
        AssertionError: A job still runs after `within`, or is due and not claimed; or virtual time stands
            still (see "Testing your jobs").
        InvalidOptionError: `until` has passed, or is naive.
        MonqueError: The scheduler has ended.
    """
    return await scheduler._parts.loop.engine.call(_drained, scheduler, until, within)


async def _drained(scheduler: Scheduler, until: datetime | None, within: float) -> SchedulerReport:
    left = None if until is None else seconds_until("until", until)
    if left is not None and virtual_time() is not None:
        await advance(left)
        until = None
    with raising_on_stall("drain"), clock_freeze().jumping(), trio.move_on_after(within) as limit:
        await _drain(scheduler)
        if until is not None:
            await _skip_to(until, scheduler)
    if limit.cancelled_caught:
        running = ", ".join(str(job) for job in scheduler._parts.engine.unfinished) or "jobs of other schedulers"
        raise AssertionError(f"not drained within {within:g} s: {running} still run. Do they wait for the test?")
    before, after = _reported.get(scheduler, SchedulerReport()), scheduler._parts.reporter.so_far()
    _reported[scheduler] = after
    return SchedulerReport(
        completed=after.completed - before.completed,
        failed=after.failed - before.failed,
        released=after.released - before.released,
    )


# What the last drain of each scheduler had counted.
_reported: WeakKeyDictionary[Scheduler, SchedulerReport] = WeakKeyDictionary()


def seconds_until(option: str, moment: datetime) -> float:
    """How far the moment of this option is ahead.

    Raises:
        InvalidOptionError: It has passed, or is naive.
    """
    if moment.tzinfo is None:
        raise InvalidOptionError(option, moment, "must be timezone-aware, for example datetime(..., tzinfo=UTC)")
    left = (moment - now()).total_seconds()
    if left < 0:
        raise InvalidOptionError(option, moment, f"has passed: it is {now()}")
    return left


async def _skip_to(until: datetime, scheduler: Scheduler) -> None:
    """Under a real clock: move due dates to the present, one after the other, and run what is due at each."""
    clock = scheduler._context.clock
    while True:
        due = await scheduler._parts.sources.claims.earliest_pending()
        moment = until if due is None else min(due, until)
        # Whole milliseconds, as dates are stored: a part of one less, and the job would not be due yet.
        skipped_time.seconds += max(0.0, math.ceil(clock.seconds_until(moment) * 1000) / 1000)
        await _drain(scheduler)
        if moment == until:
            return


async def _drain(scheduler: Scheduler) -> None:
    claims = scheduler._parts.sources.claims
    while True:
        if scheduler._parts.engine.stop.draining.is_set():
            raise MonqueError("the scheduler is shutting down or has ended: it claims no more jobs")
        await _quiesce()
        if await _has_waited_for_a_busy_one(scheduler):
            continue
        await _settle_down()
        if not _are_idle(scheduler):
            continue
        due = await claims.earliest_pending()
        if due is None or due > scheduler._context.now():
            return
        await _settle_down()
        if _are_idle(scheduler) and await claims.earliest_pending() == due:
            raise AssertionError(f"a job that is due since {due} is not claimed; see the log for what keeps it")


def _fleet(scheduler: Scheduler) -> Sequence[LocalScheduler]:
    return local_schedulers(scheduler._context.jobs.collection.full_name)


def _are_idle(scheduler: Scheduler) -> bool:
    return all(one.is_idle() or one.waits_for() for one in _fleet(scheduler))


async def _has_waited_for_a_busy_one(scheduler: Scheduler) -> bool:
    """Whether one was busy; returns when something may have changed there."""
    for one in _fleet(scheduler):
        if one.is_idle():
            continue
        if children := one.waits_for():
            if await _are_live(scheduler, children) and one.waits_for() == children:
                continue
            # The news of an end is on its way, and nothing here reports that it has come.
            await trio.sleep(SECONDS_FOR_NEWS)
        else:
            await one.wait_changed()
        return True
    return False


async def _are_live(scheduler: Scheduler, children: Set[Any]) -> bool:
    """Whether all these children are pending or run, and what their parents know of the others has had its effects."""
    if virtual_time() is None:  # In virtual time, all effects have happened that take no time.
        await trio.sleep(SECONDS_FOR_NEWS)
    return await scheduler._db_threads.call(partial(are_live, scheduler._context.jobs, children))


async def _settle_down() -> None:
    wake_all_schedulers()
    await _quiesce()
