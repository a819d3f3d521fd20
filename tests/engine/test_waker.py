"""When the engine looks for work: at the exact moment, at a wake-up, and in virtual time never without need."""

from __future__ import annotations

from collections.abc import Set

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from tests.support.shelf import NotNowError, Shelf, engine_of, running, sleeping
from trio_monque.engine import claimer as claimer_module
from trio_monque.engine import waker as waker_module
from trio_monque.engine.demand import Due

DAY = 86400.0


async def test_nothing_is_asked_of_a_source_that_has_nothing_while_time_passes(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    async with running(engine_of(shelf, rests=True)):
        await trio.sleep(365 * DAY)
    assert shelf.claimed_at == [0.0]
    assert shelf.asked_at == [0.0]
    assert shelf.renewed == []


async def test_it_looks_exactly_when_the_next_item_is_due_and_asks_for_the_one_after(autojump_clock: MockClock) -> None:
    shelf = Shelf(due=[1000.5, 5000.25])
    async with running(engine_of(shelf, rests=True)):
        await trio.sleep(10 * DAY)
    assert shelf.claimed_at == [0.0, 1000.5, 5000.25]
    assert shelf.asked_at == [0.0, 1000.5, 5000.25]


async def test_what_is_expected_needs_no_question(autojump_clock: MockClock) -> None:
    shelf = Shelf(due=[])
    engine = engine_of(shelf, rests=True)
    async with running(engine):
        await trio.sleep(1)
        engine.waker.expect(70.0)
        engine.waker.expect(60.0)
        await trio.sleep(65)
        assert shelf.claimed_at == [0.0, 60.0]
        # The later one had been forgotten for the earlier: what is left is in the source's answer.
        shelf.due = [70.0]
        engine.waker.look()
        await trio.sleep(10)
        assert shelf.claimed_at == [0.0, 60.0, 65.0 + 1.0, 70.0]


async def test_what_is_expected_while_the_question_is_under_way_counts(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    engine = engine_of(shelf, rests=True)

    async def slow_answer(groups: Set[str]) -> Due | None:
        shelf.asked_at.append(trio.current_time())
        await trio.sleep(1)
        return Due(100.0) if trio.current_time() < 50 else None

    shelf.next_due = slow_answer  # type: ignore[method-assign]
    async with running(engine):
        await trio.sleep(0.5)
        engine.waker.expect(20.0)
        await trio.sleep(200)
    assert shelf.claimed_at == [0.0, 20.0, 100.0]


async def test_a_moment_that_has_come_wakes_at_once(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    engine = engine_of(shelf, rests=True)
    async with running(engine):
        await trio.sleep(5)
        shelf.items.append(1)
        engine.waker.expect(5.0)
        await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        assert shelf.claimed_at == [0.0, 5.0]


async def test_open_transactions_are_polled_until_they_have_ended(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    engine = engine_of(shelf, rests=True, poll_interval=2.0)
    async with running(engine):
        await trio.sleep(10)
        engine.waker.look_while(lambda: trio.current_time() < 15)
        await trio.sleep(10 * DAY)
    assert shelf.claimed_at == [0.0, 12.0, 14.0, 16.0]


async def test_outside_of_virtual_time_it_polls_and_looks_exactly_when_something_is_due(
    autojump_clock: MockClock,
) -> None:
    shelf = Shelf(due=[7.25])
    async with running(engine_of(shelf, poll_interval=5.0)):
        await trio.sleep(21)
    assert shelf.claimed_at == [0.0, 5.0, 7.25, 12.25, 17.25]
    assert shelf.asked_at == shelf.claimed_at


async def test_polls_that_are_close_are_not_each_followed_by_a_question(autojump_clock: MockClock) -> None:
    shelf = Shelf()
    engine = engine_of(shelf, poll_interval=1.0)
    async with running(engine):
        await trio.sleep(20.5)
        assert len(shelf.claimed_at) == 21
        assert shelf.asked_at == [0.0, 5.0, 10.0, 15.0, 20.0]
        engine.waker.expect(23.25)
        await trio.sleep(3)
    assert 23.25 in shelf.claimed_at


async def test_failed_question_is_asked_again_and_no_virtual_time_passes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waker_module, "RETRY", 0.001)
    shelf = Shelf(ask_faults=[NotNowError(), NotNowError()], due=[30.0])
    async with running(engine_of(shelf, rests=True)):
        await trio.sleep(29)
        assert shelf.asked_at == [0.0, 0.0, 0.0]
        assert len(shelf.heard("claiming_failed")) == 1
        shelf.due = []
        await trio.sleep(DAY)
    assert shelf.claimed_at == [0.0, 30.0]


async def test_failed_claims_are_tried_again_and_no_virtual_time_passes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer_module, "FIRST_RETRY", 0.001)
    shelf = Shelf(items=[1], claim_faults=[NotNowError(), NotNowError()])
    async with running(engine_of(shelf, rests=True)):
        await trio.sleep(0.5)
        assert shelf.claimed_at[:3] == [0.0, 0.0, 0.0]
        assert len(shelf.heard("claiming_failed")) == 1


async def test_beats_rest_while_nothing_is_held(autojump_clock: MockClock) -> None:
    shelf = Shelf(handler=sleeping(25), due=[])
    engine = engine_of(shelf, rests=True, heartbeat_interval=10.0)
    async with running(engine):
        await trio.sleep(1003)
        shelf.items.append(1)
        engine.waker.look()
        await trio.sleep(10 * DAY)
    # The first beat is one interval after the claim, and there is none after the last settlement.
    assert [at for at, _ in shelf.renewed] == [1013.0, 1023.0]


async def test_a_full_instance_is_not_made_to_spin_by_what_is_due(autojump_clock: MockClock) -> None:
    """Due items that there is no room for are looked for when there is room, and not before."""
    shelf = Shelf(items=[1, 2, 3, 4], handler=sleeping(100), due=[1.0])
    engine = engine_of(shelf, concurrency=2, rests=True)
    async with running(engine):
        await trio.sleep(99)
        assert shelf.claimed_at == [0.0]
        shelf.due = []
        await trio.sleep(2)
        assert sorted(shelf.settled) == [1, 2]
        assert shelf.claimed_at[-1] == 100.0
