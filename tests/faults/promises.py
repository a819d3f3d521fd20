"""The checker of what was promised, rule by rule: from what handlers and callers wrote down, and what is stored.

Knows nothing of the library. `broken` gives a line for each promise that was broken; `test_promises.py` shows of
each rule that it can. What the records mean is said in `records.py`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from tests.support.standstills import Standstill, Wait, excused_waits, seconds_of

from .history import CLAIM_FIELDS, Change, Claim, claims
from .records import Record, Span, by_job, spans

LIVE: Final = ("pending", "processing")

# How a claim ended that its own run settled -> what its handler must have written down.
OUTCOMES: Final = {"completed": "succeeded", "failed": "failed", "snoozed": "snoozed"}


@dataclass(frozen=True)
class Evidence:
    """All that there is to judge by.

    Attributes:
        records: Of all processes.
        changes: Of the collection, in order.
        lease: Seconds.
        rescued_within: Seconds from the last sign of life of a dead instance until its jobs are pending again.
        origin: The server's time when the clock of the records was zero.
        standstills: When the whole machine stood still, by the clock of the records.
        waits: When tasks waited for a processor, by the same clock. They excuse lateness only.
    """

    records: Sequence[Record]
    changes: Sequence[Change]
    lease: float
    rescued_within: float = math.inf
    origin: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    standstills: Sequence[Standstill] = ()
    waits: Sequence[Wait] = ()

    def stood_still(self, since: datetime | float, until: datetime | float) -> float:
        """For how many seconds between these moments, by the server's time or by the clock of the records."""
        return seconds_of(self.standstills, self._recorded(since), self._recorded(until))

    def excused(self, since: datetime | float, until: datetime | float) -> float:
        """For how many seconds between these moments the machine excuses lateness: it stood still, or was busy."""
        return self.stood_still(since, until) + excused_waits(self.waits, self._recorded(since), self._recorded(until))

    def could_not_renew(self, since: datetime | float, until: datetime | float, lease: float) -> bool:
        """Whether the machine stood still so long between these moments that such a lease may have run out in that.

        Such a standstill is a freeze of every process, and of each in the midst of what it does. At least two thirds of
        a lease are left when the next renewal is due, and a run ends a sixth before it: half of one are left to it.
        """
        return self.stood_still(since, until) >= lease / 2

    def _recorded(self, moment: datetime | float) -> float:
        return (moment - self.origin).total_seconds() if isinstance(moment, datetime) else moment

    @cached_property
    def claims(self) -> Sequence[Claim]:
        return list(claims(self.changes))

    @cached_property
    def documents(self) -> Mapping[str, Mapping[str, Any]]:
        last = {change.job: change.after for change in self.changes}
        return {job: document for job, document in last.items() if document is not None}

    @cached_property
    def tokens(self) -> Mapping[tuple[str, str, int], str]:
        """The claim of each run."""
        return {(one.process, one.job, one.attempt): one.detail for one in self._of("start")}

    @cached_property
    def silenced(self) -> Mapping[str, Sequence[tuple[float, float]]]:
        """When each process was dead, or frozen for longer than its lease: from when on, and until when."""
        found: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for one in self._of("killed"):
            found[one.detail].append((one.at, math.inf))
        for one in self._of("frozen"):
            thawed = [other.at for other in self._of("thawed") if other.detail == one.detail and other.at > one.at]
            if min(thawed, default=math.inf) - one.at > self.lease:
                found[one.detail].append((one.at, min(thawed, default=math.inf)))
        return found

    @cached_property
    def begun(self) -> Sequence[Span]:
        """The runs, each from when its claim was last looked at, as far as that can be known.

        No program can keep a freeze from falling between that look and the first line of its handler. Handlers begin
        one after another, so this befalls one run of a frozen process at most, and that is its first record afterwards.
        """
        return [replace(run, start=self._caught.get(_key(run), run.start)) for run in spans(self.records)]

    @cached_property
    def _caught(self) -> Mapping[tuple[str, str, int], float]:
        """Of such runs: when their process was frozen."""
        found: dict[tuple[str, str, int], float] = {}
        for process, silences in self.silenced.items():
            mine = sorted((one for one in self.records if one.process == process), key=lambda one: one.at)
            for since, until in silences:
                # The bounds of a freeze are known no better than to the way of a signal.
                middle = (since + until) / 2
                first = next((one for one in mine if one.at > middle), None)
                if first is not None and first.what == "start" and self._is_taken_by(middle, first):
                    found[_key(first)] = since
        return found

    def _is_taken_by(self, moment: float, start: Record) -> bool:
        taken = self.taken.get((start.job, start.detail))
        return taken is not None and self._recorded(taken) < moment

    @cached_property
    def taken(self) -> Mapping[tuple[str, str], datetime]:
        """When each claim was taken, by its job and its token."""
        return {(claim.job, claim.token): claim.taken.at for claim in self.claims}

    @cached_property
    def runs(self) -> Sequence[Span]:
        """One that was killed or frozen in its course ended then."""
        return [replace(run, end=min([run.end, *self._silenced_during(run)])) for run in self.begun]

    @cached_property
    def numbered(self) -> Mapping[int, Sequence[str]]:
        """The jobs that were stored for each call: the number in their data is that of one call."""
        found: dict[int, list[str]] = defaultdict(list)
        for change in self.changes:
            if change.before is None and change.after is not None and "n" in (change.after.get("data") or ()):
                found[change.after["data"]["n"]].append(change.job)
        return found

    def _silenced_during(self, run: Span) -> Iterator[float]:
        for since, _ in self.silenced.get(run.process, ()):
            if run.start <= since:
                yield since

    def _of(self, *whats: str) -> Sequence[Record]:
        return [one for one in self.records if one.what in whats]

    def by_token(self, *whats: str) -> Mapping[str, Sequence[Record]]:
        """What runs wrote down of these kinds."""
        found: dict[str, list[Record]] = defaultdict(list)
        for one in self._of(*whats):
            found[self.tokens.get((one.process, one.job, one.attempt), "")].append(one)
        return found


