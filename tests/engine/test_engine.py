"""The engine over another source than jobs: it knows none. Everything in virtual time, without a database."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.support.shelf import NotNowError, Shelf, engine_of, running, sleeping
from trio_monque.engine import claimer as claimer_module
from trio_monque.engine import pauses as pauses_module
from trio_monque.engine import settler as settler_module
from trio_monque.engine.demand import ClaimTraits, Demand, Granted
from trio_monque.engine.lease import LeaseTerms
from trio_monque.engine.pauses import Pauses
from trio_monque.engine.run import Run
from trio_monque.engine.run_end import CancelReason, RunEnd
from trio_monque.engine.settler import Settler
from trio_monque.engine.shutdown import HARD_END_AFTER
from trio_monque.engine.waker import WakeSignal

TERMS = LeaseTerms(heartbeat_interval=10.0, cleanup_timeout=5.0)


async def test_slot_is_free_at_the_outcome_and_claims_overlap_settlements(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=list(range(9)), settling_takes=10.0)
    async with running(engine_of(shelf)):
        await trio.sleep(3.5)
        # Three at a time for a second each, although not one settlement is acknowledged yet.
        assert sorted(shelf.heard("run_started")) == list(range(9))
    assert sorted(shelf.settled) == list(range(9))


async def test_what_piles_up_during_one_settlement_is_the_next_batch(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=list(range(7)), settling_takes=10.0)

    async def ends_in_turn(run: Run[int]) -> None:
        await trio.sleep(run.claim)

    shelf.handler = ends_in_turn
    async with running(engine_of(shelf, concurrency=10)):
        await trio.sleep(30)
    assert shelf.batches == [[0], [1, 2, 3, 4, 5, 6]]


async def test_traits_of_each_claim_are_asked_for_once(autojump_clock: MockClock) -> None:
    """They are on the way of every job, and may not change while it is held."""

    class Asked(Shelf):
        def traits_of(self, claim: int) -> ClaimTraits:
            self.reported.append(("traits_of", claim))
            return super().traits_of(claim)

    shelf = Asked(items=list(range(7)))
    async with running(engine_of(shelf)):
        await trio.sleep(30)
    assert sorted(shelf.settled) == sorted(shelf.heard("traits_of")) == list(range(7))


async def test_held_but_unsettled_runs_are_renewed_and_bounded(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=list(range(2000)), settling_takes=1000.0)
    shelf.handler = sleeping(0.001)
    async with running(engine_of(shelf, concurrency=3)) as nursery:
        await trio.sleep(11)
        started = len(shelf.heard("run_started"))
        assert 400 <= started <= 4 * 3 + 400 + 2 * 3
        assert len(shelf.renewed[-1][1]) == started
        await trio.sleep(500)
        assert len(shelf.heard("run_started")) == started
        nursery.cancel_scope.cancel()


async def test_transient_fault_of_a_claim_is_reported_once_and_the_claimer_goes_on(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer_module, "FIRST_RETRY", 0.001)
    shelf = Shelf(items=[1], claim_faults=[NotNowError(), NotNowError()])
    async with running(engine_of(shelf)):
        await trio.sleep(20)
    assert shelf.claim_faults == []
    assert len(shelf.heard("claiming_failed")) == 1, "once for each outage, and not for each try"
    assert list(shelf.settled) == [1]


async def test_transient_fault_of_a_settlement_does_not_fail_the_run(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settler_module, "FIRST_RETRY", 0.001)
    monkeypatch.setattr(settler_module, "LONGEST_RETRY", 0.002)
    shelf = Shelf(items=[1, 2], settling_faults=[NotNowError() for _ in range(20)])
    async with running(engine_of(shelf)):
        await trio.sleep(60)
    assert len(shelf.heard("settlement_delayed")) == 1
    # The very same batch, again and again.
    assert sorted(shelf.batches[0]) == [1, 2]
    assert shelf.batches == [shelf.batches[0]] * 21
    assert [shelf.settled[claim].error for claim in (1, 2)] == [None, None]
    assert sorted(settlement[0] for settlement in shelf.heard("run_settled")) == [1, 2]


async def test_failed_renewal_is_tried_again_soon(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses_module, "LONGEST_BEAT_RETRY", 0.001)
    shelf = Shelf(items=[1], renewal_faults=[NotNowError(), NotNowError()])
    shelf.handler = sleeping(25)
    async with running(engine_of(shelf)):
        await trio.sleep(30)
    assert [at for at, _ in shelf.renewed] == [10, 10, 10, 20]
    assert len(shelf.heard("renewal_failed")) == 1


async def test_run_whose_claim_is_gone_is_cancelled_and_settles_nothing(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1, 2])
    reasons: list[CancelReason | None] = []

    async def handler(run: Run[int]) -> None:
        try:
            await trio.sleep(25)
        except trio.Cancelled:
            reasons.append(run.reason)
            raise

    shelf.handler = handler
    async with running(engine_of(shelf)):
        await trio.sleep(5)
        shelf.lost.add(1)
        await trio.sleep(6)
        assert reasons == [CancelReason.LOST]
        assert shelf.heard("claim_lost") == [1]
    assert shelf.batches == [[2]]


async def test_cancel_request_reaches_the_run_with_a_beat(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1, 2])
    shelf.handler = sleeping(15)
    async with running(engine_of(shelf)):
        await trio.sleep(5)
        shelf.unwanted.add(1)
        await trio.sleep(6)
        assert (shelf.settled[1].cancelled, shelf.settled[1].reason) == (True, CancelReason.USER)
        assert shelf.settled[1].duration == 10.0
    assert not shelf.settled[2].cancelled


async def test_settlement_not_written_is_reported_as_a_lost_claim(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1], lost={1})
    engine = engine_of(shelf, heartbeat_interval=1000.0)
    async with running(engine):
        await trio.sleep(3)
    assert shelf.heard("claim_lost") == [1]
    assert shelf.heard("run_settled") == []
    assert engine.unfinished == ()


async def test_run_that_takes_too_long_is_cancelled_for_that(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1], limit=4.0)
    shelf.handler = sleeping(100)
    async with running(engine_of(shelf)):
        await trio.sleep(10)
    end = shelf.settled[1]
    assert (end.cancelled, end.reason, end.error, end.duration) == (True, CancelReason.TIMEOUT, None, 4.0)


async def test_stronger_reason_replaces_a_weaker_one(autojump_clock: MockClock) -> None:
    run = Run(1, ClaimTraits(1, "all", time_limit=5), terms=TERMS, sent=trio.current_time())
    reasons = [run.reason]
    for reason in (CancelReason.SHUTDOWN, CancelReason.USER, CancelReason.TIMEOUT):
        run.cancel(reason)
        reasons.append(run.reason)
    run.lose()
    reasons.append(run.reason)
    assert run.reason_except_lost is CancelReason.USER
    assert reasons == [None, CancelReason.SHUTDOWN, CancelReason.USER, CancelReason.USER, CancelReason.LOST]
    timed_out = Run(2, ClaimTraits(2, "all", time_limit=5), terms=TERMS, sent=trio.current_time())
    await trio.sleep(5)
    assert timed_out.reason is CancelReason.TIMEOUT
    timed_out.cancel(CancelReason.SHUTDOWN)
    assert timed_out.reason is CancelReason.TIMEOUT


@pytest.mark.parametrize("is_taken_in_time", [True, False])
async def test_time_limit_that_ends_before_a_late_begin_is_taken_does_not_count_as_one(
    autojump_clock: MockClock, is_taken_in_time: bool
) -> None:
    """The handler begins on another loop, which did not answer for long: the run takes that in a message."""
    run = Run(1, ClaimTraits(1, "all", time_limit=5), terms=TERMS, sent=trio.current_time())
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def work() -> None:
            with run.scope:
                await trio.sleep_forever()

        await trio.sleep(4)
        run.begins_at(began_at := trio.current_time())
        if is_taken_in_time:
            run.begin(began_at)
            reasons = list[CancelReason | None]()
            for seconds in (4.9, 0.2):
                await trio.sleep(seconds)
                reasons.append(run.reason)
            assert reasons == [None, CancelReason.TIMEOUT]
            return
        await trio.sleep(1.1)
        assert run.scope.cancelled_caught
        assert run.reason is CancelReason.SHUTDOWN
        run.begin(began_at)
        assert run.cancelled_at == trio.current_time()
        await trio.sleep(5)
        assert run.ended(None, None).reason is CancelReason.SHUTDOWN


async def test_cleanup_that_raises_is_the_end_of_the_run(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1], limit=1.0)

    async def handler(run: Run[int]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("in the clean-up")

    shelf.handler = handler
    async with running(engine_of(shelf)):
        await trio.sleep(5)
    assert isinstance(shelf.settled[1].error, ValueError)
    assert shelf.settled[1].reason is CancelReason.TIMEOUT


async def test_handler_that_swallows_its_cancellation_and_returns_has_returned(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1], limit=1.0)

    async def handler(run: Run[int]) -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(3)
        return "late"

    shelf.handler = handler
    async with running(engine_of(shelf)):
        await trio.sleep(5)
    assert (shelf.settled[1].cancelled, shelf.settled[1].value) == (False, "late")


async def test_claim_that_lands_after_the_end_was_asked_for_is_given_back_unrun(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1, 2], claim_takes=3.0)
    async with running(engine_of(shelf)):
        await trio.sleep(1)
    assert shelf.heard("run_started") == []
    assert [shelf.settled[claim].reason for claim in (1, 2)] == [CancelReason.SHUTDOWN] * 2
    assert trio.current_time() == 3.0


async def test_hard_bound_ends_the_engine_although_nothing_answers(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1, 2], settling_takes=float("inf"))
    shelf.handler = sleeping(10)
    engine = engine_of(shelf, shutdown_timeout=20.0, cleanup_timeout=4.0)
    async with running(engine):
        await trio.sleep(5)
    assert trio.current_time() == 5 + 20 + 4 + HARD_END_AFTER
    assert sorted(engine.unfinished) == [1, 2]


async def test_engine_ends_in_time_although_a_handler_has_cancelled_a_run_that_waits_for_a_thread(
    autojump_clock: MockClock,
) -> None:
    shelf = Shelf(items=[1, 2])

    async def handler(run: Run[int]) -> None:
        if run.claim == 1:
            with run.shielded_wait():
                await trio.sleep_forever()
        await trio.sleep(5)
        nursery = trio.lowlevel.current_task().parent_nursery
        assert nursery is not None
        nursery.cancel_scope.cancel()
        await trio.sleep_forever()

    shelf.handler = handler
    engine = engine_of(shelf, shutdown_timeout=20.0, cleanup_timeout=4.0)
    await engine.run(started=lambda: None)
    assert "cancelled the nursery" in str(engine.stop.crashes)
    assert trio.current_time() == 5 + 4 + HARD_END_AFTER / 2


async def test_claim_that_never_lands_is_abandoned_at_the_hard_bound(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1], claim_takes=float("inf"))
    engine = engine_of(shelf, shutdown_timeout=20.0, cleanup_timeout=4.0)
    async with running(engine):
        await trio.sleep(5)
    assert trio.current_time() == 5 + 20 + 4 + HARD_END_AFTER


async def test_second_cancellation_while_cutting_changes_nothing(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1])

    async def handler(run: Run[int]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(3)

    shelf.handler = handler
    engine = engine_of(shelf)
    with trio.CancelScope() as outer:
        async with running(engine) as nursery:
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
            outer.deadline = trio.current_time() + 1
    assert trio.current_time() == 4.0
    assert list(shelf.settled) == [1]


async def test_bug_in_one_runs_conclusion_ends_the_engine_in_order(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf(items=[1, 2, 3])

    def conclude(claim: int, end: RunEnd) -> tuple[int, RunEnd]:
        if claim == 2 and end.reason is None:
            raise ZeroDivisionError
        return claim, end

    async def handler(run: Run[int]) -> None:
        await trio.sleep(1 if run.claim == 2 else 100)

    monkeypatch.setattr(shelf, "conclude", conclude)
    shelf.handler = handler
    engine = engine_of(shelf)
    async with running(engine):
        await engine.stop.cutting.wait()
    assert trio.current_time() == 1.0
    assert [type(crash) for crash in engine.stop.crashes] == [ZeroDivisionError]
    assert {claim: end.reason for claim, end in shelf.settled.items()} == dict.fromkeys((1, 3), CancelReason.SHUTDOWN)
    # The one that crashed the engine is left to its lease, whose end counts as a death. Its neighbours are released.
    assert engine.unfinished == (2,)


async def test_bug_in_the_claimer_settles_what_runs(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(items=[1])
    shelf.handler = sleeping(100)
    engine = engine_of(shelf)
    async with running(engine):
        await trio.sleep(1)

        async def broken(demand: Demand) -> Granted[int]:
            raise ZeroDivisionError

        monkeypatch.setattr(shelf, "claim", broken)
        await engine.stop.cutting.wait()
    assert trio.current_time() == 5.0
    assert shelf.settled[1].reason is CancelReason.SHUTDOWN


async def test_wake_during_the_look_is_not_lost(autojump_clock: MockClock) -> None:
    shelf = Shelf(claim_takes=2.0)
    engine = engine_of(shelf, poll_interval=1000.0)
    async with running(engine):
        await trio.sleep(1)  # The first look is under way and will find nothing.
        shelf.items.append(1)
        engine.wake.set()
        engine.wake.set()
        await trio.sleep(10)
        assert shelf.claimed_at[:2] == [0.0, 2.0]
        assert list(shelf.settled) == [1]


async def test_wake_signal_coalesces(autojump_clock: MockClock) -> None:
    wake = WakeSignal()
    wake.set()
    wake.set()
    await wake.wait()
    assert trio.current_time() == 0
    with trio.move_on_after(100) as scope:
        await wake.wait()
    assert scope.cancelled_caught


async def test_cancelled_settler_releases_all_waiters(autojump_clock: MockClock) -> None:
    shelf = Shelf(settling_takes=1000.0)
    settler: Settler[tuple[int, RunEnd], list[tuple[int, RunEnd]]] = Settler(shelf, shelf, Pauses(shelf.is_transient))
    end = RunEnd(None, None, cancelled=False, reason=None, duration=0.0)
    reported: list[bool | None] = []
    left: list[int] = []
    run = Run(1, ClaimTraits(1, "all"), terms=TERMS, sent=0.0)

    async def wait(number: int) -> None:
        settler.settle((number, end), reported.append, run)
        await settler.wait_all_written()
        left.append(number)

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(wait, 1)
            async with trio.open_nursery() as settling:
                settling.start_soon(settler.run)
                await trio.sleep(1)
                nursery.start_soon(wait, 2)
                await trio.sleep(1)
                assert not left
                scope.cancel()
        nursery.start_soon(wait, 3)
    assert sorted(left) == [1, 2, 3]
    assert trio.current_time() == 2
    assert not reported


@pytest.mark.parametrize("name", ["run_started", "run_settled"])
async def test_bug_in_the_observer_ends_the_engine_in_order_and_fails_no_job(
    autojump_clock: MockClock, name: str
) -> None:
    class Deaf(Shelf):
        def run_started(self, claim: int) -> None:
            super().run_started(claim)
            self.fail_once("run_started")

        def run_settled(self, settlement: tuple[int, RunEnd]) -> None:
            super().run_settled(settlement)
            self.fail_once("run_settled")

        def fail_once(self, reported: str) -> None:
            if reported == name and len(self.heard(name)) == 1:
                raise ZeroDivisionError("a bug in the observer")

    shelf = Deaf(items=[1, 2, 3])
    engine = engine_of(shelf)
    async with running(engine):
        await trio.sleep(100)
    assert [type(error) for error in engine.stop.crashes] == [ZeroDivisionError]
    # What could not even be started is left to its lease; see `Runner._broke`.
    assert len(engine.unfinished) == (name == "run_started")
    assert sorted([*shelf.settled, *engine.unfinished]) == [1, 2, 3]
    assert not any(end.error for end in shelf.settled.values())
