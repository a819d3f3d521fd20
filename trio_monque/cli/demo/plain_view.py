"""Lines for logs, pipes and terminals that can do nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

import trio

from .log_lines import logs_said
from .progress import Progress
from .view import Row

LINE_INTERVAL: Final = 1.0


class PlainView:
    """Prints lines, at once: a reader at the other end of a pipe may be waiting for one."""

    def say(self, line: str) -> None:
        try:
            print(line, flush=True)
        except BrokenPipeError:
            # The reader has had enough (`| head`). The demo ends as it would, in silence.
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
