"""Claims whose answer was lost and that nobody here holds: they may have been applied, or may be yet."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..errors import MonqueConnectionError

StampT = TypeVar("StampT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Disowned:
    """Whatever bears the stamp is given back, but what is known to be held; until that moment on trio's clock."""

    until: float
    held: Sequence[Any]


class DisownedClaims(Generic[StampT]):
    """Given back whenever they turn up, for one lease; then a rescuer's observation is over, too.

    Args:
        release: Gives back what bears the stamp, but these; returns how many there were. Blocking.
    """

    def __init__(self, release: Callable[[StampT, Sequence[Any]], int]) -> None:
        self._release = release
        self._claims: dict[StampT, _Disowned] = {}

    def __bool__(self) -> bool:
        return bool(self._claims)

    def add(self, stamp: StampT, held: Sequence[Any], until: float) -> None:
        """Of what bears the stamp, only these are held."""
        self._claims[stamp] = _Disowned(until, held)

    def give_back(self, moment: float) -> int:
        """In a thread, two at once perhaps. How many had been applied since, at that moment on trio's clock.

        One that fails comes last the next time: it must not stand in the way of the others.
        """
        given_back = 0
        for stamp, disowned in list(self._claims.items()):
            try:
                given_back += self._release(stamp, disowned.held)
            except MonqueConnectionError:
                if self._claims.pop(stamp, None) is not None:
                    self._claims[stamp] = disowned
                raise
            if moment > disowned.until:
                self._claims.pop(stamp, None)
        return given_back
