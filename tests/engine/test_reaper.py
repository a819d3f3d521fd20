"""The loop that takes dead claims away, over another source than jobs. In virtual time, without a database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.shelf import NotNowError, Shelf, engine_of, running, sleeping
from trio_monque.engine import pauses as pauses_module
from trio_monque.engine import reaper as reaper_module
from trio_monque.engine.pauses import Pauses
from trio_monque.engine.shutdown import HARD_END_AFTER
from trio_monque.observations import Sighting


def other(claim: int, mark: int = 0, lease: float = 30.0, **more: Any) -> Sighting[int]:
    return Sighting(claim, claim, mark, lease, **more)


async def test_dead_claim_is_taken_away_within_its_lease_and_one_pass(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    async with running(engine_of(shelf)):
        await trio.sleep(5.1)
        shelf.others[7] = other(7)
        await trio.sleep(100)
    # Seen half an interval after the last look, and taken when the observation fell due.
    assert shelf.rescued == [(40.0, 7)]
    assert shelf.heard("claims_rescued") == [[7]]


async def test_claim_that_is_renewed_is_never_taken(autojump_clock: MockClock) -> None:
    shelf = Shelf(others={7: other(7)})
    async with running(engine_of(shelf)):
        for beat in range(1, 50):
            await trio.sleep(29.9)
            shelf.others[7] = other(7, mark=beat)
    assert shelf.rescued == []


async def test_claim_that_is_dead_by_its_dates_is_taken_at_once_by_the_first_look_alone(
    autojump_clock: MockClock,
) -> None:
    """Later, only what the observer sees decides: the dates come from another machine's wall clock."""
    shelf = Shelf(others={7: other(7, is_stale=True)})
    async with running(engine_of(shelf)):
        await trio.sleep(5.1)
        shelf.others[8] = other(8, is_stale=True)
        await trio.sleep(100)
    assert shelf.rescued == [(0.0, 7), (40.0, 8)]


async def test_lease_is_counted_from_after_the_answer(autojump_clock: MockClock) -> None:
    shelf = Shelf(others={7: other(7)}, look_takes=4.0)
    async with running(engine_of(shelf)):
        await trio.sleep(100)
    assert shelf.rescued == [(34.0, 7)]


async def test_own_claims_are_not_observed_while_they_are_renewed(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1, 2], others={claim: other(claim) for claim in (1, 2)})
    shelf.handler, shelf.hold = sleeping(1000), 200.0
    async with running(engine_of(shelf, shutdown_timeout=0.0)):
        await trio.sleep(199)
        assert shelf.rescued == []
        # From now on they are renewed no longer: what was theirs is another's, also of this instance.
        await trio.sleep(50)
        assert [claim for _, claim in shelf.rescued] == [1, 2]


async def test_faults_are_reported_and_the_reaper_goes_on(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses_module, "LONGEST_BEAT_RETRY", 0.001)
    shelf = Shelf(others={7: other(7)}, look_faults=[NotNowError()] * 2, rescue_faults=[NotNowError()] * 3)
    async with running(engine_of(shelf)):
        await trio.sleep(100)
    assert (shelf.look_faults, shelf.rescue_faults) == ([], [])
    assert len(shelf.heard("rescue_delayed")) == 2, "two outages: the looks, and later the rescues"
    assert [claim for _, claim in shelf.rescued] == [7]


@pytest.mark.parametrize("faults", ["look_faults", "rescue_faults"])
async def test_bug_of_the_source_ends_the_scheduler_in_order(autojump_clock: MockClock, faults: str) -> None:
    shelf = Shelf(items=[1], others={7: other(7)})
    getattr(shelf, faults).append(ValueError("a bug"))
    engine = engine_of(shelf)
    async with running(engine):
        await trio.sleep(100)
    assert [type(error) for error in engine.stop.crashes] == [ValueError]
    assert 1 in shelf.settled


