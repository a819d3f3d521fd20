"""Each test with the fixture `run` is one body in anyio, and runs on trio, asyncio and, in full, uvloop."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import anyio
import pytest

from tests.support.waiting import wait_until
from trio_monque.store.types import Collection, Database

Run = Callable[[Callable[[], Awaitable[None]]], None]

BACKENDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "trio": ("trio", {}),
    "asyncio": ("asyncio", {"debug": True}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
}
UVLOOP: Final = pytest.param("uvloop", marks=pytest.mark.full)
ON_ASYNCIO: Final = pytest.mark.parametrize("run", ["asyncio", UVLOOP], indirect=True)

THREADS: Final = ("trio_monque runtime", "trio_monque watchdog")
SECONDS_FOR_THREADS: Final = 5.0


def threads_left(names: tuple[str, ...] = THREADS) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name in names]


def runtimes_left() -> list[str]:
    """The threads that a block awaits. The watchdog of each ends by itself, soon after."""
    return threads_left(THREADS[:1])


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
    # They end by themselves, right after their last word.
    wait_until(lambda: not threads_left(), f"the end of {', '.join(THREADS)}", SECONDS_FOR_THREADS)
