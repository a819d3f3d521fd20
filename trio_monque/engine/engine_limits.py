"""How long an engine waits, and how much it runs at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Times in seconds; see the options of the same names.

    Attributes:
        has_local_wakeups: Clients and engines of this trio run announce every change of an item to this engine.
            Without local wakeups, the engine polls and looks for dead claims in virtual time too.
        rescues: The engine takes dead claims away.
        stuck_after: How late a loop may be without being unhealthy.
    """

    poll_interval: float
    heartbeat_interval: float
    shutdown_timeout: float
    cleanup_timeout: float
    concurrency: int | None
    has_local_wakeups: bool = True
    safety_poll_interval: float = 30.0
    rescues: bool = True
    stuck_after: float = 30.0
