"""What becomes of settlements where the engine ends: by a bug, or before they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.shelf import NotNowError, Shelf, engine_of, running, sleeping
from trio_monque.engine.run import Run
from trio_monque.engine.run_end import CancelReason, RunEnd
from trio_monque.engine.shutdown import HARD_END_AFTER


@pytest.mark.usefixtures("virtual_pauses")
async def test_settlements_that_fail_until_the_hard_end_are_named(autojump_clock: MockClock) -> None:
    class Unreachable(Shelf):
        async def settle(self, batch: object) -> list[bool]:
            raise NotNowError

    shelf = Unreachable(items=[1, 2, 3], handler=sleeping(0))
    engine = engine_of(shelf, cleanup_timeout=4.0)
    async with running(engine):
        await trio.sleep(10)
        assert shelf.heard("settlement_delayed")
        engine.stop.cut()
    assert trio.current_time() == 10 + 4 + HARD_END_AFTER
    assert engine.unfinished == (1, 2, 3)
    assert engine.stop.crashes == []


@pytest.mark.usefixtures("virtual_pauses")
async def test_settlements_that_fail_are_tried_often_in_the_little_time_that_is_left(autojump_clock: MockClock) -> None:
    class Flaky(Shelf):
        tries = 0

        async def settle(self, batch: Any) -> Sequence[bool]:
            self.tries += 1
            if self.tries <= 30:
                raise NotNowError
            return await super().settle(batch)

    shelf = Flaky(items=[1, 2, 3], handler=sleeping(0))
    engine = engine_of(shelf, cleanup_timeout=4.0)
    async with running(engine):
        await trio.sleep(1)
        engine.stop.cut()
    assert engine.unfinished == ()
    assert sorted(shelf.settled) == [1, 2, 3]


async def test_bug_in_one_settlement_gives_back_those_behind_its_batch(autojump_clock: MockClock) -> None:
    class BrokenError(Exception):
        pass

    shelf = Shelf(items=list(range(9)), settling_takes=4.0, settling_faults=[BrokenError()])
    engine = engine_of(shelf)
    async with running(engine):
        await engine.stop.cutting.wait()
    assert [type(crash) for crash in engine.stop.crashes] == [BrokenError]
    # The first three were being settled for four seconds, in which the others ran.
    assert [sorted(batch) for batch in shelf.batches] == [[0, 1, 2], list(range(3, 9))]
    behind = dict.fromkeys(range(3, 9), CancelReason.SHUTDOWN)
    assert {claim: end.reason for claim, end in shelf.settled.items()} == behind
    # One of the batch broke the settler, and it is unknown which: their leases count it as a death.
    assert sorted(engine.unfinished) == [0, 1, 2]


async def test_bug_in_reporting_a_settlement_ends_the_engine_and_harms_no_other_settlement(
    autojump_clock: MockClock,
) -> None:
    class Deaf(Shelf):
        def run_settled(self, settlement: tuple[int, RunEnd]) -> None:
            super().run_settled(settlement)
            if settlement[0] == 1:
                raise ZeroDivisionError

    async def handler(run: Run[int]) -> None:
        if run.claim > 2:  # These are settled in another batch, after the bug.
            with trio.CancelScope(shield=True):
                await trio.sleep(3)

    shelf = Deaf(items=list(range(5)), handler=handler, settling_takes=1.0)
    engine = engine_of(shelf, concurrency=5)
    async with running(engine):
        await engine.stop.cutting.wait()
    assert [type(crash) for crash in engine.stop.crashes] == [ZeroDivisionError]
    assert [sorted(batch) for batch in shelf.batches] == [[0, 1, 2], [3, 4]]
    assert {claim: end.cancelled for claim, end in shelf.settled.items()} == dict.fromkeys(range(5), False)
    assert sorted(settlement[0] for settlement in shelf.heard("run_settled")) == list(range(5))
    assert engine.unfinished == ()


@pytest.mark.parametrize("report", ["draining", "runs_cut_short"])
async def test_bug_in_reporting_the_end_ends_the_engine_and_harms_no_run(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, report: str
) -> None:
    async def handler(run: Run[int]) -> None:
        if run.claim == 1:  # It cleans up, and its own end counts: it is not given back.
            with trio.CancelScope(shield=True):
                await trio.sleep(13)
        await trio.sleep_forever()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    shelf = Shelf(items=[1, 2, 3], handler=handler, settling_takes=1.0)
    monkeypatch.setattr(shelf, report, broken)
    engine = engine_of(shelf, shutdown_timeout=0.0)
    async with running(engine):
        await trio.sleep(10)
        engine.stop.drain()
    assert [type(crash) for crash in engine.stop.crashes] == [ZeroDivisionError]
    # The runs were cancelled at the drain, each in its own scope, and the settler went on to the last of them.
    assert [sorted(batch) for batch in shelf.batches] == [[2, 3], [1]]
    assert {claim: end.reason for claim, end in shelf.settled.items()} == dict.fromkeys(
        (1, 2, 3), CancelReason.SHUTDOWN
    )
    assert engine.unfinished == ()
    assert trio.current_time() == 14.0


async def test_bug_in_reporting_a_lost_claim_ends_the_engine_and_harms_no_other_settlement(
    autojump_clock: MockClock,
) -> None:
    class Deaf(Shelf):
        def claim_lost(self, claim: int) -> None:
            super().claim_lost(claim)
            raise ZeroDivisionError

    shelf = Deaf(items=[1, 2, 3], lost={1})
    engine = engine_of(shelf)
    async with running(engine):
        await engine.stop.cutting.wait()
    assert [type(crash) for crash in engine.stop.crashes] == [ZeroDivisionError]
    assert [sorted(batch) for batch in shelf.batches] == [[1, 2, 3]]
    assert sorted(settlement[0] for settlement in shelf.heard("run_settled")) == [2, 3]
    assert engine.unfinished == ()
