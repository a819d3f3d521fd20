"""What there is to judge by: the runs that handlers wrote down, and what the server did, step by step and by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from bson import ObjectId

from .history import Change, Document
from .records import Played, Record

AttemptId = tuple[ObjectId, int]

NO_JOB: Final = ObjectId(b"0" * 12)


@dataclass(frozen=True)
class Run:
    """What a handler wrote down of one run.

    Attributes:
        start, end: By the order of the records. A run of an instance that died ended with it.
        started_at, ended_at: The jobs' time.
        outcome: How it ended: "returned", "raised ...", "cancelled ..." or "died".
        seen: The failures, the marker, the deaths and the revision that the handler was given.
    """

    who: str
    job: ObjectId
    attempt: int
    start: int
    end: int
    started_at: datetime
    ended_at: datetime
    outcome: str
    seen: tuple[int, str, int, int]


@dataclass(frozen=True)
class Step:
    """One change, by its name in the state machine. The attempt is the claim's that it began, or ended."""

    name: str
    change: Change
    attempt: int

    @property
    def job(self) -> ObjectId:
        return self.change.job

    @property
    def before(self) -> Document:
        return self.change.before or {}

    @property
    def after(self) -> Document:
        return self.change.after or {}

    @property
    def is_an_end(self) -> bool:
        """Whether a claim ended with it, and the job is still there."""
        return self.before.get("status") == "processing" and self.after.get("status", "processing") != "processing"

    @property
    def is_a_death(self) -> bool:
        """Whether the claim was taken from an instance that was seen dead."""
        return self.name == "rescue" or self.gives_up

    @property
    def gives_up(self) -> bool:
        return self.name in ("give_up", "exhausted") and "died" in self.after["failReason"]

    def __str__(self) -> str:
        return f"{self.name} of attempt {self.attempt}: {_shown(self.before)} -> {_shown(self.after)}"


def _shown(document: Document) -> dict[str, Any]:
    return {
        name: f"{value:%H:%M:%S.%f}"[:-3] if isinstance(value, datetime) else value for name, value in document.items()
    }


class Evidence:
    """Of one schedule.

    Attributes:
        played: What was written down.
        runs: By job and attempt.
        steps: What the server did.
        troubles: When something befell a call, whose it was, and what it was.
        odd: What cannot even be read.
    """

    def __init__(self, played: Played, changes: Sequence[Change]) -> None:
        self.played = played
        self.odd: list[str] = []
        self.runs = self._runs_of(played.records)
        self.steps = [self._named(change) for change in changes]
        self.troubles = [
            (played.began_at + timedelta(seconds=at), who, kind, purpose) for at, who, kind, purpose in played.troubles
        ]

    def run_of(self, step: Step) -> Run | None:
        """The one whose claim it began or ended; None where the handler never started."""
        return self.runs.get((step.job, step.attempt))

    def _runs_of(self, records: Sequence[Record]) -> dict[AttemptId, Run]:
        starts: dict[AttemptId, int] = {}
        runs: dict[AttemptId, Run] = {}

        def end(key: AttemptId, place: int, outcome: str) -> None:
            begun, ended = records[starts[key]], records[place]
            runs[key] = Run(begun.who, *key, starts[key], place, begun.at, ended.at, outcome, begun.detail)

        for place, one in enumerate(records):
            key = (one.job or NO_JOB, one.attempt)
            if one.what == "start":
                if key in starts:
                    self.odd.append(f"one attempt was started twice: {one}")
                starts[key] = place
            elif one.what == "end" and key not in runs:
                end(key, place, one.detail)
            elif one.what == "dies":
                for other, begun in starts.items():
                    if records[begun].who == one.who and other not in runs:
                        end(other, place, "died")
        self.odd += [f"a run never ended: {records[starts[key]]}" for key in starts if key not in runs]
        return runs

    def _named(self, change: Change) -> Step:
        before, after = change.before, change.after
        if before is None:
            return Step("insert", change, 0)
        attempt = before.get("attempts", 0)
        if after is None:
            return Step("delete", change, attempt)
        match before["status"], after["status"]:
            case "pending", "processing":
                return Step("claim", change, after.get("attempts", 0))
            case "processing", "processing":
                asked = "cancelRequestedAt" in after and "cancelRequestedAt" not in before
                return Step("request_cancel" if asked else "renew", change, attempt)
            case "processing", _:
                return Step(self._end_named(before, after), change, attempt)
            case "pending", "cancelled":
                return Step("cancel", change, attempt)
            case "failed" | "cancelled", "pending":
                return Step("retry_again", change, attempt)
            case "pending", "pending":
                return Step("update" if _is_declared_anew(before, after) else "reschedule", change, attempt)
        return Step(f"{before['status']} to {after['status']}", change, attempt)

    def _end_named(self, before: Document, after: Document) -> str:
        has_failed = after["failCount"] == before["failCount"] + 1
        match after["status"]:
            case "completed":
                return "complete"
            case "cancelled":
                return "cancel_claimed"
            case "failed":
                return "fail" if has_failed else "give_up"
        if after.get("rescues", 0) == before.get("rescues", 0) + 1:
            return "rescue"
        if has_failed:
            return "retry"
        if after.get("finishedAt") != after["updatedAt"] or after.get("startedAt") != before["lockedAt"]:
            return "release"
        run = self.runs.get((after["_id"], before["attempts"]))
        if run is not None and run.outcome == "raised Snooze":
            return "snooze"
        return "exhausted" if "failReason" in after else "go_on"


def _is_declared_anew(before: Document, after: Document) -> bool:
    return any(before.get(name) != after.get(name) for name in ("data", "onExhausted"))