def _key(one: Span | Record) -> tuple[str, str, int]:
    return one.process, one.job, one.attempt


Rule = Callable[[Evidence], Iterator[str]]


def acknowledged_jobs_have_ended(evidence: Evidence) -> Iterator[str]:
    """Each is there, and has ended; an occurrence of a schedule has run."""
    occurred = {claim.job for claim in evidence.claims if claim.ended and claim.ended[0] == "completed"}
    for record in evidence._of("acknowledged"):
        document = evidence.documents.get(record.job)
        if document is None:
            yield f"acknowledged and lost: job {record.job}"
        elif "repeatInterval" in document:
            if document["status"] != "pending" or record.job not in occurred:
                yield f"a schedule did not go on: job {record.job}"
        elif document["status"] in LIVE:
            yield f"not ended: job {record.job} is {document['status']}"


def nothing_was_enqueued_twice(evidence: Evidence) -> Iterator[str]:
    """And each acknowledged caller got the right job."""
    for number, jobs in evidence.numbered.items():
        if len(jobs) > 1:
            yield f"enqueued {len(jobs)} times: number {number}"
    for record in evidence._of("acknowledged"):
        if record.detail and record.job not in evidence.numbered.get(int(record.detail), ()):
            yield f"reported another job: number {record.detail}"


def refusals_are_true(evidence: Evidence) -> Iterator[str]:
    """What was refused is not there; what is unknown is there under the id in the error; all was asked for."""
    for record in evidence._of("refused", "unknown"):
        there = evidence.numbered.get(int(record.detail), ())
        if record.what == "refused" and there:
            yield f"reported as refused, and there: number {record.detail}"
        if record.what == "unknown" and record.job and there and record.job not in there:
            yield f"reported under another id: number {record.detail}"
    asked = {int(one.detail) for one in evidence._of("acknowledged", "refused", "unknown") if one.detail}
    for number in evidence.numbered.keys() - asked:
        if number >= 0:  # The occurrences of schedules have negative ones.
            yield f"nobody enqueued it: number {number}"


