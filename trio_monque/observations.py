"""Whether a claim is dead: it is when nothing of it has changed for a whole lease, as one observer saw it. Pure.

Moments are on the observer's own monotonic clock, in seconds. Nobody's wall clock plays a part: the dates in a
claim are compared for being the same, and not with any time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

ClaimT = TypeVar("ClaimT")


@dataclass(frozen=True, slots=True)
class Sighting(Generic[ClaimT]):
    """A claim as one look showed it.

    Attributes:
        claim: What is to be rescued if it turns out to be dead.
        key: What it is a claim on.
        mark: Which claim it is, and the last sign of life of its holder; any renewal changes it.
        lease: Seconds without a change after which it is dead.
        protected_for: Seconds from this look on in which it is not taken, however dead; infinity for never.
        is_stale: Its own dates say that it is dead. At an observer's start, that is enough.
    """

    claim: ClaimT
    key: Hashable
    mark: Hashable
    lease: float
    protected_for: float = -math.inf
    is_stale: bool = False


@dataclass(frozen=True, slots=True)
class _Observation(Generic[ClaimT]):
    """What was seen last, since when it looks so, and from when on it may be taken."""

    seen: Sighting[ClaimT]
    since: float
    due: float


class Observations(Generic[ClaimT]):
    """What one observer knows of the claims of others."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Observation[ClaimT]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def update(self, sightings: Iterable[Sighting[ClaimT]], answered: float, *, at_start: bool = False) -> None:
        """Takes in a look, all of it: what it did not show is no claim any more.

        `answered` is when the look's answer had come. Counted from earlier, a renewal that was sent while the
        answer was on its way would not have its whole lease.
        """
        before, self._known = self._known, {}
        for seen in sightings:
            if seen.protected_for == math.inf:
                continue
            known = before.get(seen.key)
            if known is not None and known.seen.mark == seen.mark:
                since = known.since
            elif at_start and seen.is_stale and seen.protected_for <= 0:
                since = -math.inf
            else:
                since = answered
            due = max(since + seen.lease, answered + seen.protected_for)
            self._known[seen.key] = _Observation(seen, since, due)

    def due(self, now: float, most: int) -> Sequence[Sighting[ClaimT]]:
        """Those that may be taken now, at most so many, in the order in which they fell due."""
        due = sorted((one for one in self._known.values() if one.due <= now), key=lambda one: one.due)
        return [one.seen for one in due[:most]]

    @property
    def next_due(self) -> float:
        """When the next of them may be taken, if nothing of it changes until then; infinity for never."""
        return min((one.due for one in self._known.values()), default=math.inf)

    @property
    def watched_from(self) -> float:
        """From when on a sign of life of one of them is worth seeing: a lease before it may be taken."""
        return min((one.due - one.seen.lease for one in self._known.values()), default=math.inf)

    @property
    def shortest_lease(self) -> float:
        """Of those that are known; infinity where none is."""
        return min((one.seen.lease for one in self._known.values()), default=math.inf)

    def forget(self, sightings: Collection[Sighting[ClaimT]]) -> None:
        """These were taken, or had changed: seen again, they are observed anew."""
        for seen in sightings:
            self._known.pop(seen.key, None)
