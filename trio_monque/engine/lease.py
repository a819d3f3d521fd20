"""The lease arithmetic. Pure: moments are on the holder's monotonic clock, in seconds.

A holder that cannot renew its claim cancels its own run before the lease ends (self-fencing). The race: the holder goes
on with its run while another instance takes the claim, because each computes another end of the lease. Neither can read
the other's clock, and neither knows when the server applied a renewal.

- The holder counts a renewal as valid from the moment at which it was *sent*: the server applied it later, if at all.
- An observer counts three intervals from *after* the answer that first showed the renewal, which was applied before.
- So the three intervals of the holder are over before those of any observer, and no wall clock plays a part.
- A sixth of an interval is left for monotonic clocks of different speed: one may gain 1 s on the other in 17 s.
- So the run must be over after 17 sixths. It is cancelled up to half an interval earlier, to clean up: the next holder
  may start right after the lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ..options_and_defaults import LEASE_IN_BEATS


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How an instance renews its claims, and when its runs must end without a renewal. In seconds.

    Attributes:
        heartbeat_interval: From one renewal to the next; a lease is three of them.
        cleanup_timeout: How long a cancelled run may clean up, if its lease lasts as long.
    """

    heartbeat_interval: float
    cleanup_timeout: float

    # Computed once, because every run asks for both.
    _until_cleaned_up: float = field(init=False, repr=False, compare=False)
    _until_cancelled: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # For monotonic clocks of different speed, see above. Only here: all other moments follow from these two.
        margin = self.heartbeat_interval / 6
        cleaned_up = LEASE_IN_BEATS * self.heartbeat_interval - margin
        object.__setattr__(self, "_until_cleaned_up", cleaned_up)
        cancelled = cleaned_up - min(self.cleanup_timeout, self.heartbeat_interval / 2)
        object.__setattr__(self, "_until_cancelled", cancelled)

    def cleaned_up_by(self, sent: float) -> float:
        """When the clean-up of a run must be over if its last renewal was sent then."""
        return sent + self._until_cleaned_up

    def renew_by(self, sent: float) -> float:
        """When a claim must be renewed at the latest that was not renewed on purpose since then."""
        # A third of an interval for the answer, and for another attempt if the first one fails.
        return self.lease_deadline(sent) - self.heartbeat_interval / 3

    def lease_deadline(self, sent: float) -> float:
        """When a run is cancelled if its last renewal was sent then. A claim that is answered later starts no run."""
        return sent + self._until_cancelled


class Beats:
    """The moments that heartbeats write: each later than the one before, also after the server's clock steps back."""

    def __init__(self) -> None:
        self._last: datetime | None = None

    def claimed(self, moment: datetime) -> None:
        """A new claim has this moment as its first heartbeat."""
        self._last = moment if self._last is None else max(self._last, moment)

    def next(self, now: datetime) -> datetime:
        """What the next renewal writes, at that time of the server."""
        # Observers see only whether the moment has changed, and a write never makes it earlier. Without the
        # millisecond, a renewal after the server's clock stepped back would not change it: its holder would look dead.
        self._last = now if self._last is None else max(now, self._last + timedelta(milliseconds=1))
        return self._last
