"""JobFinder: reads the jobs that are due, and chooses which of them to claim next.

A look reads jobs of the names that have free slots and are not paused. The choice then shares the slots among the
names: a higher priority first, names of equal priority in turn, so that a name with many jobs does not starve the
others. A suspect (a job whose holders died) is chosen alone, so that a job that kills its process takes no other job
with it.

A look decides nothing. Before the write that claims these jobs, other programs may claim or change them, or pause their
names; see `claiming.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Final

from ..engine.demand import Demand, FoundItems, Reading
from ..engine.slot_sharing_by_priority import Turns, suspect_alone
from ..jobs.job import Job
from ..jobs.rescue_policy import is_suspect
from ..store.driver.database_threads import Channel
from ..store.driver.types import ObjectId
from ..store.jobs import due
from ..store.jobs.due import Reach, Seen
from .context import SchedulerContext


@dataclass(frozen=True, slots=True)
class JobKey:
    """The one job that `JobClaims.claim_one` claims: its id, and what it looked like when its timer was set.

    Attributes:
        id: The job's id.
        due: When the job is due, as its client, the change stream or the last look reported it.
        attempts: How often the job had been claimed at that time; a claim with another count is refused.
    """

    id: ObjectId
    due: datetime
    attempts: int = 0


class JobFinder:
    """The `Finder` of jobs. Used on the thread of the trio run; queries run in database threads."""

    # Functions in C: each candidate passes them several times.
    key_of = staticmethod(attrgetter("id.binary"))  # Bytes are hashed in C, and an ObjectId in Python.
    group_of = staticmethod(attrgetter("name"))

    def __init__(self, shared: SchedulerContext) -> None:
        self._context = shared.client
        self._db_threads = shared.db_threads
        self._workers = shared.workers
        self._paused = shared.paused
        self._leased = shared.leased
        self._turns = Turns()
        # What the last look has shown: see `Seen`.
        self._unread: Sequence[str] = ()
        self._usual_size = 1

    def groups(self, demand: Demand) -> Mapping[str, int]:
        # By the cached answer, which may be outdated: the thread that claims looks the pauses up again.
        paused = self._paused.names
        return {name: count for name, count in demand.groups.items() if name not in paused} if paused else demand.groups

    def accepts(self, demand: Demand) -> Callable[[Job], bool] | None:
        return None if demand.suspects else _is_unsuspicious

    def choose(self, found: Sequence[Job], demand: Demand) -> Sequence[Job]:
        fair = self._turns.share(found, demand.total, self.group_of, self.priority_of)
        if demand.suspects and any(map(_rescues_of, fair)):  # Most jobs have none.
            # Of suspects that are due at the same moment, the one that was created first.
            return suspect_alone(fair, found, is_suspect, lambda job: (job.next_run_at, job.id))
        return fair

    def priority_of(self, group: str) -> int:
        worker = self._workers.by_name.get(group)
        return 0 if worker is None else worker.settings.priority

    async def look(self, reading: Reading, demand: Demand, now: datetime) -> FoundItems[Job]:
        with_suspects = demand.suspects > 0
        wanted, reach = self._what_fits(reading)

        def look() -> tuple[Mapping[str, int], Seen]:
            paused = self._paused.look_up(self._leased)
            groups = {name: count for name, count in wanted.items() if name not in paused}
            # The engine counted these before this thread looked the pauses up.
            behind = {name: count for name, count in reading.passed_over.items() if name in groups}
            survey = partial(
                due.survey,
                self._leased,
                groups,
                now,
                suspects=with_suspects,
                passed_over=behind,
                is_announced=demand.force_look,
                reach=reach,
            )
            return groups, self._context.with_indexes(survey) if groups else Seen([])

        asked, seen = await self._db_threads.call(look, channel=Channel.CLAIMS, abandon_on_cancel=True)
        self._unread, self._usual_size = seen.unread, seen.usual_size
        return FoundItems(
            seen.jobs, asked, seen.exhausted, seen.short, is_whole=with_suspects, unread=frozenset(seen.unread)
        )

    def _what_fits(self, reading: Reading) -> tuple[Mapping[str, int], Reach]:
        """How many jobs of each name to read, in this order, so that the look stays within `due.LOOK_BYTES`.

        The names of one priority share what fits, and those come first that the last look has not reached. Of
        different priorities, the higher one always comes first.
        """
        wanted, enough, in_flight = reading.wanted, reading.enough, reading.in_flight
        if not self._unread and self._usual_size * sum(wanted.values()) <= due.LOOK_BYTES:
            return wanted, Reach(enough + len(in_flight), self._usual_size)
        # Rare: only payloads of many kilobytes fill a look.
        names = dict.fromkeys([*(name for name in self._unread if name in wanted), *wanted])
        sharing = Counter(map(self.priority_of, names))
        room = max(enough, due.LOOK_BYTES // self._usual_size)
        fitting = {
            name: min(wanted[name], -(-room // sharing[self.priority_of(name)]))
            for name in sorted(names, key=self.priority_of, reverse=True)
        }
        return fitting, Reach(enough, self._usual_size, [ObjectId(key) for key in in_flight if isinstance(key, bytes)])


_rescues_of: Final = attrgetter("rescues")


def _is_unsuspicious(job: Job) -> bool:
    return not is_suspect(job)
