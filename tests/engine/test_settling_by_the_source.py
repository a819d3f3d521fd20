"""A run whose claim is settled by a write of the source's own, such as a transaction. No database, virtual time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.shelf import NotNowError, Shelf, ShelfEngine, engine_of, running
from trio_monque.engine.demand import ClaimState, Hints
from trio_monque.engine.run import Run
from trio_monque.engine.run_end import CancelReason, RunEnd

BY_ITSELF = RunEnd(None, "by itself", cancelled=False, reason=None, duration=0.0)


class Desk(Shelf):
    """Its handlers settle item 1 by a write of `write_takes` seconds; `fate` is what that answers."""

    def __init__(self, *items: int, **fields: Any) -> None:
        super().__init__(items=list(items), **fields)
        self.engine: ShelfEngine = engine_of(self)
        self.fate: bool | Exception | None = True
        self.write_takes = 20.0
        self.begun_at = math.nan
        self.renewal_takes = 0.0

    async def settle_by(self, run: Run[int]) -> bool | None:
        async def write() -> tuple[tuple[int, RunEnd], bool | None]:
            self.begun_at = trio.current_time()
            with trio.CancelScope(shield=True):
                await trio.sleep(self.write_takes)
            if isinstance(self.fate, Exception):
                raise self.fate
            return (run.claim, BY_ITSELF), self.fate

        return await self.engine.settle_by(run, write)

    async def renew(self, claims: Sequence[int]) -> Sequence[ClaimState]:
        self.renewed.append((trio.current_time(), sorted(claims)))
        await trio.sleep(self.renewal_takes)
        if self.renewal_faults:
            raise self.renewal_faults.pop(0)
        return [self.state_of(claim) for claim in claims]


async def test_claim_is_not_renewed_during_its_write_and_its_neighbours_are(autojump_clock: MockClock) -> None:
    desk = Desk(1, 2)
    ends: list[Any] = []

    async def handler(run: Run[int]) -> None:
        if run.claim == 1:
            await trio.sleep(5)
            desk.write_takes = 15.0
            ends.append(await desk.settle_by(run))
            await trio.sleep(500)  # Nothing binds it to a lease any more.
            ends.append(run.reason)
        else:
            await trio.sleep(60)

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(600)
    assert desk.renewed[:2] == [(10.0, [2]), (20.0, [2])]
    assert desk.begun_at == 5.0
    assert all(claims == [2] for _, claims in desk.renewed)
    assert ends == [True, None]
    assert desk.heard("run_settled")[0] == (1, BY_ITSELF)
    assert desk.settled.keys() == {2}  # By the settler.


@pytest.mark.full
async def test_claim_whose_lease_is_half_over_is_renewed_first(autojump_clock: MockClock) -> None:
    desk = Desk(1, renewal_faults=[NotNowError() for _ in range(100)])

    async def handler(run: Run[int]) -> None:
        await trio.sleep(11.5)
        await desk.settle_by(run)

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(11.25)
        desk.renewal_faults.clear()
        await trio.sleep(30)
    # With the first answer at 11.5 the lease lasts long enough for a write of 20 s.
    assert (11.5, [1]) in desk.renewed
    assert desk.heard("run_settled") == [(1, BY_ITSELF)]


async def test_write_begins_when_no_renewal_of_its_claim_is_in_flight(autojump_clock: MockClock) -> None:
    desk = Desk(1)
    desk.engine = engine_of(desk, cleanup_timeout=0.0)
    desk.renewal_takes = 3.0

    async def handler(run: Run[int]) -> None:
        await trio.sleep(11)
        await desk.settle_by(run)

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(60)
    assert desk.renewed[0] == (10.0, [1])
    assert desk.begun_at == 13.0
    assert desk.heard("run_settled") == [(1, BY_ITSELF)]


@pytest.mark.parametrize("fate", [None, NotNowError()], ids=["refused", "raised"])
async def test_claim_that_was_not_settled_is_held_and_renewed_as_before(
    autojump_clock: MockClock, fate: Exception | None
) -> None:
    desk = Desk(1)
    desk.fate = fate

    async def handler(run: Run[int]) -> str:
        if fate is None:
            assert await desk.settle_by(run) is None
        else:
            with pytest.raises(NotNowError):
                await desk.settle_by(run)
        await trio.sleep(40)
        return "done"

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(100)
    assert [at for at, _ in desk.renewed] == [20.0, 30.0, 40.0, 50.0, 60.0]
    assert desk.settled[1].value == "done"
    assert desk.heard("claim_lost") == []


async def test_claim_that_turned_out_to_be_lost_cancels_the_run(autojump_clock: MockClock) -> None:
    desk = Desk(1)
    desk.fate = False
    reasons: list[CancelReason | None] = []

    async def handler(run: Run[int]) -> None:
        try:
            assert await desk.settle_by(run) is False
            await trio.sleep_forever()
        finally:
            reasons.append(run.reason)

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(30)
    assert reasons == [CancelReason.LOST]
    assert desk.heard("claim_lost") == [1]
    assert desk.settled == {}


async def test_error_after_the_write_is_reported_and_settles_nothing(autojump_clock: MockClock) -> None:
    desk = Desk(1)

    async def handler(run: Run[int]) -> None:
        await desk.settle_by(run)
        raise ZeroDivisionError

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(30)
    assert [type(error) for error in desk.heard("failed_after_settlement")] == [ZeroDivisionError]
    assert desk.settled == {}


async def test_run_keeps_its_slot_during_the_write(autojump_clock: MockClock) -> None:
    desk = Desk(1, 2)
    desk.engine = engine_of(desk, concurrency=1)
    starts: list[tuple[int, float]] = []

    async def handler(run: Run[int]) -> None:
        starts.append((run.claim, trio.current_time()))
        await desk.settle_by(run)

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(60)
    assert starts == [(1, 0.0), (2, 20.0)]


async def test_end_waits_for_the_write(autojump_clock: MockClock) -> None:
    desk = Desk(1)
    desk.engine = engine_of(desk, shutdown_timeout=1.0, cleanup_timeout=25.0)

    async def handler(run: Run[int]) -> None:
        await desk.settle_by(run)

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(5)
    assert desk.heard("run_settled") == [(1, BY_ITSELF)]
    assert desk.engine.unfinished == ()


async def test_request_to_cancel_is_read_and_no_renewal_sent_during_the_write(autojump_clock: MockClock) -> None:
    class Stream:
        """Says at 5 s that a cancellation may have been requested."""

        asked: list[tuple[float, Sequence[int]]] = []  # noqa: RUF012

        async def open(self) -> None:
            await trio.lowlevel.checkpoint()

        async def next(self, wait: float) -> Hints[int]:
            await trio.sleep_until(5.0 if trio.current_time() < 5 else math.inf)
            return Hints(is_cancel_requested=lambda claim: claim == 1)

        async def cancel_requested(self, claims: Sequence[int]) -> Sequence[bool]:
            await trio.lowlevel.checkpoint()
            self.asked.append((trio.current_time(), list(claims)))
            return [True for _ in claims]

        async def end_wait(self) -> None:
            await trio.lowlevel.checkpoint()

        async def close(self) -> None:
            await trio.lowlevel.checkpoint()

    desk, stream = Desk(1), Stream()
    desk.engine = engine_of(desk, stream=stream)
    reasons: list[tuple[float, CancelReason | None]] = []

    async def handler(run: Run[int]) -> None:
        try:
            await desk.settle_by(run)
        finally:
            reasons.append((trio.current_time(), run.reason))

    desk.handler = handler
    desk.fate = NotNowError()
    async with running(desk.engine):
        await trio.sleep(60)
        desk.engine.stop.cut()
    assert (5.0, [1]) in stream.asked
    assert reasons == [(20.0, CancelReason.USER)]
    assert [at for at, _ in desk.renewed if 0 < at < 20] == []