def claims_are_of_free_jobs(evidence: Evidence) -> Iterator[str]:
    """Taken from pending, without an owner; each with a token of its own and a greater attempt than all before."""
    attempts: dict[str, int] = defaultdict(int)
    tokens: set[tuple[str, str]] = set()
    for claim in sorted(evidence.claims, key=lambda one: (one.taken.at, one.attempt)):
        before = claim.taken.before or {}
        if before.get("status") != "pending" or before.get("claimedBy") is not None:
            yield f"a claim on what was not free: attempt {claim.attempt} of job {claim.job}"
        if claim.attempt <= attempts[claim.job]:
            yield f"attempts do not grow: {attempts[claim.job]}, then {claim.attempt} of job {claim.job}"
        if (claim.job, claim.token) in tokens:
            yield f"one token twice: job {claim.job}"
        attempts[claim.job] = max(claim.attempt, attempts[claim.job])
        tokens.add((claim.job, claim.token))


def settlements_are_of_the_claim(evidence: Evidence) -> Iterator[str]:
    """A claim ends as the run under this very claim ended, and is given back only where that was cut short or lost."""
    outcomes, excused = evidence.by_token("outcome"), evidence.by_token("cancelled", "lost")
    started = evidence.by_token("start")
    for claim in evidence.claims:
        how = "held" if claim.ended is None else claim.ended[0]
        mine = {one.detail for one in outcomes.get(claim.token, ()) if one.job == claim.job}
        which = f"attempt {claim.attempt} of job {claim.job}"
        if how in OUTCOMES and OUTCOMES[how] not in mine:
            assert claim.ended is not None
            error = (claim.ended[1].after or {}).get("failReason")
            yield f"{how} without the claim: {which}, {error or 'without an error'}"
        if how == "failed" and claim.ended is not None and _failures_in(claim.ended[1]) != 1:
            yield f"one failure was counted {_failures_in(claim.ended[1])} times: {which}"
        was_started = any(one.job == claim.job for one in started.get(claim.token, ()))
        if how == "released" and was_started and not any(one.job == claim.job for one in excused.get(claim.token, ())):
            yield f"released without the claim: {which}"
        if how == "replaced":
            yield f"a claim over a claim: {which}"
        if how == "given up":
            yield f"given up for its deaths: {which}"


def _failures_in(change: Change) -> int:
    before, after = change.before or {}, change.after or {}
    return int(after.get("failCount", 0)) - int(before.get("failCount", 0))


def reports_are_of_the_claim(evidence: Evidence) -> Iterator[str]:
    """What a run saves bears its token, and is written while that holds."""
    for change in evidence.changes:
        after, before = change.after or {}, change.before or {}
        saved = after.get("saved")
        if saved is not None and saved != before.get("saved") and saved["token"] != after.get("claimToken"):
            yield f"saved without the claim: job {change.job}"


def ended_claims_leave_nothing(evidence: Evidence) -> Iterator[str]:
    """What is not claimed bears nothing of a claim: no renewal, for one, that came too late."""
    for change in evidence.changes:
        after = change.after or {"status": "processing"}
        left = [name for name in CLAIM_FIELDS if after.get(name) is not None]
        if after["status"] != "processing" and left:
            yield f"{', '.join(left)} of an ended claim: job {change.job}"


def heartbeats_never_decrease(evidence: Evidence) -> Iterator[str]:
    """As long as a claim is held, whichever way the clock of its holder goes."""
    for change in evidence.changes:
        before, after = change.before or {}, change.after or {}
        if before.get("claimToken") is None or before["claimToken"] != after.get("claimToken"):
            continue
        if after["lastHeartbeat"] < before["lastHeartbeat"]:
            yield f"a heartbeat decreased: job {change.job}, {before['lastHeartbeat']}, then {after['lastHeartbeat']}"


