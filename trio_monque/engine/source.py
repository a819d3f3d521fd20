"""The port between the engine and the things it runs: all that each may ask of the other.

A kind of work makes items claimable, runnable and writable: jobs, documents, or a third kind. It implements the parts
of this port, one object for each part or one for several, and an `Observer` (see `observer`) for what is logged,
counted and announced. It may also offer a `HintStream`. The engine calls these objects directly: see `Sources`.

Which calls come when:

1. The constructor of the engine calls `connect`, once, before anything runs: it makes the sources, which may use the
   `Control` from then on.
2. After `Engine.run` has begun, each loop of the engine calls its own part of the port, beside the other loops:

   - *Claimer* and *waker*: `claim` or `claim_one`, up to two of them at a time; `next_due` after a claim that left
     nothing behind. The demands of two claims in flight share no slot.
   - *Runner*, for each claim that was granted: `traits_of`, then `execute` in a task (see `shared_tasks`), and
     `conclude` when that has ended. `conclude` is called without `execute` if the run was cancelled before its start.
     None is called again for the same claim, with one exception below.
   - *Settler*: `prepare`, and then `settle` with that batch until one call returns; one batch at a time, in the order
     of the conclusions. Meanwhile the heartbeat goes on renewing the claims of that batch.
   - *Heartbeat*: `renew`, once per interval and soon after a failure; also when a hint asks to end runs. Two calls may
     overlap then.
   - *Reaper*: `observe`, and `rescue` for what it found dead; one call at a time.
   - *Releaser* of orphaned claims: `release_orphaned_claims`, about once per heartbeat, and once at the end, when two
     calls may overlap.

3. At the end (see `shutdown`): no more `claim`; those in flight are awaited, and what they grant is concluded without
   `execute`. The runs end, their settlements are written, and claims are renewed until the last one is. Then
   `release_orphaned_claims` is called once more. If the settler has ended too early (see `shutdown.give_back`),
   `conclude`, `prepare` and `settle` are called one last time, for all claims that are still held: the exception.

All methods are called on the thread of the engine's run. A method that is not async must not wait. An async method may
be cancelled at any time after the end was asked for, at the hard end at the latest. If the database applies a claim
although its method was cancelled, that claim is an orphan, and the source itself must release it.

Every async method may raise the errors of an outage (see `Sources.is_transient`); the engine then calls it again after
a pause. Any other error counts as a bug: it ends the engine in order, and `Engine.stop.crashes` has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ..error_types import is_outage
from ..observations import Sighting
from .demand import ClaimState, ClaimTraits, Demand, Due, Granted, Hints, KnownItem
from .run import Run
from .run_end import RunEnd

ClaimT = TypeVar("ClaimT")
ClaimT_co = TypeVar("ClaimT_co", covariant=True)
ClaimT_contra = TypeVar("ClaimT_contra", contravariant=True)
SettlementT = TypeVar("SettlementT")
SettlementT_co = TypeVar("SettlementT_co", covariant=True)
SettlementT_contra = TypeVar("SettlementT_contra", contravariant=True)
BatchT = TypeVar("BatchT")
SeenT = TypeVar("SeenT")
RescuedT = TypeVar("RescuedT")
RescuedT_co = TypeVar("RescuedT_co", covariant=True)


class Control(Protocol[ClaimT, SettlementT_contra]):
    """What a source may ask of its engine: on the thread of the engine's run, except for `post`."""

    async def settle_early(self, run: Run[ClaimT], settlement: SettlementT_contra) -> bool | None:
        """Settles the claim of a run whose handler goes on; see `EarlySettlements.settle`."""
        ...

    async def settle_by(
        self, run: Run[ClaimT], write: Callable[[], Awaitable[tuple[SettlementT_contra, bool | None]]]
    ) -> bool | None:
        """Settles the claim of a run, whose handler goes on, by a write of the source's own.

        A renewal of the claim would conflict with that write. So none is in flight when `write` is called, and at least
        half of the lease is left, if the database answers. `write` returns the settlement, and whether it was written,
        as in `SettlementSource.settle`; None if the claim is held as before. This returns the same.
        """
        ...

    def resume_renewals(self, run: Run[ClaimT]) -> None:
        """Renews the claim again before `settle_by` has returned: its write will not be made, and takes long to end."""
        ...

    def park(self, run: Run[ClaimT], time_limit: float) -> None:
        """Release the slot of a run until `unpark`: one of its tasks waits for other items.

        `time_limit` is the number of seconds that the run may take; infinity if only its renewals limit it.
        """
        ...

    def unpark(self, run: Run[ClaimT]) -> None:
        """End that wait: the run takes a slot again."""
        ...

    def changed(self) -> None:
        """A run may do nothing but wait from now on: wakes a drain, which may release it."""
        ...

    @property
    def number_parked(self) -> int:
        """How many runs wait like this, without a slot."""
        ...

    def expect(self, moment: float, item: KnownItem | None = None) -> None:
        """Something is due at that moment on trio's clock; only this item, if one is named."""
        ...

    def look(self) -> None:
        """Something may be due now, or later: the engine looks, and asks what is due next."""
        ...

    def end_with(self, error: Exception) -> None:
        """Ends the engine in order, as a drain does. The error is raised when it has ended, if it is the first."""
        ...

    def is_draining(self) -> bool:
        """Whether the end was asked for: no work begins any more."""
        ...

    def is_idle(self) -> bool:
        """Whether the engine holds no claim, and the source has no orphaned ones."""
        ...

    def post(self, function: Callable[[], object]) -> None:
        """Calls this on the loop of the engine, from any thread; see `Loop.post`."""
        ...


