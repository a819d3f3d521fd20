"""A run whose claim is settled while its handler goes on. Without a database, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.shelf import NotNowError, Shelf, ShelfEngine, engine_of, running
from trio_monque.engine.demand import ClaimState
from trio_monque.engine.run import Run
from trio_monque.engine.run_end import CancelReason, RunEnd
from trio_monque.engine.shutdown import HARD_END_AFTER

EARLY = RunEnd(None, "early", cancelled=False, reason=None, duration=0.0)


class Desk(Shelf):
    """A shelf that can refuse chosen items. `fates` is what the handlers got."""

    def __init__(self, *items: int, **fields: Any) -> None:
        super().__init__(items=list(items), **fields)
        self.refused: set[int] = set()
        self.fates: dict[int, bool | None] = {}
        self.engine: ShelfEngine = engine_of(self)

    async def settle(self, batch: list[tuple[int, RunEnd]]) -> Sequence[bool | None]:  # type: ignore[override]
        self.batches.append([claim for claim, _ in batch])
        await trio.sleep(self.settling_takes)
        if self.settling_faults:
            raise self.settling_faults.pop(0)
        reported: list[bool | None] = []
        for claim, end in batch:
            is_refused = claim in self.refused and end is EARLY
            reported.append(None if is_refused else claim not in self.lost)
            if reported[-1]:
                assert claim not in self.settled
                self.settled[claim] = end
        return reported

    async def settle_early(self, run: Run[int]) -> bool | None:
        self.fates[run.claim] = fate = await self.engine.settle_early(run, (run.claim, EARLY))
        return fate


async def sleep_until_cut(run: Run[int], ends: list[tuple[float, CancelReason | None]]) -> None:
    """Keeps when that was, and why."""
    try:
        await trio.sleep_forever()
    finally:
        ends.append((trio.current_time(), run.reason))


async def test_early_settlement_is_reported_at_once_and_its_handler_may_outlast_the_lease(
    autojump_clock: MockClock,
) -> None:
    desk = Desk(1)
    ends: list[tuple[float, CancelReason | None]] = []

    async def handler(run: Run[int]) -> None:
        await trio.sleep(3)
        assert await desk.settle_early(run) is True
        assert desk.heard("run_settled")
        assert not desk.engine.number_held
        await trio.sleep(500)
        ends.append((trio.current_time(), run.reason))

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(600)
    assert ends == [(503.0, None)]
    assert desk.settled == {1: EARLY}
    assert desk.batches == [[1]]
    assert desk.renewed == [] or all(claims == [] for _, claims in desk.renewed)
    assert len(desk.heard("run_settled")) == 1
    assert desk.heard("claim_lost") == []


async def test_handler_that_goes_on_has_its_time_limit_and_is_cut_with_the_others(autojump_clock: MockClock) -> None:
    desk = Desk(1, limit=40.0)
    ends: list[tuple[float, CancelReason | None]] = []

    async def handler(run: Run[int]) -> None:
        await desk.settle_early(run)
        await sleep_until_cut(run, ends)

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(50)
        assert ends == [(40.0, CancelReason.TIMEOUT)]
        desk.limit = math.inf
        desk.items = [2]
        desk.engine.waker.look()
        await trio.sleep(10)
        desk.engine.stop.cut()
    assert ends[1:] == [(60.0, CancelReason.SHUTDOWN)]
    assert desk.settled == {1: EARLY, 2: EARLY}
    assert desk.heard("runs_cut_short") == []  # Nothing of it was cut short: it had been settled.


async def test_error_of_a_handler_that_ended_before_the_answer_is_reported_with_it(autojump_clock: MockClock) -> None:
    desk = Desk(1, settling_takes=60.0)

    async def handler(run: Run[int]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desk.settle_early, run)
            await trio.sleep(1)
            raise ZeroDivisionError

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(50)
        assert desk.heard("failed_after_settlement") == []
        await trio.sleep(50)
        (error,) = desk.heard("failed_after_settlement")
        assert isinstance(error, ExceptionGroup)
        assert not desk.engine.number_held
    assert desk.settled == {1: EARLY}


async def test_error_of_a_handler_that_goes_on_settles_nothing(autojump_clock: MockClock) -> None:
    desk = Desk(1)

    async def handler(run: Run[int]) -> None:
        await desk.settle_early(run)
        raise ZeroDivisionError

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(10)
    assert desk.settled == {1: EARLY}
    assert desk.batches == [[1]]


async def test_interrupt_of_a_handler_that_goes_on_ends_the_engine(autojump_clock: MockClock) -> None:
    desk = Desk(1)

    async def handler(run: Run[int]) -> None:
        await desk.settle_early(run)
        raise KeyboardInterrupt

    desk.handler = handler
    async with running(desk.engine):
        await desk.engine.stop.cutting.wait()
    assert [type(crash) for crash in desk.engine.stop.crashes] == [KeyboardInterrupt]
    assert desk.settled == {1: EARLY}


async def test_lost_early_settlement_returns_false_and_cancels_its_handler(autojump_clock: MockClock) -> None:
    desk = Desk(1, lost={1})
    steps: list[Any] = []

    async def handler(run: Run[int]) -> None:
        steps.append(await desk.settle_early(run))
        steps.append(run.reason)
        await trio.sleep(1)
        steps.append("never")

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(30)
    assert steps == [False, CancelReason.LOST]
    assert desk.heard("claim_lost") == [1]  # Once.
    assert desk.settled == {}
    assert desk.batches == [[1]]
    assert desk.engine.unfinished == ()


async def test_refused_one_is_held_and_renewed_and_the_end_of_its_handler_decides(autojump_clock: MockClock) -> None:
    desk = Desk(1, 2)
    desk.refused = {1}
    held: list[int] = []

    async def handler(run: Run[int]) -> None:
        fate = await desk.settle_early(run)
        held.append(desk.engine.number_held)
        if fate is None:
            await trio.sleep(25)
            raise ZeroDivisionError

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(40)
    assert desk.fates == {1: None, 2: True}
    assert held == [1, 1]
    assert [claims for _, claims in desk.renewed][:2] == [[1], [1]]
    assert type(desk.settled[1].error) is ZeroDivisionError
    assert desk.settled[2] is EARLY


async def test_refused_one_may_be_settled_early_again(autojump_clock: MockClock) -> None:
    desk = Desk(1)
    desk.refused = {1}

    async def handler(run: Run[int]) -> None:
        assert await desk.settle_early(run) is None
        desk.refused.clear()
        assert await desk.settle_early(run) is True

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(10)
    assert desk.settled == {1: EARLY}


@pytest.mark.parametrize("fate", [True, False, None])
async def test_handler_that_ends_meanwhile_decides_only_where_it_is_refused(
    autojump_clock: MockClock, *, fate: bool | None
) -> None:
    desk = Desk(1, settling_takes=10.0)
    desk.refused = {1} if fate is None else set()
    desk.lost = {1} if fate is False else set()
    async with running(desk.engine) as nursery:

        async def handler(run: Run[int]) -> None:
            nursery.start_soon(desk.settle_early, run)
            await trio.sleep(1)

        desk.handler = handler
        await trio.sleep(30)
        assert desk.fates == {1: fate}
        assert desk.engine.number_held == 0
    if fate is None:
        assert desk.batches == [[1], [1]]
        assert (desk.settled[1].error, desk.settled[1].duration) == (None, 1.0)
    else:
        assert desk.batches == [[1]]
        assert desk.settled == ({1: EARLY} if fate else {})
    assert len(desk.heard("run_settled")) == (fate is not False)
    assert len(desk.heard("claim_lost")) == (fate is False)


async def test_cancelled_waiter_still_gets_the_answer_of_its_settlement(autojump_clock: MockClock) -> None:
    desk = Desk(1, settling_takes=4.0)
    reported: list[Any] = []

    async def handler(run: Run[int]) -> None:
        with trio.move_on_after(1) as limit:
            reported.append((await desk.settle_early(run), trio.current_time()))
            await trio.lowlevel.checkpoint()
        assert limit.cancelled_caught
        reported.append(trio.current_time())

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(20)
    assert reported == [(True, 4.0), 4.0]
    assert desk.settled == {1: EARLY}


async def test_cancelled_waiter_still_gets_the_refusal_of_its_settlement(autojump_clock: MockClock) -> None:
    desk = Desk(1, settling_takes=4.0)
    desk.refused = {1}

    async def handler(run: Run[int]) -> None:
        with trio.move_on_after(1):
            if await desk.settle_early(run) is None:
                raise ZeroDivisionError

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(20)
    assert type(desk.settled[1].error) is ZeroDivisionError


async def test_cancelled_while_it_waits_it_waits_no_longer_than_a_clean_up_may_take(autojump_clock: MockClock) -> None:
    desk = Desk(1, settling_takes=50.0)
    left: list[float] = []

    async def handler(run: Run[int]) -> None:
        with trio.move_on_after(1):
            try:
                await desk.settle_early(run)
            finally:
                left.append(trio.current_time())
        await trio.sleep(3)

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(60)
    assert left == [6.0]
    assert desk.settled == {1: EARLY}  # It is written when it can be, whatever its handler ended with meanwhile.
    assert desk.batches == [[1]]


@pytest.mark.usefixtures("virtual_pauses")
async def test_handler_that_waits_for_its_answer_is_over_before_its_lease(autojump_clock: MockClock) -> None:
    """No renewal is answered any more, and no settlement either: by the end of the lease nothing may be at work."""
    desk = Desk(1, settling_takes=1000.0)
    desk.engine = engine_of(desk, heartbeat_interval=3.0, cleanup_timeout=8.0)
    desk.renewal_faults = [NotNowError() for _ in range(10_000)]
    left: list[float] = []

    async def handler(run: Run[int]) -> None:
        try:
            await desk.settle_early(run)
        finally:
            left.append(trio.current_time())

    desk.handler = handler
    async with running(desk.engine) as nursery:
        with trio.move_on_after(60):
            while not left:
                await trio.sleep(0.1)
        desk.renewal_faults.clear()
        nursery.cancel_scope.cancel()
    assert left == [8.5]  # Three beats but a sixth of one.


@pytest.mark.usefixtures("virtual_pauses")
async def test_run_cancelled_at_its_lease_deadline_keeps_the_reason_if_it_is_settled_after_that(
    autojump_clock: MockClock,
) -> None:
    """Its clean-up has no more time than before, although no lease binds it any more."""
    desk = Desk(1, settling_takes=7.5)
    desk.engine = engine_of(desk, heartbeat_interval=3.0, cleanup_timeout=5.0)
    desk.renewal_faults = [NotNowError() for _ in range(10_000)]
    seen: list[tuple[float, CancelReason | None]] = []

    async def handler(run: Run[int]) -> None:
        assert await desk.settle_early(run)
        seen.append((trio.current_time(), run.reason))
        try:
            await trio.sleep_forever()
        finally:
            seen.append((trio.current_time(), run.reason))
            with run.cleaning_up(100):
                await trio.sleep(100)
            seen.append((trio.current_time(), run.reason))

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(60)
    # Three beats are 9 seconds: cancelled 2 seconds before their end, and cleaned up for 5 seconds at most.
    assert seen == [(7.5, CancelReason.LOST), (7.5, CancelReason.LOST), (12.0, CancelReason.LOST)]


async def test_handler_that_outlasts_its_lease_awaits_answers_and_cleans_up_as_before(
    autojump_clock: MockClock,
) -> None:
    """No lease limits it any more, so a call to the database must not fail because the lease would be over."""
    desk = Desk(1)
    seen: list[float] = []

    async def handler(run: Run[int]) -> None:
        assert await desk.settle_early(run)
        await trio.sleep(500)
        seen.append(run.seconds_left)
        call = trio.CancelScope()
        with run.grace.waiting(call):
            seen.append(call.deadline)
        with run.cleaning_up(3):
            await trio.sleep(2)
            seen.append(trio.current_time())

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(600)
    assert seen == [math.inf, math.inf, 502.0]


async def test_nothing_is_awaited_of_a_settler_that_is_gone(autojump_clock: MockClock) -> None:
    class BrokenError(Exception):
        pass

    desk = Desk(1, 2, settling_takes=2.0, settling_faults=[BrokenError()])
    reported: dict[int, Any] = {}

    async def handler(run: Run[int]) -> None:
        if run.claim == 2:
            await desk.settle_early(run)  # Which breaks it.
            return
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                reported[1] = (await desk.settle_early(run), trio.current_time())

    desk.handler = handler
    with trio.fail_after(100):
        async with running(desk.engine):
            await desk.engine.stop.cutting.wait()
    assert [type(crash) for crash in desk.engine.stop.crashes] == [BrokenError]
    assert reported == {1: (False, 2.0)}
    # The last act gave the other one back. The one that broke the settler is left to its lease.
    assert {claim: end.reason for claim, end in desk.settled.items()} == {1: CancelReason.SHUTDOWN}
    assert desk.engine.unfinished == (2,)


async def test_crash_of_the_settler_releases_the_waiting_handler(autojump_clock: MockClock) -> None:
    class BrokenError(Exception):
        pass

    desk = Desk(1, settling_takes=2.0, settling_faults=[BrokenError()])
    reported: list[Any] = []

    async def handler(run: Run[int]) -> None:
        with trio.CancelScope(shield=True):
            reported.append((await desk.settle_early(run), trio.current_time()))

    desk.handler = handler
    with trio.fail_after(100):
        async with running(desk.engine):
            await desk.engine.stop.cutting.wait()
    assert reported == [(False, 2.0)]
    assert desk.engine.unfinished == (1,)


@pytest.mark.usefixtures("virtual_pauses")
async def test_shielded_wait_does_not_outlive_the_hard_end(autojump_clock: MockClock) -> None:
    class Unreachable(Desk):
        async def settle(self, batch: object) -> list[bool]:
            raise NotNowError

    desk = Unreachable(1)
    reported: list[Any] = []

    async def handler(run: Run[int]) -> None:
        with trio.CancelScope(shield=True):
            reported.append(await desk.settle_early(run))

    desk.handler = handler
    with trio.fail_after(100):
        async with running(desk.engine):
            await trio.sleep(10)
            desk.engine.stop.cut()
    assert reported == [False]
    assert trio.current_time() == 10 + 5 + HARD_END_AFTER
    assert desk.engine.unfinished == (1,)


async def test_renewal_during_a_settlement_does_not_count_as_a_lost_claim(autojump_clock: MockClock) -> None:
    desk = Desk(1, settling_takes=8.0)
    desk.engine = engine_of(desk, heartbeat_interval=10.0)
    reported: list[Any] = []

    async def handler(run: Run[int]) -> None:
        await trio.sleep(5)
        reported.append(await desk.settle_early(run))
        await trio.sleep(20)
        reported.append(run.reason)

    desk.handler = handler

    async def renew_behind_it(claims: Sequence[int]) -> Sequence[Any]:
        renewals.append(list(claims))
        return [Shelf.state_of(lost, claim) for claim in claims]

    renewals: list[list[int]] = []
    lost = Shelf(lost={1})
    desk.renew = renew_behind_it  # type: ignore[method-assign]
    async with running(desk.engine):
        await trio.sleep(60)
    assert renewals == [[1]]  # At 10, while it was being settled, from 5 to 13.
    assert reported == [True, None]
    assert desk.heard("claim_lost") == []
    assert desk.settled == {1: EARLY}


@pytest.mark.parametrize("state", [ClaimState.HELD, ClaimState.LOST])
async def test_renewal_that_is_answered_after_the_settlement_cancels_no_handler_that_goes_on(
    autojump_clock: MockClock, state: ClaimState
) -> None:
    """It was sent before, for a claim that has ended: it must neither cancel the run nor give it a lease again."""
    desk = Desk(1)
    desk.engine = engine_of(desk, heartbeat_interval=10.0)
    ends: list[tuple[float, CancelReason | None]] = []

    async def handler(run: Run[int]) -> None:
        await trio.sleep(11)
        assert await desk.settle_early(run)
        await trio.sleep(100)
        ends.append((trio.current_time(), run.reason))

    async def renew_slowly(claims: Sequence[int]) -> Sequence[ClaimState]:
        await trio.sleep(2)
        return [state for _ in claims]

    desk.handler = handler
    desk.renew = renew_slowly  # type: ignore[method-assign]
    async with running(desk.engine):
        await trio.sleep(120)
    assert ends == [(111.0, None)]


async def test_early_ones_and_others_share_a_batch(autojump_clock: MockClock) -> None:
    desk = Desk(1, 2, 3, settling_takes=5.0)
    desk.refused, desk.lost = {2}, {3}

    async def handler(run: Run[int]) -> None:
        await trio.sleep(1)
        if run.claim in (2, 3):
            await desk.settle_early(run)

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(30)
    # The second of 2 is what its handler ended with, having been refused.
    assert sorted(one for batch in desk.batches for one in batch) == [1, 2, 2, 3]
    assert len(desk.batches) <= 3
    assert desk.fates == {2: None, 3: False}
    assert sorted(desk.settled) == [1, 2]
    assert desk.heard("claim_lost") == [3]


async def test_fault_that_passes_delays_the_answer(autojump_clock: MockClock) -> None:
    desk = Desk(1, settling_faults=[NotNowError(), NotNowError()])

    async def handler(run: Run[int]) -> None:
        await desk.settle_early(run)

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(10)
    assert desk.fates == {1: True}
    assert desk.batches == [[1], [1], [1]]


async def test_engine_waits_at_its_end_for_what_is_settled_early(autojump_clock: MockClock) -> None:
    desk = Desk(1, settling_takes=20.0)

    async def handler(run: Run[int]) -> None:
        await desk.settle_early(run)

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(1)
    assert desk.fates == {1: True}
    assert desk.engine.unfinished == ()


async def test_wait_changed_returns_when_a_handler_ends_after_its_early_settlement(
    autojump_clock: MockClock,
) -> None:
    desk = Desk(1)
    desk.engine = engine_of(desk, poll_interval=100_000.0)

    async def handler(run: Run[int]) -> None:
        await desk.settle_early(run)
        await trio.sleep(300)

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(1)
        assert (desk.engine.number_held, desk.engine.is_at_work) == (0, True)
        while desk.engine.is_at_work:
            await desk.engine.wait_changed()
        assert trio.current_time() == 300


async def test_time_that_a_run_waits_to_begin_is_not_counted(autojump_clock: MockClock) -> None:
    desk = Desk(1, limit=5.0)
    ends: list[tuple[float, CancelReason | None]] = []

    async def handler(run: Run[int]) -> None:
        run.wait_to_begin()
        assert run.deadline == math.inf
        await trio.sleep(100)
        run.begin()
        assert run.deadline == 105.0
        await sleep_until_cut(run, ends)

    desk.handler = handler
    async with running(desk.engine):
        await trio.sleep(120)
    assert ends == [(105.0, CancelReason.TIMEOUT)]
    assert desk.settled[1].duration == 5.0
