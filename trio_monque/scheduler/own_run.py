"""The run that a scheduler lives in, as whoever works for it reaches it: from its own thread and from others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import trio

from ..client.wake_board import Announcer
from ..clock import is_on_run, virtual_time
from ..jobs.job import Job


class OwnRun:
    """Made on the run.

    Attributes:
        virtual: Its virtual time, where it has one.
    """

    def __init__(self, announcer: Announcer) -> None:
        self.virtual = virtual_time()
        self._token = trio.lowlevel.current_trio_token()
        self._announcer = announcer

    @property
    def rests(self) -> bool:
        """Nothing is done only because time has passed: in virtual time."""
        return self.virtual is not None

    def do(self, function: Callable[[], None]) -> None:
        """On the run's thread: at once if this is it, else soon; not at all when the run is over."""
        if is_on_run(self._token):
            function()
        else:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(function)

    def announce(self, jobs: Sequence[Job] | None) -> None:
        """Tells the schedulers of the run of these jobs; with None, that there may be some that nobody knows."""
        announcer = self._announcer
        self.do(announcer.announce_unknown if jobs is None else partial(announcer.announce, jobs))
