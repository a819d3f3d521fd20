"""Event loops, and how a function gets onto one from another thread.

There are two kinds: a trio run and an asyncio loop. And each door of the library from one thread or loop to another has
one of two verbs:

- `post` has a plain function called there, and does not wait. It does nothing if the loop has ended.
- `call` waits for what the function returns or raises.

Here are the posts. The calls of a trio run to its threads, and from those back to it, are in
`threads_and_frozen_time.py`. Calls between a trio run and an asyncio loop are in `bridge/`; its loops gather many posts
for one wake-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

import trio

from .threads_and_frozen_time import call_run_sync


class Loop(Protocol):
    """An event loop. Any thread may use it."""

    @property
    def is_current(self) -> bool:
        """Whether the caller is on the thread of this loop, inside it."""
        ...

    def post(self, function: Callable[[], object]) -> None:
        """Call the function on the loop: at once if the caller is on it, otherwise soon. It must not raise.

        Once the loop has ended, nothing is called.
        """
        ...


class TrioLoop:
    """The trio run in which this is made. Its objects may be touched on its thread only."""

    __slots__ = ("_token",)

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()

    @property
    def is_current(self) -> bool:
        # Not in_trio_run(): if trio is a guest of another event loop, that is also true in tasks of the host.
        return trio.lowlevel.in_trio_task() and trio.lowlevel.current_trio_token() is self._token

    def post(self, function: Callable[[], object], *, idempotent: bool = False) -> None:
        """See `Loop.post`. Of several idempotent posts that wait, one may be called for all."""
        if self.is_current:
            function()
        else:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(function, idempotent=idempotent)


class AsyncioLoop:
    """The asyncio loop in which this is made."""

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    @property
    def is_current(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def post(self, function: Callable[[], object]) -> None:
        """See `Loop.post`."""
        if self.is_current:
            function()
        else:
            with suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(function)


def current_loop() -> TrioLoop | AsyncioLoop:
    """The loop of the calling task."""
    return TrioLoop() if trio.lowlevel.in_trio_task() else AsyncioLoop()


# --- To the trio runs that a caller works for ---


def post_to_runs(function: Callable[[], None]) -> None:
    """Call it on the trio run that this task or thread works for; from a thread, it is waited for.

    Post it to each other run that serves other loops, too (see `serving_other_loops`).
    """
    if trio.lowlevel.in_trio_task():
        _do_and_pass_on(function)
    else:
        try:
            call_run_sync(_do_and_pass_on, function)
        except RuntimeError:  # This thread does not work for a run, or the run has ended.
            _pass_on(function)


def _do_and_pass_on(function: Callable[[], None]) -> None:
    function()
    # Two schedulers that an asyncio program has opened are two runs, and a handler may work for the run of the first
    # one: in a thread, or with `runs_on="runtime"`.
    if _runs_for_other_loops:
        _pass_on(function)


def _pass_on(function: Callable[[], None]) -> None:
    for loop in tuple(_runs_for_other_loops):
        if not loop.is_current:  # There it is done.
            loop.post(function)


_runs_for_other_loops: Final[dict[TrioLoop, None]] = {}


@contextmanager
def serving_other_loops() -> Iterator[None]:
    """While inside, `post_to_runs` calls functions on this run that callers outside of it give.

    Such a caller is on an asyncio loop, in a thread of the program, or works for another run.
    """
    loop = TrioLoop()
    _runs_for_other_loops[loop] = None
    try:
        yield
    finally:
        del _runs_for_other_loops[loop]
