"""The parent of worker processes, and processes that end while it ends them."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import trio
import trio.testing

from trio_monque.cli.run.children import Children
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
