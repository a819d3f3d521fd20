"""What is known of a scheduler instance: the value that tells of one, and whether it lives. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from ..options import LONGEST_BEAT, SHORTEST_BEAT
from .fences import is_ours, shares_its_id
from .job import Job

LIVE_FOR_BEATS: Final = 2
"""Heartbeat intervals after its last heartbeat in which an instance, or the holder of a job, is taken to live."""

MOST_NAMES: Final = 1000
MOST_NAMES_HELD: Final = 20
"""How many names an entry tells of: those that are run, and those of which most jobs are held."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A scheduler instance, as it told of itself with its last heartbeat.

    Attributes:
        id: Its `instance_id`.
        incarnation: Random characters: who starts with an id that somebody had before bears others.
        host: The name of its machine.
        pid: Its process there.
        names: The names of the jobs that it runs, sorted; the first thousand.
        started_at: When it began, UTC.
        last_heartbeat: Its last sign of life, UTC.
        heartbeat_interval: Seconds from one to the next.
        draining: It leaves: it claims nothing more.
        held: How many jobs it held then.
        held_by_name: How many of each name; of the twenty names with most.
        version: Which version of this library it runs.
        is_live: Its last heartbeat is no older than two of its intervals.
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
    version: str = ""
    is_live: bool = True

    def __str__(self) -> str:
        return f"{self.id} (process {self.pid} on {self.host})"


def is_alive(last_heartbeat: datetime, heartbeat_interval: float | None, now: datetime) -> bool:
    """Whether who wrote that heartbeat is taken to live at `now`, the server's time both."""
    return (now - last_heartbeat) / timedelta(seconds=1) <= LIVE_FOR_BEATS * clamped(heartbeat_interval)


def is_of_a_stranger(job: Job, now: datetime) -> bool:
    """Whether this claim proves that another live process uses the id of its holder: Monque for Node, for example."""
    if is_ours(job):
        return shares_its_id(job)
    return job.last_heartbeat is not None and is_alive(job.last_heartbeat, job.heartbeat_interval, now)


def evidence_of(job: Job) -> str:
    """The same for people."""
    if is_ours(job):
        return f"another process, such as Monque for Node, renewed the claim on job {job.name} {job.id}"
    return f"another library, such as Monque for Node, claimed job {job.name} {job.id} under it"


def clamped(interval: float | None) -> float:
    """An interval as another program wrote it, or did not, brought into the range that ours may have."""
    if interval is None or interval != interval:  # NaN: a number to MongoDB, and no interval.
        return LONGEST_BEAT
    return min(max(interval, SHORTEST_BEAT), LONGEST_BEAT)


def most_held(names: Iterable[str]) -> Mapping[str, int]:
    """How many are held of which name, bounded."""
    return dict(Counter(names).most_common(MOST_NAMES_HELD))
