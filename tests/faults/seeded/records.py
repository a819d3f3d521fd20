"""What is written down while a plan is played."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from bson import ObjectId

from trio_monque.testing import now

LIVE: Final = ("pending", "processing")


@dataclass(frozen=True)
class Record:
    """One line: when it was, by the jobs' clock, whose it is, and what happened to an attempt of a job."""

    at: datetime
    who: str
    what: str
    job: ObjectId | None = None
    attempt: int = 0
    detail: Any = None


@dataclass
class Request:
    """What a client asked for, and how it was answered.

    Attributes:
        name, key: Of the job that was to be enqueued.
        answer: "yes", "no" (it is sure that nothing came of it) or "unknown".
        job: Which one, where that is known.
        since, until: When it was asked, and answered.
    """

    what: str
    since: datetime
    marker: str = ""
    name: str = ""
    key: str | None = None
    answer: str = "unknown"
    job: ObjectId | None = None
    until: datetime | None = None


@dataclass
class Played:
    """All that was written down.

    Attributes:
        records: In the order in which it happened.
        requests: What clients asked for, in the order in which they asked.
        options: Of each instance, by its id; one that had several lives is there once.
        left: For each life that was asked to end: its number, how, when, and when it had ended.
        broken: The lives that crashed, by a fault that does not pass or because they were killed.
        unfinished: What the reports name.
        troubles: The network's log.
    """

    records: list[Record] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    left: list[tuple[str, str, float, float]] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    unfinished: set[ObjectId] = field(default_factory=set)
    troubles: list[tuple[float, str, str, str]] = field(default_factory=list)
    began_at: datetime = field(default_factory=now)
    ended_at: datetime | None = None

    def write(self, who: str, what: str, job: ObjectId | None = None, attempt: int = 0, detail: Any = None) -> None:
        self.records.append(Record(now(), who, what, job, attempt, detail))
