"""How long an engine waits for what, and how much it takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Times in seconds; see the options of the same names.

    Attributes:
        rests: Nothing is done only because time has passed, no poll and no heartbeat that renews nothing: for virtual
            time, in which a month passes at once, and in which every change is announced.
        hears_others: What others do is announced while it rests. Otherwise it polls and looks then, too.
        rescues: Dead claims are taken away.
        stuck_after: How late a loop may be, and still be healthy.
    """

    poll_interval: float
    heartbeat_interval: float
    shutdown_timeout: float
    cleanup_timeout: float
    concurrency: int | None
    rests: bool
    hears_others: bool = True
    safety_poll_interval: float = 30.0
    rescues: bool = True
    stuck_after: float = 30.0
