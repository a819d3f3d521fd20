"""Left while two claims are in flight: what they bring is given back, and nothing is awaited for ever."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.shelf import Shelf, engine_with_slots, running, sleeping
from trio_monque.engine.demand import Demand, Granted
from trio_monque.engine.look_ledger import WORTH_HALVING
from trio_monque.engine.run_end import CancelReason
from trio_monque.engine.shutdown import HARD_END_AFTER

HALF = WORTH_HALVING // 2


@dataclass
class InTurn(Shelf):
    """Each claim takes its own time, in seconds; infinity for one that never lands."""

    takes: list[float] = field(default_factory=list)
    in_flight: int = 0
    cancelled: int = 0

    async def claim(self, demand: Demand) -> Granted[int]:
        self.claim_takes = self.takes.pop(0)
        self.in_flight += 1
        try:
            return await super().claim(demand)
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1

    async def wait_two_in_flight(self) -> None:
        while self.in_flight < 2:
            await trio.sleep(0.01)

    def given_back(self) -> set[int]:
        return {claim for claim, end in self.settled.items() if end.reason is CancelReason.SHUTDOWN}


def shelf_of(*takes: float) -> InTurn:
    """The first claim is answered at once, and shows that there is much; then there are two at a time."""
    return InTurn(items=list(range(1000)), takes=[0, *takes], handler=sleeping(0))


def is_all_free(engine: Any) -> bool:
    demand = engine.slots.demand()
    return (demand.total, demand.groups, demand.suspects) == (WORTH_HALVING, {"all": WORTH_HALVING}, 1)


async def test_drained_it_gives_back_what_both_claims_bring(autojump_clock: MockClock) -> None:
    shelf = shelf_of(1, 10)
    engine = engine_with_slots(shelf, WORTH_HALVING)
    async with running(engine):
        await shelf.wait_two_in_flight()
    assert trio.current_time() == 10
    assert len(shelf.claimed_at) == 3
    assert set(shelf.heard("run_started")) == set(range(HALF))
    assert shelf.given_back() == set(range(HALF, 3 * HALF))
    assert engine.unfinished == ()
    assert is_all_free(engine)


@pytest.mark.parametrize("how", ["cut", "drain", "cancel"])
async def test_two_claims_that_never_land_are_abandoned_at_the_hard_end(autojump_clock: MockClock, how: str) -> None:
    shelf = shelf_of(math.inf, math.inf)
    engine = engine_with_slots(shelf, WORTH_HALVING, shutdown_timeout=20.0, cleanup_timeout=4.0)
    async with running(engine) as nursery:
        await shelf.wait_two_in_flight()
        cut_at = trio.current_time()
        match how:
            case "cut":
                engine.stop.cut()
            case "cancel":
                nursery.cancel_scope.cancel()
            case "drain":
                cut_at += 20
    assert trio.current_time() == pytest.approx(cut_at + 4 + HARD_END_AFTER)
    assert shelf.cancelled == 2
    assert engine.unfinished == ()
    assert engine.stop.crashes == []
    assert is_all_free(engine)


async def test_what_one_claim_brings_is_given_back_although_the_other_never_lands(autojump_clock: MockClock) -> None:
    shelf = shelf_of(math.inf, 2)
    engine = engine_with_slots(shelf, WORTH_HALVING, cleanup_timeout=4.0)
    async with running(engine):
        await shelf.wait_two_in_flight()
        cut_at = trio.current_time()
        engine.stop.cut()
    assert trio.current_time() == pytest.approx(cut_at + 4 + HARD_END_AFTER)
    # The other one took the items before these, and its answer was never heard.
    assert shelf.given_back() == set(range(2 * HALF, 3 * HALF))
    assert engine.unfinished == ()


@pytest.mark.parametrize(("breaks", "takes"), [(1, (1, 3)), (2, (3, 1))])
async def test_bug_in_one_claim_gives_back_what_the_other_brings(
    autojump_clock: MockClock, breaks: int, takes: tuple[float, float]
) -> None:
    class BrokenError(Exception):
        pass

    class Broken(InTurn):
        async def claim(self, demand: Demand) -> Granted[int]:
            is_broken = len(self.claimed_at) == breaks
            granted = await super().claim(demand)
            if is_broken:
                raise BrokenError
            return granted

    shelf = Broken(items=list(range(1000)), takes=[0, *takes], handler=sleeping(0))
    engine = engine_with_slots(shelf, WORTH_HALVING)
    async with running(engine):
        await engine.stop.cutting.wait()
        assert trio.current_time() == 1
    assert trio.current_time() == 3
    assert [type(crash) for crash in engine.stop.crashes] == [BrokenError]
    assert set(shelf.heard("run_started")) == set(range(HALF))
    lost = set(range(breaks * HALF, (breaks + 1) * HALF))
    assert shelf.given_back() == set(range(HALF, 3 * HALF)) - lost
    assert engine.unfinished == ()
    assert is_all_free(engine)