def runs_do_not_overlap(evidence: Evidence) -> Iterator[str]:
    """And no claim is run twice. Of runs that a long standstill of the machine befell, nothing is known."""
    starts = Counter((one.job, one.attempt) for one in evidence._of("start"))
    for (job, attempt), count in starts.items():
        if count > 1:
            yield f"started {count} times: attempt {attempt} of job {job}"
    for of_job in by_job(evidence.runs):
        latest = of_job[0]
        for earlier, run in pairwise(of_job):
            latest = max(latest, earlier, key=lambda one: one.end)
            if run.start <= latest.end and not evidence.could_not_renew(latest.start, run.start, evidence.lease):
                yield f"two runs at once: attempts {latest.attempt} and {run.attempt} of job {run.job}"
            if run.attempt <= earlier.attempt:
                yield f"attempts do not grow: {earlier.attempt}, then {run.attempt} of job {run.job}"


def thawed_runs_stop(evidence: Evidence) -> Iterator[str]:
    """Only the code up to the next checkpoint still runs. That was passed already, perhaps: a second one was not."""
    thawed = {
        process: max(until for _, until in silences if until < math.inf)
        for process, silences in evidence.silenced.items()
        if any(until < math.inf for _, until in silences)
    }
    frozen = {
        _key(run)
        for run in evidence.begun
        for since, until in evidence.silenced.get(run.process, ())
        if until < math.inf and run.start <= since < run.end
    }
    passed = Counter(
        run
        for one in evidence._of("passed", "saved")
        for run in [(one.process, one.job, one.attempt)]
        if run in frozen and one.at > thawed[one.process]
    )
    for (process, job, attempt), count in passed.items():
        if count > 1:
            yield f"{process} went on after the thaw: {count} checkpoints in attempt {attempt} of job {job}"


def rescues_are_of_the_silent(evidence: Evidence) -> Iterator[str]:
    """No claim is taken away earlier than a lease after its last sign of life."""
    for claim in evidence.claims:
        if claim.ended and claim.ended[0] in ("rescued", "given up"):
            silent_for = (claim.ended[1].at - claim.beat_at).total_seconds()
            if silent_for < claim.lease:
                yield f"taken from the living: attempt {claim.attempt} of job {claim.job}, after {silent_for} s"


def the_dead_are_rescued_in_time(evidence: Evidence) -> Iterator[str]:
    """What a killed process left behind is pending again within the bound. Of frozen ones, too."""
    last = max((change.at for change in evidence.changes), default=None)
    for claim in evidence.claims:
        if claim.by not in evidence.silenced or last is None:
            continue
        until = last if claim.ended is None else claim.ended[1].at
        took = (until - claim.beat_at).total_seconds() - evidence.excused(claim.beat_at, until)
        if claim.ended is None or (claim.ended[0] == "rescued" and took > evidence.rescued_within):
            yield f"processing by the dead for {took} s: attempt {claim.attempt} of job {claim.job}"


def unique_keys_are_held(evidence: Evidence) -> Iterator[str]:
    """At no moment two live jobs of one name with one key."""
    live: dict[tuple[str, str], set[str]] = defaultdict(set)
    for change in evidence.changes:
        for document in (change.before, change.after):
            if document is not None and document.get("uniqueKey") is not None:
                live[document["name"], document["uniqueKey"]].discard(change.job)
        after = change.after
        if after is not None and after.get("uniqueKey") is not None and after["status"] in LIVE:
            holders = live[after["name"], after["uniqueKey"]]
            holders.add(change.job)
            if len(holders) > 1:
                yield f"{len(holders)} live jobs have key {after['uniqueKey']}"


def events_are_true(evidence: Evidence) -> Iterator[str]:
    """Each event came once, and only for what was written."""
    written = {(claim.job, claim.attempt): claim.ended[0] for claim in evidence.claims if claim.ended}
    reported = Counter(
        (one.what, one.job, one.attempt) for one in evidence._of("reported completed", "reported failed")
    )
    for (what, job, attempt), count in reported.items():
        if count > 1:
            yield f"{what} {count} times: attempt {attempt} of job {job}"
        if written.get((job, attempt)) != what.removeprefix("reported "):
            yield f"{what}, and not so written: attempt {attempt} of job {job}"


