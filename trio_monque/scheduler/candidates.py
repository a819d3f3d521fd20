"""Which jobs to claim next: those that are due, of names that nobody has paused, in turn by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from ..engine.demand import Demand, Found
from ..engine.slots import Turns, suspect_alone
from ..jobs.claimable import is_suspect
from ..jobs.job import Job
from ..store import due
from ..store.database_threads import Channel
from ..store.due import Seen
from ..store.types import ObjectId
from .context import SchedulerContext


@dataclass(frozen=True, slots=True)
class JobKey:
    """The one job that `JobClaims.claim_one` claims: its id, and the state in which it was seen to be due.

    Attributes:
        id: The job's id.
        due: When the job is due, as its client, the change stream or the last look reported it.
        attempts: How often the job had been claimed at that time; a claim with another count is refused.
    """

    id: ObjectId
    due: datetime
    attempts: int = 0


class JobFinder:
    """Used on the run's own thread; the looks go through the door."""

    def __init__(self, shared: SchedulerContext) -> None:
        self._context = shared.client
        self._door = shared.door
        self._workers = shared.workers
        self._paused = shared.paused
        self._leased = shared.leased
        self._turns = Turns()

    @staticmethod
    def key_of(job: Job) -> ObjectId:
        return job.id

    @staticmethod
    def group_of(job: Job) -> str:
        return job.name

    def groups(self, demand: Demand) -> Mapping[str, int]:
        # As far as is known: whoever claims must look that up.
        paused = self._paused.names
        return {name: count for name, count in demand.groups.items() if name not in paused} if paused else demand.groups

    def accepts(self, demand: Demand) -> Callable[[Job], bool] | None:
        return None if demand.suspects else _is_no_suspect

    def choose(self, found: Sequence[Job], demand: Demand) -> Sequence[Job]:
        fair = self._turns.share(found, demand.total, self.group_of, self._priority_of)
        if demand.suspects:
            # Of those that are due at one moment, the one that was made first.
            return suspect_alone(fair, found, is_suspect, lambda job: (job.next_run_at, job.id))
        return fair

    def _priority_of(self, group: str) -> int:
        worker = self._workers.get(group)
        return 0 if worker is None else worker.settings.priority

    async def look(
        self, wanted: Mapping[str, int], passed_over: Mapping[str, int], demand: Demand, now: datetime
    ) -> Found[Job]:
        with_suspects = demand.suspects > 0

        def look() -> tuple[Mapping[str, int], Seen]:
            paused = self._paused.look_up(self._leased)
            groups = {name: count for name, count in wanted.items() if name not in paused}
            # Drawn before it was known what is paused.
            behind = {name: count for name, count in passed_over.items() if name in groups}
            survey = partial(
                due.survey,
                self._leased,
                groups,
                now,
                suspects=with_suspects,
                passed_over=behind,
                is_announced=demand.force_look,
            )
            return groups, self._context.with_indexes(survey) if groups else Seen([])

        asked, seen = await self._door.call(look, channel=Channel.CLAIMS, abandon_on_cancel=True)
        return Found(seen.jobs, asked, seen.exhausted, seen.short, with_suspects)


def _is_no_suspect(job: Job) -> bool:
    return not is_suspect(job)
