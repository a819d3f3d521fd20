"""Rescue: what is seen of the claims of others, and how dead ones are taken away. Blocking."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from ..errors import BrokenDocumentError, MonqueConnectionError
from ..jobs.conditional_write import LIGHTEST, applied, lightened
from ..jobs.fences import ClaimId, claim_id
from ..jobs.job import Job
from ..jobs.rescue_policy import Rescue, RescuePolicy, decide_rescue, is_stale, lease_of, mark_of, protected_for
from ..observations import Sighting
from ..options import SchedulerConfig
from ..store import doubled_fields, queries, rescuing, settling
from ..store.fields import HEAVY
from ..store.settling import Fate, Statement
from ..store.types import ObjectId
from .context import ClientContext
from .rescued import Rescued

# A schedule may be changed while it is decided what becomes of it. It cannot go on for ever by chance.
MOST_ROUNDS: Final = 10

# A lost answer is harmless, but what was rescued would not be reported: the same is sent again, soon.
MOST_TRIES: Final = 3
TRY_AGAIN_AFTER: Final = 0.2


class Rescuer:
    """Looks at claims and takes dead ones away; every call blocks until the database has answered."""

    def __init__(self, context: ClientContext) -> None:
        config = context.config
        # A client that runs no jobs goes by a scheduler's defaults.
        self._config = config if isinstance(config, SchedulerConfig) else SchedulerConfig()
        self._policy = RescuePolicy.of(self._config)
        self._context = context

    def look(self) -> Sequence[Job]:
        """Every claim that there is."""
        return rescuing.look(self._context.jobs)

    def sighting(self, job: Job, now: datetime, older_than: float | None = None) -> Sighting[Job]:
        """What an observer makes of a claim; `older_than` stands for `lock_timeout`."""
        return Sighting(
            job,
            key=job.id,
            mark=mark_of(job),
            lease=lease_of(job),
            protected_for=protected_for(job, now, self._config.lock_timeout if older_than is None else older_than),
            is_stale=is_stale(job, now),
        )

    def taking(self, observed: Sequence[Job]) -> Taking:
        """Of these claims, those that have not changed since, to be taken away."""
        return Taking(self._context, self._policy, observed)

    def take(self, observed: Sequence[Job]) -> Sequence[Rescued]:
        """Takes them away now."""
        taking = self.taking(observed)
        taking.run_with_retries()
        return taking.collect()


@dataclass(frozen=True, slots=True)
class _Decided:
    """What is written, and from what it was decided. Sent again as it is, until there is an answer."""

    dead: Mapping[ClaimId, Job]
    rescues: Mapping[ClaimId, Rescue]
    statements: Sequence[Statement]


class Taking:
    """Takes claims away that have not changed since they were observed. What each job then is, is decided now.

    An answer may be lost: `run` may be called again after any error that passes, and sends the same. Only so does it
    know later what it did itself.
    """

    def __init__(self, context: ClientContext, policy: RescuePolicy, observed: Sequence[Job]) -> None:
        self._context = context
        self._policy = policy
        self._marks: dict[ObjectId, Hashable] = {job.id: mark_of(job) for job in observed}
        self._rounds = 0
        self._unanswered: _Decided | None = None
        self._rescued: list[Rescued] = []
        self._refusals = 0

    @property
    def is_unknown(self) -> bool:
        """Something was sent, and its answer has not come."""
        return self._unanswered is not None

    def collect(self) -> Sequence[Rescued]:
        """What was rescued since this was asked last."""
        rescued, self._rescued = self._rescued, []
        return rescued

    def run_with_retries(self) -> None:
        """As `run`; what passes is tried again, a few times."""
        for _ in range(MOST_TRIES - 1):
            try:
                return self.run()
            except MonqueConnectionError as error:
                if not error.transient:
                    raise
            time.sleep(TRY_AGAIN_AFTER)
        return self.run()

    def run(self) -> None:
        """Raises MonqueConnectionError where the database does not answer."""
        while self._rounds < MOST_ROUNDS:
            decided = self._unanswered or self._decide()
            if decided is None:
                return
            self._unanswered = decided
            fates = settling.settle(self._context.jobs, decided.statements)
            self._unanswered = None
            self._rounds += 1
            self._rescued += self._taken(decided, fates)
            # Where a schedule was changed meanwhile, it is decided again from what it is now. Where the document has
            # no room, something lighter is written.
            again = {Fate.SCHEDULE_CHANGED, Fate.REFUSED} if self._refusals < LIGHTEST else {Fate.SCHEDULE_CHANGED}
            self._refusals += Fate.REFUSED in fates.values()
            self._marks = {claim[0]: self._marks[claim[0]] for claim, fate in fates.items() if fate in again}
            self._look_into([claim[0] for claim, fate in fates.items() if fate in (Fate.LOST, Fate.SCHEDULE_CHANGED)])

    def _decide(self) -> _Decided | None:
        if not self._marks:
            return None
        dead = self._unchanged(rescuing.read(self._context.jobs, list(self._marks)))
        now = self._context.now()
        rescues = {claim: self._decided(job, now) for claim, job in dead.items()}
        # The event of a job that ends has all its content; and its history of errors goes on.
        ending = [job.id for claim, job in dead.items() if rescues[claim].error or job.cancel_requested_at]
        if ending:
            whole = self._unchanged([job for one in ending for job in rescuing.read_whole(self._context.jobs, one)])
            dead = {claim: job for claim, job in dead.items() if job.id not in ending} | whole
            rescues |= {claim: self._decided(job, now) for claim, job in whole.items()}
        self._look_into(self._marks.keys() - {job_id for job_id, _ in dead})
        if not dead:
            return None
        statements = settling.grouped([rescues[claim].transition for claim in dead], secrets.token_hex(8))
        return _Decided(dead, rescues, statements)

    def _look_into(self, missed: Collection[ObjectId]) -> None:
        """Looks for fields that are there twice in what could not be taken although it was observed.

        Usually such a claim was renewed, or ended, just now. With a field twice, no write would ever match by what the
        driver reads: the next taking goes by what the server compares.
        """
        if missed:
            doubled_fields.report_doubled(self._context.jobs, missed)

    def _decided(self, job: Job, now: datetime) -> Rescue:
        rescue = decide_rescue(job, now, self._policy)
        steps = min(self._refusals, LIGHTEST)
        return replace(rescue, transition=lightened(rescue.transition, steps)) if steps else rescue

    def _unchanged(self, found: Sequence[Job]) -> dict[ClaimId, Job]:
        return {claim_id(job): job for job in found if mark_of(job) == self._marks[job.id]}

    def _taken(self, decided: _Decided, fates: Mapping[ClaimId, Fate]) -> Iterator[Rescued]:
        for claim, job in decided.dead.items():
            rescue = decided.rescues[claim]
            otherwise = rescue.transition.otherwise
            if fates[claim] is Fate.WRITTEN:
                yield Rescued(job, applied(job, rescue.transition), rescue.error)
            elif fates[claim] is Fate.CANCELLED and otherwise is not None:
                after = applied(job, otherwise)
                yield Rescued(job, after if job.cancel_requested_at else self._with_content(after), None)

    def _with_content(self, after: Job) -> Job:
        """Add the content, for the event of a job whose end was only found when it was written."""
        try:
            stored = queries.get_job(self._context.jobs, after.id)
        except (MonqueConnectionError, BrokenDocumentError):
            return after
        content = {} if stored is None else {name: getattr(stored, name) for name in HEAVY}
        return replace(after, **content)
