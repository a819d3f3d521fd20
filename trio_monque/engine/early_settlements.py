"""Claims that are settled while their handlers go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import trio

from .lease import LeaseTerms
from .run import Run
from .run_end import RunEnd
from .settler import SettlementQueue

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")


class EarlySettlements(Generic[ClaimT, SettlementT]):
    """Through the one settler, as all settlements go.

    Until the answer the slot of the run is free, as it is at any verdict. A handler that goes on then takes one again,
    though there may be none: nothing new starts before there is.
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
        # They wait for the answer, and have no slot.
        self._between: set[Run[ClaimT]] = set()
        # What their handlers ended with meanwhile.
        self._ended_meanwhile: dict[Run[ClaimT], RunEnd] = {}
        # They have had their answer, and their handlers go on.
        self._outliving: dict[Run[ClaimT], None] = {}

    @property
    def outliving(self) -> Mapping[Run[ClaimT], None]:
        """Runs that are settled, and whose handlers go on."""
        return self._outliving

    async def settle(self, run: Run[ClaimT], settlement: SettlementT) -> bool | None:
        """Settles the claim of a run whose handler goes on; returns whether that was written under the claim.

        None if it was refused: the claim is held as before. False also if the settler has ended.
        Cancelled, the answer is awaited all the same, as long as a clean-up may take, and returned if it comes;
        otherwise it is written when it can be.
        """
        answered = trio.Event()
        fate: bool | None = False

        def has_answered(written: bool | None) -> None:  # noqa: FBT001
            nonlocal fate
            fate = written
            self._answered(run, settlement, written)
            answered.set()

        run.is_settling = True
        self._settler.settle(settlement, has_answered)
        self._between.add(run)
        self._free_slot(run)
        self._settler.await_answer(answered)
        try:
            await answered.wait()
        except trio.Cancelled:
            most = self._terms.cleanup_timeout
            with run.cleaning_up(most, most):
                await answered.wait()
            if not answered.is_set():
                raise
        finally:
            self._settler.forget_answer(answered)
        return fate

    def _answered(self, run: Run[ClaimT], settlement: SettlementT, written: bool | None) -> None:  # noqa: FBT001
        run.is_settling = False
        if run in self._between:
            self._between.discard(run)
            self._take_slot(run)
        end = self._ended_meanwhile.pop(run, None)
        if written is None:
            if end is not None:
                self._conclude(run, end)
            return
        run.is_settled = True
        if not run.has_ended:
            self._outliving[run] = None
        if written:
            run.outlive_lease()
        else:
            run.lose()
        self._settled(run, settlement, False, written)  # noqa: FBT003  # It was not reported before.

    def has_slot(self, run: Run[ClaimT]) -> bool:
        """Whether a run whose handler ends has one."""
        return run not in self._between

    def handler_ended(self, run: Run[ClaimT]) -> bool:
        """Notes it; returns whether it had outlived its claim."""
        self._between.discard(run)
        return self._outliving.pop(run, False) is None

    def decides(self, run: Run[ClaimT], end: RunEnd) -> bool:
        """Whether what was settled, or is being settled, stands for the end of a run."""
        if run.is_settling:
            self._ended_meanwhile[run] = end
        return run.is_settling or run.is_settled
