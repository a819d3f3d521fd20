"""What handlers wrote down of their own runs, and the checker that reads it. Knows nothing of the library.

The kinds of records, beside those that one test has for itself:

- of a run: "start" (in detail: the token of its claim), "passed" (a checkpoint), "saved", "cancelled" (why),
  "outcome" ("succeeded", "failed", "snoozed"), "end";
- of claims: "renewed" (the server has acknowledged it; in detail: when it was sent);
- of a process: "measured" (the server's time; in detail: what was added to it);
- of events: "reported completed", "reported failed", "lost", "reported recovered" (in detail: how many);
- of callers: "acknowledged" (a job; in detail the number in its data), "unknown" (perhaps under that id), "refused";
  of jobs that are due in long "put off" (what is to be done to it), "managed" ("cancel", "delete", "reschedule" and
  the moment), "not managed" (it was refused), "missing" (it is not there);
- of the test: "killed", "frozen", "thawed" (which process).
"""

from __future__ import annotations

import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Record:
    """One line.

    Attributes:
        process: Who wrote it.
        job: The job's id; empty where it is about the process.
        attempt: The job's.
        what: "start" and "end" of a run, and whatever else there is to tell.
        at: By time.monotonic(), which is one clock for all processes of the machine.
        detail: More about it.
    """

    process: str
    job: str
    attempt: int
    what: str
    at: float
    detail: str = ""


class Recorder:
    """Appends lines to a file that several processes write: each line is one write, so that none are mixed."""

    def __init__(self, path: Path, process: str) -> None:
        self._process = process
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, what: str, job: str = "", attempt: int = 0, detail: str = "", *, at: float | None = None) -> None:
        """Of this moment, or of an earlier one."""
        line = [self._process, job, attempt, what, time.monotonic() if at is None else at, detail]
        os.write(self._file, json.dumps(line).encode() + b"\n")


def read(path: Path) -> Sequence[Record]:
    """What has been written so far; of a folder, in all its files, one for each process."""
    if path.is_dir():
        return sorted((one for file in path.glob("*.records") for one in read(file)), key=lambda one: one.at)
    return Reader(path).so_far()


class Reader:
    """Reads a file again and again, and of it only what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0
        self._found: list[Record] = []

    def so_far(self) -> Sequence[Record]:
        """All that has been written."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._place)
                new = file.read()
            complete = new[: new.rfind(b"\n") + 1]
            self._place += len(complete)
            self._found += [Record(*json.loads(line)) for line in complete.splitlines()]
        return self._found


@dataclass(frozen=True)
class Span:
    """One run, as long as it could do anything."""

    job: str
    attempt: int
    process: str
    start: float
    end: float


def spans(records: Iterable[Record], ended: Mapping[str, float] | None = None) -> Sequence[Span]:
    """The runs. One without an end goes on for ever; those of a process in `ended` ended then at the latest."""
    starts: dict[tuple[str, str, int], float] = {}
    ends: dict[tuple[str, str, int], float] = {}
    for record in records:
        run = (record.process, record.job, record.attempt)
        if record.what == "start":
            assert run not in starts, f"one attempt was started twice: {record}"
            starts[run] = record.at
        elif record.what == "end":
            ends[run] = record.at
    latest = ended or {}
    return [
        Span(job, attempt, process, start, min(ends.get(run, math.inf), latest.get(process, math.inf)))
        for run, start in starts.items()
        for process, job, attempt in [run]
    ]


def by_job(runs: Iterable[Span]) -> Iterator[Sequence[Span]]:
    """The runs of each job, in the order of their starts."""
    found: dict[str, list[Span]] = defaultdict(list)
    for run in runs:
        found[run.job].append(run)
    for one in found.values():
        yield sorted(one, key=lambda run: run.start)


def gaps(runs: Iterable[Span]) -> Sequence[float]:
    """From the end of each run, and of all before it, to the start of the job's next; negative where two overlap."""
    found = []
    for one in by_job(runs):
        until = -math.inf
        for earlier, later in pairwise(one):
            until = max(until, earlier.end)
            found.append(later.start - until)
    return found


def attempts_grow(runs: Iterable[Span]) -> bool:
    """Whether each later run of a job bears a greater number than all before it."""
    return all(earlier.attempt < later.attempt for one in by_job(runs) for earlier, later in pairwise(one))
