"""What is wrong with the database and its jobs, and how they are: for the first screen of an operator. Blocking."""

from __future__ import annotations

from typing import Final

from ..diagnosis.examination import Examination
from ..diagnosis.findings import Diagnosis
from ..diagnosis.judgement import judge
from .client_context import ClientContext
from .operation import Operation

SECONDS_BETWEEN_LOOKS: Final = 0.1
"""Seconds after which a caller looks again whether the examination of another caller is over."""


def findings(context: ClientContext) -> Operation[Diagnosis]:
    """Examine the server, the indexes, the instances and the jobs, and return what is wrong.

    It asks what `trio-monque doctor` asks, except for the clocks of single members of a replica set. Each question is
    bounded, and nothing is written. It mostly takes some tenths of a second, and at most half a minute.

    A diagnosis is kept for 30 seconds (with `stats_cache_ttl=0` it is not kept), and concurrent callers share one.

    Raises:
        MonqueConnectionError: The database cannot be reached.
    """
    return _Findings(context)


class _Findings(Operation[Diagnosis]):
    """One examination, by one caller. The others wait without a thread: it may take long."""

    only_reads = True

    def __init__(self, context: ClientContext) -> None:
        super().__init__()
        self._context = context

    def step(self) -> None:
        kept = self._context.diagnosis
        if (known := kept.known(None)) is not None:
            self.finish(known)
        elif self._context.examining.acquire(blocking=False):
            try:
                self.finish(kept.get(None, self._examine))
            finally:
                self._context.examining.release()
        else:
            self.pause = SECONDS_BETWEEN_LOOKS

    def _examine(self) -> Diagnosis:
        context = self._context
        found = judge(Examination(context.jobs, context.now).facts())
        return Diagnosis(context.clock.now(), found)