async def test_nothing_is_taken_where_that_is_off(autojump_clock: MockClock) -> None:
    shelf = Shelf(others={7: other(7, is_stale=True)})
    async with running(engine_of(shelf, rescues=False)):
        await trio.sleep(1000)
    assert shelf.observed_at == []


async def test_many_are_taken_in_bounded_groups(autojump_clock: MockClock) -> None:
    shelf = Shelf(others={claim: other(claim) for claim in range(250)})
    async with running(engine_of(shelf)):
        await trio.sleep(31)
    assert [len(rescued) for rescued in shelf.heard("claims_rescued")] == [100, 100, 50]


async def test_one_suspect_is_demanded_at_a_time(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1], suspects={1})
    demanded: list[int] = []
    claim = shelf.claim

    async def recorded(demand: Any) -> Any:
        demanded.append(demand.suspects)
        return await claim(demand)

    shelf.claim = recorded  # type: ignore[method-assign]
    engine = engine_of(shelf)
    async with running(engine):
        await trio.sleep(0.5)
        engine.wake.set()
        await trio.sleep(10)
    assert demanded[:2] == [1, 0]
    assert demanded[-1] == 1


async def test_what_was_sent_and_not_answered_is_asked_for_again_whatever_a_look_shows_meanwhile(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses_module, "LONGEST_BEAT_RETRY", 0.001)
    shelf = Shelf(others={7: other(7), 8: other(8, lease=31.0)}, rescue_faults=[NotNowError()])
    engine = engine_of(shelf)

    def delayed(error: Exception) -> None:
        # It was applied, and its answer lost: the next look does not show it.
        shelf.others.pop(7)
        engine.reaper.look()

    monkeypatch.setattr(shelf, "rescue_delayed", delayed)
    async with running(engine):
        await trio.sleep(100)
    assert shelf.asked_for == [[7], [7], [8]]


