"""Fixtures for the tests of the bridge: each runs on asyncio and, in full, on uvloop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

import pytest
from trio.testing import MockClock

from tests.bridge.support import AppRunner
from tests.support.waiting import wait_until
from trio_monque.bridge import runtime

RUNTIME: Final = "trio_monque runtime"


@pytest.fixture(params=["asyncio", pytest.param("uvloop", marks=pytest.mark.full)])
def app(request: pytest.FixtureRequest) -> Iterator[AppRunner]:
    """Runs an async function as a program would. At the end no runtime may be left."""
    before = set(threading.enumerate())
    yield AppRunner(request.param)
    new = set(threading.enumerate()) - before
    wait_until(lambda: not [one for one in new if one.is_alive() and one.name == RUNTIME], "the end of each runtime")


@pytest.fixture(autouse=True)
def patient_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, the last steps of a thread take long: the block that awaits it waits for as long."""
    monkeypatch.setattr(runtime, "JOIN_SECONDS", 60)


@pytest.fixture
def moved_by_hand() -> Iterator[None]:
    """The time of runtimes passes only in `move_clock`."""
    token = runtime.make_clock.set(MockClock)
    yield
    runtime.make_clock.reset(token)
