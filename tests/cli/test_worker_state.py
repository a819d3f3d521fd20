"""What a worker process reports about itself, from the moment of its start to the end of its resources."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_monque import Health
from trio_monque.cli.run import worker_state
from trio_monque.cli.run.health_answers import LIVE_WITHIN
from trio_monque.cli.run.worker_state import WorkerState

from .health_values import make_health


class Scheduled:
    """Stands for a scheduler.

    Attributes:
        report: None until it ends.
    """

    id = "shop-1"

    def __init__(self) -> None:
        self.report: object = None

    def health(self) -> Health:
        return make_health()


def started(state: WorkerState) -> Scheduled:
    scheduler: Any = Scheduled()
    state.started(scheduler)
    assert isinstance(scheduler, Scheduled)
    return scheduler


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> MockClock:
    """That of the state, too: it looks at the clock of the system, because it is asked from threads."""
    monkeypatch.setattr(worker_state, "time", SimpleNamespace(monotonic=lambda: autojump_clock.current_time() + 1e6))
    return autojump_clock


async def test_worker_is_live_from_the_moment_of_its_start(virtual_time: MockClock) -> None:
    """Before its event loop gives the first sign of life: it does that when it is idle next."""
    state = WorkerState()
    started(state)
    assert state.report().not_live == ()


async def test_worker_is_live_while_its_event_loop_goes_on(virtual_time: MockClock) -> None:
    state = WorkerState()
    started(state)
    await trio.sleep(10 * LIVE_WITHIN)
    assert state.report().not_live == ()


async def test_blocked_event_loop_is_reported_until_the_end_of_the_scheduler(virtual_time: MockClock) -> None:
    """What a target does afterwards, when it closes its resources, delays no job."""
    state = WorkerState()
    scheduler = started(state)
    await trio.testing.wait_all_tasks_blocked()
    virtual_time.jump(LIVE_WITHIN + 0.75)  # No task runs meanwhile.
    assert state.report().not_live == ("the event loop has not answered for 5.8 s",)
    scheduler.report = "ended"
    assert state.report().not_live == ()
