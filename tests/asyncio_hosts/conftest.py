"""Each test with the fixture `run` is one body in anyio, and runs on trio, asyncio and, in full, uvloop.

With `run_virtually` it does so in virtual time, except on uvloop, whose time cannot be virtual: there it allows for a
busy machine.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import anyio
import pytest
from trio.testing import MockClock

from tests.support.joined_time import JoinedLoop, joining_runtimes
from tests.support.waiting import wait_until
from trio_monque.bridge import runtime
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing.virtual_run import hold_for_own_threads

Run = Callable[[Callable[[], Awaitable[None]]], None]

BACKENDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "trio": ("trio", {}),
    "asyncio": ("asyncio", {"debug": True}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
}
UVLOOP: Final = pytest.param("uvloop", marks=pytest.mark.full)
ON_ASYNCIO: Final = pytest.mark.parametrize("run", ["asyncio", UVLOOP], indirect=True)
VIRTUALLY_ON_ASYNCIO: Final = pytest.mark.parametrize("run_virtually", ["asyncio", UVLOOP], indirect=True)

THREADS: Final = ("trio_monque runtime", "trio_monque watchdog")
SECONDS_FOR_THREADS: Final = 30.0


def threads_left(names: tuple[str, ...] = THREADS) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name in names]


def runtimes_left() -> list[str]:
    """The threads that a block awaits. The watchdog of each ends by itself, soon after."""
    return threads_left(THREADS[:1])


@pytest.fixture(autouse=True)
def patient_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, the last steps of a thread take long: the block that awaits it waits for as long."""
    monkeypatch.setattr(runtime, "JOIN_SECONDS", 60)


@pytest.fixture
def things(db: Database) -> Collection:
    """A collection for documents of a user."""
    return db["things"]


@pytest.fixture(params=["trio", "asyncio", UVLOOP])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs an async function on the event loop of the parameter. No thread of ours may be left afterwards."""
    backend, options = BACKENDS[request.param]

    def go(main: Callable[[], Awaitable[None]]) -> None:
        anyio.run(main, backend=backend, backend_options=options)

    yield go
    wait_for_threads()


def wait_for_threads() -> None:
    """They end by themselves, soon after the block."""
    wait_until(lambda: not threads_left(), f"the end of {', '.join(THREADS)}", SECONDS_FOR_THREADS)


@dataclass(frozen=True)
class VirtualRun:
    """Runs an async function in virtual time.

    Attributes:
        backend: "trio", "asyncio", or "uvloop" in real time.
    """

    backend: str

    @property
    def is_virtual(self) -> bool:
        return self.backend != "uvloop"

    def __call__(self, main: Callable[[], Awaitable[None]]) -> None:
        if self.backend == "trio":

            async def holding() -> None:
                hold_for_own_threads()
                await main()

            anyio.run(holding, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
        elif self.backend == "asyncio":
            with joining_runtimes():
                anyio.run(main, backend_options={"debug": True, "loop_factory": JoinedLoop})
        else:
            anyio.run(main, backend_options={"use_uvloop": True})

    def took(self, seconds: float, expected: float) -> bool:
        """Whether it took so long: exactly, or in real time at least."""
        return seconds == pytest.approx(expected, abs=1e-6) if self.is_virtual else seconds > expected - 0.01


@pytest.fixture(params=["trio", "asyncio", UVLOOP])
def run_virtually(request: pytest.FixtureRequest) -> Iterator[VirtualRun]:
    """Runs an async function on the event loop of the parameter. No thread of ours may be left afterwards."""
    yield VirtualRun(request.param)
    wait_for_threads()
