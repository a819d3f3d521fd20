"""The parent of worker processes: what it does when one of them ends, and what it returns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from trio_monque.cli.run.children import Children
from trio_monque.cli.run.restarts import STEADY_AFTER
from trio_monque.cli.run.supervisor import Supervisor


class EndedChildren(Children):
    """Processes that end with status 0 because a signal came, before or after their schedulers have started."""

    def __init__(self, *, has_started: bool) -> None:
        super().__init__([], 2)
        self.starts: list[int] = []
        self.whys: list[str] = []
        self._has_started = has_started

    def end(self, why: str) -> None:
        self.whys.append(why)
        super().end(why)

    async def run_one(self, place: int, start: int, started: Callable[[], object]) -> tuple[int, float]:
        self.starts.append(place)
        if self._has_started:
            started()
            await trio.testing.wait_all_tasks_blocked()
        if place == 1:
            self.end("a signal was received")
        await self.ending.wait()
        return 0, 1.0


@pytest.mark.parametrize("has_started", [False, True])
async def test_process_that_ends_after_a_signal_is_neither_a_failure_nor_restarted(
    has_started: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Taken for a failed start, it would cut the other processes short: their second signal does that."""
    children = EndedChildren(has_started=has_started)
    with caplog.at_level(logging.INFO, "trio_monque.cli"):
        assert await Supervisor(children, 2).run() == 0
    assert children.whys == ["a signal was received"]
    assert sorted(children.starts) == ([1, 2] if has_started else [1])
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == []


class ShortLived(Children):
    """Processes that run for a while and end, in virtual time, or end because a signal came.

    Args:
        lives: For each place, how many seconds its processes run, and their return codes.
        start: Whether their schedulers start.
    """

    def __init__(self, lives: Mapping[int, Sequence[tuple[float, int]]], *, start: bool = True) -> None:
        super().__init__([], len(lives))
        self.starts: list[tuple[int, int, float]] = []
        self._lives = lives
        self._start = start

    async def run_one(self, place: int, start: int, started: Callable[[], object]) -> tuple[int, float]:
        began_at = trio.current_time()
        self.starts.append((place, start, began_at))
        if self._start:
            started()
        seconds, returncode = self._lives[place][start - 1]
        with trio.move_on_after(seconds):
            await self.ending.wait()
        return returncode, trio.current_time() - began_at


async def run_until(seconds: float, children: Children, processes: int) -> int:
    """The exit status of a parent that receives a signal at this moment."""
    statuses = []

    async def run() -> None:
        statuses.append(await Supervisor(children, processes).run())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.sleep_until(seconds)
        children.end("a signal was received")
    return statuses[0]


async def test_pauses_before_restarts_grow_until_a_process_has_run_for_a_while(autojump_clock: MockClock) -> None:
    children = ShortLived({1: [(1, -9), (1, 2), (1, 0), (STEADY_AFTER, 2), (60, 0)], 2: [(600, 1)]})
    # The status of a place is that of its last process.
    assert await run_until(60, children, 2) == 1
    of_the_first = [(start, began_at) for place, start, began_at in children.starts if place == 1]
    pauses = [0.0, 0.5, 1.0, 2.0]
    begins = [number + sum(pauses[: number + 1]) for number in range(4)]
    assert of_the_first == list(enumerate([*begins, begins[-1] + STEADY_AFTER + 0.5], 1))
    assert [start for place, start, _ in children.starts if place == 2] == [1]


async def test_signal_during_the_pause_before_a_restart_ends_the_parent_at_once(autojump_clock: MockClock) -> None:
    children = ShortLived({1: [(1, -9)]})
    assert await run_until(1.25, children, 1) == 2
    assert (trio.current_time(), len(children.starts)) == (1.25, 1)


async def test_process_that_ends_with_status_0_before_any_scheduler_starts_is_a_failure(
    autojump_clock: MockClock,
) -> None:
    children = ShortLived({1: [(1, 0)], 2: [(600, 0)]}, start=False)
    assert await Supervisor(children, 2).run() == 2
    assert children.starts == [(1, 1, 0.0)]
    assert children.ending.is_set()
