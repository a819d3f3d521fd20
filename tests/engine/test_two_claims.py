"""Two claims at a time: half of the slots each, no slot reserved twice, no wake-up lost, and no endless looks."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.shelf import NotNowError, Shelf, engine_with_slots, running, sleeping
from tests.support.thoroughly import one_in
from trio_monque.engine.demand import Demand, Granted, KnownItem
from trio_monque.engine.look_ledger import WORTH_HALVING
from trio_monque.engine.run import Run
from trio_monque.engine.slots import Slots


@dataclass
class Recorded(Shelf):
    """What was demanded, and how much of it at a time."""

    demanded: list[int] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    most_asked_for: int = 0
    asked_now: int = 0
    most_running: int = 0
    running_now: int = 0
    answers_take: random.Random = field(default_factory=lambda: random.Random(1))
    varies: bool = False

    async def claim(self, demand: Demand) -> Granted[int]:
        self.demanded.append(demand.total)
        self.at_once += 1
        self.asked_now += demand.total
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.most_asked_for = max(self.most_asked_for, self.asked_now + self.running_now)
        try:
            if self.varies:
                await trio.sleep(self.answers_take.uniform(0, 0.01))
            return await super().claim(demand)
        finally:
            self.at_once -= 1
            self.asked_now -= demand.total


async def test_each_asks_for_half_and_while_one_is_in_flight_so_is_the_other(autojump_clock: MockClock) -> None:
    shelf = Recorded(items=list(range(2000)), claim_takes=1.0, handler=sleeping(0))
    async with running(engine_with_slots(shelf, WORTH_HALVING)):
        await trio.sleep(60)
    assert len(shelf.settled) == 2000
    assert max(shelf.demanded) == WORTH_HALVING / 2
    assert shelf.most_at_once == 2
    # Twenty halves, two at a time; the first one alone, as the size of the backlog was unknown.
    assert trio.current_time() == pytest.approx(60)
    assert shelf.claimed_at[20] <= 11.0


async def test_few_slots_are_not_halved(autojump_clock: MockClock) -> None:
    few = WORTH_HALVING - 1
    shelf = Recorded(items=list(range(10 * few)), claim_takes=1.0, handler=sleeping(0))
    async with running(engine_with_slots(shelf, few)):
        await trio.sleep(60)
    assert len(shelf.settled) == 10 * few
    assert (max(shelf.demanded), shelf.most_at_once) == (few, 1)


class Contended(Recorded):
    """Others were faster with some of what the first claim has asked for."""

    async def claim(self, demand: Demand) -> Granted[int]:
        if self.demanded:
            return await super().claim(demand)
        granted = await super().claim(replace(demand, total=demand.total - 4))
        return Granted(granted.claims, more=True)


async def test_slots_that_a_claim_did_not_fill_and_those_of_runs_that_end_at_once_are_claimed_together(
    autojump_clock: MockClock,
) -> None:
    async def end_at_once(run: Run[int]) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()

    shelf = Contended(items=list(range(36)), claim_takes=1.0, handler=end_at_once)
    async with running(engine_with_slots(shelf, 10)):
        await trio.sleep(60)
    assert len(shelf.settled) == 36
    assert shelf.demanded[:4] == [6, 10, 10, 10]  # Not the four first, which would stay a claim of their own.


async def test_all_slots_are_filled_although_no_run_ends(autojump_clock: MockClock) -> None:
    shelf = Recorded(items=list(range(300)), handler=sleeping(100))
    engine = engine_with_slots(shelf, WORTH_HALVING, shutdown_timeout=200.0)
    async with running(engine):
        await trio.sleep(1)
        assert engine.slots.running == WORTH_HALVING
        assert shelf.demanded == [WORTH_HALVING / 2] * 2


async def test_wake_up_during_a_claim_for_all_slots_makes_the_claimer_look_right_after(
    autojump_clock: MockClock,
) -> None:
    shelf = Recorded(claim_takes=5.0, handler=sleeping(0))
    engine = engine_with_slots(shelf, 10)
    async with running(engine):
        await trio.sleep(1)  # The first look, which finds nothing, has all slots.
        shelf.items.append(1)
        engine.wake.set()
        await trio.sleep(30)
    assert shelf.claimed_at == [0.0, 5.0]
    assert list(shelf.settled) == [1]


async def test_new_item_is_asked_for_by_itself_beside_another(autojump_clock: MockClock) -> None:
    shelf = Recorded(handler=sleeping(0))
    engine = engine_with_slots(shelf, 10)
    async with running(engine):
        await trio.sleep(1)
        shelf.claim_takes = 5.0
        for item in (1, 2):
            shelf.items.append(item)
            engine.waker.expect(trio.current_time(), KnownItem(item, "all"))
            await trio.sleep(1)
        await trio.sleep(10)
    assert shelf.asked_for_one == [1, 2]
    assert shelf.claimed_at == [0.0]
    assert sorted(shelf.settled) == [1, 2]


async def test_wake_ups_while_a_suspect_runs_cost_few_looks(autojump_clock: MockClock) -> None:
    shelf = Recorded(items=[7], suspects={7}, handler=sleeping(100), varies=True)
    engine = engine_with_slots(shelf, 100, shutdown_timeout=200.0)
    async with running(engine):
        await trio.sleep(1)
        for _ in range(10):
            engine.wake.set()
            await trio.sleep(0.003)
            engine.wake.set()
            await trio.sleep(1)
    assert len(shelf.demanded) < 60


@pytest.mark.usefixtures("virtual_pauses")
@pytest.mark.parametrize("seed", one_in(5, range(10)))
async def test_whatever_overlaps_all_is_taken_soon_and_never_more_than_can_run(
    autojump_clock: MockClock, seed: int
) -> None:
    """Items are announced alone and in groups, while claims take their time and fail now and then."""
    chance = random.Random(seed)
    counted: Counter[int] = Counter()
    shelf = Recorded(varies=True, answers_take=chance)
    slots = chance.choice([1, 3, 50, WORTH_HALVING - 1, WORTH_HALVING])
    engine = engine_with_slots(shelf, slots)

    async def handler(run: Any) -> None:
        counted[run.claim] += 1
        shelf.running_now += 1
        shelf.most_running = max(shelf.most_running, shelf.running_now)
        await trio.sleep(chance.choice([0, 0, 0.001, 0.02]))
        shelf.running_now -= 1

    shelf.handler = handler
    reported = 0
    async with running(engine):
        for _ in range(100):
            new = range(reported, reported + chance.choice([1, 1, 1, 2, 30, 100]))
            reported = new.stop
            shelf.items += new
            if chance.random() < 0.1:
                shelf.claim_faults.append(NotNowError())
            if len(new) == 1:
                engine.waker.expect(trio.current_time(), KnownItem(new[0], "all"))
            else:
                engine.wake.set()
            await trio.sleep(chance.choice([0, 0.001, 0.005, 0.1]))
        await trio.sleep(60)
        assert shelf.items == []
    assert counted == Counter(range(reported))
    assert shelf.most_running <= slots
    assert shelf.most_at_once <= 2
    assert shelf.most_asked_for <= slots


def test_reserved_slots_are_not_demanded_a_second_time() -> None:
    slots = Slots(10)
    slots.set_limit("a", 6)
    slots.set_limit("b", 20)
    first = slots.demand(5)
    assert (first.total, first.groups, first.suspects, first.capacity) == (5, {"a": 5, "b": 5}, 1, 10)
    with slots.reserved(first):
        second = slots.demand()
        assert (second.total, second.groups, second.suspects) == (5, {"a": 1, "b": 5}, 0)
        with slots.reserved(second):
            assert slots.demand().total == 0
        assert slots.demand_of("a").total == 1
    slots.take("a")
    assert (slots.demand().total, slots.demand().groups) == (9, {"a": 5, "b": 9})
    assert slots.demand_of("unknown").total == 0


@pytest.mark.parametrize("_", range(20))  # Which of the two goes on first is trio's choice.
async def test_item_lost_by_one_claim_is_looked_for_again_although_the_other_claim_found_none(
    autojump_clock: MockClock, _: int
) -> None:
    """Both answers come at once: the other one's look did not show what this one was asking for."""

    @dataclass
    class LosesOne(Shelf):
        async def claim(self, demand: Demand) -> Granted[int]:
            self.claimed_at.append(trio.current_time())
            match len(self.claimed_at):
                case 1:
                    return Granted(list(range(demand.total)))
                case 2:
                    await trio.sleep_until(2)
                    return Granted([])
                case 3:
                    await trio.sleep_until(2)
                    self.items.append(1000)
                    return Granted([], more=True)
                case _:
                    return await super().claim(demand)

    shelf = LosesOne(handler=sleeping(0))
    async with running(engine_with_slots(shelf, WORTH_HALVING)):
        await trio.sleep(60)
    assert shelf.claimed_at[1:3] == [0, 0]
    assert 1000 in shelf.settled
