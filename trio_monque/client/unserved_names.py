"""Warns about names that are enqueued and that no live instance runs: one may be misspelt, or no worker was started.

A look at the fleet costs a round trip, so the first enqueue of a name pays for it, and no other. It comes after the job
is stored, and whatever it meets changes nothing of the call. Any thread may call it: a name that two threads enqueue
first at the same moment may be looked up twice, but is warned about once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ..error_types import MonqueError
from ..jobs.instance import Instance, may_run, similar_name
from ..log import logger_of

logger = logger_of("client")

MOST_REMEMBERED: Final = 10_000
"""Names. A program that makes up more of them, such as one for each customer, is not warned about the others."""


MOST_FAILED: Final = 3
"""Looks that fail, after which a client makes no more."""


class UnservedNames:
    """Remembers the names that need no look any more.

    Attributes:
        settled: These names. Read without the lock, changed with it: a set is safe for that.

    Args:
        runs_here: Whether the scheduler that this client is runs a name.
    """

    def __init__(self, runs_here: Callable[[str], bool]) -> None:
        self._runs_here = runs_here
        self._lock = threading.Lock()
        self._failed = 0
        self.settled: set[str] = set()

    def turn_off(self) -> None:
        """Look and warn no more: the caller warns about names itself, as the command line does."""
        self._failed = MOST_FAILED

    def notice(self, names: Iterable[str], instances: Callable[[], Sequence[Instance]], where: str) -> None:
        """Log a warning for each name that no live instance runs, once a name.

        Args:
            names: Of the jobs that were enqueued.
            instances: Reads the fleet.
            where: The collection, with its database: it may be another one than that of the workers.
        """
        new = {name for name in names if name not in self.settled}
        if not new or self._failed >= MOST_FAILED or len(self.settled) >= MOST_REMEMBERED:
            return
        if here := {name for name in new if self._runs_here(name)}:
            with self._lock:
                self.settled |= here
            new -= here
            if not new:
                return
        try:
            live = [one for one in instances() if one.is_live]
        except MonqueError:
            self._failed += 1
            return  # The next enqueue of the name looks again, a few times: the user may not read the fleet.
        with self._lock:
            new -= self.settled
            self.settled |= new
        for name in sorted(new):
            if not may_run(name, live):
                logger.warning(
                    "enqueued a job of %s in %s: %s", name, where, _why(name, live), extra={"job_name": name}
                )


def _why(name: str, live: Sequence[Instance]) -> str:
    if not live:
        return "no live instance of this library runs it: start a worker"
    near = similar_name(name, live)
    hint = (
        "start a worker that does"
        if near is None
        else f"{'it' if len(live) == 1 else 'one'} runs {near!r}: is the name misspelt?"
    )
    whom = (
        f"none of the {len(live)} live instances runs it" if len(live) > 1 else "the only live instance does not run it"
    )
    return f"{whom}: {hint}"
