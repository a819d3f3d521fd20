"""Self-fencing: a run ends before its claim may be taken. Exact, in virtual time, over a source that is silent."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.support.shelf import Shelf, engine_of, running
from trio_monque.engine.demand import ClaimState, ClaimTraits
from trio_monque.engine.lease import LeaseTerms
from trio_monque.engine.run import Run
from trio_monque.engine.run_end import CancelReason

# With a beat every 6 s and 5 s to clean up, a run is cancelled 14 s after the last renewal that is known to hold
# was sent, its clean-up is over after 17, and no other instance may have its claim before 18.
BEATS: dict[str, Any] = {"heartbeat_interval": 6.0, "cleanup_timeout": 5.0}


@given(
    interval=st.floats(0.2, 300),
    cleanup=st.floats(0, 3600),
    sent=st.floats(0, 1e6, allow_nan=False, allow_infinity=False),
)
def test_a_run_is_cancelled_then_cleaned_up_and_then_its_lease_is_over(
    interval: float, cleanup: float, sent: float
) -> None:
    terms = LeaseTerms(interval, cleanup)
    assert sent < terms.lease_deadline(sent) <= terms.cleaned_up_by(sent) < sent + 3 * interval
    # An observer whose clock gains 1 s in 18 still finds the run ended.
    assert (terms.cleaned_up_by(sent) - sent) * (1 + 1 / 18) < 3 * interval


def test_the_figures_of_the_documentation() -> None:
    assert LeaseTerms(30.0, 5.0).lease_deadline(100.0) == 180.0
    assert LeaseTerms(30.0, 5.0).cleaned_up_by(100.0) == 185.0
    assert LeaseTerms(6.0, 5.0).lease_deadline(0.0) == 14.0
    assert LeaseTerms(6.0, 5.0).cleaned_up_by(0.0) == 17.0


@dataclass
class Silent(Shelf):
    """A source that answers renewals late, or not at all from some moment on."""

    silent_from: float = math.inf
    silent_until: float = math.inf
    answer_takes: float = 0.0
    ended: dict[int, float] = field(default_factory=dict)
    cleaned_up: dict[int, float] = field(default_factory=dict)
    reasons: dict[int, CancelReason | None] = field(default_factory=dict)

    async def renew(self, claims: Sequence[int]) -> Sequence[ClaimState]:
        sent = trio.current_time()
        self.renewed.append((sent, sorted(claims)))
        if self.silent_from <= sent < self.silent_until:
            await trio.sleep_until(self.silent_until)
        await trio.sleep(self.answer_takes)
        return [self.state_of(claim) for claim in claims]

    def obeying(self, clean_up: float = 0.0) -> Callable[[Run[int]], Awaitable[object]]:
        """A handler that sleeps until it is cancelled, and then cleans up for as long as it may."""

        async def handler(run: Run[int]) -> None:
            try:
                await trio.sleep_forever()
            finally:
                self.ended[run.claim] = trio.current_time()
                self.reasons[run.claim] = run.reason
                with run.cleaning_up(clean_up):
                    await trio.sleep(clean_up)
                self.cleaned_up[run.claim] = trio.current_time()

        return handler


async def test_run_that_is_never_renewed_ends_before_its_lease(autojump_clock: MockClock) -> None:
    shelf = Silent(items=[1], silent_from=0.0, silent_until=100.0)
    shelf.handler = shelf.obeying(clean_up=1000.0)
    async with running(engine_of(shelf, **BEATS)):
        await trio.sleep(50)
    assert shelf.ended == {1: 14.0}
    assert shelf.cleaned_up == {1: 17.0}
    assert shelf.reasons == {1: CancelReason.LOST}


async def test_lease_is_counted_from_the_last_renewal_that_was_answered_and_from_its_sending(
    autojump_clock: MockClock,
) -> None:
    shelf = Silent(items=[1], silent_from=30.0, silent_until=500.0, answer_takes=2.0)
    shelf.handler = shelf.obeying()
    async with running(engine_of(shelf, **BEATS)):
        await trio.sleep(100)
    assert [at for at, _ in shelf.renewed][:5] == [6.0, 12.0, 18.0, 24.0, 30.0]
    assert shelf.ended == {1: 24.0 + 14.0}


async def test_answer_that_comes_too_late_does_not_bring_a_run_back(autojump_clock: MockClock) -> None:
    shelf = Silent(items=[1], silent_from=6.0, silent_until=15.0)
    shelf.handler = shelf.obeying(clean_up=2.5)
    async with running(engine_of(shelf, **BEATS)):
        await trio.sleep(15.5)
        assert shelf.ended == {1: 14.0}
        await trio.sleep(5)
    assert shelf.reasons == {1: CancelReason.LOST}
    assert shelf.cleaned_up == {1: 16.5}


async def test_renewal_that_is_answered_at_the_moment_of_the_fence_does_not_bring_a_run_back(
    autojump_clock: MockClock,
) -> None:
    """It is fenced, although its scope has not been cancelled yet."""
    run = Run(1, ClaimTraits(1, "all"), terms=LeaseTerms(6.0, 3.0), sent=trio.current_time())
    lease_deadline = run.lease_deadline
    await trio.sleep_until(lease_deadline)
    run.renewed(lease_deadline - 1)
    assert (run.lease_deadline, run.reason) == (lease_deadline, CancelReason.LOST)


async def test_renewals_that_are_answered_in_the_wrong_order_shorten_no_lease(autojump_clock: MockClock) -> None:
    """Two may be under way: one of all that is held, and one for a request to cancel."""
    terms = LeaseTerms(6.0, 3.0)
    run = Run(1, ClaimTraits(1, "all"), terms=terms, sent=trio.current_time())
    run.renewed(5.0)
    run.renewed(4.0)
    assert run.lease_deadline == terms.lease_deadline(5.0)


async def test_claim_that_is_answered_too_late_starts_nothing_and_is_given_back(autojump_clock: MockClock) -> None:
    shelf = Silent(items=[1], claim_takes=14.0)
    async with running(engine_of(shelf, **BEATS)):
        await trio.sleep(20)
    assert shelf.heard("run_started") == []
    assert shelf.settled[1].cancelled
    assert shelf.settled[1].reason is CancelReason.LOST


async def test_claim_that_is_answered_just_in_time_has_what_is_left_of_its_lease(autojump_clock: MockClock) -> None:
    shelf = Silent(items=[1], claim_takes=13.0, silent_from=0.0)
    shelf.handler = shelf.obeying()
    async with running(engine_of(shelf, **BEATS)) as nursery:
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert shelf.ended == {1: 14.0}


async def test_fenced_run_is_reported_once_and_released_when_the_source_answers(autojump_clock: MockClock) -> None:
    shelf = Silent(items=[1, 2], silent_from=0.0, silent_until=100.0, settling_takes=50.0)
    shelf.handler = shelf.obeying()
    shelf.lost = {2}
    async with running(engine_of(shelf, **BEATS)):
        await trio.sleep(20)
        assert sorted(shelf.heard("claim_lost")) == [1, 2]
        await trio.sleep(100)
    # 1 was still ours, and 2 had been taken: that is known already.
    assert list(shelf.settled) == [1]
    assert len(shelf.heard("claim_lost")) == 2


async def test_run_that_ended_well_and_could_not_be_settled_in_time_is_settled_later(autojump_clock: MockClock) -> None:
    shelf = Silent(items=[1], silent_from=0.0, silent_until=100.0, settling_takes=60.0)
    async with running(engine_of(shelf, **BEATS)):
        await trio.sleep(90)
    assert (shelf.settled[1].cancelled, shelf.settled[1].reason) == (False, None)
    assert shelf.heard("claim_lost") == []


async def test_claim_is_renewed_no_longer_than_a_run_may_take_at_most(autojump_clock: MockClock) -> None:
    shelf = Silent(items=[1], hold=30.0)
    reasons: list[CancelReason | None] = []

    async def stubborn(run: Run[int]) -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(26)
            reasons.append(run.reason)
            await trio.sleep(60)
            reasons.append(run.reason)
        return "late"

    shelf.handler = stubborn
    async with running(engine_of(shelf, **BEATS)):
        await trio.sleep(100)
    # Cancelled at 25, so that the clean-up is over by 30; the last renewal is the one before that.
    assert reasons == [CancelReason.TIMEOUT, CancelReason.LOST]
    assert [at for at, claims in shelf.renewed if claims] == [6.0, 12.0, 18.0, 24.0]
    # What it returns later is settled if no other instance took the claim meanwhile.
    assert shelf.settled[1].value == "late"


async def test_clean_up_lasts_as_long_as_it_may_while_the_claim_is_renewed(autojump_clock: MockClock) -> None:
    """The lease is three seconds, the clean-up five: each beat moves its end."""
    shelf = Silent(items=[1], unwanted={1})
    shelf.handler = shelf.obeying(clean_up=1000.0)
    async with running(engine_of(shelf, heartbeat_interval=1.0, cleanup_timeout=5.0)):
        await trio.sleep(20)
    assert shelf.reasons == {1: CancelReason.USER}
    assert (shelf.ended, shelf.cleaned_up) == ({1: 1.0}, {1: 6.0})


async def test_clean_up_ends_with_the_lease_when_the_beats_are_answered_no_longer(autojump_clock: MockClock) -> None:
    shelf = Silent(items=[1], unwanted={1}, silent_from=2.5)
    shelf.handler = shelf.obeying(clean_up=1000.0)
    async with running(engine_of(shelf, heartbeat_interval=1.0, cleanup_timeout=5.0)) as nursery:
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert shelf.ended == {1: 1.0}
    assert shelf.cleaned_up[1] == pytest.approx(2.0 + 3.0 - 1 / 6)


async def test_shutdown_in_whose_clean_up_the_time_runs_out_remains_one(autojump_clock: MockClock) -> None:
    shelf = Silent(items=[1], limit=10.0)
    shelf.handler = shelf.obeying(clean_up=4.0)
    async with running(engine_of(shelf, shutdown_timeout=0.0, cleanup_timeout=5.0)):
        await trio.sleep(8)
    assert shelf.settled[1].reason is CancelReason.SHUTDOWN
