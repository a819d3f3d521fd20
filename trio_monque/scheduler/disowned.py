"""Claims whose answer was lost and that nobody here holds: they may have been applied, or may be yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..errors import MonqueConnectionError
from ..jobs.fences import ClaimStamp
from ..store import claiming
from ..store.connection import JobCollection
from ..store.types import ObjectId


@dataclass(frozen=True, slots=True)
class _Disowned:
    """Whatever bears the stamp is given back, but what is known to be held; until that moment on trio's clock."""

    until: float
    held: Sequence[ObjectId]


class DisownedClaims:
    """Given back whenever they turn up, for one lease; then a rescuer's observation is over, too."""

    def __init__(self, jobs: JobCollection) -> None:
        self._jobs = jobs
        self._claims: dict[ClaimStamp, _Disowned] = {}

    def __bool__(self) -> bool:
        return bool(self._claims)

    def add(self, stamp: ClaimStamp, held: Sequence[ObjectId], until: float) -> None:
        """Of what bears the stamp, only these are held."""
        self._claims[stamp] = _Disowned(until, held)

    def give_back(self, now: datetime, moment: float) -> int:
        """In a thread, two at once perhaps. How many had been applied since, at that moment on trio's clock.

        One that fails comes last the next time: it must not stand in the way of the others.
        """
        given_back = 0
        for stamp, disowned in list(self._claims.items()):
            try:
                given_back += claiming.release_all(self._jobs, stamp, now, but=disowned.held)
            except MonqueConnectionError:
                if self._claims.pop(stamp, None) is not None:
                    self._claims[stamp] = disowned
                raise
            if moment > disowned.until:
                self._claims.pop(stamp, None)
        return given_back
