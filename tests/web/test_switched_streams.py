"""A hub that changes between its two streams in a rush: no pause is lost between them, or kept from viewers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set

import anyio
import pytest

from tests.support.store import handle, insert
from tests.web.http import LOOPS
from trio_monque import Monque
from trio_monque.client.monque import regions_of
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs.stale_regions import ALL_REGIONS, INSTANCES, NAMES, RegionWatch
from trio_monque.web.live import hub, rush
from trio_monque.web.live.hub import Hub, Viewer

LONG_ENOUGH = 20.0
JOB = "job:" + "0" * 24
ALL = ALL_REGIONS | {JOB}
RARE = {INSTANCES, NAMES}


@pytest.fixture(autouse=True)
def long_rush(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first change is a rush, which lasts longer than any test."""
    monkeypatch.setattr(hub, "READ_EVERY", 0.0)
    monkeypatch.setattr(hub, "KEPT_FOR", 600.0)
    monkeypatch.setattr(rush, "RUSH_AFTER", 0.0)
    for wait in ("FIRST_WAIT", "LONGEST_WAIT"):
        monkeypatch.setattr(rush, wait, 600.0)


class Streams:
    """Opens the streams of a hub; what the wide one reads first is a new job, and so a rush.

    Attributes:
        opened: What was looked at each time.
    """

    def __init__(self, db: Database, pauses_in_wide: bool = False, pauses_before_narrow: bool = False) -> None:
        self.opened: list[Set[str] | None] = []
        self.monque = Monque(db)
        self._db = db
        self._pauses_in_wide = pauses_in_wide
        self._pauses_before_narrow = pauses_before_narrow

    def __call__(self, looked_at: Set[str] | None) -> RegionWatch:
        self.opened.append(looked_at)
        if looked_at is not None and self._pauses_before_narrow:
            self.pause()
        watch = regions_of(self.monque)(looked_at)
        if looked_at is None:
            if self._pauses_in_wide:
                self.pause()
            insert(handle(self._db))
        return watch

    def pause(self) -> None:
        self.monque.sync.pause("mail")


async def learns(viewer: Viewer, *messages: Set[str]) -> None:
    """Return when the viewer has got each of these messages, whatever came before."""
    for message in messages:
        while set(viewer.take()) != message:
            await viewer.wait()


def beside(loop: str, board: Hub, work: Callable[[Viewer], Awaitable[None]]) -> None:
    """Do it while the viewer reads the streams."""

    async def main() -> None:
        with anyio.fail_after(LONG_ENOUGH):
            async with board.viewing(frozenset({JOB})) as viewer, anyio.create_task_group() as tasks:
                tasks.start_soon(board.take_turns)
                await work(viewer)
                tasks.cancel_scope.cancel()

    anyio.run(main, backend=loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_pause_between_two_streams_is_announced(db: Database, loop: str) -> None:
    streams = Streams(db, pauses_before_narrow=True)
    beside(loop, Hub(streams), lambda viewer: learns(viewer, ALL, ALL, {JOB}, RARE))
    assert streams.opened == [None, {JOB}]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_pause_in_the_read_that_begins_a_rush_is_announced(db: Database, loop: str) -> None:
    beside(loop, Hub(Streams(db, pauses_in_wide=True)), lambda viewer: learns(viewer, ALL, ALL, {JOB}, RARE))


@pytest.mark.full
@pytest.mark.parametrize("loop", LOOPS)
def test_beside_a_rush_a_pause_is_stale_twice_for_those_who_were_shown_a_kept_answer(
    db: Database, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    monkeypatch.setattr(hub, "KEPT_FOR", 0.2)
    streams = Streams(db)

    async def work(viewer: Viewer) -> None:
        await learns(viewer, ALL, ALL, {JOB})
        await anyio.to_thread.run_sync(streams.pause)
        await learns(viewer, RARE, RARE)

    beside(loop, Hub(streams), work)


@pytest.mark.full
@pytest.mark.parametrize("loop", LOOPS)
def test_no_rush_is_left_for_those_who_come_after_all_have_left(db: Database, loop: str) -> None:
    streams = Streams(db)
    board = Hub(streams)
    for _ in range(2):
        beside(loop, board, lambda viewer: learns(viewer, ALL, ALL, {JOB}))
    assert streams.opened == [None, {JOB}] * 2
