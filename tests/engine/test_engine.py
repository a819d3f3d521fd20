"""The engine over another source than jobs: it knows none. Everything in virtual time, without a database."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_monque.engine import claimer as claimer_module
from trio_monque.engine import heartbeat as heartbeat_module
from trio_monque.engine import settler as settler_module
from trio_monque.engine.demand import ClaimState, Demand, Due, Granted, Tip
from trio_monque.engine.lease import LeaseTerms
from trio_monque.engine.limits import EngineLimits
from trio_monque.engine.nursery import HARD_BOUND, Engine
from trio_monque.engine.pauses import Pauses
from trio_monque.engine.run import Run
from trio_monque.engine.run_end import CancelReason, RunEnd
from trio_monque.engine.settler import Settler
from trio_monque.engine.source import Control
from trio_monque.engine.wake import WakeSignal
from trio_monque.observations import Sighting

TERMS = LeaseTerms(heartbeat_interval=10.0, cleanup_timeout=5.0)


class NotNowError(Exception):
    """A fault that passes."""


def sleeping(seconds: float) -> Callable[[Run[int]], Awaitable[object]]:
    """A handler that sleeps."""

    async def handler(run: Run[int]) -> None:
        await trio.sleep(seconds)

    return handler


@dataclass
class Shelf:
    """A source whose items are numbers on a shelf; each can be told how its parts behave."""

    items: list[int] = field(default_factory=list)
    handler: Callable[[Run[int]], Awaitable[object]] = field(default_factory=lambda: sleeping(1))
    settled: dict[int, RunEnd] = field(default_factory=dict)
    batches: list[list[int]] = field(default_factory=list)
    renewed: list[tuple[float, list[int]]] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    unwanted: set[int] = field(default_factory=set)
    told: list[tuple[str, Any]] = field(default_factory=list)
    control: Control[int, tuple[int, RunEnd]] = field(init=False)
    limit: float = float("inf")
    hold: float = float("inf")
    claim_takes: float = 0.0
    settling_takes: float = 0.0
    claim_faults: list[Exception] = field(default_factory=list)
    races: int = 0
    settling_faults: list[Exception] = field(default_factory=list)
    renewal_faults: list[Exception] = field(default_factory=list)
    claimed_at: list[float] = field(default_factory=list)
    asked_for_one: list[object] = field(default_factory=list)
    unsure: set[object] = field(default_factory=set)
    due: list[float] = field(default_factory=list)
    tips: dict[float, Tip] = field(default_factory=dict)
    asked_at: list[float] = field(default_factory=list)
    ask_faults: list[Exception] = field(default_factory=list)
    suspects: set[int] = field(default_factory=set)
    others: dict[int, Sighting[int]] = field(default_factory=dict)
    observed_at: list[float] = field(default_factory=list)
    look_takes: float = 0.0
    look_faults: list[Exception] = field(default_factory=list)
    rescue_faults: list[Exception] = field(default_factory=list)
    rescued: list[tuple[float, int]] = field(default_factory=list)
    rescue_takes: float = 0.0
    asked_for: list[list[int]] = field(default_factory=list)

    def key_of(self, claim: int) -> int:
        return claim

    def lane_of(self, claim: int) -> str:
        return "all"

    def is_suspect(self, claim: int) -> bool:
        return claim in self.suspects

    async def observe(self, held: Sequence[int]) -> Sequence[Sighting[int]]:
        self.observed_at.append(trio.current_time())
        await trio.sleep(self.look_takes)
        if self.look_faults:
            raise self.look_faults.pop(0)
        return [sighting for sighting in self.others.values() if sighting.claim not in held]

    async def rescue(self, claims: Sequence[int]) -> Sequence[int]:
        self.asked_for.append(list(claims))
        await trio.sleep(self.rescue_takes)
        if self.rescue_faults:
            raise self.rescue_faults.pop(0)
        self.rescued += [(trio.current_time(), claim) for claim in claims]
        return [claim for claim in claims if self.others.pop(claim, None) is not None]

    def time_limit(self, claim: int) -> float:
        return self.limit

    async def claim(self, demand: Demand) -> Granted[int]:
        self.claimed_at.append(trio.current_time())
        if self.races:
            self.races -= 1
            return Granted([], more=True)  # Others were faster with what was seen.
        granted = [self.items.pop(0) for _ in range(min(demand.total, len(self.items)))]
        await trio.sleep(self.claim_takes)
        if self.claim_faults:
            self.items[:0] = granted
            raise self.claim_faults.pop(0)
        return Granted(granted)

    async def claim_one(self, tip: Tip, demand: Demand) -> Granted[int]:
        self.asked_for_one.append(tip.key)
        await trio.sleep_until(next((due for due, one in self.tips.items() if one == tip), -math.inf))
        await trio.sleep(self.claim_takes)
        if self.claim_faults:
            raise self.claim_faults.pop(0)
        if tip.key in self.unsure:
            return Granted([], more=True)
        if tip.key not in self.items:
            return Granted([])
        assert isinstance(tip.key, int)
        self.items.remove(tip.key)
        self.due = [due for due in self.due if self.tips.get(due) != tip]
        return Granted([tip.key])

    async def next_due(self, lanes: Set[str]) -> Due | None:
        self.asked_at.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if self.ask_faults:
            raise self.ask_faults.pop(0)
        later = sorted(due for due in self.due if due > self.claimed_at[-1])
        if not later:
            return None
        return Due(later[0], self.tips.get(later[0]) if later[1:2] != later[:1] else None)

    async def execute(self, run: Run[int]) -> object:
        return await self.handler(run)

    def conclude(self, claim: int, end: RunEnd) -> tuple[int, RunEnd]:
        return claim, end

    async def prepare(self, settlements: Sequence[tuple[int, RunEnd]]) -> list[tuple[int, RunEnd]]:
        return list(settlements)

    async def settle(self, batch: list[tuple[int, RunEnd]]) -> Sequence[bool]:
        self.batches.append([claim for claim, _ in batch])
        await trio.sleep(self.settling_takes)
        if self.settling_faults:
            raise self.settling_faults.pop(0)
        self.settled.update({claim: end for claim, end in batch if claim not in self.lost})
        return [claim not in self.lost for claim, _ in batch]

    async def renew(self, claims: Sequence[int]) -> Sequence[ClaimState]:
        self.renewed.append((trio.current_time(), sorted(claims)))
        await trio.lowlevel.checkpoint()
        if self.renewal_faults:
            raise self.renewal_faults.pop(0)
        return [self.state_of(claim) for claim in claims]

    def state_of(self, claim: int) -> ClaimState:
        if claim in self.lost:
            return ClaimState.LOST
        return ClaimState.CANCEL_REQUESTED if claim in self.unwanted else ClaimState.HELD

    def hold_limit(self, claim: int) -> float:
        return self.hold

    def rescue_abandoned(self) -> None:
        self.told.append(("rescue_abandoned", None))

    def has_orphaned_claims(self) -> bool:
        return False

    async def release_orphaned_claims(self) -> None:
        await trio.lowlevel.checkpoint()

    def is_transient(self, error: Exception) -> bool:
        return isinstance(error, NotNowError)

    def attach(self, control: Control[int, tuple[int, RunEnd]]) -> None:
        self.control = control

    # --- The observer ---

    def run_started(self, claim: int) -> None:
        self.told.append(("run_started", claim))

    def run_settled(self, settlement: tuple[int, RunEnd]) -> None:
        self.told.append(("run_settled", settlement))

    def claim_lost(self, claim: int) -> None:
        self.told.append(("claim_lost", claim))

    def draining(self, cause: str) -> None:
        self.told.append(("draining", cause))

    def runs_cut_short(self, claims: Sequence[int]) -> None:
        self.told.append(("runs_cut_short", claims))

    def claiming_failed(self, error: Exception) -> None:
        self.told.append(("claiming_failed", error))

    def renewal_failed(self, error: Exception) -> None:
        self.told.append(("renewal_failed", error))

    def settlement_delayed(self, error: Exception) -> None:
        self.told.append(("settlement_delayed", error))

    def rescue_delayed(self, error: Exception) -> None:
        self.told.append(("rescue_delayed", error))

    def claims_rescued(self, rescued: Sequence[int]) -> None:
        self.told.append(("claims_rescued", rescued))

    def stream_connected(self) -> None:
        self.told.append(("stream_connected", None))

    def stream_failed(self, error: Exception) -> None:
        self.told.append(("stream_failed", error))

    def stream_closed(self) -> None:
        self.told.append(("stream_closed", None))

    def stream_fallback(self, error: Exception) -> None:
        self.told.append(("stream_fallback", error))

    def heard(self, name: str) -> list[Any]:
        """What was reported under that name."""
        return [what for one, what in self.told if one == name]


ShelfEngine = Engine[int, tuple[int, RunEnd], list[tuple[int, RunEnd]], int, int]


def engine_of(shelf: Shelf, *, concurrency: int = 3, **limits: Any) -> ShelfEngine:
    engine: ShelfEngine = Engine(
        shelf,
        shelf,
        EngineLimits(
            **{
                "poll_interval": 5.0,
                "heartbeat_interval": 10.0,
                "shutdown_timeout": 30.0,
                "cleanup_timeout": 5.0,
                "concurrency": concurrency,
                "rests": False,
                **limits,
            }
        ),
    )
    engine.slots.set_limit("all", 100)
    return engine


@asynccontextmanager
async def running(engine: Engine[Any, Any, Any, Any, Any]) -> Any:
    async with trio.open_nursery() as nursery:
        started = trio.Event()

        async def run() -> None:
            await engine.run(started=started.set)

        nursery.start_soon(run)
        await started.wait()
        yield nursery
        engine.stop.drain()


async def test_slot_is_free_at_the_verdict_and_claims_overlap_settlements(autojump_clock: MockClock) -> None:
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


async def test_transient_fault_of_a_claim_is_told_and_the_claimer_goes_on(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer_module, "FIRST_RETRY", 0.001)
    shelf = Shelf(items=[1], claim_faults=[NotNowError(), NotNowError()])
    async with running(engine_of(shelf)):
        await trio.sleep(20)
    assert shelf.claim_faults == []
    assert len(shelf.heard("claiming_failed")) == 1, "once for each outage, and not for each try"
    assert list(shelf.settled) == [1]


async def test_transient_fault_of_a_settlement_is_no_failure_of_the_run(
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
    monkeypatch.setattr(heartbeat_module, "LONGEST_RETRY", 0.001)
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


async def test_settlement_that_was_not_written_is_told_as_lost(autojump_clock: MockClock) -> None:
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
    run = Run(1, time_limit=5, terms=TERMS, sent=trio.current_time())
    reasons = [run.reason]
    for reason in (CancelReason.SHUTDOWN, CancelReason.USER, CancelReason.TIMEOUT):
        run.cancel(reason)
        reasons.append(run.reason)
    run.lose()
    reasons.append(run.reason)
    assert run.reason_but_lost is CancelReason.USER
    assert reasons == [None, CancelReason.SHUTDOWN, CancelReason.USER, CancelReason.USER, CancelReason.LOST]
    timed_out = Run(2, time_limit=5, terms=TERMS, sent=trio.current_time())
    await trio.sleep(5)
    assert timed_out.reason is CancelReason.TIMEOUT
    timed_out.cancel(CancelReason.SHUTDOWN)
    assert timed_out.reason is CancelReason.TIMEOUT


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
    assert trio.current_time() == 5 + 20 + 4 + HARD_BOUND
    assert sorted(engine.unfinished) == [1, 2]


async def test_claim_that_never_lands_is_abandoned_at_the_hard_bound(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1], claim_takes=float("inf"))
    engine = engine_of(shelf, shutdown_timeout=20.0, cleanup_timeout=4.0)
    async with running(engine):
        await trio.sleep(5)
    assert trio.current_time() == 5 + 20 + 4 + HARD_BOUND


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
    assert {claim: end.reason for claim, end in shelf.settled.items()} == dict.fromkeys(
        (1, 2, 3), CancelReason.SHUTDOWN
    )


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


async def test_settler_that_is_gone_leaves_nobody_waiting(autojump_clock: MockClock) -> None:
    shelf = Shelf(settling_takes=1000.0)
    settler: Settler[tuple[int, RunEnd], list[tuple[int, RunEnd]]] = Settler(shelf, shelf, Pauses())
    end = RunEnd(None, None, cancelled=False, reason=None, duration=0.0)
    told: list[bool | None] = []
    left: list[int] = []

    async def wait(number: int) -> None:
        settler.settle((number, end), told.append)
        await settler.wait_all_told()
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
    assert not told


@pytest.mark.parametrize("name", ["run_started", "run_settled"])
async def test_bug_in_what_hears_of_runs_ends_the_scheduler_in_order_and_fails_no_job(
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
    assert sorted(shelf.settled) == [1, 2, 3]
    assert not any(end.error for end in shelf.settled.values())
    assert engine.unfinished == ()
