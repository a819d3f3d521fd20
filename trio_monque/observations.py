"""Decides whether a claim is dead: it is if one observer saw no change of it for a whole lease. Pure.

Moments are on the observer's own monotonic clock, in seconds. The dates in a claim are compared for equality only, so
an instance with a wrong clock neither loses its claims nor keeps dead ones. What would go wrong without each rule:

- A change of the mark starts the lease anew. A holds a claim, ends it, and claims the same job again between two looks.
  If the observer compared only the job, it would add up the silences of two claims, and take a live one.
- The lease counts from the moment at which the look's answer has arrived. The holder may renew the claim while the
  answer is on its way. Counted from an earlier moment, that renewal would not last for a whole lease.
- A claim that a look does not show has ended, and is forgotten. Otherwise the table would grow without end, and a
  rescue would be tried for a claim that does not exist.
- At its start, an observer has seen nothing yet. Then it also accepts `is_stale`, which the caller sets if the claim's
  own dates prove the death. Otherwise the jobs of a dead fleet would wait for one more lease.
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
        claim: What to rescue if the claim turns out to be dead.
        key: The claimed thing: a job's id, for example.
        mark: Identifies the claim and the last sign of life of its holder; any renewal changes it.
        lease: Seconds without a change after which the claim is dead.
        protected_for: Seconds from this look on in which it must not be taken, however dead; infinity for never taken.
        is_stale: It is dead by its own dates. At the start of an observer, that is enough.
    """

    claim: ClaimT
    key: Hashable
    mark: Hashable
    lease: float
    protected_for: float = -math.inf
    is_stale: bool = False


@dataclass(frozen=True, slots=True)
class _Observation(Generic[ClaimT]):
    """What was seen last, since when it has not changed, and from when on it may be taken."""

    seen: Sighting[ClaimT]
    since: float
    due: float


class Observations(Generic[ClaimT]):
    """What one observer has seen of the claims of other instances."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Observation[ClaimT]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def update(self, sightings: Iterable[Sighting[ClaimT]], answered: float, *, at_start: bool = False) -> None:
        """Records a whole look. Claims that it did not show have ended, and are forgotten.

        `answered` is the moment after the look's answer arrived; see the top of this file.
        """
        before, self._known = self._known, {}
        for seen in sightings:
            if seen.protected_for == math.inf:
                continue  # It must never be taken: there is nothing to observe.
            known = before.get(seen.key)
            if known is not None and known.seen.mark == seen.mark:
                since = known.since
            elif at_start and seen.is_stale and seen.protected_for <= 0:
                since = -math.inf  # Dead by its own dates: due at once.
            else:
                since = answered
            due = max(since + seen.lease, answered + seen.protected_for)
            self._known[seen.key] = _Observation(seen, since, due)

    def due(self, now: float, most: int) -> Sequence[Sighting[ClaimT]]:
        """The claims that may be taken now, at most `most`, in the order in which they fell due."""
        due = sorted((one for one in self._known.values() if one.due <= now), key=lambda one: one.due)
        return [one.seen for one in due[:most]]

    @property
    def next_due(self) -> float:
        """When the next claim may be taken if it does not change until then; infinity if there is none."""
        return min((one.due for one in self._known.values()), default=math.inf)

    @property
    def watched_from(self) -> float:
        """From when on a sign of life matters: one lease before a claim may be taken; infinity if there is none."""
        return min((one.due - one.seen.lease for one in self._known.values()), default=math.inf)

    @property
    def shortest_lease(self) -> float:
        """The shortest lease of the known claims; infinity if there is none."""
        return min((one.seen.lease for one in self._known.values()), default=math.inf)

    def forget(self, sightings: Collection[Sighting[ClaimT]]) -> None:
        """Forgets claims that were taken, or had changed. If a look shows one again, its lease starts anew."""
        for seen in sightings:
            self._known.pop(seen.key, None)
