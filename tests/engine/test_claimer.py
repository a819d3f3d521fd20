"""The claimer claims one announced item by its id, and does not look for a free slot if no work is left."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.support.shelf import NotNowError, Shelf, ShelfEngine, engine_of, running, sleeping
from trio_monque.engine.demand import KnownItem
from trio_monque.engine.look_ledger import MOST_FRUITLESS, MOST_FRUITLESS_WITHOUT_POLLS


def idle(shelf: Shelf, *, rests: bool = True, slots: int = 2) -> ShelfEngine:
    engine = engine_of(shelf, rests=rests, poll_interval=1000.0)
    engine.slots.set_limit("all", slots)
    return engine


def tell(engine: ShelfEngine, shelf: Shelf, item: int, group: str = "all") -> None:
    shelf.items.append(item)
    engine.waker.expect(trio.current_time(), KnownItem(item, group))


async def test_one_new_item_is_taken_without_a_look_before_and_after(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    engine = idle(shelf)
    async with running(engine):
        await trio.sleep(1)
        for item in range(3):
            tell(engine, shelf, item)
            await trio.sleep(10)
    assert (shelf.asked_for_one, sorted(shelf.settled)) == ([0, 1, 2], [0, 1, 2])
    assert shelf.claimed_at == [0.0]


async def test_item_taken_by_another_instance_costs_no_look(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    engine = idle(shelf)
    async with running(engine):
        await trio.sleep(1)
        engine.waker.expect(1.0, KnownItem(7, "all"))
        await trio.sleep(10)
        tell(engine, shelf, 8)
        await trio.sleep(10)
    assert (shelf.asked_for_one, sorted(shelf.settled), shelf.claimed_at) == ([7, 8], [8], [0.0])


async def test_unknown_item_makes_the_claimer_look(autojump_clock: MockClock) -> None:
    shelf = Shelf(unsure={7})
    engine = idle(shelf)
    async with running(engine):
        await trio.sleep(1)
        tell(engine, shelf, 7)
        await trio.sleep(10)
    assert (shelf.asked_for_one, sorted(shelf.settled), shelf.claimed_at) == ([7], [7], [0.0, 1.0])


async def test_two_items_at_once_make_the_claimer_look_and_one_announced_twice_does_not(
    autojump_clock: MockClock,
) -> None:
    shelf = Shelf()
    engine = idle(shelf, slots=5)
    async with running(engine):
        await trio.sleep(1)
        tell(engine, shelf, 1)
        tell(engine, shelf, 2)
        await trio.sleep(10)
        assert (shelf.asked_for_one, shelf.claimed_at) == ([], [0.0, 1.0])
        tell(engine, shelf, 3)
        engine.waker.expect(11.0, KnownItem(3, "all"))
        await trio.sleep(10)
    assert (shelf.asked_for_one, shelf.claimed_at, sorted(shelf.settled)) == ([3], [0.0, 1.0], [1, 2, 3])


async def test_what_found_no_slot_starts_when_one_is_free(autojump_clock: MockClock) -> None:
    shelf = Shelf(handler=sleeping(5))
    engine = idle(shelf, slots=1)
    async with running(engine):
        await trio.sleep(1)
        tell(engine, shelf, 1)
        await trio.sleep(1)
        tell(engine, shelf, 2)
        await trio.sleep(1)
        tell(engine, shelf, 3)
        await trio.sleep(20)
    # The third was older than nothing that waits, and does not jump the queue.
    assert (shelf.asked_for_one, sorted(shelf.settled)) == ([1], [1, 2, 3])
    assert shelf.claimed_at[:3] == [0.0, 6.0, 11.0]


async def test_backlog_behind_what_was_taken_is_not_jumped(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1, 2, 3], handler=sleeping(5))
    engine = idle(shelf, slots=1)
    async with running(engine):
        await trio.sleep(1)
        tell(engine, shelf, 4)
        await trio.sleep(30)
    assert (shelf.asked_for_one, list(shelf.settled)) == ([], [1, 2, 3, 4])


async def test_item_of_a_group_that_is_not_ours_costs_nothing(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    engine = idle(shelf)
    async with running(engine):
        await trio.sleep(1)
        engine.waker.expect(1.0, KnownItem(7, "another"))
        await trio.sleep(10)
    assert (shelf.asked_for_one, shelf.claimed_at) == ([], [0.0])


async def test_claim_of_one_that_fails_is_made_up_for_by_looks(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    engine = idle(shelf)
    async with running(engine):
        await trio.sleep(1)
        shelf.claim_faults = [NotNowError()]
        tell(engine, shelf, 7)
        await trio.sleep(10)
    assert (shelf.asked_for_one, sorted(shelf.settled)) == ([7], [7])


@pytest.mark.parametrize("rests", [True, False])
async def test_free_slot_makes_the_claimer_look_unless_the_engine_rests(autojump_clock: MockClock, rests: bool) -> None:
    shelf = Shelf(items=[1])
    async with running(idle(shelf, rests=rests)):
        await trio.sleep(10)
    assert shelf.claimed_at == ([0.0] if rests else [0.0, 1.0])


async def test_wake_during_the_claim_of_one_is_not_lost(autojump_clock: MockClock) -> None:
    shelf = Shelf(claim_takes=2.0)
    engine = idle(shelf)
    async with running(engine):
        await trio.sleep(5)
        tell(engine, shelf, 1)
        await trio.sleep(1)
        tell(engine, shelf, 2)
        shelf.items.append(3)
        engine.waker.look()
        await trio.sleep(10)
    assert sorted(shelf.settled) == [1, 2, 3]


async def test_idle_looks_do_not_count_as_lost_races(autojump_clock: MockClock) -> None:
    """A claimer that found nothing ten times and then loses one race looks again."""
    shelf = Shelf()
    engine = idle(shelf, rests=False)
    async with running(engine):
        for _ in range(MOST_FRUITLESS):
            await trio.sleep(1)
            engine.wake.set()
        await trio.sleep(1)
        shelf.items += [1, 2]
        shelf.races = 1
        engine.wake.set()
        await trio.sleep(10)
    assert sorted(shelf.settled) == [1, 2]


async def test_claimer_that_lost_too_many_races_looks_again_soon_between_rare_polls(autojump_clock: MockClock) -> None:
    """Faster instances do not announce the items that they left: these were due all the time."""
    shelf = Shelf()
    engine = idle(shelf, rests=False)  # Polls every 1000 seconds, without a wake-up.
    async with running(engine):
        engine.waker.poll_every(30_000.0, hears_others=True)
        await trio.sleep(1)
        shelf.items, shelf.races = [1], 2 * MOST_FRUITLESS
        engine.wake.set()
        await trio.sleep(3000)
    assert shelf.claimed_at[-2 * MOST_FRUITLESS - 1 :] == [1.0] * MOST_FRUITLESS + [1001.0] * MOST_FRUITLESS + [2001.0]
    assert list(shelf.settled) == [1]


async def test_where_all_rests_more_races_may_be_lost_at_one_moment(autojump_clock: MockClock) -> None:
    """No time passes there in which another look would be made."""
    shelf = Shelf(items=[1], races=MOST_FRUITLESS_WITHOUT_POLLS - 1)
    async with running(idle(shelf)):
        await trio.sleep(10)
    assert shelf.claimed_at == [0.0] * MOST_FRUITLESS_WITHOUT_POLLS
    assert list(shelf.settled) == [1]


async def test_claimer_that_lost_too_many_races_gets_as_many_tries_the_next_time(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1], races=MOST_FRUITLESS_WITHOUT_POLLS)
    engine = idle(shelf)
    async with running(engine):
        await trio.sleep(365 * 86400.0)
        assert shelf.claimed_at == [0.0] * MOST_FRUITLESS_WITHOUT_POLLS
        shelf.races = 1
        engine.wake.set()
        await trio.sleep(10)
    assert list(shelf.settled) == [1]
