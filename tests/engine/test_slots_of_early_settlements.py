"""A claim that is settled before its handler ends: its slot is free while that is written, as it is at any outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.shelf import Shelf, ShelfEngine, engine_of, running
from trio_monque.engine.run import Run
from trio_monque.engine.run_end import RunEnd

DONE = RunEnd(None, None, cancelled=False, reason=None, duration=0.0)


class Desk:
    """Runs that settle by themselves, and when each of them started and had its answer."""

    def __init__(self, shelf: Shelf, work: Callable[[Desk, Run[int]], Awaitable[object]]) -> None:
        async def handler(run: Run[int]) -> None:
            self.started[run.claim] = trio.current_time()
            await work(self, run)

        shelf.handler = handler
        self.engine: ShelfEngine = engine_of(shelf, concurrency=1)
        self.engine.slots.set_limit("all", 1)
        self.started: dict[int, float] = {}
        self.answers: list[tuple[int, float, bool | None]] = []

    async def settle(self, run: Run[int]) -> None:
        written = await self.engine.settle_early(run, (run.claim, DONE))
        self.answers.append((run.claim, trio.current_time(), written))


async def test_next_one_starts_while_the_settlement_of_the_one_before_is_written(autojump_clock: MockClock) -> None:
    async def work(desk: Desk, run: Run[int]) -> None:
        await trio.sleep(1)
        await desk.settle(run)

    desk = Desk(Shelf(items=[1, 2], settling_takes=3.0), work)
    async with running(desk.engine):
        await trio.sleep(10)
        assert desk.engine.slots.running == 0
    assert desk.started == {1: 0, 2: 1}
    assert desk.answers == [(1, 4, True), (2, 7, True)]


async def test_handler_that_goes_on_after_it_counts_again_until_it_ends(autojump_clock: MockClock) -> None:
    async def work(desk: Desk, run: Run[int]) -> None:
        await trio.sleep(4 if run.claim == 2 else 0)
        await desk.settle(run)
        await trio.sleep(20 if run.claim == 1 else 0)

    desk = Desk(Shelf(items=[1, 2, 3], settling_takes=1.0), work)
    async with running(desk.engine):
        await trio.sleep(50)
        assert desk.engine.slots.running == 0
    assert desk.started == {1: 0, 2: 0, 3: 21}


async def test_handler_whose_settlement_is_refused_counts_as_before(autojump_clock: MockClock) -> None:
    class Particular(Shelf):
        async def settle(self, batch: list[tuple[int, RunEnd]]) -> Sequence[Any]:
            written = await super().settle(batch)
            return written if len(self.batches) > 1 else [None]

    async def work(desk: Desk, run: Run[int]) -> None:
        await desk.settle(run)
        await trio.sleep(5)
        await desk.settle(run)

    desk = Desk(Particular(items=[1], settling_takes=1.0), work)
    async with running(desk.engine):
        await trio.sleep(0.5)
        assert desk.engine.slots.running == 0
        await trio.sleep(2)
        assert desk.engine.slots.running == 1
        await trio.sleep(10)
        assert desk.engine.slots.running == 0
    assert desk.answers == [(1, 1, None), (1, 7, True)]


@pytest.mark.parametrize("settling_takes", [3.0, 9.0], ids=["answered in time", "answered too late"])
async def test_handler_that_is_cancelled_meanwhile_gives_its_slot_back_once(
    autojump_clock: MockClock, settling_takes: float
) -> None:
    async def work(desk: Desk, run: Run[int]) -> None:
        with trio.move_on_after(1):
            await desk.settle(run)

    desk = Desk(Shelf(items=[1, 2], settling_takes=settling_takes), work)
    async with running(desk.engine):
        await trio.sleep(8.5)  # Both handlers have ended, and the second answer may be on its way.
        assert desk.engine.slots.running == 0
        await trio.sleep(31.5)
        assert desk.engine.slots.running == 0
        assert desk.engine.number_held == 0
    assert desk.started == {1: 0, 2: 0}
