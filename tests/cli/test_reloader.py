"""The parent of `--reload`: a process that does not end is killed, and folders that cannot be watched end it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import watchfiles
from trio.testing import MockClock

from trio_monque.cli.run.children import Children
from trio_monque.cli.run.reloader import Reloader
from trio_monque.errors import MonqueError


class StubbornChildren(Children):
    """A process that ends by SIGKILL alone, or when the parent has begun to end it."""

    def __init__(self, *, crashes: bool = False) -> None:
        super().__init__([])
        self.starts = 0
        self.sent: list[tuple[signal.Signals, float]] = []
        self._crashes = crashes
        self._killed = trio.Event()

    def send(self, place: int, number: signal.Signals) -> None:
        self.sent.append((number, trio.current_time()))
        if number is signal.SIGKILL:
            self._killed.set()

    async def run_one(self, place: int, start: int, started: Callable[[], object]) -> tuple[int, float]:
        self.starts = start
        if start == 1 and not self._crashes:
            await self._killed.wait()
            return -signal.SIGKILL, 1.0
        if start == 2:
            self.end("a signal was received")
        return 2 if start == 1 else 0, 1.0


Watch = Callable[..., AsyncIterator[set[tuple[int, str]]]]


def changes_after(seconds: float) -> Watch:
    async def watch(*_folders: Path, stop_event: trio.Event, **_options: Any) -> AsyncIterator[set[tuple[int, str]]]:
        await trio.sleep(seconds)
        yield {(1, "jobs.py")}
        await stop_event.wait()

    return watch


async def test_process_whose_handlers_do_not_end_is_killed_and_the_next_one_starts(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(watchfiles, "awatch", changes_after(100))
    children, began_at = StubbornChildren(), trio.current_time()
    assert await Reloader(children, [Path()]).run() == 0
    sent = [(number, at - began_at) for number, at in children.sent]
    assert sent == [(signal.SIGTERM, 100), (signal.SIGINT, 102), (signal.SIGKILL, 112)]
    assert children.starts == 2


async def test_process_that_has_crashed_is_started_again_by_the_next_change(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(watchfiles, "awatch", changes_after(100))
    children, began_at = StubbornChildren(crashes=True), trio.current_time()
    assert await Reloader(children, [Path()]).run() == 0
    assert (children.starts, children.sent, trio.current_time() - began_at) == (2, [], 100)


async def test_signal_while_no_process_runs_ends_the_parent_with_the_status_of_the_last_one(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(watchfiles, "awatch", changes_after(1e9))
    children, statuses = StubbornChildren(crashes=True), list[int]()

    async def run() -> None:
        statuses.append(await Reloader(children, [Path()]).run())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.sleep(10)
        children.end("a signal was received")
    assert (statuses, children.starts) == ([2], 1)


async def test_folders_that_cannot_be_watched_end_the_process_and_the_parent(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async def watch(*_folders: Path, **options: Any) -> AsyncIterator[set[tuple[int, str]]]:
        if not options.get("unlimited"):
            raise OSError("the limit of watches is reached")
        yield set()

    monkeypatch.setattr(watchfiles, "awatch", watch)
    children = StubbornChildren()
    with trio.fail_after(60), pytest.RaisesGroup(pytest.RaisesExc(MonqueError, match="cannot watch the program")):
        await Reloader(children, [Path()]).run()
    assert children.ending.is_set()
