"""Holds virtual time for the threads that a program starts itself."""

from __future__ import annotations

import trio
import trio.testing

from ..hold import clock_hold
from ..threads import calling_back

_installed: trio.lowlevel.RunVar[bool] = trio.lowlevel.RunVar("monque_holds_for_own_threads")


class _HoldsForThreads(trio.abc.Instrument):
    """Looks after each step of a task whether threads are under way, of whatever limiter.

    One that waits in `job.from_thread` does not count: the loop works for it.
    """

    def __init__(self) -> None:
        self._hold = clock_hold()
        self._holding = False

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        working = trio.testing.active_thread_count() > calling_back()
        if working and not self._holding:
            self._hold.acquire()
        elif self._holding and not working:
            self._hold.release()
        self._holding = working


def hold_for_own_threads() -> None:
    """From now on, every `trio.to_thread.run_sync` of this run holds its virtual clock, until the run ends."""
    try:
        _installed.get()
    except LookupError:
        _installed.set(True)
        trio.lowlevel.add_instrument(_HoldsForThreads())