@pytest.mark.parametrize("how", ["drained", "cut"])
async def test_left_while_it_rescues_it_tells_what_was_rescued_and_asks_for_nothing_more(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(reaper_module, "MOST_AT_ONCE", 1)
    shelf = Shelf(others={7: other(7), 8: other(8)}, rescue_takes=3.0)
    engine = engine_of(shelf, cleanup_timeout=5.0)
    async with running(engine):
        await trio.sleep(31)
        if how == "cut":
            engine.stop.cut()
    assert shelf.heard("claims_rescued") == [[7]]
    assert trio.current_time() == 33.0


async def test_left_while_it_rescues_it_waits_no_longer_than_the_engine_allows(autojump_clock: MockClock) -> None:
    shelf = Shelf(others={7: other(7)}, rescue_takes=1000.0)
    engine = engine_of(shelf, cleanup_timeout=5.0)
    async with running(engine):
        await trio.sleep(31)
        engine.stop.cut()
    assert trio.current_time() <= 31 + 5 + HARD_END_AFTER
    assert shelf.heard("claims_rescued") == []


# --- Where it rests ---


async def test_resting_it_looks_at_the_start_and_never_again_where_it_sees_nothing(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    async with running(engine_of(shelf, rests=True)):
        await trio.sleep(86400 * 90)
        assert shelf.observed_at == [0.0]


async def test_resting_it_looks_while_there_is_a_claim_of_others_and_takes_it_when_dead(
    autojump_clock: MockClock,
) -> None:
    shelf = Shelf()
    engine = engine_of(shelf, rests=True)
    async with running(engine):
        await trio.sleep(1000)
        shelf.others[7] = other(7)
        engine.reaper.look()
        await trio.sleep(1000)
        assert shelf.rescued == [(1030.0, 7)]
        await trio.sleep(86400)
        assert shelf.observed_at[-1] <= 1035.0


async def test_resting_it_sees_the_claim_of_a_neighbour_before_its_first_beat(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    engine = engine_of(shelf, rests=True)
    async with running(engine):
        await trio.sleep(1000)
        shelf.others[7] = other(7)
        engine.reaper.watch(lambda: False)
        await trio.sleep(1000)
        assert shelf.rescued == [(1035.0, 7)]


async def test_resting_it_does_not_look_for_a_neighbour_that_holds_nothing_any_more(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    engine = engine_of(shelf, rests=True)
    async with running(engine):
        for _ in range(100):
            await trio.sleep(3)
            engine.reaper.watch(lambda: True)
    assert shelf.observed_at == [0.0]


async def test_resting_it_looks_no_sooner_than_a_lease_before_a_claim_may_be_taken(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    shelf.others[7] = other(7, protected_for=86400.0)

    def aged(seen: Sighting[int]) -> Sighting[int]:
        return replace(seen, protected_for=86400.0 - trio.current_time())

    observe = shelf.observe

    async def observed(held: Sequence[int]) -> Sequence[Sighting[int]]:
        return [aged(one) for one in await observe(held)]

    shelf.observe = observed  # type: ignore[method-assign]
    async with running(engine_of(shelf, rests=True)):
        await trio.sleep(86400 - 20)
        # A sign of life in its last lease is seen as soon as anywhere else.
        shelf.others[7] = other(7, mark=1, protected_for=86400.0)
        await trio.sleep(86400)
    assert shelf.observed_at == [0.0, *(86370.0 + 5 * number for number in range(len(shelf.observed_at) - 1))]
    assert shelf.rescued == [(86410.0, 7)]


async def test_own_claim_beyond_the_longest_hold_is_taken_at_the_same_time_resting_or_not(
    autojump_clock: MockClock,
) -> None:
    taken = {}
    for rests in (False, True):
        began = trio.current_time()
        shelf = Shelf(items=[1], others={1: other(1)})
        shelf.handler, shelf.hold = sleeping(1000), 200.0
        async with running(engine_of(shelf, rests=rests, shutdown_timeout=0.0)):
            await trio.sleep(199)
            assert shelf.rescued == []
            await trio.sleep(100)
        taken[rests] = [round(at - began, 3) for at, _ in shelf.rescued]
    assert taken == {False: [230.0], True: [230.0]}


async def test_resting_it_keeps_no_claim_in_mind_that_is_never_taken(autojump_clock: MockClock) -> None:
    shelf = Shelf(others={7: replace(other(7), protected_for=float("inf"))})
    async with running(engine_of(shelf, rests=True)):
        await trio.sleep(86400)
    assert shelf.observed_at == [0.0]


async def test_resting_reaper_looks_at_the_earliest_end_of_its_unrenewed_claims(
    autojump_clock: MockClock,
) -> None:
    shelf = Shelf()
    engine = engine_of(shelf, rests=True)
    async with running(engine):
        await trio.sleep(1)
        engine.reaper.unrenewed_from(100.0)
        engine.reaper.unrenewed_from(500.0)
        shelf.others[7] = other(7)
        await trio.sleep(1000)
    assert shelf.observed_at[:2] == [0.0, 100.0]
    assert shelf.rescued == [(130.0, 7)]


class Noted(Pauses):
    """How long each pause was asked to be; none is made."""

    def __init__(self) -> None:
        super().__init__(lambda error: isinstance(error, NotNowError))
        self.asked: list[float] = []

    async def after_fault(self, seconds: float) -> None:
        self.asked.append(seconds)
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(("interval", "pause"), [(0.2, 0.02), (10.0, 1.0), (300.0, 1.0)])
async def test_what_failed_is_tried_again_after_a_tenth_of_the_interval_and_a_second_at_most(
    autojump_clock: MockClock, interval: float, pause: float
) -> None:
    shelf = Shelf(others={7: other(7)}, look_faults=[NotNowError()], rescue_faults=[NotNowError()])
    pauses = Noted()
    reaper = reaper_module.Reaper(shelf, shelf, list, pauses, interval=interval, has_local_wakeups=False)
    with trio.move_on_after(400):
        await reaper.run()
    assert pauses.asked == pytest.approx([pause, pause])
    assert [claim for _, claim in shelf.rescued] == [7]
