"""One item that alone is due at its moment is claimed by itself, and nothing that is due beside it is forgotten."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import MockClock

from tests.support.shelf import NotNowError, Shelf, engine_of, running, sleeping
from tests.support.thoroughly import one_in
from trio_monque.engine import claimer as claimer_module
from trio_monque.engine import waker as waker_module
from trio_monque.engine.demand import HEAD_START, Demand, Due, Granted, KnownItem
from trio_monque.testing.virtual_run import reproducible_order

DAY = 86400.0
ONE, TWO = KnownItem(1, "all"), KnownItem(2, "all")


async def test_it_is_claimed_at_its_moment_without_a_look_and_then_the_next_one_is_asked_for(
    autojump_clock: MockClock,
) -> None:
    shelf = Shelf(due=[1000.5, 5000.25], known_items={1000.5: ONE, 5000.25: TWO}, handler=sleeping(0))
    async with running(engine_of(shelf, rests=True)):
        await trio.sleep(1)
        shelf.items += [1, 2]
        await trio.sleep_until(1000.5)
        await trio.testing.wait_all_tasks_blocked()
        assert list(shelf.settled) == [1]
        await trio.sleep(10 * DAY)
    assert shelf.asked_for_one == [1, 2]
    assert shelf.asked_at == [0.0, 1000.5, 5000.25]
    assert shelf.claimed_at == [0.0]


async def test_it_is_asked_for_a_little_before_where_time_is_real(autojump_clock: MockClock) -> None:
    asked: list[float] = []

    class Exact(Shelf):
        async def claim_one(self, item: KnownItem, demand: Demand) -> Granted[int]:
            asked.append(trio.current_time())
            return await super().claim_one(item, demand)

    shelf = Exact(due=[7.25], known_items={7.25: ONE})
    async with running(engine_of(shelf, poll_interval=50.0)):
        await trio.sleep(1)
        shelf.items.append(1)
        await trio.sleep(20)
    assert asked == [pytest.approx(7.25 - HEAD_START)]


async def test_what_has_come_to_be_due_meanwhile_is_looked_for(autojump_clock: MockClock) -> None:
    shelf = Shelf(due=[10.0, 10.5], known_items={10.0: ONE, 10.5: TWO}, claim_takes=1.0)
    async with running(engine_of(shelf, rests=True)):
        await trio.sleep(2)
        shelf.items += [1, 2]
        await trio.sleep(60)
    assert shelf.asked_for_one == [1]
    assert shelf.claimed_at == [0.0, 11.0]
    assert sorted(shelf.settled) == [1, 2]


async def test_one_that_another_was_faster_with_costs_one_claim_and_one_question(autojump_clock: MockClock) -> None:
    shelf = Shelf(due=[10.0], known_items={10.0: ONE})
    async with running(engine_of(shelf, rests=True)):
        await trio.sleep_until(10)
        shelf.due = []
        await trio.sleep(DAY)
    assert (shelf.asked_for_one, shelf.claimed_at, shelf.asked_at) == ([1], [0.0], [0.0, 10.0])


async def test_one_that_is_there_and_cannot_be_had_is_looked_for_once(autojump_clock: MockClock) -> None:
    shelf = Shelf(due=[10.0], known_items={10.0: ONE})
    async with running(engine_of(shelf, rests=True)):
        await trio.sleep(DAY)
    assert (shelf.asked_for_one, shelf.claimed_at) == ([1], [0.0, 10.0])


async def test_one_that_cannot_be_had_before_it_is_due_is_not_asked_for_again_and_again(
    autojump_clock: MockClock,
) -> None:
    class InVain(Shelf):
        async def claim_one(self, item: KnownItem, demand: Demand) -> Granted[int]:
            self.asked_for_one.append(item.key)
            await trio.lowlevel.checkpoint()
            return Granted([])

    shelf = InVain(due=[10.0], known_items={10.0: ONE})
    async with running(engine_of(shelf, poll_interval=DAY)):
        await trio.sleep(100)
    assert (shelf.asked_for_one, shelf.claimed_at) == ([1], [0.0, 10.0])


async def test_claim_with_an_uncertain_outcome_is_followed_by_a_look(autojump_clock: MockClock) -> None:
    shelf = Shelf(due=[10.0], known_items={10.0: ONE}, unsure={1})
    async with running(engine_of(shelf, rests=True)):
        await trio.sleep(1)
        shelf.items.append(1)
        await trio.sleep(DAY)
    assert (shelf.claimed_at, list(shelf.settled)) == ([0.0, 10.0], [1])


async def test_claim_that_fails_is_followed_by_a_look_and_the_question(autojump_clock: MockClock) -> None:
    shelf = Shelf(due=[10.0, 20.0], known_items={10.0: ONE, 20.0: TWO})
    async with running(engine_of(shelf, poll_interval=DAY)):
        await trio.sleep(1)
        shelf.items.append(1)
        shelf.claim_faults.append(NotNowError())
        await trio.sleep(10)
        shelf.items.append(2)
        await trio.sleep(100)
    assert shelf.asked_for_one == [1, 2]
    assert sorted(shelf.settled) == [1, 2]


async def test_two_items_due_at_one_moment_make_the_claimer_look(autojump_clock: MockClock) -> None:
    shelf = Shelf(due=[10.0], known_items={10.0: ONE})
    engine = engine_of(shelf, rests=True)
    async with running(engine):
        await trio.sleep(1)
        engine.waker.expect(10.0, ONE)
        engine.waker.expect(10.0, TWO)
        shelf.items += [1, 2]
        await trio.sleep(DAY)
    assert (shelf.asked_for_one, shelf.claimed_at) == ([], [0.0, 10.0])


async def test_item_announced_before_it_is_due_is_claimed_without_a_look(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    engine = engine_of(shelf, rests=True)
    async with running(engine):
        await trio.sleep(1)
        engine.waker.expect(10.0, ONE)
        engine.waker.expect(10.0, ONE)
        engine.waker.expect(20.0, TWO)
        shelf.items += [1, 2]
        shelf.due, shelf.known_items = [20.0], {20.0: TWO}
        await trio.sleep(DAY)
    assert (shelf.asked_for_one, shelf.claimed_at, shelf.asked_at) == ([1, 2], [0.0], [0.0, 10.0, 20.0])


async def test_one_of_a_group_that_is_not_run_here_stops_no_timer(autojump_clock: MockClock) -> None:
    shelf = Shelf(due=[20.0])
    engine = engine_of(shelf, rests=True)
    async with running(engine):
        await trio.sleep(1)
        engine.waker.expect(10.0, KnownItem(1, "another's"))
        await trio.sleep(DAY)
    assert (shelf.asked_for_one, shelf.claimed_at) == ([], [0.0, 20.0])


async def test_one_that_there_is_no_room_for_waits_in_the_queue(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[7], due=[50.0], known_items={50.0: ONE}, handler=sleeping(100))
    async with running(engine_of(shelf, concurrency=1, rests=True)):
        await trio.sleep(1)
        shelf.items.append(1)
        await trio.sleep(DAY)
    assert (shelf.asked_for_one, shelf.claimed_at) == ([], [0.0, 100.0, 200.0])


async def test_polls_are_put_off_by_none(autojump_clock: MockClock) -> None:
    moments = [0.5 + number for number in range(21)]
    shelf = Shelf(due=moments, known_items={moment: KnownItem(moment, "all") for moment in moments})

    class Taken(Shelf):
        async def claim_one(self, item: KnownItem, demand: Demand) -> Granted[int]:
            self.asked_for_one.append(item.key)
            self.due = [due for due in self.due if due != item.key]
            return Granted([])

    shelf = Taken(due=moments, known_items=shelf.known_items)
    async with running(engine_of(shelf, poll_interval=5.0)):
        await trio.sleep(21)
    assert shelf.claimed_at == [0.0, 5.0, 10.0, 15.0, 20.0]
    assert shelf.asked_for_one == moments


@dataclass
class Timed(Shelf):
    """Items with due times, all of them announced like jobs; unclaimed ones wait for their time."""

    due_at: dict[int, float] = field(default_factory=dict)
    looked_at: float = -math.inf
    chance: random.Random = field(default_factory=random.Random)

    async def claim(self, demand: Demand) -> Granted[int]:
        self.looked_at = trio.current_time()
        there = sorted((due, item) for item, due in self.due_at.items() if due <= self.looked_at)
        await self._take_time()
        return self._granted([item for _, item in there[: demand.total]])

    async def claim_one(self, item: KnownItem, demand: Demand) -> Granted[int]:
        assert isinstance(item.key, int)
        due = self.due_at.get(item.key, math.inf)
        await trio.sleep_until(min(due, trio.current_time() + HEAD_START))
        is_due = self.due_at.get(item.key, math.inf) <= trio.current_time()
        self.asked_for_one.append(item.key)
        await self._take_time()
        return Granted(self._granted([item.key] if is_due else []).claims)

    async def _take_time(self) -> None:
        await trio.sleep(self.chance.choice([0, 0.001, 0.01]))
        if self.chance.random() < 0.05:
            raise NotNowError

    def _granted(self, wanted: list[int]) -> Granted[int]:
        granted = [item for item in wanted if self.due_at.get(item, math.inf) <= trio.current_time()]
        for item in granted:
            del self.due_at[item]
        return Granted(granted, more=len(granted) < len(wanted))

    async def next_due(self, groups: Set[str]) -> Due | None:
        later = sorted((due, item) for item, due in self.due_at.items() if due > self.looked_at)
        await self._take_time()
        if not later:
            return None
        (due, first), *others = later
        return Due(due, None if others and others[0][0] == due else KnownItem(first, "all"))


@pytest.mark.full
@pytest.mark.parametrize("rests", [True, False])
@pytest.mark.parametrize("seed", one_in(7, range(20)))
async def test_every_item_starts_soon_after_it_is_due_in_a_random_mix_of_changes(
    autojump_clock: MockClock,
    seed: int,
    rests: bool,
    virtual_pauses: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The order in which tasks run is the seed's, too: each mix is the same on every machine."""
    monkeypatch.setattr(waker_module, "RETRY", 0.001)
    monkeypatch.setattr(claimer_module, "FIRST_RETRY", 0.001)
    chance, counted, late = random.Random(seed), Counter[int](), list[float]()
    due_of = dict[int, float]()
    shelf = Timed(chance=chance)

    async def handler(run: object) -> None:
        item: int = run.claim  # type: ignore[attr-defined]
        counted[item] += 1
        late.append(trio.current_time() - due_of[item])
        await trio.sleep(chance.choice([0, 0.002, 0.02]))

    shelf.handler = handler
    engine = engine_of(shelf, concurrency=chance.choice([1, 3, 50]), rests=rests, poll_interval=DAY)
    engine.slots.set_limit("all", 100)
    taken = set[int]()
    with reproducible_order(seed):
        async with running(engine):
            for item in range(150):
                due = trio.current_time() + chance.choice([0, 0.002, 0.1, chance.uniform(0, 2)])
                shelf.due_at[item] = due_of[item] = due
                engine.waker.expect(due, KnownItem(item, "all") if chance.random() < 0.8 else None)
                waiting = [one for one, at in shelf.due_at.items() if at > trio.current_time()]
                if waiting and chance.random() < 0.3:
                    other = chance.choice(waiting)
                    if chance.random() < 0.3:
                        taken.add(other)
                        del shelf.due_at[other]
                    else:
                        moved = trio.current_time() + chance.choice([0, 0.05, 1])
                        shelf.due_at[other] = due_of[other] = moved
                        engine.waker.expect(moved)
                await trio.sleep(chance.choice([0, 0.001, 0.02]))
            await trio.sleep(60)
            assert shelf.due_at == {}
    assert counted == Counter(set(range(150)) - taken)
    assert min(late) >= 0
    # A few round trips, some slots' turns, and what failed is tried again.
    assert max(late) < 1
    assert shelf.asked_for_one
