"""The pure model: the life of a job as the design tells it, by hand and without the library's transitions.

`happened` collects which transitions really took place, named as in the library's table, with the status
that each led from; those of the Node peer are in `node.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from bson import ObjectId

from .state import START, Difference, ModelJob, occurrence_after

# The policy under which every run ends; the drivers build the library's from the same numbers.
MAX_RETRIES: Final = 2
MAX_RESCUES: Final = 1
BASE_DELAY: Final = 20.0
LONGEST_DELAY: Final = 60.0
SOON: Final = 2.0
"""Seconds: what a Retry or a Snooze asks for."""
MOST_ERRORS: Final = 5


@dataclass(frozen=True)
class Refusal:
    """An action by hand that the job's state does not allow."""

    status: str


@dataclass(frozen=True)
class Ending:
    """The end of a run, from the copy that its instance has of the job.

    Attributes:
        outcome: "succeed", "fail", "fail soon", "discard", "snooze", "cut short", or "rescue", which another instance
            writes about a claim.
    """

    copy: ModelJob
    outcome: str
    at: datetime
    receipt: str


class Model:
    """All jobs, and the time."""

    def __init__(self) -> None:
        self.now = START
        self.jobs: dict[ObjectId, ModelJob] = {}
        self.happened: set[str] = set()
        # The claim whose end left the receipt that a job has.
        self._settled_by: dict[ObjectId, str | None] = {}

    def mark(self, transition: str, source: str) -> None:
        self.happened.add(f"{transition} of {source}")

    # --- New jobs ---

    def enqueue(self, job: ModelJob) -> ModelJob:
        """The job, or the one that has its unique key."""
        if (other := self.holder_of_key(job)) is not None:
            return other
        self.jobs[job.id] = job
        return job

    def holder_of_key(self, job: ModelJob) -> ModelJob | None:
        """Which other pending or processing job has its unique key."""
        if job.unique_key is None:
            return None
        key = (job.name, job.unique_key)
        for other in self.jobs.values():
            if other.is_active and other.id != job.id and (other.name, other.unique_key) == key:
                return other
        return None

    # --- Claims ---

    def is_due(self, job: ModelJob) -> bool:
        return job.status == "pending" and job.next_run_at <= self.now and job.claimed_by is None

    def check_looked(self, wanted: Mapping[str, int], found: Sequence[ObjectId]) -> None:
        """Of each name the earliest, as many as wanted. Which of several at one moment is anybody's choice."""
        for name, count in wanted.items():
            due = sorted(job.next_run_at for job in self.jobs.values() if job.name == name and self.is_due(job))
            seen = [self.jobs[job_id] for job_id in found if job_id in self.jobs and self.jobs[job_id].name == name]
            if not all(self.is_due(job) for job in seen) or [job.next_run_at for job in seen] != due[:count]:
                raise Difference(f"look for {count} of {name}: {found} is not the earliest of what is due")

    def take(self, candidates: Sequence[ModelJob], taken: Sequence[ObjectId], token: str, by: str) -> None:
        """Claims what was taken, after a check that it is the right choice.

        What is still as it was seen, and due, is taken; what is not due any more, is not. In between,
        changed and yet due, both are allowed.
        """
        for seen in candidates:
            job = self.jobs.get(seen.id)
            if job is None or not self.is_due(job):
                if seen.id in taken:
                    raise Difference(f"take: {seen.id} was not to be claimed any more: {job}")
            elif job == seen and seen.id not in taken:
                raise Difference(f"take: {seen.id} was still to be claimed: {job}")
        for job_id in taken:
            self._claim(self.jobs[job_id], token, by)

    def _claim(self, job: ModelJob, token: str, by: str) -> None:
        self.mark("claim", job.status)
        job.status = "processing"
        job.claimed_by, job.locked_at, job.claim_token = by, self.now, token
        job.token_of = (by, self.now)
        job.last_heartbeat, job.heartbeat_interval = self.now, 30.0
        job.cancel_requested_at, job.renewed_at = None, self.now
        job.attempts += 1
        job.updated_at = self.now

    def holds(self, copy: ModelJob) -> ModelJob | None:
        """The job, if the claim that the copy speaks of is still the current one."""
        job = self.jobs.get(copy.id)
        if job is None or job.status != "processing":
            return None
        now_held = (job.claimed_by, job.locked_at, job.claim_token)
        return job if now_held == (copy.claimed_by, copy.locked_at, copy.claim_token) else None

    def renew(self, copies: Sequence[ModelJob]) -> set[tuple[ObjectId, str | None]]:
        """The claims that are no longer held."""
        lost = set()
        for copy in copies:
            if (job := self.holds(copy)) is None:
                lost.add((copy.id, copy.claim_token))
            else:
                assert job.last_heartbeat is not None
                assert job.renewed_at is not None
                job.last_heartbeat = max(job.last_heartbeat, self.now)
                job.renewed_at = max(job.renewed_at, self.now)
                job.updated_at = self.now
        return lost

    def report(self, copy: ModelJob, saved: Any) -> bool:
        if (job := self.holds(copy)) is None:
            return False
        job.saved, job.updated_at = saved, self.now
        if copy.its_occurrence is not None:
            job.saved_for = copy.its_occurrence
        return True

    def release_all(self, of: ModelJob) -> int:
        """Gives back what one claim cycle holds; what is to be cancelled waits for its settlement."""
        count = 0
        for job in self.jobs.values():
            mark = (job.status, job.claimed_by, job.locked_at, job.claim_token, job.cancel_requested_at)
            if mark == ("processing", of.claimed_by, of.locked_at, of.claim_token, None):
                self.mark("release", job.status)
                self._end_claim(job, "pending", self.now)
                count += 1
        return count

    # --- The ends of claims ---

    def settle(self, ending: Ending) -> str:
        """What becomes of one settlement, sent for the first time or again."""
        job = self.jobs.get(ending.copy.id)
        # Of two claims on one job in a batch, the receipt of one does not cover the other.
        if job is not None and self._settled_by.get(job.id) == ending.copy.claim_token:
            if job.receipt == ending.receipt:
                return "WRITTEN"
            if job.receipt == f"{ending.receipt}/otherwise":
                return "CANCELLED"
        if job is None or self.holds(ending.copy) is None:
            return "LOST"
        name, write = self._meant(ending)
        is_rescue = ending.outcome == "rescue"
        sign = "renewed_at" if ending.copy.is_claimed_by_us else "last_heartbeat"
        if is_rescue and getattr(job, sign) != getattr(ending.copy, sign):
            return "LOST"
        # A request on another library's claim was left behind by an earlier claim of ours.
        obeys = name != "complete" and not (is_rescue and not ending.copy.is_claimed_by_us)
        if obeys and job.cancel_requested_at is not None:
            self.mark("cancel_claimed", job.status)
            self._end_run(job, "cancelled", ending)
            job.rescues = 0
            job.forget_again()
            job.receipt = f"{ending.receipt}/otherwise"
            self._settled_by[job.id] = ending.copy.claim_token
            return "CANCELLED"
        if (
            name in ("complete", "go_on", "fail", "give_up", "run_again")
            and job.repeat_interval != ending.copy.repeat_interval
        ):
            return "JOB_CHANGED"
        is_one_off = ending.copy.repeat_interval is None
        if is_one_off and name in ("complete", "fail", "give_up") and job.again is not None:
            return "JOB_CHANGED"
        self.mark(name, job.status)
        write(job, ending)
        job.receipt = ending.receipt
        self._settled_by[job.id] = ending.copy.claim_token
        return "WRITTEN"

    def _meant(self, ending: Ending) -> tuple[str, Callable[[ModelJob, Ending], None]]:
        copy = ending.copy
        match ending.outcome:
            case "rescue":
                return self._meant_by_a_death(copy)
            case "cut short":
                return "release", self._cut_short
            case "snooze":
                return "snooze", self._snooze
            case "succeed":
                if copy.repeat_interval is None and copy.again is not None:
                    return "run_again", self._run_again
                return ("complete", self._complete) if copy.repeat_interval is None else ("go_on", self._go_on)
        limit = MAX_RETRIES if copy.max_attempts is None else copy.max_attempts
        if ending.outcome != "discard" and copy.fail_count + 1 < limit:
            return "retry", self._retry
        if copy.repeat_interval is not None and copy.on_exhausted != "fail":
            return "go_on", self._go_on_exhausted
        if copy.repeat_interval is None and copy.again is not None:
            return "run_again", self._run_again
        return "fail", self._fail

    def _meant_by_a_death(self, copy: ModelJob) -> tuple[str, Callable[[ModelJob, Ending], None]]:
        if copy.deaths + 1 <= (MAX_RESCUES if copy.max_rescues is None else copy.max_rescues):
            return "rescue", self._rescue
        if copy.repeat_interval is not None and copy.on_exhausted != "fail":
            return "go_on", self._go_on_exhausted
        if copy.repeat_interval is None and copy.again is not None:
            return "run_again", self._run_again
        return "give_up", self._give_up

    def _end_claim(self, job: ModelJob, status: str, at: datetime) -> None:
        job.status, job.updated_at = status, at
        job.claimed_by = job.locked_at = job.claim_token = job.token_of = None
        job.last_heartbeat = job.heartbeat_interval = job.cancel_requested_at = job.renewed_at = None

    def _end_run(self, job: ModelJob, status: str, ending: Ending) -> None:
        self._end_claim(job, status, ending.at)
        job.started_at, job.finished_at = ending.copy.locked_at, ending.at

    def _cut_short(self, job: ModelJob, ending: Ending) -> None:
        self._end_claim(job, "pending", ending.at)
        job.start_by = job.debounced_since = None

    def _rescue(self, job: ModelJob, ending: Ending) -> None:
        self._cut_short(job, ending)
        job.rescues = ending.copy.deaths + 1
        job.next_run_at = job.resumes_at = min(ending.copy.next_run_at, ending.at)
        self._resume(job, ending)

    def _resume(self, job: ModelJob, ending: Ending) -> None:
        """It is left pending for another try at the same occurrence."""
        if ending.copy.its_occurrence is not None:
            job.occurrence, job.resumes_at = ending.copy.its_occurrence, job.next_run_at

    def _snooze(self, job: ModelJob, ending: Ending) -> None:
        self._end_run(job, "pending", ending)
        job.start_by = job.debounced_since = None
        job.next_run_at = ending.at + timedelta(seconds=SOON)
        job.rescues = 0
        self._resume(job, ending)

    def _complete(self, job: ModelJob, ending: Ending) -> None:
        self._end_run(job, "completed", ending)
        job.fail_reason, job.saved, job.rescues = None, None, 0
        job.result = ending.receipt

    def _run_again(self, job: ModelJob, ending: Ending) -> None:
        self._end_run(job, "pending", ending)
        self.put_again(job)
        if ending.outcome == "succeed":
            job.fail_reason, job.result = None, ending.receipt
        else:
            self._record(job, ending)

    def put_again(self, job: ModelJob) -> None:
        """What was left in it for another run is what it runs with."""
        assert job.again_at is not None
        job.data, job.next_run_at, job.start_by = job.again_data, job.again_at, job.again_start_by
        job.debounced_since = job.again_since
        job.fail_count, job.rescues, job.saved = 0, 0, None
        job.rev += 1
        job.forget_again()

    def _go_on(self, job: ModelJob, ending: Ending) -> None:
        self._next_occurrence(job, ending)
        job.fail_reason = None
        job.result = ending.receipt

    def _go_on_exhausted(self, job: ModelJob, ending: Ending) -> None:
        self._next_occurrence(job, ending)
        self._record(job, ending)

    def _next_occurrence(self, job: ModelJob, ending: Ending) -> None:
        self._end_run(job, "pending", ending)
        assert job.repeat_interval is not None
        job.next_run_at = occurrence_after(ending.at, job.repeat_interval)
        job.fail_count, job.saved, job.rescues = 0, None, 0
        job.saved_for = job.occurrence = job.resumes_at = None

    def _retry(self, job: ModelJob, ending: Ending) -> None:
        self._end_run(job, "pending", ending)
        job.start_by = job.debounced_since = None
        job.fail_count += 1
        delay = SOON if ending.outcome == "fail soon" else min(BASE_DELAY * 2**job.fail_count, LONGEST_DELAY)
        job.next_run_at = ending.at + timedelta(seconds=delay)
        job.rescues = 0
        self._resume(job, ending)
        self._record(job, ending)

    def _fail(self, job: ModelJob, ending: Ending) -> None:
        self._end_run(job, "failed", ending)
        job.fail_count += 1
        job.rescues = 0
        self._record(job, ending)

    def _give_up(self, job: ModelJob, ending: Ending) -> None:
        self._end_run(job, "failed", ending)
        job.rescues = 0
        self._record(job, ending)

    def _record(self, job: ModelJob, ending: Ending) -> None:
        reason = "enough" if ending.outcome == "discard" else "ValueError: no"
        if ending.outcome == "rescue":
            deaths = ending.copy.deaths + 1
            reason = f"died {deaths} time{'s' if deaths > 1 else ''} while running"
        job.fail_reason = reason
        job.errors = (*job.errors, (ending.at, job.attempts, reason))[-MOST_ERRORS:]
