"""How long an engine waits for what, and how much it takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Times in seconds; see the options of the same names.

    Attributes:
        is_announced: Whether this process announces what happens to the items. Without it the engine polls and looks
            for dead claims in virtual time, too.
        rescues: Dead claims are taken away.
        stuck_after: How late a loop may be, and still be healthy.
    """

    poll_interval: float
    heartbeat_interval: float
    shutdown_timeout: float
    cleanup_timeout: float
    concurrency: int | None
    is_announced: bool = True
    safety_poll_interval: float = 30.0
    rescues: bool = True
    stuck_after: float = 30.0
