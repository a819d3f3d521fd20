"""The limits that follow from the options of every kind of work."""

from __future__ import annotations

from ..engine.engine_limits import EngineLimits
from ..options_and_defaults import HostOptions


def leased_timeout(options: HostOptions) -> float:
    """Return the timeout of commands that claim or renew: at most a heartbeat interval.

    A lease begins when such a command is sent, and lasts for three intervals. If no answer comes within the first, two
    are left for another attempt.
    """
    return min(options.operation_timeout, options.heartbeat_interval)


def engine_limits(options: HostOptions, *, concurrency: int | None, has_local_wakeups: bool = True) -> EngineLimits:
    """Return the limits of an engine. A kind of work may replace some of them.

    Args:
        options: The times.
        concurrency: How many runs may go on at once; None for no limit but that of each group.
        has_local_wakeups: See EngineLimits.
    """
    return EngineLimits(
        poll_interval=options.poll_interval,
        heartbeat_interval=options.heartbeat_interval,
        shutdown_timeout=options.shutdown_timeout,
        cleanup_timeout=options.cleanup_timeout,
        concurrency=concurrency,
        has_local_wakeups=has_local_wakeups,
        # A command may take the timeout twice if it is sent again. The heartbeat alone is late after one interval.
        stuck_after=max(2 * options.operation_timeout, options.heartbeat_interval),
    )
