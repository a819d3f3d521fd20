"""The checker of what is promised of claims on documents, rule by rule: from what handlers wrote down, and the changes.

Knows nothing of the library. `test_document_promises.py` shows of each rule that it can be broken. Handlers write, of
each run, which has a number of its own in its process: "start" (in detail: the token in the lock), "waits" (until
when), "passed" (a checkpoint), "failed", "finishes" (the result is handed over), "finished", "refused" (the claim was
lost), "unknown", "cancelled", "end"; and a process "left".
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from .history import Change
from .lock_history import LOCK, Hold, holder_of, holds, lock_of, rest_of, tries_of
from .promises import Evidence
from .records import Record, Span, by_job

RESULT: Final = frozenset({"state", "results", "written_by"})
"""The fields of a document that `finish` is given."""

HELD_LOCK: Final = frozenset({"by", "until", "every", "token", "tries"})

NEARLY: Final = 0.05
"""Seconds by which two clocks of one machine may seem to differ: each knows the server's time by an answer's way."""


@dataclass(frozen=True)
class DocumentEvidence(Evidence):
    """All that there is to judge by.

    Attributes:
        clock_skew: Seconds for which the lock of a program that knows only `by` and `until` is respected beyond that.
        plain: The names of such programs.
    """

    clock_skew: float = 1.0
    plain: frozenset[str] = frozenset()

    @cached_property
    def holds(self) -> Sequence[Hold]:
        return list(holds(self.changes))

    @cached_property
    def taken(self) -> Mapping[tuple[str, str], datetime]:
        """When each claim was taken, by its document and its token."""
        return {(hold.document, hold.token): hold.taken.at for hold in self.holds if hold.token is not None}

    @cached_property
    def finishes(self) -> Sequence[Change]:
        """The changes to anything but the lock, and to what is there already."""
        return [one for one in self.changes if one.before is not None and rest_of(one.before) != rest_of(one.after)]

    @cached_property
    def of_token(self) -> Mapping[tuple[str, str], Sequence[Record]]:
        """What the run under a claim wrote down: of a document, and a token."""
        runs = {(one.process, one.job, one.attempt): one.detail for one in self.records if one.what == "start"}
        found: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for one in self.records:
            token = runs.get((one.process, one.job, one.attempt))
            if token is not None:
                found[one.job, token].append(one)
        return found

    def wrote(self, hold: Hold, *whats: str) -> bool:
        """Whether the run under it wrote down one of these."""
        return any(one.what in whats for one in self.of_token.get((hold.document, hold.token or ""), ()))

    def over_at(self, hold: Hold) -> datetime:
        """Earlier than this its run had not ended, or its holder may have lived: waiting times count from here."""
        ends = self._wrote_at(hold, "failed") or self._cancelled_itself_at(hold)
        over = self.origin + timedelta(seconds=ends[0]) if ends else hold.beat.at + timedelta(seconds=hold.lease)
        return over - timedelta(seconds=NEARLY)

    def is_rescue(self, hold: Hold) -> bool:
        """Whether another instance ended it: if its own run did not fail it, only its rescuer counts it.

        But on a busy machine, runs miss their leases again and again. Too many in a row count as a failed attempt.
        """
        is_by_run = self.wrote(hold, "failed") or self._cancelled_itself_at(hold)
        return hold.how in ("counted", "set aside") and not is_by_run

    def _cancelled_itself_at(self, hold: Hold) -> Sequence[float]:
        """When its run was cancelled, if that was before the hold ended, and no other instance could end it yet.

        That of a dead process never is. One that is cut off cancels its runs, too, but cannot write that.
        """
        if hold.ended is None or (hold.ended.at - hold.beat.at).total_seconds() >= hold.lease:
            return []
        ended_at = self.when(hold.ended) + NEARLY
        return [at for at in self._wrote_at(hold, "cancelled") if at < ended_at]

    def _wrote_at(self, hold: Hold, what: str) -> Sequence[float]:
        return [one.at for one in self.of_token.get((hold.document, hold.token or ""), ()) if one.what == what]

    def when(self, change: Change) -> float:
        """By the clock of the records."""
        return (change.at - self.origin).total_seconds()


Rule = Callable[[DocumentEvidence], Iterator[str]]


def every_document_has_one_result(evidence: DocumentEvidence) -> Iterator[str]:
    """Of those whose state is "new" at first and that the claims must not skip because of their lock."""
    written = Counter(change.job for change in evidence.finishes)
    for document, stored in evidence.documents.items():
        wanted = 0 if "left alone" in stored else 1
        if (stored["results"], written[document]) != (wanted, wanted):
            yield f"{stored['results']} results, in {written[document]} writes: document {document}"
        if wanted and LOCK in stored:
            yield f"a lock is left: document {document}"


def results_are_of_the_holder(evidence: DocumentEvidence) -> Iterator[str]:
    """Who writes one holds the lock at that moment, and unlocks the document in the same write."""
    for change in evidence.finishes:
        written_by = (change.after or {}).get("written_by", {})
        if holder_of(change.before) != (written_by.get("by"), written_by.get("token")):
            yield f"written by {written_by}, held by {holder_of(change.before)}: document {change.job}"
        if LOCK in (change.after or {}):
            yield f"written, and not unlocked: document {change.job}"
        if written_by.get("by") not in evidence.plain and written_by.get("attempt") != tries_of(change.before) + 1:
            yield f"written by attempt {written_by.get('attempt')} after {tries_of(change.before)}: {change.job}"


def nothing_else_is_touched(evidence: DocumentEvidence) -> Iterator[str]:
    """But the lock, and what the result consists of; some documents not at all."""
    for change in evidence.changes:
        if change.before is None:
            continue
        if change.after is None:
            yield f"deleted: document {change.job}"
            continue
        if "left alone" in change.before:
            yield f"touched, and to be left alone: document {change.job}"
        names = change.before.keys() | change.after.keys()
        touched = {name for name in names if change.before.get(name) != change.after.get(name)} - {LOCK}
        if touched not in (set(), RESULT) or (touched and change.after["results"] != change.before["results"] + 1):
            yield f"{touched} touched: document {change.job}"


def takes_are_of_free_documents(evidence: DocumentEvidence) -> Iterator[str]:
    """They are not held, and their waiting time is over; what the lock says then is all that it must."""
    for hold in evidence.holds:
        before, lock, at = lock_of(hold.taken.before), lock_of(hold.taken.after), hold.taken.at
        until = before.get("until")
        waits = 0.0 if until is None else (until - at).total_seconds()
        which = f"document {hold.document} of {holder_of(hold.taken.before)} by {hold.token or hold.by}"
        if waits > (0 if hold.by in evidence.plain else NEARLY):
            yield f"taken {waits} s too early: {which}"
        if hold.by in evidence.plain:
            continue
        if before.get("by") is not None:
            yield f"taken from its holder: {which}"
        is_too_long = (lock["until"] - at).total_seconds() > hold.lease + NEARLY
        if lock.keys() != HELD_LOCK or not str(lock["token"]).startswith(f"{hold.by}:") or is_too_long:
            yield f"a lock that says {dict(lock)}: {which}"
        elif lock["tries"] != tries_of(hold.taken.before):
            yield f"{tries_of(hold.taken.before)} tries have become {lock['tries']}: {which}"


def renewals_grow(evidence: DocumentEvidence) -> Iterator[str]:
    """Of a lock that goes on being held nothing changes but `until`, and that grows."""
    for change in evidence.changes:
        before, after = lock_of(change.before), lock_of(change.after)
        if holder_of(change.before) is None or holder_of(change.before) != holder_of(change.after):
            continue
        if {**before, "until": None} != {**after, "until": None} or after["until"] < before["until"]:
            yield f"{dict(before)} has become {dict(after)}: document {change.job}"
        if after["until"] == before["until"] and before != after:
            yield f"renewed, and not grown: document {change.job}"


def ends_are_of_the_holder_or_the_silent(evidence: DocumentEvidence) -> Iterator[str]:
    """No lock is taken from the living: not earlier than a lease after the last sign of life, nor under its run."""
    for hold in evidence.holds:
        if hold.ended is None:
            continue
        which, at = str(hold), hold.ended.at
        if tries_of(hold.ended.after) > hold.tries + 1:
            yield f"counted twice: {which}"
        if hold.how == "counted" and lock_of(hold.ended.after)["until"] < evidence.over_at(hold):
            yield f"no back-off: {which}"
        if hold.by in evidence.plain:
            after_until = (at - lock_of(hold.ended.before)["until"]).total_seconds()
            if hold.how in ("freed", "unlocked") or (
                evidence.is_rescue(hold) and after_until < evidence.clock_skew - NEARLY
            ):
                yield f"{hold.how} {after_until} s after its end: {which}"
        elif evidence.is_rescue(hold) and (at - hold.beat.at).total_seconds() < hold.lease:
            yield f"taken from the living after {(at - hold.beat.at).total_seconds()} s: {which}"
        elif hold.how in ("freed", "unlocked") and evidence.wrote(hold, "start") and not evidence.wrote(hold, "end"):
            yield f"{hold.how} under its run: {which}"


def the_dead_are_rescued_in_time(evidence: DocumentEvidence) -> Iterator[str]:
    """What a killed or frozen process held is free again within the bound."""
    for hold in evidence.holds:
        for since, until in evidence.silenced.get(hold.by, ()):
            if not evidence.when(hold.beat) <= since + NEARLY:
                continue
            if hold.ended is None:
                yield f"held by the dead: {hold}"
            elif since < evidence.when(hold.ended) < until and evidence.is_rescue(hold):
                took = (hold.ended.at - hold.beat.at).total_seconds()
                took -= evidence.excused(hold.beat.at, hold.ended.at)
                if took > evidence.rescued_within:
                    yield f"held by the dead for {took} s: {hold}"


def runs_are_under_holds(evidence: DocumentEvidence) -> Iterator[str]:
    """Each begins while its claim is held, no claim is run twice, and the reported end is true."""
    found = {(hold.document, hold.token): hold for hold in evidence.holds}
    began = {(run.process, run.job, run.attempt): run.start for run in evidence.begun}
    for (document, token), records in evidence.of_token.items():
        starts = [one for one in records if one.what == "start"]
        began_at = began[starts[0].process, document, starts[0].attempt]
        hold = found.get((document, token))
        if len(starts) != 1:
            yield f"started {len(starts)} times: {token} of document {document}"
        if hold is None or hold.by != starts[0].process or evidence.when(hold.taken) > starts[0].at + NEARLY:
            yield f"started without a claim: {token} of document {document}"
        elif hold.ended is not None and evidence.when(hold.ended) < began_at - NEARLY:
            yield f"started after its claim had ended: {hold}"
        elif hold.how != "finished" and evidence.wrote(hold, "finished"):
            yield f"reported as finished: {hold}"
        elif hold.how == "finished" and not evidence.wrote(hold, "finishes"):
            yield f"finished by nobody: {hold}"


def runs_do_not_overlap(evidence: DocumentEvidence) -> Iterator[str]:
    """Those of the killed and of the frozen ended then. Of those that a long standstill befell, nothing is known."""
    for of_document in by_job(evidence.runs):
        latest = of_document[0]
        for earlier, run in pairwise(of_document):
            latest = max(latest, earlier, key=lambda one: one.end)
            if run.start <= latest.end and not evidence.could_not_renew(latest.start, run.start, evidence.lease):
                yield f"two runs at once: of {latest.process} and of {run.process}, document {run.job}"


def thawed_runs_stop(evidence: DocumentEvidence) -> Iterator[str]:
    """None that began before the freeze passes a checkpoint after the thaw, or writes a result."""
    thawed = {name: until for name, silences in evidence.silenced.items() for _, until in silences if until < math.inf}
    began: dict[tuple[str, str, int], Span] = {(run.process, run.job, run.attempt): run for run in evidence.runs}
    for one in evidence.records:
        run = began.get((one.process, one.job, one.attempt))
        if one.what in ("passed", "finishes") and run is not None and one.at > run.end:
            yield f"{one.what} after the thaw: document {one.job} by {one.process}"
    frozen_tokens = {
        evidence.tokens[run.process, run.job, run.attempt]
        for run in evidence.begun
        if run.process in thawed and run.start <= _frozen_at(evidence, run.process)
    }
    for change in evidence.finishes:
        written_by: Mapping[str, Any] = (change.after or {}).get("written_by", {})
        if written_by.get("token") in frozen_tokens and evidence.when(change) > thawed[written_by["by"]]:
            yield f"written after the thaw: document {change.job} by {written_by}"


def _frozen_at(evidence: DocumentEvidence, process: str) -> float:
    return min(since for since, until in evidence.silenced[process] if until < math.inf)


RULES: Final[Sequence[Rule]] = (
    every_document_has_one_result,
    results_are_of_the_holder,
    nothing_else_is_touched,
    takes_are_of_free_documents,
    renewals_grow,
    ends_are_of_the_holder_or_the_silent,
    the_dead_are_rescued_in_time,
    runs_are_under_holds,
    runs_do_not_overlap,
    thawed_runs_stop,
)


def broken(evidence: DocumentEvidence) -> Sequence[str]:
    """One line for each promise that was broken."""
    return [f"{rule.__name__}: {line}" for rule in RULES for line in rule(evidence)]
