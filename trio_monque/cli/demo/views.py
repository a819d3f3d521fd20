"""What a view of the demo does, and the plain one: lines for logs, pipes and simple terminals."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

import trio

from .progress import Progress

Row = tuple[str, str]


class View(Protocol):
    """Shows the demo. Methods are called on the run's own thread, and never block for long."""

    def say(self, line: str) -> None:
        """Print one line that stays."""

    def reporting_logs(self) -> AbstractContextManager[None]:
        """Inside, the view prints log lines of the library without disturbing the display."""

    async def show(self, progress: Progress) -> None:
        """Show the progress until cancelled; the last picture stays."""

    def show_table(self, title: str, rows: Sequence[Row], *, good: bool) -> None:
        """Print a table of two columns."""


class _LineHandler(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def logs_said(say: Callable[[str], None]) -> Iterator[None]:
    """Inside, call `say` with each log line from INFO on, in the thread that logs it."""
    logger = logging.getLogger("trio_monque")
    level = logger.level
    handler = _LineHandler(say)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


LINE_INTERVAL: Final = 1.0


class PlainView:
    """Prints lines and flushes each: a reader at the other end of a pipe may wait for it."""

    def say(self, line: str) -> None:
        try:
            print(line, flush=True)
        except BrokenPipeError:
            # The reader has closed the pipe (`| head`). The demo goes on without output.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123

    def reporting_logs(self) -> AbstractContextManager[None]:
        return logs_said(self.say)

    async def show(self, progress: Progress) -> None:
        try:
            while True:
                await trio.sleep(LINE_INTERVAL)
                self.say(_line(progress))
        finally:
            self.say(_line(progress))

    def show_table(self, title: str, rows: Sequence[Row], *, good: bool) -> None:
        self.say("")
        self.say(title if good else title.upper())
        width = max(len(label) for label, _ in rows)
        for label, value in rows:
            self.say(f"  {label:<{width}}  {value}")


def _line(progress: Progress) -> str:
    counts = progress.counts
    running = "  ".join(f"{one.name}: {len(one.running)} running, {one.completed} done" for one in progress.instances)
    return (
        f"{progress.elapsed:5.1f} s  enqueued {progress.enqueued}/{progress.files}  pending {counts.pending}  "
        f"processing {counts.processing}  completed {counts.completed}  retried {progress.retried}  "
        f"failed {counts.failed}  {progress.jobs_per_second:.0f} jobs/s  {running}"
    )
