"""Fixtures for the tests of the bridge: each runs on asyncio and, in full, on uvloop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tests.bridge.support import AppRunner


@pytest.fixture(params=["asyncio", pytest.param("uvloop", marks=pytest.mark.full)])
def app(request: pytest.FixtureRequest) -> Iterator[AppRunner]:
    """Runs an async function as a program would. At the end no runtime may be left."""
    before = set(threading.enumerate())
    yield AppRunner(request.param)
    deadline = time.monotonic() + 5
    while left := [one for one in set(threading.enumerate()) - before if one.name == "trio_monque runtime"]:
        assert time.monotonic() < deadline, left
        left[0].join(0.1)
