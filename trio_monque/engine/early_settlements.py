"""Claims that are settled while their handlers go on, because the handler awaits whether its result was written.

A run passes through these states: its settlement is on its way (`run.is_settling_early`), it is written or the claim is
lost (`run.is_settled_early`), its handler has ended. The handler may end before the answer to its settlement comes (it
was cancelled, say), so the last two may come in either order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

import trio

from .lease import LeaseTerms
from .run import Run
from .run_end import RunEnd
from .settler import SettlementQueue

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")


class EarlySettlements(Generic[ClaimT, SettlementT]):
    """Sends early settlements through the one settler, and keeps the slots of their runs right.

    While the settlement is on its way the run has no slot, as if its handler had ended. When the answer comes and its
    handler goes on, it takes a slot again, even if none is free: then nothing new starts until one is.
    """

    def __init__(
        self,
        settler: SettlementQueue[SettlementT],
        terms: LeaseTerms,
        *,
        free_slot: Callable[[Run[ClaimT]], None],
        take_slot: Callable[[Run[ClaimT]], None],
        settled: Callable[[Run[ClaimT], SettlementT, bool, bool | None], None],
        conclude: Callable[[Run[ClaimT], RunEnd], None],
    ) -> None:
        self._settler = settler
        self._terms = terms
        self._free_slot = free_slot
        self._take_slot = take_slot
        self._settled = settled
        self._conclude = conclude
        # Runs without a slot: their settlement is on its way, and their handlers go on.
        self._without_slot: set[Run[ClaimT]] = set()
        # The ends of handlers that ended before the answer came.
        self._ended_meanwhile: dict[Run[ClaimT], RunEnd] = {}
        # Runs whose claims are settled, and whose handlers go on.
        self._outliving: dict[Run[ClaimT], None] = {}

    @property
    def outliving(self) -> Mapping[Run[ClaimT], None]:
        """Runs that are settled, and whose handlers go on."""
        return self._outliving

    async def settle(self, run: Run[ClaimT], settlement: SettlementT) -> bool | None:
        """Settles the claim of a run whose handler goes on.

        Cancellation: it still waits for the answer, as long as a clean-up may take, and returns it if it comes.
        Otherwise it raises, and the settlement is written when that is possible.

        Returns:
            Whether the settlement was written under the claim; None if the server refused it, so that the claim is held
            as before. False also if the settler has ended.
        """
        answered = trio.Event()
        fate: bool | None = False

        def has_answered(written: bool | None) -> None:  # noqa: FBT001
            nonlocal fate
            fate = written
            self._answered(run, settlement, written)
            answered.set()

        # The source refuses a second settlement of the same claim, and one after the handler's end.
        run.is_settling_early = True
        self._settler.settle(settlement, has_answered, run)
        self._without_slot.add(run)
        self._free_slot(run)
        # If the settler ends without an answer, it sets this event: without this, the handler would wait for ever.
        self._settler.await_answer(answered)
        try:
            await answered.wait()
        except trio.Cancelled:
            # As long as a clean-up may take. Raised at once, an answer that has just come would be lost.
            with run.cleaning_up(self._terms.cleanup_timeout):
                await answered.wait()
            if not answered.is_set():
                raise
        finally:
            self._settler.forget_answer(answered)
        return fate

    async def settle_by(
        self, run: Run[ClaimT], write: Callable[[], Awaitable[tuple[SettlementT, bool | None]]]
    ) -> bool | None:
        """Settles the claim of a run by a write of the source's own, which does not pass through the settler.

        The run keeps its slot: what the write awaits is the work of its handler. If `write` raises, the claim counts as
        held. Should the database have accepted the write all the same, the fence of every later one matches nothing.
        """
        run.is_settling_early = True
        try:
            settlement, written = await write()
        except BaseException:
            self._unanswered(run)
            raise
        self._answered(run, settlement, written)
        return written

    def _answered(self, run: Run[ClaimT], settlement: SettlementT, written: bool | None) -> None:  # noqa: FBT001
        # Refused: the claim is held as before.
        if written is None:
            self._unanswered(run)
            return
        run.is_settling_early = False
        self._has_slot_again(run)
        end = self._ended_meanwhile.pop(run, None)
        run.is_settled_early = True
        # Before the claim leaves `held` below: other threads list the runs of both, and must not miss this one.
        if not run.has_ended:
            self._outliving[run] = None
        if written:
            run.outlive_lease()
        else:
            run.lose()
        self._settled(run, settlement, False, written)  # noqa: FBT003  # It was not reported before.
        if end is not None:
            # The handler has ended before this answer. Nothing is settled any more, but an error that it has raised is
            # reported only now.
            self._conclude(run, end)

    def _unanswered(self, run: Run[ClaimT]) -> None:
        """The early settlement was not written, as far as is known: the claim is held as before."""
        run.is_settling_early = False
        self._has_slot_again(run)
        # If the handler has ended meanwhile, its end was put off for this answer. Without this, it would never be
        # settled, and renewed for ever.
        if (end := self._ended_meanwhile.pop(run, None)) is not None:
            self._conclude(run, end)

    def _has_slot_again(self, run: Run[ClaimT]) -> None:
        # Not if its handler has ended meanwhile: that slot would never be freed.
        if run in self._without_slot:
            self._without_slot.discard(run)
            self._take_slot(run)

    def has_slot(self, run: Run[ClaimT]) -> bool:
        """Whether a run has one, whose handler ends after it began to settle early."""
        return run not in self._without_slot

    def handler_ended(self, run: Run[ClaimT]) -> bool:
        """Notes the end of such a handler; returns whether it had outlived its claim."""
        self._without_slot.discard(run)
        if run not in self._outliving:
            return False
        del self._outliving[run]
        return True

    def put_off(self, run: Run[ClaimT], end: RunEnd) -> None:
        """The handler has ended while its settlement is on its way: the answer decides what this end means."""
        self._ended_meanwhile[run] = end