class DueSource(Protocol):
    """Knows when to claim."""

    async def next_due(self, groups: Set[str]) -> Due | None:
        """When the next item of these groups is due, of those that were not due yet when the last `claim` looked.

        None for never. The moment may have passed: `claim_one` does not look for other items.
        """
        ...


class ClaimSource(DueSource, Protocol[ClaimT]):
    """Claims items."""

    async def claim(self, demand: Demand) -> Granted[ClaimT]:
        """Claims as many items as there are, at most what is demanded.

        It passes over the items that the demand names as running here, as if they were not there.
        """
        ...

    async def claim_one(self, item: KnownItem, demand: Demand) -> Granted[ClaimT]:
        """Claims this one item in one round trip, if it can still be claimed.

        Called up to `HEAD_START` before the item is due, it waits for that moment. It returns `more` if it could not
        find out, so that a look must. A source that never passes a `KnownItem` to its engine is never asked for one.
        """
        ...


class RunSource(Protocol[ClaimT, SettlementT_co]):
    """Runs what was claimed, and decides what its end means."""

    def traits_of(self, claim: ClaimT) -> ClaimTraits:
        """What the engine must know about a claim that was granted."""
        ...

    def execute(self, run: Run[ClaimT]) -> Awaitable[object]:
        """Runs the claimed thing, inside the cancel scope of the run.

        The caller of the handler asks `Run.may_begin` immediately before, and raises NotBegun if it may not.
        What it returns or raises reaches `conclude` unchanged.
        """
        ...

    def conclude(self, claim: ClaimT, end: RunEnd) -> SettlementT_co:
        """What the end of a run means. Decided once: nothing that happens before it is written changes it."""
        ...


class SettlementSource(Protocol[SettlementT_contra, BatchT]):
    """Writes the ends of runs."""

    async def prepare(self, settlements: Sequence[SettlementT_contra]) -> BatchT:
        """The batch that writes these settlements. Made once, so that the same batch can be sent again.

        It waits only if the server's time, from which later due times are counted, must be asked for.
        """
        ...

    async def settle(self, batch: BatchT) -> Sequence[bool | None]:
        """Writes a batch. Returns for each settlement, in order, whether it was written under its claim.

        After an error whose outcome is unknown it is called again with the same batch, and must find out what the first
        call has written. None only for a settlement that was made while its run goes on, if it can never be written
        and the claim is still held.
        """
        ...


class RenewalSource(Protocol[ClaimT_contra]):
    """Renews claims."""

    async def renew(self, claims: Sequence[ClaimT_contra]) -> Sequence[ClaimState]:
        """Renews these claims, at least one. Returns the state of each, in order."""
        ...


class RescueSource(Protocol[ClaimT_contra, SeenT, RescuedT_co]):
    """Sees the claims of others, and takes away those of dead holders."""

    async def observe(self, own: Sequence[ClaimT_contra]) -> Sequence[Sighting[SeenT]]:
        """All claims on all items that may have to be rescued, except this engine's own, which it renews."""
        ...

    async def rescue(self, dead: Sequence[SeenT]) -> Sequence[RescuedT_co]:
        """Takes away those of these claims that have not changed since they were observed; returns them.

        After an outage it is called again with the same claims, and returns what the first attempt took, too. If it is
        cancelled, the source itself reports what its last command took away.
        """
        ...

    def rescue_abandoned(self) -> None:
        """The reaper ends, and the outcome of its last `rescue` is unknown: claims may have been taken away."""
        ...


class OrphanSource(Protocol):
    """Releases orphaned claims: those that this instance may hold in the database although no run belongs to them."""

    def has_orphaned_claims(self) -> bool:
        """Whether there may be some."""
        ...

    async def release_orphaned_claims(self) -> None:
        """Releases those that the database has applied meanwhile. Other upkeep may go here too, such as measuring time.

        It must not delay renewals.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Sources(Generic[ClaimT, SettlementT, BatchT, SeenT, RescuedT]):
    """The parts of one kind of work, each as the object that does it. See the top of this file for the order of calls.

    Type parameters: a held claim, a settlement (the end of a run on its way to the database), a batch of these, a claim
    of others as it was observed, and a claim that was taken away.

    Attributes:
        is_transient: Whether a call that raised this error may succeed later, by itself or after a repair: an outage,
            and not a bug.
    """

    claims: ClaimSource[ClaimT]
    runs: RunSource[ClaimT, SettlementT]
    settlements: SettlementSource[SettlementT, BatchT]
    renewals: RenewalSource[ClaimT]
    rescues: RescueSource[ClaimT, SeenT, RescuedT]
    orphans: OrphanSource
    is_transient: Callable[[Exception], bool] = is_outage


class HintStream(Protocol[ClaimT]):
    """A stream of hints. One task of the engine opens it, reads it, closes it, and opens it again after a failure.

    Every method raises StreamFailedError and nothing else. Cancelled at any time, a method leaves nothing open.
    """

    async def open(self) -> None:
        """When it returns, the stream reports everything that happens from now on."""
        ...

    async def next(self, wait: float) -> Hints[ClaimT]:
        """What has happened since the last call. Waits for it at most `wait` seconds; may return empty hints."""
        ...

    async def cancel_requested(self, claims: Sequence[ClaimT]) -> Sequence[bool]:
        """Reads for which of these claims a request to cancel is stored. For claims that must not be renewed now."""
        ...

    async def end_wait(self) -> None:
        """Makes the `next` that is under way return at once. Called at the end of the engine."""
        ...

    async def close(self) -> None:
        """Closes the stream, also one that broke or has ended."""
        ...
