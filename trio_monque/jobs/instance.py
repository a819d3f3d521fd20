"""An instance in the fleet: its entry as a value, and whether it is alive. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Final

from ..options_and_defaults import LONGEST_BEAT, SHORTEST_BEAT
from .claim_stamps_and_fences import is_ours, shares_its_id
from .job import Job
from .job_parts import NO_CLAIM

LIVE_FOR_BEATS: Final = 2
"""An instance, or the holder of a job, counts as alive for this number of heartbeat intervals after its last one."""

MOST_NAMES: Final = 1000
MOST_NAMES_HELD: Final = 20
"""The entry of an instance lists at most MOST_NAMES names that it runs, and the numbers of held jobs for at most
MOST_NAMES_HELD names: those with the most jobs."""


_ALIKE: Final = 0.7
"""How alike two names are, by difflib, if one may be the other misspelt."""


@dataclass(frozen=True, slots=True)
class LastBlock:
    """The last time that something blocked an event loop of an instance for longer than a second.

    Attributes:
        name: The name of the job whose handler blocked it; None for anything else.
        at: When that was seen last, UTC.
        seconds: How long it had been blocked until then.
    """

    name: str | None
    at: datetime
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A scheduler instance, as it described itself with its last heartbeat.

    Attributes:
        id: Its `instance_id`.
        incarnation: Random characters, new at each start: they distinguish processes that use the same id.
        host: The name of its machine.
        pid: Its process id there.
        names: The names of the jobs that it runs, sorted; the first thousand.
        started_at: When it started, UTC.
        last_heartbeat: Its last sign of life, UTC.
        heartbeat_interval: Seconds between heartbeats.
        draining: It is shutting down, and claims no more jobs.
        held: How many jobs it held at its last heartbeat.
        held_by_name: How many jobs of each name it held, for the twenty names with the most.
        overdue_by_name: How many plain handlers of each name went on then although their runs were cancelled, for the
            twenty names with the most. Each holds a slot of its name.
        parked: How many of the held jobs waited for children, without a slot.
        slots: How many jobs can run at once in it; None if an older release has written the entry.
        full_names: The names whose limits of `concurrency` its runs had reached; twenty at most.
        time_limits: Seconds that a run may take, for the names in `held_by_name` whose workers set a `timeout`.
        loop_blocked: How many times something blocked an event loop of it for longer than a second, since its start.
        last_block: The last of these times; None if there was none.
        version: The version of this library that it runs.
        is_live: Its last heartbeat is at most two of its intervals old.
    """

    id: str
    incarnation: str
    host: str
    pid: int
    names: tuple[str, ...]
    started_at: datetime
    last_heartbeat: datetime
    heartbeat_interval: float
    draining: bool = False
    held: int = 0
    held_by_name: Mapping[str, int] = field(default_factory=dict)
    overdue_by_name: Mapping[str, int] = field(default_factory=dict)
    parked: int = 0
    slots: int | None = None
    full_names: tuple[str, ...] = ()
    time_limits: Mapping[str, float] = field(default_factory=dict)
    loop_blocked: int = 0
    last_block: LastBlock | None = None
    version: str = ""
    is_live: bool = True

    @property
    def slots_taken(self) -> int:
        """How many slots its runs, and the threads of cancelled runs, held at its last heartbeat."""
        return self.held - self.parked + sum(self.overdue_by_name.values())

    def is_full_for(self, name: str) -> bool:
        """Whether it is known that no slot was free for a job of this name at its last heartbeat."""
        return name in self.full_names or (self.slots is not None and self.slots_taken >= self.slots)

    def __str__(self) -> str:
        return f"{self.id} (process {self.pid} on {self.host})"


def is_alive(last_heartbeat: datetime, heartbeat_interval: float | None, now: datetime) -> bool:
    """Whether the writer of this heartbeat counts as alive at `now`; both are server time."""
    return (now - last_heartbeat) / timedelta(seconds=1) <= LIVE_FOR_BEATS * clamped(heartbeat_interval)


def is_of_a_stranger(job: Job, now: datetime) -> bool:
    """Whether this claim proves that another live process, such as Monque for Node, uses its holder's instance id."""
    if is_ours(job):
        return shares_its_id(job)
    claim = job.claim or NO_CLAIM
    return claim.last_heartbeat is not None and is_alive(claim.last_heartbeat, claim.heartbeat_interval, now)


def evidence_of(job: Job) -> str:
    """Describes the proof of `is_of_a_stranger` for the message of an error."""
    if is_ours(job):
        return f"another process, such as Monque for Node, renewed the claim on job {job.name} {job.id}"
    return f"another library, such as Monque for Node, claimed job {job.name} {job.id} under it"


def clamped(interval: float | None) -> float:
    """Another program's heartbeat interval, or a missing one, clamped to the range of this library's option."""
    if interval is None or interval != interval:  # NaN is a number for MongoDB, but not an interval.
        return LONGEST_BEAT
    return min(max(interval, SHORTEST_BEAT), LONGEST_BEAT)


def may_run(name: str, live: Iterable[Instance]) -> bool:
    """Whether one of these instances runs the name, or may do: an entry lists the first thousand of its names."""
    return any(name in one.names or len(one.names) >= MOST_NAMES for one in live)


def similar_name(name: str, live: Iterable[Instance]) -> str | None:
    """A name that one of these instances runs, and that may be meant by a misspelt one."""
    near = get_close_matches(name, sorted({known for one in live for known in one.names}), n=1, cutoff=_ALIKE)
    return near[0] if near else None


def most_held(names: Iterable[str]) -> Mapping[str, int]:
    """The numbers of jobs for the names with the most."""
    return dict(Counter(names).most_common(MOST_NAMES_HELD))
