"""Runs that take turns in one task, until a handler waits: for each handler all is as in a task of its own."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.shelf import Shelf, ShelfEngine, engine_of, running, sleeping
from trio_monque.engine import shared_tasks
from trio_monque.engine.demand import Demand, Granted
from trio_monque.engine.exceptions import LeakedCancellationError
from trio_monque.engine.handler_tasks import TRIO_TASKS
from trio_monque.engine.run import Run
from trio_monque.engine.run_end import CancelReason, RunEnd
from trio_monque.engine.shared_tasks import TASKS_BETWEEN_PROBES
from trio_monque.engine.source import RunSource

SLOTS = 20
Handler = Callable[[Run[int]], Awaitable[object]]

seen_by_handlers: ContextVar[int | None] = ContextVar("seen_by_handlers", default=None)


class Noted:
    """Notes in which task each item is handled, and calls the function of that item, if it has one."""

    def __init__(self, **special: Handler) -> None:
        self.task_of: dict[int, trio.lowlevel.Task] = {}
        self._special = {int(item.removeprefix("item_")): handler for item, handler in special.items()}

    async def __call__(self, run: Run[int]) -> object:
        self.task_of[run.claim] = trio.lowlevel.current_task()
        special = self._special.get(run.claim)
        return run.claim if special is None else await special(run)

    def runs_by_task(self) -> list[int]:
        return sorted(Counter(self.task_of.values()).values())


@dataclass
class FirstAlone(Shelf):
    """The first claim brings one item, which shows that its handler does not wait. The next brings all that may run."""

    async def claim(self, demand: Demand) -> Granted[int]:
        return await super().claim(demand if self.claimed_at else replace(demand, total=1))


def shelf_of(handler: Handler) -> FirstAlone:
    return FirstAlone(items=list(range(1 + SLOTS)), handler=handler)


async def run_all(shelf: Shelf, seconds: float = 20, **limits: Any) -> ShelfEngine:
    engine = engine_of(shelf, concurrency=SLOTS, **limits)
    async with running(engine):
        await trio.sleep(seconds)
    return engine


def ends_of(shelf: Shelf) -> dict[int, object]:
    """How each item ended: its value, the type of its error, or why it was cancelled."""
    return {
        item: end.value if end.has_succeeded else end.reason if end.error is None else type(end.error)
        for item, end in shelf.settled.items()
    }


async def test_handlers_that_do_not_wait_share_one_task(autojump_clock: MockClock) -> None:
    handler = Noted()
    shelf = shelf_of(handler)
    await run_all(shelf)
    assert ends_of(shelf) == {item: item for item in range(1 + SLOTS)}
    assert handler.runs_by_task() == [1, SLOTS]
    assert list(handler.task_of) == list(range(1 + SLOTS))


async def test_handlers_that_wait_have_tasks_of_their_own_from_the_first_claim_on(autojump_clock: MockClock) -> None:
    started = dict[int, float]()

    async def wait(run: Run[int]) -> object:
        started[run.claim] = trio.current_time()
        await trio.sleep(1)
        return run.claim

    shelf = Shelf(items=list(range(SLOTS)), handler=wait)
    await run_all(shelf)
    assert ends_of(shelf) == {item: item for item in range(SLOTS)}
    assert set(started.values()) == {0}  # None waits for the first one, which is looked at.


async def test_one_in_a_thousand_is_looked_at(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = list[int]()

    class Watched(shared_tasks.SharedTask[int]):
        def call(self, source: RunSource[int, Any], run: Run[int]) -> Any:
            looked_at.append(run.claim)
            return super().call(source, run)

    async def wait(run: Run[int]) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(shared_tasks, "SharedTask", Watched)
    items = 2 * (TASKS_BETWEEN_PROBES + SLOTS) + 1
    await run_all(Shelf(items=list(range(items)), handler=wait), seconds=1000)
    # A look counts anew when it shows that the handler waits: by then, others of its claim may have begun.
    first, second, third = looked_at
    assert first == 0
    assert TASKS_BETWEEN_PROBES < second <= TASKS_BETWEEN_PROBES + SLOTS
    assert second + TASKS_BETWEEN_PROBES < third


async def test_a_handler_that_waits_keeps_the_task_and_the_others_go_on(autojump_clock: MockClock) -> None:
    ended_at = dict[int, float]()

    async def wait(run: Run[int]) -> object:
        await trio.sleep(3)
        return run.claim

    class Timed(FirstAlone):
        def conclude(self, claim: int, end: RunEnd) -> tuple[int, RunEnd]:
            ended_at[claim] = trio.current_time()
            return super().conclude(claim, end)

    handler = Noted(item_5=wait)
    shelf = Timed(items=list(range(1 + SLOTS)), handler=handler)
    await run_all(shelf)
    assert ends_of(shelf) == {item: item for item in range(1 + SLOTS)}
    assert ended_at == {item: 3 if item == 5 else 0 for item in range(1 + SLOTS)}
    # Those behind it have tasks of their own now: their group was seen to wait.
    assert handler.runs_by_task() == [*[1] * (1 + SLOTS - 5), 5]


async def test_a_handler_that_waits_is_cancelled_alone(autojump_clock: MockClock) -> None:
    shelf = shelf_of(Noted(item_5=sleeping(1000)))
    shelf.unwanted.add(5)  # The next renewal finds that a user asked for its end.
    await run_all(shelf)
    assert ends_of(shelf) == {item: item for item in range(1 + SLOTS)} | {5: CancelReason.USER}


async def test_time_limit_ends_a_handler_that_waits(autojump_clock: MockClock) -> None:
    shelf = shelf_of(Noted(item_5=sleeping(1000)))
    shelf.limit = 4
    await run_all(shelf)
    assert ends_of(shelf)[5] is CancelReason.TIMEOUT
    assert shelf.settled[5].duration == 4


async def test_each_handler_has_a_context_of_its_own(autojump_clock: MockClock) -> None:
    found = dict[int, list[int | None]]()

    async def handler(run: Run[int]) -> None:
        found[run.claim].append(seen_by_handlers.get())
        seen_by_handlers.set(run.claim)
        if run.claim == 5:
            for _ in range(2):
                await trio.sleep(1)
                found[5].append(seen_by_handlers.get())
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(look)

    async def look() -> None:
        found[5].append(seen_by_handlers.get())

    class Concluding(FirstAlone):
        def execute(self, run: Run[int]) -> Coroutine[Any, Any, object]:
            found[run.claim] = [seen_by_handlers.get()]
            seen_by_handlers.set(-1)
            return super().execute(run)

        def conclude(self, claim: int, end: RunEnd) -> tuple[int, RunEnd]:
            found[claim].append(seen_by_handlers.get())
            return super().conclude(claim, end)

    shelf = Concluding(items=list(range(1 + SLOTS)), handler=handler)
    await run_all(shelf)
    assert found == {item: [None, -1, item] for item in range(1 + SLOTS)} | {5: [None, -1, 5, 5, 5, 5, 5]}
    assert seen_by_handlers.get() is None


async def test_frames_show_where_it_waits(autojump_clock: MockClock) -> None:
    async def waits_for_what_never_comes() -> None:
        await trio.sleep(15)

    async def outer(run: Run[int]) -> None:
        await waits_for_what_never_comes()

    handler = Noted(item_5=outer)
    shelf = shelf_of(handler)
    async with running(engine_of(shelf, concurrency=SLOTS)):
        await trio.sleep(10)
        frames = TRIO_TASKS.frames_of(handler.task_of[5])
    names = ("run_in_turn", "call", "execute", "outer", "waits_for_what_never_comes", "sleep")
    assert [name for name in names if f"in {name}\n" in frames] == [*names]


async def test_a_task_in_which_a_handler_raised_is_used_for_no_other(autojump_clock: MockClock) -> None:
    class OwnError(Exception):
        pass

    async def fail(run: Run[int]) -> None:
        raise OwnError

    handler = Noted(item_5=fail)
    shelf = shelf_of(handler)
    await run_all(shelf)
    assert ends_of(shelf) == {item: item for item in range(1 + SLOTS)} | {5: OwnError}
    assert handler.runs_by_task() == [1, 5, SLOTS - 5]


async def test_a_scope_that_is_left_open_harms_no_other(autojump_clock: MockClock) -> None:
    left_open = trio.CancelScope()

    async def leave_open(run: Run[int]) -> None:
        left_open.__enter__()

    async def check(run: Run[int]) -> object:
        await trio.lowlevel.checkpoint()
        return run.claim

    shelf = shelf_of(Noted(item_5=leave_open, item_6=check))
    await run_all(shelf)
    left_open.cancel()
    assert ends_of(shelf) == {item: item for item in range(1 + SLOTS)} | {5: RuntimeError}


async def test_a_leaked_cancellation_fails_its_own_run(autojump_clock: MockClock) -> None:
    kept = list[trio.Cancelled]()
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as cancelled:
            kept.append(cancelled)
            raise

    async def leak(run: Run[int]) -> None:
        raise kept[0]

    shelf = shelf_of(Noted(item_5=leak))
    await run_all(shelf)
    assert ends_of(shelf) == {item: item for item in range(1 + SLOTS)} | {5: LeakedCancellationError}


@pytest.mark.parametrize("waits", [False, True])
async def test_cut_in_a_turn_gives_the_others_back_unbegun(autojump_clock: MockClock, waits: bool) -> None:
    async def cut(run: Run[int]) -> object:
        engine.stop.cut()
        if waits:
            await trio.sleep(1000)
        return run.claim

    handler = Noted(item_5=cut)
    shelf = shelf_of(handler)
    engine = engine_of(shelf, concurrency=SLOTS)
    async with running(engine):
        await engine.stop.cutting.wait()
    assert set(handler.task_of) == set(range(6))
    assert ends_of(shelf) == {
        **{item: item for item in range(5)},
        5: CancelReason.SHUTDOWN if waits else 5,
        **dict.fromkeys(range(6, 1 + SLOTS), CancelReason.SHUTDOWN),
    }
    assert not any(shelf.settled[item].has_begun for item in range(6, 1 + SLOTS))
    assert engine.unfinished == ()


async def test_drain_in_a_turn_lets_the_others_run(autojump_clock: MockClock) -> None:
    """They were claimed before it came: they count as running."""

    async def drain(run: Run[int]) -> object:
        engine.stop.drain()
        return run.claim

    shelf = shelf_of(Noted(item_5=drain))
    engine = engine_of(shelf, concurrency=SLOTS)
    async with running(engine):
        await engine.stop.draining.wait()
    assert ends_of(shelf) == {item: item for item in range(1 + SLOTS)}


@pytest.mark.parametrize("error_type", [KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_an_interrupt_in_a_turn_ends_the_engine_and_strands_none(
    autojump_clock: MockClock, error_type: type[BaseException]
) -> None:
    async def interrupt(run: Run[int]) -> None:
        raise error_type

    shelf = shelf_of(Noted(item_5=interrupt))
    engine = engine_of(shelf, concurrency=SLOTS)
    async with running(engine):
        await trio.sleep(20)
    assert shelf.settled.keys() == set(range(1 + SLOTS))
    assert engine.unfinished == ()


async def test_the_hard_end_strands_no_claim_of_a_turn(autojump_clock: MockClock) -> None:
    async def cut_and_stay(run: Run[int]) -> None:
        engine.stop.cut()
        with trio.CancelScope(shield=True):
            await trio.sleep(1000)

    shelf = shelf_of(Noted(item_5=cut_and_stay))
    engine = engine_of(shelf, concurrency=SLOTS)
    async with running(engine):
        await engine.stop.cutting.wait()
        with trio.CancelScope(shield=True):
            while engine.unfinished and trio.current_time() < 500:
                await trio.sleep(1)
    assert set(range(6, 1 + SLOTS)) <= shelf.settled.keys()


async def test_bare_yield_of_another_library_fails_its_own_run(autojump_clock: MockClock) -> None:
    class Bare:
        def __await__(self) -> Any:
            yield None

    async def foreign(run: Run[int]) -> None:
        await Bare()

    shelf = shelf_of(Noted(item_5=foreign))
    await run_all(shelf)
    assert ends_of(shelf) == {item: item for item in range(1 + SLOTS)} | {5: TypeError}


@pytest.mark.full
async def test_what_ran_is_not_kept_by_one_that_waits(autojump_clock: MockClock) -> None:
    """Runs have payloads, which may be large, and the one that waits may take hours."""
    items = range(7000, 7001 + SLOTS)  # No other test has these.

    async def handler(run: Run[int]) -> None:
        if run.claim == items[-1]:
            await trio.sleep(10)

    async with running(engine_of(FirstAlone(items=list(items), handler=handler), concurrency=SLOTS)):
        await trio.sleep(8)
        gc.collect()
        kept = [one.claim for one in gc.get_objects() if type(one) is Run]
        assert [item for item in kept if item in items] == [items[-1]]
