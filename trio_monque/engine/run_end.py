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


class NotBegun(BaseException):  # Not an error, and `except Exception` in a middleware must not take it for one.
    """Raised in place of a call of the handler: by now it must not begin. See `Run.may_begin`."""


class RunEnd(NamedTuple):
    """How a run ended.

    Attributes:
        error: What the handler raised; None where it returned, or was cancelled and raised nothing else.
        value: What it returned.
        cancelled: Whether the cancellation ended it; a handler may also have returned or raised in spite of one.
        reason: Why it was cancelled, if it was.
        duration: Seconds.
        has_begun: Whether its handler was called.
    """

    error: BaseException | None
    value: object
    cancelled: bool
    reason: CancelReason | None
    duration: float
    has_begun: bool = True

    @property
    def has_succeeded(self) -> bool:
        """Whether the handler returned. A cancellation that it did not notice changes nothing."""
        return self.error is None and not self.cancelled

    @classmethod
    def by_cancellation(cls, reason: CancelReason | None, duration: float = 0.0, *, has_begun: bool = True) -> RunEnd:
        """The end of a run whose handler neither returned nor raised: it may never have been called."""
        return cls(None, None, cancelled=True, reason=reason, duration=duration, has_begun=has_begun)
