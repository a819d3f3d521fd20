"""What the demo prints: lines of plain ASCII, which a terminal, a pipe and a log show alike."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from ...jobs.job import Job, JobStatus
from ...jobs.views import QueueStats
from ...safe_text import one_line

BAR_WIDTH: Final = 24
MOST_PROBLEMS_SHOWN: Final = 10


def say(line: str) -> None:
    """Print a line, and flush it: a reader at the other end of a pipe may wait for it."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`). The demo goes on without output.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


class _LineHandler(logging.Handler):
    """Not a StreamHandler, which prints a traceback if the reader has closed the pipe."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def printed_log() -> Iterator[None]:
    """Inside, print the log lines of the library from INFO on, without tracebacks."""
    logger, handler = logging.getLogger("trio_monque"), _LineHandler(logging.INFO)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def progress_line(counts: QueueStats, files: int, seconds: float) -> str:
    """Return one line about the jobs, `seconds` after the first was enqueued."""
    ended = counts.completed + counts.failed
    total = f"{files:,}"
    filled = BAR_WIDTH * ended // files
    bar = "#" * filled + "-" * (BAR_WIDTH - filled)
    return (
        f"{seconds:5.1f} s  [{bar}]  {ended:>{len(total)},} of {total} files  {counts.pending} pending  "
        f"{counts.processing} running  {ended / seconds if seconds else 0:,.0f} jobs/s"
    )


def print_summary(jobs: Sequence[Job], files: int, total_seconds: float, status: int) -> None:
    """Print what the stored jobs of the files show, and why jobs have failed."""
    results = [job.result for job in jobs if job.status is JobStatus.COMPLETED]
    times = [one for job in jobs for one in (job.created_at, job.finished_at) if one is not None]
    took = (max(times) - min(times)).total_seconds() if times else 0.0
    schedulers = Counter(result["scheduler"] for result in results)
    rows = {
        "completed": f"{len(results):,} of {files:,} files",
        "run by": ", ".join(f"{name}: {count:,}" for name, count in sorted(schedulers.items())) or "none",
        "read": f"{sum(one['lines'] for one in results):,} lines, {sum(one['bytes'] for one in results):,} bytes",
        "retries": f"{sum(job.attempts - 1 for job in jobs if job.attempts):,}",
        "delayed": f"{sum(job.data['delay'] > 0 for job in jobs):,}",
        "speed": f"{len(results) / took if took else 0:,.0f} jobs a second",
        "time": f"{total_seconds:.1f} s in all",
        "exit status": str(status),
    }
    say("")
    for label, value in rows.items():
        say(f"  {label:<11}  {value}")
    for job in [job for job in jobs if job.status is not JobStatus.COMPLETED][:MOST_PROBLEMS_SHOWN]:
        say(f"  {job.status}: {job.data['path']}: {one_line(job.fail_reason or 'without a reason')}")
