"""The port: what the engine asks of whatever it runs. The only place where the two columns meet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Generic, Protocol, TypeVar

from ..observations import Sighting
from .run import Run
from .run_end import RunEnd

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")


# A claim takes a millisecond or two until it is sent. Where that begins earlier, it is sent when the item is due.
HEAD_START: Final = 0.003
"""Seconds before it is due from which on an item may be asked for by itself. Not in virtual time."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What can be started now.

    Attributes:
        total: How many in all.
        lanes: How many of each lane; a lane is what shares a concurrency limit.
        suspects: How many of them may be suspects.
        capacity: How many may run at once, of which these are free.
        afresh: Somebody told of something new: what was read ahead is not enough.
        withholds: Whether an item must not be claimed now, by its key: a run of it goes on here. See `Source.key_of`.
    """

    total: int
    lanes: Mapping[str, int]
    suspects: int = 1
    capacity: int = 0
    afresh: bool = True
    withholds: Callable[[Hashable], bool] = lambda key: False


@dataclass(frozen=True, slots=True)
class Tip:
    """One item that is known to be there: when it is due, it can be asked for by itself.

    Attributes:
        key: What the source knows it by.
        lane: Its lane.
    """

    key: Hashable
    lane: str


@dataclass(frozen=True, slots=True)
class Due:
    """When the next item is due.

    Attributes:
        moment: On trio's clock.
        tip: Which one that is, where no other is due at the same moment and it can be asked for by itself.
    """

    moment: float
    tip: Tip | None = None


@dataclass(frozen=True, slots=True)
class Granted(Generic[ClaimT]):
    """What a claim cycle brought.

    Attributes:
        claims: Held from now on.
        more: Whether it is worth asking again at once.
    """

    claims: Sequence[ClaimT]
    more: bool = False


class ClaimState(Enum):
    """What a renewal found of one claim."""

    HELD = auto()
    CANCEL_REQUESTED = auto()
    NOT_RENEWED = auto()  # Held, but the server refuses to renew this one: its lease goes on running out.
    LOST = auto()


class Source(Protocol[ClaimT, SettlementT]):
    """Something whose items can be claimed, run and settled.

    Every method that awaits may raise errors of an outage, and is then asked again; any other error is a
    bug and ends the scheduler in order. All of them may be abandoned at the hard end of a scheduler.
    """

    def key_of(self, claim: ClaimT) -> Hashable:
        """What tells its item from all others. All claims on one item have the same."""
        ...

    def lane_of(self, claim: ClaimT) -> str:
        """Whose concurrency limit the claim counts against."""
        ...

    def is_suspect(self, claim: ClaimT) -> bool:
        """Whether it may be what its holders died of: an instance runs one such at a time."""
        ...

    def time_limit(self, claim: ClaimT) -> float:
        """Seconds that its run may take; infinity for no limit."""
        ...

    def hold_limit(self, claim: ClaimT) -> float:
        """Seconds after which its claim is renewed no longer, whatever still runs; infinity for no limit."""
        ...

    async def claim(self, demand: Demand) -> Granted[ClaimT]:
        """Takes as many as there are, at most what is demanded. Cancelled, it strands nothing.

        What the demand withholds is passed over, as if it were not there.
        """
        ...

    async def claim_one(self, tip: Tip, demand: Demand) -> Granted[ClaimT]:
        """Takes this one item, in one round trip, if it still can be had. Cancelled, it strands nothing.

        Asked for `HEAD_START` before it is due, it waits for that moment. `more` where it cannot tell: a look must.
        """
        ...

    async def next_due(self, lanes: Set[str]) -> Due | None:
        """When the next item of these lanes is due that was not due yet when a `claim` looked last.

        None for never. It may be due by now: `claim_one` looks for no others.
        """
        ...

    def execute(self, run: Run[ClaimT]) -> Awaitable[object]:
        """Runs the claimed thing, inside the run's cancel scope; returns and raises what it does."""
        ...

    def conclude(self, claim: ClaimT, end: RunEnd) -> SettlementT:
        """What the end of a run means. Decided once, and not changed by what happens until it is written."""
        ...

    async def prepare(self, settlements: Sequence[SettlementT]) -> Any:
        """The batch that writes these: made once, so that the same can be sent again after an unknown outcome.

        It waits only where the time is not known for sure, by which what is due later is written.
        """
        ...

    async def settle(self, batch: Any) -> Sequence[bool | None]:
        """Writes a batch; tells for each settlement whether it was written under the claim.

        None, for one that was made while its run goes on, where it can never be written, and the claim is still held.
        """
        ...

    async def renew(self, claims: Sequence[ClaimT]) -> Sequence[ClaimState]:
        """Renews claims; tells what it found of each."""
        ...

    async def observe(self, held: Sequence[ClaimT]) -> Sequence[Sighting[Any]]:
        """All claims that there are, but those that are `held` and renewed here; as far as an observer sees them."""
        ...

    async def rescue(self, claims: Sequence[Any]) -> Sequence[Any]:
        """Takes away those of the claims, as they were observed, that have not changed since; tells of these.

        After an outage it is asked again for the same claims, and tells of what the first attempt took,
        too. Cancelled, it tells by itself.
        """
        ...

    def has_errands(self) -> bool:
        """Whether `do_errands` has something to do."""
        ...

    async def do_errands(self) -> None:
        """What the source has to do for itself about once a beat. Must not be in the way of renewals."""
        ...

    def is_transient(self, error: Exception) -> bool:
        """Whether this is an outage: the same call may succeed later, by itself or after a repair."""
        ...

    def tell(self, notice: object) -> None:
        """Hears what happened (see `notices`). Must not raise or wait."""
        ...
