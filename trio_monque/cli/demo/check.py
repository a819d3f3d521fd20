"""The demo's check of itself, from the stored jobs and records alone, and the tables that show the result.

Pure, except that it reads the files again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Final

from ...jobs.job import Job, JobStatus
from .files import Content, RunRecord, measure
from .views import Row

A_MINUTE: Final = 60.0
MOST_PROBLEMS_SHOWN: Final = 20

_UNITS: Final = ("bytes", "kB", "MB", "GB")


@dataclass(frozen=True, slots=True)
class Problem:
    """A violation that the check found."""

    file: str
    what: str


def find_problems(files: Sequence[Path], jobs: Sequence[Job], records: Sequence[RunRecord]) -> Sequence[Problem]:
    """Find files without exactly one job that has exactly one settled run and the right digest."""
    jobs_of: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        jobs_of[job.data["path"]].append(job)
    records_of: dict[object, list[RunRecord]] = defaultdict(list)
    for record in records:
        records_of[record.job_id].append(record)
    problems = []
    for path in map(str, files):
        own = jobs_of.pop(path, [])
        if len(own) != 1:
            problems.append(Problem(path, f"has {len(own)} jobs instead of one"))
        problems.extend(Problem(path, what) for job in own for what in _problems_of(job, records_of.pop(job.id, [])))
    problems.extend(Problem(path, "has a job, but was not to have one") for path in jobs_of)
    known = {job.id for job in jobs}
    problems.extend(
        Problem(one.path, f"has a record of job {job_id}, which is not there")
        for job_id, left in records_of.items()
        if job_id not in known
        for one in left[:1]
    )
    return problems


def schedule_problems(schedules: Sequence[Job]) -> Iterator[Problem]:
    """Both schedulers declared the schedule: there must be one job of it, due at its next minute."""
    if len(schedules) != 1:
        yield Problem("the schedule", f"has {len(schedules)} jobs instead of one")
    for job in schedules:
        if job.status not in (JobStatus.PENDING, JobStatus.PROCESSING) or job.next_run_at.second:
            yield Problem("the schedule", f"is {job.status}, due at {job.next_run_at}")


def settled_record(job: Job, records: Sequence[RunRecord]) -> RunRecord | None:
    """Return the record of the run that completed the job, which is that of the last attempt."""
    if job.status is not JobStatus.COMPLETED:
        return None
    last = [record for record in records if record.attempt == job.attempts and record.content is not None]
    return last[0] if len(last) == 1 else None


def _problems_of(job: Job, records: Sequence[RunRecord]) -> Iterator[str]:
    if job.status is not JobStatus.COMPLETED:
        reason = f": {job.fail_reason}" if job.fail_reason else ""
        yield f"is {job.status} instead of completed{reason}"
        return
    yield from _problems_of_attempts(job, records)
    yield from _problems_of_times(job, records)
    settled = settled_record(job, records)
    if settled is not None and settled.content is not None:
        yield from _problems_of_content(job.data["path"], settled, settled.content)


def _problems_of_attempts(job: Job, records: Sequence[RunRecord]) -> Iterator[str]:
    digested = sorted(record.attempt for record in records if record.content is not None)
    failed = [record for record in records if record.failure is not None]
    if digested != [job.attempts]:
        attempts = ", ".join(map(str, digested)) or "none"
        yield f"has digests of the attempts: {attempts}; the one settled run was attempt {job.attempts}"
    if any(not 1 <= record.attempt < job.attempts for record in failed):
        yield f"has failures of other attempts than those before the settled one, which was {job.attempts}"
    if len(failed) != job.fail_count:
        yield f"has records of {len(failed)} failures, and its job counts {job.fail_count}"
    if job.data["fails_once"] != bool(failed):
        yield "was to fail once and did not" if job.data["fails_once"] else f"failed unplanned: {failed[0].failure}"


def _problems_of_times(job: Job, records: Sequence[RunRecord]) -> Iterator[str]:
    due = job.created_at + timedelta(seconds=job.data["delay"])
    for record in records:
        if record.claimed_at < max(due, record.due_at):
            yield f"was started (attempt {record.attempt}) before it was due"
    if job.started_at is None or job.started_at < job.next_run_at:
        yield "was settled by a run that started before it was due"


def _problems_of_content(path: str, record: RunRecord, stored: Content) -> Iterator[str]:
    if record.path != path:
        yield f"has the record of another file: {record.path}"
    try:
        found = measure(Path(path))
    except OSError as error:
        yield f"cannot be read again: {error}"
        return
    if found != stored:
        yield f"has the digest {stored.digest[:12]}..., and its content now has {found.digest[:12]}..."


# --- The tables at the end ---


def summary_rows(
    jobs: Sequence[Job], schedules: Sequence[Job], records: Sequence[RunRecord], total_seconds: float, status: int
) -> list[Row]:
    """Files, bytes, lines, retries, rates and waits, the check's result, and how long it all took."""
    by_job = defaultdict(list)
    for record in records:
        by_job[record.job_id].append(record)
    last_ones = [settled_record(job, by_job[job.id]) for job in jobs]
    settled = [record for record in last_ones if record is not None]
    contents = [record.content for record in settled if record.content is not None]
    runs = Counter(record.instance for record in settled)
    return [
        ("files", f"{len(settled):,}"),
        ("bytes", _size(sum(content.bytes for content in contents))),
        ("lines", f"{sum(content.lines for content in contents):,}"),
        ("retries", f"{sum(job.fail_count for job in jobs):,}"),
        ("delayed", f"{sum(job.data['delay'] > 0 for job in jobs):,}"),
        ("settled by", ", ".join(f"{name}: {count:,}" for name, count in sorted(runs.items())) or "none"),
        ("jobs a second", _rate(jobs)),
        ("median wait", _median_wait(jobs)),
        ("schedules", ", ".join(f"{job.name}, next at {job.next_run_at:%H:%M} UTC" for job in schedules) or "none"),
        ("check", "passed: each file has exactly one settled run and the right digest" if status == 0 else "FAILED"),
        ("time", f"{total_seconds:.1f} s in all, {'under' if total_seconds < A_MINUTE else 'more than'} a minute"),
        ("exit status", str(status)),
    ]


def problem_rows(problems: Sequence[Problem], shown: Callable[[str], str]) -> list[Row]:
    """The first problems, and how many more there are; `shown` shortens a path."""
    rows = [(shown(problem.file), problem.what) for problem in problems[:MOST_PROBLEMS_SHOWN]]
    left = len(problems) - len(rows)
    return [*rows, ("...", f"and {left:,} more")] if left else rows


def _rate(jobs: Sequence[Job]) -> str:
    ends = [job.finished_at for job in jobs if job.finished_at is not None]
    if not ends:
        return "none"
    seconds = (max(ends) - min(job.created_at for job in jobs)).total_seconds()
    return f"{len(ends) / seconds:,.0f}, from the first enqueued to the last settled" if seconds else f"{len(ends):,}"


def _median_wait(jobs: Sequence[Job]) -> str:
    waits = [(job.started_at - job.next_run_at).total_seconds() for job in jobs if job.started_at is not None]
    return f"{median(waits) * 1000:,.0f} ms from due to started" if waits else "none"


def _size(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{count:,}" if unit == 0 else f"{count:,} ({size:.1f} {_UNITS[unit]})"
