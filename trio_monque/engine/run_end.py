"""How a run ended, and why it was cancelled."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class CancelReason(StrEnum):
    """Why a run is cancelled."""

    LOST = "lost"
    """The claim is gone, or was not renewed in time: another instance may have it from now on."""
    USER = "user"
    """A user asked for it."""
    TIMEOUT = "timeout"
    """It took longer than it may."""
    SHUTDOWN = "shutdown"
    """The scheduler leaves."""


# From the weakest to the strongest; LOST is stronger than all of these.
PRECEDENCE: Final = (CancelReason.SHUTDOWN, CancelReason.TIMEOUT, CancelReason.USER)


class RunEnd(NamedTuple):
    """How a run ended.

    Attributes:
        error: What the handler raised; None where it returned, or was cancelled and raised nothing else.
        value: What it returned.
        cancelled: Whether the cancellation ended it; a handler may also have returned or raised in spite of one.
        reason: Why it was cancelled, if it was.
        duration: Seconds.
    """

    error: BaseException | None
    value: object
    cancelled: bool
    reason: CancelReason | None
    duration: float

    @classmethod
    def by_cancellation(cls, reason: CancelReason | None, duration: float = 0.0) -> RunEnd:
        """The end of a run whose handler neither returned nor raised: it may never have been called."""
        return cls(None, None, cancelled=True, reason=reason, duration=duration)
