"""The figures at the end, from the stored jobs and records, as rows of a table."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from ...jobs.job import Job
from .check import Problem, settled_record
from .records import RunRecord
from .views import Row

A_MINUTE: Final = 60.0
MOST_PROBLEMS_SHOWN: Final = 20

_UNITS: Final = ("bytes", "kB", "MB", "GB")


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
