"""Rescue: looks at the claims of others, takes dead ones away, and reports what was rescued. Blocking.

A rescue races with the holder, who may renew or end the claim at any moment, with other observers, and with callers who
change a schedule. What closes each race:

- *The claim changed since it was observed.* Each batch reads its jobs again and keeps only those whose mark (owner,
  token, last sign of life) is the observed one. The write repeats that mark as its guard.
- *The answer is lost.* The write may be applied, and then the job no longer has the mark. A new decision would find
  nothing to do, and the rescue would never be reported. So the same statements are sent again until they are answered;
  by their receipts the server shows which changes were ours.
- *The holder died inside a transaction* (`job.transaction`): the server keeps its document locked for a while, and a
  write that meets the lock waits. So a batch that got no answer is sent in halves; what is left, a later batch takes.
- *A schedule changed since the decision.* The next occurrence would be that of the old schedule, so the write matches
  nothing (JOB_CHANGED), and the job is read and decided again.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from .. import events
from ..error_types import BrokenDocumentError, MonqueConnectionError, ScheduleEndedError
from ..jobs.claim_stamps_and_fences import ClaimId, claim_id, is_to_be_cancelled
from ..jobs.conditional_write import LIGHTEST, applied, lightened
from ..jobs.job import Job, JobStatus
from ..jobs.job_parts import IN_PARTS, NO_CLAIM
from ..jobs.rescue_policy import Rescue, RescuePolicy, decide_rescue, is_stale, lease_of, mark_of, protected_for
from ..log import logger_of
from ..observations import Sighting
from ..options_and_defaults import SchedulerConfig
from ..safe_text import one_line
from ..store.broken import doubled_fields
from ..store.driver.driver_errors import is_timeout
from ..store.driver.types import ObjectId
from ..store.fields import HEAVY
from ..store.jobs import rescuing, settling
from ..store.jobs.settling import Fate, Statement
from ..store.reads import queries
from .client_context import ClientContext

logger = logger_of()

# A schedule may change between the decision and the write. By chance, that cannot happen ten times in a row.
MOST_ROUNDS: Final = 10

# A lost answer does no harm to the jobs, but their rescue would not be reported: so the same is sent again soon.
MOST_SENDINGS: Final = 3
SEND_AGAIN_AFTER: Final = 0.2

MOST_NAMED: Final = 10
MOST_JOBS_OF_A_HOLDER: Final = 10
"""Jobs that the line of a rescue names for each holder: it has ten holders at most."""
MOST_OF_A_NAME: Final = 100
"""Characters of the name of a job in that line."""


@dataclass(frozen=True, slots=True)
class Rescued:
    """A dead claim that was taken away.

    Attributes:
        before, after: The job as it was observed, and as the rescue left it.
        error: Why the job, or its occurrence, was given up; None for a rescue.
    """

    before: Job
    after: Job
    error: BaseException | None


class Rescuer:
    """Looks at claims and takes dead ones away. Every call blocks until the database has answered."""

    def __init__(self, context: ClientContext) -> None:
        config = context.config
        # A client that runs no jobs uses the default options of a scheduler.
        self._config = config if isinstance(config, SchedulerConfig) else SchedulerConfig()
        self._policy = RescuePolicy.of(self._config)
        self._context = context

    def look(self) -> Sequence[Job]:
        """Return all claimed jobs."""
        return rescuing.look(self._context.jobs)

    def sighting(self, job: Job, now: datetime, older_than: float | None = None) -> Sighting[Job]:
        """Return the claim as an observer needs it. `older_than` replaces the option `lock_timeout`."""
        return Sighting(
            job,
            key=job.id,
            mark=mark_of(job),
            lease=lease_of(job),
            protected_for=protected_for(job, now, self._config.lock_timeout if older_than is None else older_than),
            is_stale=is_stale(job, now),
        )

    def batch(self, observed: Sequence[Job]) -> RescueBatch:
        """Return a batch that rescues these jobs, as far as their claims have not changed since."""
        return RescueBatch(self._context, self._policy, observed)

    def take(self, observed: Sequence[Job]) -> Sequence[Rescued]:
        """Rescue these jobs now, as far as their claims have not changed since."""
        batch = self.batch(observed)
        batch.run_with_retries()
        return batch.collect()


@dataclass(frozen=True, slots=True)
class _Decided:
    """The statements of one round, and the jobs and decisions that they were made from."""

    dead: Mapping[ClaimId, Job]
    rescues: Mapping[ClaimId, Rescue]
    statements: Sequence[Statement]


class RescueBatch:
    """Takes claims away that have not changed since they were observed, and decides what becomes of each job.

    After a transient error, call `run` again: it sends the same statements, until they are answered.
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
        """Whether statements were sent that are not answered yet."""
        return self._unanswered is not None

    def collect(self) -> Sequence[Rescued]:
        """Return what was rescued since the last call."""
        rescued, self._rescued = self._rescued, []
        return rescued

    def run_with_retries(self) -> None:
        """Do what `run` does; after a transient error, try again a few times."""
        for _ in range(MOST_SENDINGS - 1):
            try:
                return self.run()
            except MonqueConnectionError as error:
                if not error.transient:
                    raise
            time.sleep(SEND_AGAIN_AFTER)
        return self.run()

    def run(self) -> None:
        """Decide and write until no claim is left to take. Raises MonqueConnectionError if the database fails."""
        while self._rounds < MOST_ROUNDS:
            decided = self._unanswered or self._decide()
            if decided is None:
                return
            # Until the answer arrives: if `settle` raises, the next call sends exactly this again.
            self._unanswered = decided
            fates = self._settle(decided.statements)
            self._unanswered = None
            self._rounds += 1
            self._rescued += self._taken(decided, fates)
            # A changed schedule is read and decided again. A document that has no room for the write gets a lighter
            # one, up to the lightest.
            again = {Fate.JOB_CHANGED, Fate.REFUSED} if self._refusals < LIGHTEST else {Fate.JOB_CHANGED}
            if Fate.REFUSED in fates.values():
                self._refusals += 1
            self._marks = {claim[0]: self._marks[claim[0]] for claim, fate in fates.items() if fate in again}
            self._report_doubled([claim[0] for claim, fate in fates.items() if fate in (Fate.LOST, Fate.JOB_CHANGED)])

    def _settle(self, statements: Sequence[Statement]) -> Mapping[ClaimId, Fate]:
        """Settle them; if they are not answered in time, as many as can be. The others have no fate."""
        try:
            return settling.settle(self._context.jobs, statements)
        except MonqueConnectionError as error:
            if not is_timeout(error) or sum(len(one.claims) for one in statements) == 1:
                raise
            # One locked document must not keep the others from their rescue.
            fates = rescuing.settle_in_parts(self._context.jobs, statements)
            if not fates:
                raise
            return fates

    def _decide(self) -> _Decided | None:
        if not self._marks:
            return None
        dead = self._unchanged(rescuing.read(self._context.jobs, list(self._marks)))
        now = self._context.now()
        rescues = {claim: self._decided(job, now) for claim, job in dead.items()}
        # Jobs that end are read again with all their content: the event of the end has it, and the end adds to the
        # history of errors. All others are read without it, because that is much cheaper.
        ending = [job.id for claim, job in dead.items() if rescues[claim].error or is_to_be_cancelled(job)]
        if ending:
            whole = self._unchanged([job for one in ending for job in rescuing.read_whole(self._context.jobs, one)])
            dead = {claim: job for claim, job in dead.items() if job.id not in ending} | whole
            rescues |= {claim: self._decided(job, now) for claim, job in whole.items()}
        self._report_doubled(self._marks.keys() - {job_id for job_id, _ in dead})
        if not dead:
            return None
        statements = settling.grouped([rescues[claim].transition for claim in dead], secrets.token_hex(8))
        return _Decided(dead, rescues, statements)

    def _report_doubled(self, missed: Collection[ObjectId]) -> None:
        """Look for doubled fields in documents that were observed and could not be taken.

        Usually such a claim was renewed or ended just now. But if a document has a field twice, the driver reads one
        value and the server compares the other, so no write would ever match. Once reported, the next batch uses the
        values that the server compares.
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
            fate = fates.get(claim)
            if fate is Fate.WRITTEN:
                yield Rescued(job, applied(job, rescue.transition), rescue.error)
            elif fate is Fate.CANCELLED and otherwise is not None:
                after = applied(job, otherwise)
                # Without a request in the copy that was read, the request came since, and the copy has no content.
                yield Rescued(job, after if is_to_be_cancelled(job) else self._with_content(after), None)

    def _with_content(self, after: Job) -> Job:
        """Add the content of a job that turned out to be cancelled when it was written: its event needs it."""
        try:
            stored = queries.get_job(self._context.jobs, after.id)
        except (MonqueConnectionError, BrokenDocumentError):
            return after
        # Not what was left in it for another run: the cancellation has dropped that.
        content = {} if stored is None else {name: getattr(stored, name) for name in HEAVY if name not in IN_PARTS}
        return replace(after, **content)


# --- The report ---


def pending_again(rescued: Sequence[Rescued]) -> Sequence[Job]:
    """Return the rescued jobs that are pending, as they are now."""
    return [one.after for one in rescued if one.after.status is JobStatus.PENDING]


def log_and_events_of(rescued: Sequence[Rescued]) -> Sequence[events.Event]:
    """Log what was rescued, and return the events that report it."""
    found: list[events.Event] = []
    if pending := pending_again(rescued):
        by_name = dict(Counter(job.name for job in pending).most_common())
        held: dict[str, list[Job]] = {_holder_of(one): [] for one in rescued}
        for one in rescued:
            if one.after.status is JobStatus.PENDING:
                held[_holder_of(one)].append(one.after)
        logger.warning(
            "rescued %d %s from dead instances (%s). Each instance was killed, ran out of memory, lost its database "
            "or blocked its event loop for longer than its lease, or a handler did not stop at lock_timeout: %s",
            len(pending),
            "job" if len(pending) == 1 else "jobs",
            _listed(f"{name}: {count}" for name, count in by_name.items()),
            _listed(_with_jobs(holder, held[holder]) for holder in sorted(held)),
            extra={"job_ids": [str(job.id) for job in pending[:MOST_NAMED]]},
        )
        found.append(events.StaleJobsRecovered(len(pending), by_name))
    for one in rescued:
        found += _events_of(one)
    return found


def _events_of(rescued: Rescued) -> Sequence[events.Event]:
    job, error = rescued.after, rescued.error
    if job.status is JobStatus.CANCELLED:
        return [events.JobCancelled(job)]
    if error is None:
        return []
    goes_on = job.status is JobStatus.PENDING
    what = f"used up its rescues; its schedule continues at {job.next_run_at}" if goes_on else "failed for good"
    logger.error("job %s %s: %s%s", job, what, "" if isinstance(error, ScheduleEndedError) else "it ", error)
    failed = events.JobFailed(job, error, will_retry=goes_on)
    return [events.ScheduleExhausted(job, error), failed] if goes_on else [failed]


def _holder_of(rescued: Rescued) -> str:
    return str((rescued.before.claim or NO_CLAIM).by)


def _with_jobs(holder: str, jobs: Sequence[Job]) -> str:
    """Return the holder with its first jobs; those that were given up have lines of their own."""
    named = (f"{one_line(job.name, MOST_OF_A_NAME)} {job.id}" for job in jobs)
    return f"{holder} ({_listed(named, MOST_JOBS_OF_A_HOLDER)})" if jobs else holder


def _listed(words: Iterator[str], most: int = MOST_NAMED) -> str:
    named = list(words)
    shown = ", ".join(named[:most])
    return shown if len(named) <= most else f"{shown} and {len(named) - most} more"
