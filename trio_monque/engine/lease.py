"""The lease arithmetic. Pure: moments are on the holder's monotonic clock, in seconds.

A renewal is taken for valid from the moment at which it was *sent*, as nobody knows when the server
applied it; an observer counts three intervals from *after* the answer that first showed it. So the
holder's three intervals are over before the observer's, whatever the wall clocks say. A sixth of an
interval is left for clocks that run at different rates: one may gain 1 second on the other in 17.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..options import LEASE_IN_BEATS


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """What an instance's claims are renewed by. In seconds.

    Attributes:
        heartbeat_interval: From one renewal to the next; a lease is three of them.
        cleanup_timeout: How long a cancelled run may clean up, where its lease leaves so much.
    """

    heartbeat_interval: float
    cleanup_timeout: float

    @property
    def _margin(self) -> float:
        return self.heartbeat_interval / 6

    def cleaned_up_by(self, sent: float) -> float:
        """When the clean-up of a run must be over, unless its claim is renewed; from then on it may be taken."""
        return sent + LEASE_IN_BEATS * self.heartbeat_interval - self._margin

    def cancelled_at(self, sent: float) -> float:
        """When a run whose claim was not renewed since is cancelled; an answer that comes later starts nothing."""
        return self.cleaned_up_by(sent) - min(self.cleanup_timeout, self.heartbeat_interval / 2)
