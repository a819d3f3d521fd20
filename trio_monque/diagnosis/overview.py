"""How the jobs are at one moment, for the first screen of an operator. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ..jobs.instance import Instance
from ..jobs.job import JobStatus
from ..jobs.name_pause import NamePause
from ..jobs.views import QueueDepth, ScheduleBrief
from .concerns import Concern, FleetFacts, concerns_of, is_late, is_served

MOST_UPCOMING: Final = 10


@dataclass(frozen=True, kw_only=True)
class NameOverview:
    """The jobs of one name.

    Attributes:
        due: How many wait and are due.
        later: How many wait and are due later.
        running: How many run.
        stuck: How many of these have a holder that is silent.
        failed: How many failed for good.
        capped: Those of "due", "later" and "failed" that are lower bounds.
        oldest_due_age: Seconds for which the oldest due one has waited; None if none is due.
        longest_run: Seconds for which the longest one has run; None if none runs.
        pause: The pause of the name; None if it is not paused.
        is_served: An instance runs the name, as far as is known.
        is_late: The oldest due one has waited over a minute, and over ten times as long as usual.
    """

    due: int = 0
    later: int = 0
    running: int = 0
    stuck: int = 0
    failed: int = 0
    capped: frozenset[str] = field(default_factory=frozenset)
    oldest_due_age: float | None = None
    longest_run: float | None = None
    pause: NamePause | None = None
    is_served: bool = False
    is_late: bool = False

    @property
    def is_paused(self) -> bool:
        """Whether the name is paused."""
        return self.pause is not None


@dataclass(frozen=True, kw_only=True)
class Overview:
    """How the jobs are, and what needs an operator.

    Attributes:
        at: The server's time, UTC.
        names: The jobs of each name, by name; also of paused names without jobs.
        is_capped: There may be more names.
        instances: All that have an entry, silent ones too, by id.
        slots: How many jobs can run at once in the live instances; those of older releases are not counted.
        upcoming: The schedules that are due next, up to ten.
        concerns: What needs an operator, the worst first, up to five.
        more_concerns: How many more there are.
    """

    at: datetime
    names: Mapping[str, NameOverview]
    is_capped: bool
    instances: Sequence[Instance]
    slots: int
    upcoming: Sequence[ScheduleBrief]
    concerns: Sequence[Concern]
    more_concerns: int

    @property
    def running(self) -> int:
        """How many jobs run."""
        return sum(one.running for one in self.names.values())

    @property
    def longest_run(self) -> float | None:
        """Seconds for which the longest job of all has run; None if none runs."""
        return max((one.longest_run for one in self.names.values() if one.longest_run is not None), default=None)

    @property
    def alive(self) -> int:
        """How many instances are alive."""
        return sum(one.is_live for one in self.instances)


def overview_of(facts: FleetFacts) -> Overview:
    """Return the overview of these facts."""
    concerns, more = concerns_of(facts)
    return Overview(
        at=facts.now,
        names={name: _of_name(name, facts) for name in sorted(facts.depths.keys() | facts.paused.keys())},
        is_capped=facts.is_capped,
        instances=facts.instances,
        slots=sum(one.slots or 0 for one in facts.instances if one.is_live),
        upcoming=[one for one in facts.schedules if one.status == JobStatus.PENDING][:MOST_UPCOMING],
        concerns=concerns,
        more_concerns=more,
    )


def _of_name(name: str, facts: FleetFacts) -> NameOverview:
    depth = facts.depths.get(name, QueueDepth())
    return NameOverview(
        due=depth.due,
        later=depth.pending - depth.due,
        running=depth.processing,
        stuck=depth.stuck,
        failed=depth.failed,
        capped=frozenset(_capped(depth)),
        oldest_due_age=depth.oldest_due_age,
        longest_run=depth.longest_run,
        pause=facts.paused.get(name),
        is_served=is_served(name, facts),
        is_late=name in facts.depths and is_late(name, facts),
    )


def _capped(depth: QueueDepth) -> Sequence[str]:
    """Due jobs are counted first: if later ones were counted too, all due ones were."""
    pending = []
    if JobStatus.PENDING in depth.capped:
        pending = ["later"] if depth.due < depth.pending else ["due", "later"]
    return [*pending, *(["failed"] if JobStatus.FAILED in depth.capped else [])]