def managed_jobs_are_as_acknowledged(evidence: Evidence) -> Iterator[str]:
    """What was done by hand was done, and what was refused was not; without an answer, either may be."""
    for record in evidence._of("managed", "not managed", "missing", "put off"):
        what, _, moment = record.detail.partition(" ")
        document = evidence.documents.get(record.job)
        done = {
            "cancel": document is not None and document["status"] == "cancelled",
            "delete": document is None,
            "reschedule": document is not None and document["nextRunAt"].isoformat() == moment,
        }
        if record.what == "managed" and not done[what]:
            yield f"reported as done, and not done: {what} of job {record.job}"
        if record.what == "not managed" and done[what]:
            yield f"reported as refused, and done: {what} of job {record.job}"
        if record.what == "missing" or (record.what == "put off" and what != "delete" and document is None):
            yield f"acknowledged and lost: job {record.job}"


RULES: Final[Sequence[Rule]] = (
    acknowledged_jobs_have_ended,
    nothing_was_enqueued_twice,
    refusals_are_true,
    claims_are_of_free_jobs,
    settlements_are_of_the_claim,
    reports_are_of_the_claim,
    ended_claims_leave_nothing,
    heartbeats_never_decrease,
    runs_do_not_overlap,
    thawed_runs_stop,
    rescues_are_of_the_silent,
    the_dead_are_rescued_in_time,
    unique_keys_are_held,
    events_are_true,
    managed_jobs_are_as_acknowledged,
)


def nothing_is_run_in_vain(evidence: Evidence) -> Iterator[str]:
    """What a run ended with was written, and reported as written.

    Exceptions are the dead, runs that fenced themselves, and what was rescued because the machine stood still:
    no holder could renew it then.

    None of RULES: where connections break, claims are lost whose renewals only seemed to arrive.
    """
    ends = {(claim.job, claim.token): claim.ended[0] for claim in evidence.claims if claim.ended}
    stranded = {
        (claim.job, claim.token)
        for claim in evidence.claims
        if claim.ended
        and claim.ended[0] == "rescued"
        and evidence.could_not_renew(claim.beat_at, claim.ended[1].at, claim.lease)
    }
    lost = {(one.job, token) for token, records in evidence.by_token("lost").items() for one in records}
    reported = {
        (one.job, token) for token, records in evidence.by_token("reported completed").items() for one in records
    }
    for token, records in evidence.by_token("outcome").items():
        for one in records:
            how = ends.get((one.job, token), "held")
            which = f"attempt {one.attempt} of job {one.job}"
            if (one.job, token) in lost:
                # One that fenced itself may still have been written and reported. Of all other ends, a later claim may
                # have overwritten the receipt.
                if how == "completed" and (one.job, token) not in reported:
                    yield f"completed, and reported as lost: {which}"
            elif OUTCOMES.get(how) != one.detail and not (
                one.process in evidence.silenced or (one.job, token) in stranded
            ):
                yield f"{one.detail}, and {how}: {which}"


def renewed_claims_are_kept(evidence: Evidence) -> Iterator[str]:
    """Whose renewal was acknowledged is not rescued within a lease from when that was sent.

    By what the holders wrote down, and not by the dates in the claims. None of RULES: few processes write it down.
    """
    renewed = evidence.by_token("renewed")
    for claim in evidence.claims:
        if claim.ended and claim.ended[0] in ("rescued", "given up"):
            at = (claim.ended[1].at - evidence.origin).total_seconds()
            sent = [float(one.detail) for one in renewed.get(claim.token, ()) if one.job == claim.job]
            if sent and at - max(sent) < claim.lease:
                silent_for = at - max(sent)
                yield f"{claim.ended[0]} {silent_for} s after a renewal: attempt {claim.attempt} of job {claim.job}"


def broken(evidence: Evidence, *more: Rule) -> Sequence[str]:
    """One line for each promise that was broken."""
    return [line for rule in (*RULES, *more) for line in rule(evidence)]
