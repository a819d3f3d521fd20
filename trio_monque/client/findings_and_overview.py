"""What is wrong with the database and its jobs, and how they are: for the first screen of an operator. Blocking."""

from __future__ import annotations

from typing import Final

from ..checks import check_seconds
from ..diagnosis.concerns import FleetFacts
from ..diagnosis.examination import Examination
from ..diagnosis.failing_names import RECENT
from ..diagnosis.findings import Diagnosis
from ..diagnosis.judgement import judge
from ..diagnosis.overview import Overview, overview_of
from ..error_types import MonqueConnectionError
from ..jobs.minutes import LastHour
from ..store.reads.queue_depths import DepthCaps, queue_depths
from ..store.reads.special_jobs import schedules_in_brief
from .client_context import ClientContext
from .fleet import read_fleet
from .operation import Known, Operation, Read
from .questions import read_hour

OVERVIEW_CAPS: Final = DepthCaps(pending=10_000, failed=1_000, ended=0, names=500, in_all=25_000)
"""How far an overview counts: it is read twice a second while pages are open. See `DepthCaps`."""

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


def get_overview(context: ClientContext, *, max_age: float | None = None) -> Operation[Overview]:
    """Return the state of the jobs of each name, the instances, the next schedules, and what needs an operator.

    It is meant for a look every few seconds: four commands, and a fifth one once a minute. 25,000 jobs are counted,
    four of five of them pending ones and the others failed ones: the names share these numbers. Of one name, 10,000
    pending jobs and 1,000 failed ones are counted at most. It has 500 names, and 1,000 schedules are read.

    An answer is kept for `stats_cache_ttl` seconds, and concurrent callers share one.

    Args:
        max_age: The answer was asked for this number of seconds ago at most; None for any that is kept.

    Raises:
        InvalidOptionError: `max_age` is invalid.
        AggregationTimeoutError: The server needed longer than `operation_timeout`.
        MonqueConnectionError: The database cannot be reached or used.
    """
    if max_age is not None:
        check_seconds("max_age", max_age, zero=True)
    if (known := context.overviews.known(None, max_age)) is not None:
        return Known(known)
    return Read(lambda: context.overviews.get(None, lambda: overview_of(_facts(context)), max_age))


def _facts(context: ClientContext) -> FleetFacts:
    now = context.now()
    depths = queue_depths(context.jobs, now, OVERVIEW_CAPS)
    instances, paused = read_fleet(context)
    schedules, has_more_schedules = schedules_in_brief(context.jobs)
    hour = context.last_hour.get(None, lambda: _last_hour(context))
    return FleetFacts(
        now=now,
        depths=depths,
        is_capped=OVERVIEW_CAPS.names is not None and len(depths) >= OVERVIEW_CAPS.names,
        instances=instances,
        paused=paused,
        recent=hour.since(now - RECENT),
        failed_for_good=hour.failed_for_good,
        usual_wait=hour.usual_wait,
        schedules=schedules,
        has_more_schedules=has_more_schedules,
    )


def _last_hour(context: ClientContext) -> LastHour:
    try:
        return LastHour.of(read_hour(context))
    except MonqueConnectionError as error:
        if error.transient:
            raise
        return LastHour()  # The user may not read there. All else is shown.
