"""What the engine reports while it works. The observer turns it into events, log lines and counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

ClaimT_contra = TypeVar("ClaimT_contra", contravariant=True)
SettlementT_contra = TypeVar("SettlementT_contra", contravariant=True)
RescuedT_contra = TypeVar("RescuedT_contra", contravariant=True)


class RunObserver(Protocol[ClaimT_contra, SettlementT_contra]):
    """What happens to each run. These methods are on the hot path."""

    def run_started(self, claim: ClaimT_contra) -> None:
        """The handler is about to be called."""
        ...

    def run_settled(self, settlement: SettlementT_contra) -> None:
        """The source has written the end of a run under its claim."""
        ...

    def claim_lost(self, claim: ClaimT_contra) -> None:
        """The claim is gone or was not renewed in time; or nothing can tell whether the end of its run was written."""
        ...

    def failed_after_settlement(self, claim: ClaimT_contra, error: Exception) -> None:
        """The handler raised after its claim had been settled, which stands: nothing else reports this error."""
        ...


class LoopObserver(Protocol):
    """What happens to the loops of the engine. Each outage is reported once, not once for each attempt."""

    def claiming_failed(self, error: Exception) -> None:
        """A claim, or the question what is due next, failed in an outage. The engine tries again."""
        ...

    def renewal_failed(self, error: Exception) -> None:
        """The claims could not be renewed in an outage. The engine tries again soon."""
        ...

    def settlement_delayed(self, error: Exception) -> None:
        """A batch of settlements could not be written in an outage. The engine sends the same batch again."""
        ...

    def stream_connected(self) -> None:
        """The stream of hints is open."""
        ...

    def stream_failed(self, error: Exception) -> None:
        """The stream could not be opened, or broke. The engine opens it again."""
        ...

    def stream_closed(self) -> None:
        """The stream was open, and is no longer."""
        ...

    def stream_fallback(self, error: Exception) -> None:
        """The engine polls in place of the stream: for more than a moment, or for good."""
        ...


class RescueObserver(Protocol[RescuedT_contra]):
    """What the reaper does."""

    def rescue_delayed(self, error: Exception) -> None:
        """In an outage, the claims of others could not be read, or dead ones not be taken. The engine tries again."""
        ...

    def claims_rescued(self, rescued: Sequence[RescuedT_contra]) -> None:
        """The source has taken away these claims, whose holders had died. At least one."""
        ...


@dataclass(frozen=True, slots=True)
class RunsLeft:
    """The runs that go on when a drain begins.

    Attributes:
        running: How many there are.
        waiting: How many of them wait for other items.
        seconds: How long they may go on.
    """

    running: int
    waiting: int
    seconds: float


class EndObserver(Protocol[ClaimT_contra]):
    """The end of the engine."""

    def draining(self, cause: str, left: RunsLeft) -> None:
        """The engine stops claiming. `cause` says why, in words."""
        ...

    def runs_cut_short(self, claims: Sequence[ClaimT_contra]) -> None:
        """The engine has cancelled the runs of these claims, because it ends."""
        ...


class Observer(
    RunObserver[ClaimT_contra, SettlementT_contra],
    LoopObserver,
    RescueObserver[RescuedT_contra],
    EndObserver[ClaimT_contra],
    Protocol[ClaimT_contra, SettlementT_contra, RescuedT_contra],
):
    """One method for each thing that happens, so that a type checker finds a missing one.

    The engine calls them on the thread of its run. They must neither wait nor raise: an error ends the engine in
    order, as a bug in one of its own loops does.
    """
