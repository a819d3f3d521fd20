"""Waiting for what other threads, other processes and a server do. They send a test no notice, so it must poll.

To see that something does not happen, wait for a later event of the same actor instead of for a length of time: a busy
machine delays both alike.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], what: str, seconds: float = 50.0, *, pause: float = 0.005) -> None:
    """Return when the condition holds; look at it every `pause` seconds. This blocks the thread, and its event loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(pause)


def wait_for_changes(read: Callable[[], object], count: int, what: str) -> None:
    """Return when the value that `read` returns has changed `count` times, as heartbeats do."""
    seen = [read()]

    def has_changed_often() -> bool:
        if (value := read()) != seen[-1]:
            seen.append(value)
        return len(seen) > count

    wait_until(has_changed_often, f"{count} changes of {what}")


def becomes_readable(descriptor: int, seconds: float) -> bool:
    """Wait for it. Unlike `select.select`, in a process with any number of open files, too."""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(seconds))
