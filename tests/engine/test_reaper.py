"""The loop that takes dead claims away, over another source than jobs. In virtual time, without a database."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.engine.test_engine import NotNowError, Shelf, engine_of, running, sleeping
from trio_monque.engine import notices
from trio_monque.engine import reaper as reaper_module
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
    assert [notice.rescued for notice in shelf.told_of(notices.ClaimsRescued)] == [[7]]


async def test_claim_that_is_renewed_is_never_taken(autojump_clock: MockClock) -> None:
    shelf = Shelf(others={7: other(7)})
    async with running(engine_of(shelf)):
        for beat in range(1, 50):
            await trio.sleep(29.9)
            shelf.others[7] = other(7, mark=beat)
    assert shelf.rescued == []


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


async def test_faults_are_told_and_it_goes_on(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper_module, "LONGEST_RETRY", 0.001)
    shelf = Shelf(others={7: other(7)}, look_faults=[NotNowError()] * 2, rescue_faults=[NotNowError()] * 3)
    async with running(engine_of(shelf)):
        await trio.sleep(100)
    assert len(shelf.told_of(notices.RescueDelayed)) == 5
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
    assert [len(notice.rescued) for notice in shelf.told_of(notices.ClaimsRescued)] == [100, 100, 50]


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


async def test_resting_it_keeps_no_claim_in_mind_that_is_never_taken(autojump_clock: MockClock) -> None:
    shelf = Shelf(others={7: replace(other(7), protected_for=float("inf"))})
    async with running(engine_of(shelf, rests=True)):
        await trio.sleep(86400)
    assert shelf.observed_at == [0.0]
